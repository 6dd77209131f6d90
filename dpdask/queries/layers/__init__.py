"""Layers: what may be computed from published numbers, and is published beside them."""

from dpdask.queries.layers.base import (
    EntrywiseLayer,
    Layer,
    Sequence,
    layer_from_dict,
    register_layer_class,
)
from dpdask.queries.layers.entrywise import Clamped, Integer, NonNegative

__all__ = [
    "Clamped",
    "EntrywiseLayer",
    "Integer",
    "Layer",
    "NonNegative",
    "Sequence",
    "layer_from_dict",
    "register_layer_class",
]
