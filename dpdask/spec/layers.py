"""The ``publish.layers`` of a release spec: one section class for each layer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from dpdask.spec.fields import Positive
from dpdask.spec.registry import NamedSection, SectionRegistry

__all__ = [
    "LAYERS",
    "ClampedSection",
    "DenoisedSection",
    "IntegerSection",
    "Layer",
    "LayerSection",
    "Layers",
    "MaskedSection",
    "NonNegativeSection",
    "PositiveSemidefiniteSection",
    "PrincipalComponentsSection",
]


class LayerSection(NamedSection):
    """The base of every section under ``publish.layers``."""


LAYERS = SectionRegistry("layer", LayerSection)

Layer = Annotated[LayerSection, LAYERS]
"""The type of one layer: its name, or a mapping with its options."""


def _as_list(value: object) -> object:
    return value if isinstance(value, list) else [value]


_InOrder = Annotated[
    list[Layer],
    Field(min_length=1),
    BeforeValidator(_as_list, json_schema_input_type=Layer | list[Layer]),
]

Layers = list[_InOrder]
"""The type of a spec's key ``publish.layers``; a list within it is applied in order."""


@LAYERS.register
class NonNegativeSection(LayerSection):
    """``non-negative``: entries below zero are zero."""

    name: Literal["non-negative"]


@LAYERS.register
class IntegerSection(LayerSection):
    """``integer``: entries rounded to whole numbers."""

    name: Literal["integer"]


@LAYERS.register
class ClampedSection(LayerSection):
    """``clamped``: entries within the public range that follows from ``privacy_unit.ranges``."""

    name: Literal["clamped"]


@LAYERS.register
class DenoisedSection(LayerSection):
    """``denoised``: entries moved towards their mean, with an estimate of their error."""

    name: Literal["denoised"]


@LAYERS.register
class MaskedSection(LayerSection):
    """``masked``: entries where a public mask is true, NaN elsewhere.

    Args:
        name: The name of the layer.
        mask: An array beside the source, along dimensions of the result; naming it declares it
            public.
    """

    name: Literal["masked"]
    mask: Annotated[str, Field(min_length=1)]


@LAYERS.register
class PositiveSemidefiniteSection(LayerSection):
    """``psd``: the positive semi-definite matrix nearest to a covariance or second moment."""

    name: Literal["psd"]


@LAYERS.register
class PrincipalComponentsSection(LayerSection):
    """``pca``: eigenvectors and eigenvalues of a covariance or second moment.

    Args:
        name: The name of the layer.
        components: How many, those of the largest eigenvalues; all where left out.
    """

    name: Literal["pca"]
    components: Positive | None = None
