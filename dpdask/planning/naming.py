"""Names of dimensions: those of the released array, and the axis that a name stands for."""

from __future__ import annotations

from dpdask.errors import InvalidInput, InvalidSpec
from dpdask.queries import Query, Sum, SummedQuery
from dpdask.spec.release import ReleaseSpec
from dpdask.types import Shape

__all__ = ["axis_of", "kept_axes", "released_axis", "released_names"]


def released_names(
    query: Query, source_names: tuple[str, ...] | None, spec: ReleaseSpec
) -> tuple[str, ...]:
    """Return the names of the released array's dimensions.

    They are those of ``publish.dimension_names``, else those of groups and bins, then those of the
    axes that remain of the source;
    the second axis of a covariance is called as the first one with ``_2``. Axes without a name are
    ``dim_0``, ``dim_1`` and so on.

    Args:
        query: What is computed.
        source_names: The names of the source's dimensions, None where it has none.
        spec: The spec of the release.
    """
    chosen = spec.publish.dimension_names
    if chosen:
        return tuple(chosen)
    order = len(query.answer_shape)
    axes = kept_axes(query)
    grouped = tuple(axis.name or _bins_of_source(spec) for axis in query.new_axes)
    if chosen is None and axes is not None and (source_names is not None or grouped):
        kept = source_names or tuple(f"dim_{axis}" for axis in range(len(query.source_shape)))
        names = [*grouped, *(kept[axis] for axis in axes)]
        if len(axes) == 2 and axes[0] == axes[1]:
            names[-1] += "_2"
        # Names of a tensor that keeps its shape are taken as they are, or refused.
        if not query.summed or len(set(names)) == len(names):
            return tuple(names)
    return tuple(f"dim_{axis}" for axis in range(order))


def _bins_of_source(spec: ReleaseSpec) -> str:
    """Return the name of the bins of a source that has one axis."""
    name = spec.source.array.strip("/").rpartition("/")[2]
    return f"{name or 'value'}_bin"


def kept_axes(query: Query) -> tuple[int, ...] | None:
    """Return which axis of the source each axis of the answer is; None where they are new ones.

    Its leading axes of groups and bins are not among them.
    """
    axes = tuple(range(len(query.source_shape)))
    if isinstance(query, SummedQuery):
        remaining = tuple(axis for axis in axes if axis != query.record_axis)
        if query.symmetric:
            axes = remaining * 2
        elif isinstance(query, Sum):
            axes = remaining
        else:
            axes = ()
    lengths = tuple(query.source_shape[axis] for axis in axes)
    return axes if lengths == query.answer_shape[len(query.new_axes) :] else None


def released_axis(query: Query, axis: int) -> int | None:
    """Return the axis of the answer that an axis of the source becomes, None where it vanishes."""
    axes = kept_axes(query)
    if axes is None or axis not in axes:
        return None
    return len(query.new_axes) + axes.index(axis)


def axis_of(
    key: str,
    dimension: int | str,
    *,
    shape: Shape,
    names: tuple[str, ...] | None,
    error: type[InvalidInput] = InvalidSpec,
) -> int:
    """Return the axis of the source that a name or an index stands for.

    Args:
        key: The key of the spec, for error texts.
        dimension: A name or an index; a negative one counts from the last axis.
        shape: The shape of the source.
        names: The names of its dimensions, None where it has none.
        error: What is raised.

    Raises:
        InvalidInput: There is no such axis, or a name stands for several.
    """
    last = len(shape) - 1
    if isinstance(dimension, int):
        if not -len(shape) <= dimension < len(shape):
            raise error(
                f"{key}={dimension} is not an axis of the source; choose one from 0 to {last}"
            )
        return dimension % len(shape)
    if names is None:
        raise error(
            f"{key}={dimension!r}: the dimensions of the source have no names; give an index"
            f" from 0 to {last}, or name all dimensions of the array"
        )
    listed = ", ".join(names)
    matches = names.count(dimension)
    if matches == 0:
        raise error(f"{key}={dimension!r} is not a dimension of the source; choose one of {listed}")
    if matches > 1:
        raise error(
            f"{key}={dimension!r} names {matches} dimensions of the source ({listed}); give an"
            f" index from 0 to {last}"
        )
    return names.index(dimension)
