"""Public masks beside the source: they must lie along dimensions of the result."""

from __future__ import annotations

from dpdask.errors import InvalidSpec, StoreError
from dpdask.planning.naming import released_axis
from dpdask.planning.plan import ReleasePlan
from dpdask.queries import Query
from dpdask.queries.layers import PublicArray
from dpdask.storage import Layout, SourceArray, open_source, plain_name

__all__ = ["open_mask", "read_public_arrays"]


def open_mask(
    name: str, source: SourceArray, query: Query, layout: Layout, *, records_are_public: bool
) -> tuple[SourceArray, tuple[int, ...]]:
    """Open a mask, cut to the window; return it with the axis of the result that each axis is.

    Args:
        name: The mask's name beside the source.
        source: The source, with its window.
        query: What is computed.
        layout: The result.
        records_are_public: Whether a mask along the records may be used.

    Raises:
        DpdaskError: There is no such array, it is private, or it does not fit the result.
    """
    label = f"publish.layers: the mask {name!r}"
    path = source.path_beside(name)
    ids = [] if query.people is None else [query.people.ids]
    beside = (source.path_beside(each).strip("/") for each in (*query.labels, *ids))
    private = {source.path, *beside}
    if not plain_name(name) or path in private:
        raise InvalidSpec(f"{label} is not a public array beside the source; name another one")
    try:
        mask = open_source(source.storage, path)
    except StoreError as error:
        raise StoreError(f"{label} cannot be opened: {error}") from None
    mask = _windowed(mask, source)
    axes = _axes(label, mask, layout)
    along = _record_dimension(mask, axes, source, query, layout)
    if along is not None and (query.summed or not records_are_public):
        way_out = "" if query.summed else ", or set publish.records_are_public: true"
        raise StoreError(
            f"{label} lies along the record dimension {along!r}, so it would tell something of"
            f" every record; drop it{way_out}"
        )
    return mask, axes


def _record_dimension(
    mask: SourceArray, axes: tuple[int, ...], source: SourceArray, query: Query, layout: Layout
) -> str | None:
    """Return the name of the records' dimension, in the result or in the source, if a mask has it.

    A summed result may call another dimension as the source calls that of its records.
    """
    if query.units_axis is None:
        return None
    released = released_axis(query, query.units_axis)
    if released is not None:
        return layout.dimension_names[released] if released in axes else None
    own = None if source.dimension_names is None else source.dimension_names[query.units_axis]
    return own if own in (mask.dimension_names or ()) else None


def read_public_arrays(plan: ReleasePlan) -> None:
    """Read the public arrays of all layers once, so that a damaged one is refused before the
    charge.

    Raises:
        StoreError: One cannot be read.
    """
    for variable in plan.variables:
        for layer in variable.component.layers:
            for array in layer.public:
                _read_once(array)


def _read_once(array: PublicArray) -> None:
    intact = True
    try:
        for piece in array.pieces(tuple(slice(0, length) for length in array.shape)):
            array.read(piece)
    except Exception:
        intact = False
    if not intact:
        raise StoreError("publish.layers: a mask cannot be read; restore it, or drop the layer")


def _windowed(mask: SourceArray, source: SourceArray) -> SourceArray:
    """Cut a mask along the dimension of the source's window, where it lies along that."""
    if source.window is None or source.dimension_names is None or mask.dimension_names is None:
        return mask
    axis, start, stop = source.window
    name, length = source.dimension_names[axis], source.stored_shape[axis]
    if name not in mask.dimension_names:
        return mask
    own = mask.dimension_names.index(name)
    return mask.windowed(own, start, stop) if mask.shape[own] == length else mask


def _axes(label: str, mask: SourceArray, layout: Layout) -> tuple[int, ...]:
    """Return which axis of the result every axis of the mask is, by name."""
    if mask.dimension_names is None and mask.shape == layout.shape:
        return tuple(range(len(layout.shape)))
    names = mask.dimension_names or ()
    axes = tuple(
        layout.dimension_names.index(name) for name in names if name in layout.dimension_names
    )
    lengths = tuple(layout.shape[axis] for axis in axes)
    if len(axes) != len(mask.shape) or lengths != mask.shape:
        raise StoreError(
            f"{label} does not lie along the result's dimensions {list(layout.dimension_names)} of"
            f" shape {layout.shape}; name its dimensions as those, or choose another mask"
        )
    return axes
