"""From the key ``publish.layers`` of a spec to layers.

A layer takes one class, one section and one line: ``register_layer(SectionClass, builder)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from dpdask.errors import InvalidSpec
from dpdask.planning.masks import open_mask
from dpdask.planning.naming import released_axis
from dpdask.queries import Query, Ranges
from dpdask.queries.layers import (
    Clamped,
    Denoised,
    Integer,
    Layer,
    Masked,
    NonNegative,
    PositiveSemidefinite,
    PrincipalComponents,
    Sequence,
)
from dpdask.queries.layers.denoised import LEAST_ENTRIES
from dpdask.queries.layers.spectral import COMPONENT
from dpdask.spec import layers as sections
from dpdask.spec.layers import LAYERS, LayerSection
from dpdask.spec.release import ReleaseSpec
from dpdask.storage import Layout, SourceArray

__all__ = ["LayerInputs", "build_layers", "register_layer", "unregister_layer"]

MOST_SPECTRAL_FEATURES = 4096  # whose eigenvectors one task computes in minutes
MOST_WHOLE_ENTRIES = 2**25  # of an answer that a layer needs at once, in one tile

_S = TypeVar("_S", bound=LayerSection)
_Build = Callable[[LayerSection, "LayerInputs"], Layer]
_BUILDERS: dict[type[LayerSection], _Build] = {}


@dataclass(frozen=True, kw_only=True)
class LayerInputs:
    """What a layer is built from.

    Args:
        query: What is computed.
        layout: The main array.
        source: The source, with its window.
        records_are_public: Whether what lies along the records may be published.
    """

    query: Query
    layout: Layout
    source: SourceArray
    records_are_public: bool = False


def register_layer(section: type[_S], builder: Callable[[_S, LayerInputs], Layer]) -> None:
    """Add a layer: the section that specs name it by, and the function that builds it."""
    LAYERS.register(section)

    def build(content: LayerSection, inputs: LayerInputs) -> Layer:
        assert isinstance(content, section)
        return builder(content, inputs)

    _BUILDERS[section] = build


def unregister_layer(section: type[LayerSection]) -> None:
    """Remove a layer. Idempotent."""
    LAYERS.unregister(section)
    _BUILDERS.pop(section, None)


def build_layers(
    spec: ReleaseSpec, query: Query, layout: Layout, source: SourceArray
) -> tuple[Layer, ...]:
    """Return the layers of a spec, checked against the result.

    Args:
        spec: The spec of the release.
        query: What is computed.
        layout: The main array.
        source: The source, with its window.

    Raises:
        InvalidSpec: A layer does not go with the result, or two have one name.
    """
    inputs = LayerInputs(
        query=query,
        layout=layout,
        source=source,
        records_are_public=spec.publish.records_are_public,
    )
    layers = tuple(_in_order(listed, inputs) for listed in spec.publish.layers)
    _check_names(layers, query, layout)
    entries = math.prod(layout.shape)
    for layer in layers:
        if layer.whole and entries > MOST_WHOLE_ENTRIES:
            raise InvalidSpec(
                f"publish.layers: {layer.name} needs all {entries} entries of the result at once,"
                f" at most {MOST_WHOLE_ENTRIES}; drop it, and compute it from what is published"
            )
    return layers


def _in_order(listed: list[LayerSection], inputs: LayerInputs) -> Layer:
    """Return one layer, or several that are applied one after the other."""
    built = tuple(_BUILDERS[type(section)](section, inputs) for section in listed)
    return built[0] if len(built) == 1 else Sequence.of(built)


def _check_names(layers: tuple[Layer, ...], query: Query, layout: Layout) -> None:
    """Refuse two layers of one name."""
    taken = {array.suffix for array in query.arrays_beside}
    for layer in layers:
        for array in layer.arrays(layout.shape, layout.dimension_names):
            if array.suffix in taken:
                raise InvalidSpec(
                    f"publish.layers: two arrays would be {layout.name}_{array.suffix}; name every"
                    " layer once"
                )
            taken.add(array.suffix)


def _build_clamped(section: sections.ClampedSection, inputs: LayerInputs) -> Clamped:
    """Return the public ranges of the answer's entries, which follow from those of the records."""
    query = inputs.query
    bound, records = query.bound, query.records_in_entry
    if not isinstance(bound, Ranges) or records is None:
        why = (
            "its entries add up a private number of records"
            if isinstance(bound, Ranges)
            else "its bound is not ranges"
        )
        raise InvalidSpec(
            f"publish.layers: clamped needs a public range of every entry, and {why}; drop it, or"
            " release an identity or a mean with privacy_unit.ranges"
        )
    ranges = tuple((records * low, records * high) for low, high in bound.pairs)
    axis = released_axis(query, bound.feature_axis) if len(ranges) > 1 else None
    return Clamped(ranges=ranges, axis=axis)


def _build_denoised(section: sections.DenoisedSection, inputs: LayerInputs) -> Denoised:
    """Return the layer for a result of enough entries whose noise is the same for all."""
    entries = math.prod(inputs.layout.shape)
    if entries < LEAST_ENTRIES or inputs.query.noise_varies:
        why = (
            "the noise of this result is stated entry by entry"
            if inputs.query.noise_varies
            else f"a result of {entries} entries gains nothing"
        )
        raise InvalidSpec(
            f"publish.layers: denoised moves {LEAST_ENTRIES} or more entries of equal noise towards"
            f" their mean, and {why}; drop it"
        )
    return Denoised()


def _build_masked(section: sections.MaskedSection, inputs: LayerInputs) -> Masked:
    """Return the mask with the axes of the answer along which it lies."""
    mask, axes = open_mask(
        section.mask,
        inputs.source,
        inputs.query,
        inputs.layout,
        records_are_public=inputs.records_are_public,
    )
    return Masked(mask=section.mask, axes=axes, array=mask)


def _build_psd(
    section: sections.PositiveSemidefiniteSection, inputs: LayerInputs
) -> PositiveSemidefinite:
    """Return the layer, for a matrix that is symmetric and not too large."""
    _check_spectral(section.name, inputs)
    return PositiveSemidefinite()


def _build_pca(
    section: sections.PrincipalComponentsSection, inputs: LayerInputs
) -> PrincipalComponents:
    """Return the layer with as many components as asked for, at most one per feature."""
    _check_spectral(section.name, inputs)
    features = inputs.layout.shape[0]
    components = section.components or features
    if components > features:
        raise InvalidSpec(
            f"publish.layers: pca has {components} components of {features} features; choose at"
            f" most {features}"
        )
    if COMPONENT in inputs.layout.dimension_names:
        raise InvalidSpec(
            f"publish.layers: pca adds the dimension {COMPONENT!r}, which the result has already;"
            " rename that by publish.dimension_names"
        )
    return PrincipalComponents(components=components)


def _check_spectral(name: str, inputs: LayerInputs) -> None:
    """Refuse eigenvectors of what is not a covariance, or is too large for one task."""
    if not inputs.query.symmetric:
        raise InvalidSpec(
            f"publish.layers: {name} is computed from a covariance or second moment, not from query"
            f" {inputs.query.spec_name}; drop it, or release one of them"
        )
    features = inputs.layout.shape[0]
    if features > MOST_SPECTRAL_FEATURES:
        raise InvalidSpec(
            f"publish.layers: {name} takes at most {MOST_SPECTRAL_FEATURES} features, and the"
            f" result has {features}; drop it, and compute it from what is published"
        )


register_layer(sections.NonNegativeSection, lambda section, inputs: NonNegative())
register_layer(sections.IntegerSection, lambda section, inputs: Integer())
register_layer(sections.ClampedSection, _build_clamped)
register_layer(sections.DenoisedSection, _build_denoised)
register_layer(sections.MaskedSection, _build_masked)
register_layer(sections.PositiveSemidefiniteSection, _build_psd)
register_layer(sections.PrincipalComponentsSection, _build_pca)
