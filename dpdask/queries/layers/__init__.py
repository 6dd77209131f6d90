"""Layers: what may be computed from published numbers, and is published beside them."""

from dpdask.queries.layers.base import (
    EntrywiseLayer,
    Layer,
    PublicArray,
    Sequence,
    layer_from_dict,
    register_layer_class,
)
from dpdask.queries.layers.denoised import Denoised
from dpdask.queries.layers.entrywise import Clamped, Integer, NonNegative
from dpdask.queries.layers.masked import Masked
from dpdask.queries.layers.spectral import PositiveSemidefinite, PrincipalComponents

__all__ = [
    "Clamped",
    "Denoised",
    "EntrywiseLayer",
    "Integer",
    "Layer",
    "Masked",
    "NonNegative",
    "PositiveSemidefinite",
    "PrincipalComponents",
    "PublicArray",
    "Sequence",
    "layer_from_dict",
    "register_layer_class",
]
