"""Windows along a dimension where every privacy unit has one index: ``privacy_unit.per``.

Releases of disjoint windows along it protect disjoint units, and the ledger charges the largest
instead of the sum. That a unit stays at its index is what the spec declares; what would make it
untrue by construction is refused here.
"""

from __future__ import annotations

from dpdask.errors import InvalidSensitivity
from dpdask.ledger import Block
from dpdask.planning.naming import axis_of
from dpdask.privacy import Adjacency
from dpdask.queries import Query
from dpdask.spec.release import ReleaseSpec
from dpdask.storage import SourceArray

__all__ = ["block_of", "check_per", "dimension_text", "one_index_axis", "unit_slice"]


def one_index_axis(spec: ReleaseSpec, source: SourceArray) -> int | None:
    """Return the axis along which the spec gives every privacy unit one index, None for no axis."""
    per = spec.privacy_unit.per
    if per is None:
        return None
    key, names = "privacy_unit.per", source.dimension_names
    return axis_of(key, per, shape=source.shape, names=names)


def check_per(spec: ReleaseSpec, source: SourceArray, query: Query) -> None:
    """Refuse a privacy unit that may have several indices along ``privacy_unit.per``."""
    axis = one_index_axis(spec, source)
    if axis is None:
        return
    name = dimension_text(source, axis)
    if query.sensitivity.adjacency is not Adjacency.REPLACE_ONE:
        raise InvalidSensitivity(
            f"privacy_unit.per: {name} gives every unit an index that stays, and under"
            " add-remove-one indices shift; use privacy_unit.adjacency: replace-one, or drop it"
        )
    if axis == query.units_axis and query.max_contributions > 1:
        raise InvalidSensitivity(
            f"privacy_unit.per: {name} gives every unit one index, and a unit of up to"
            f" {query.max_contributions} records may have as many; drop it, so that windows add up"
        )
    if axis == 0 and spec.composition.steps > 1:
        raise InvalidSensitivity(
            f"privacy_unit.per: {name} gives every unit one index, and composition.steps says that"
            " a unit may be in every step; drop it, so that windows add up"
        )
    if axis != query.units_axis and query.labels:
        raise InvalidSensitivity(
            f"privacy_unit.per: {name} protects one {name} of a record, and groups read a label of"
            " the whole record; drop it, so that windows add up, or drop the groups"
        )


def block_of(spec: ReleaseSpec, source: SourceArray) -> Block | None:
    """Return the window, by the indices of the whole source, if it lies along that axis."""
    axis, window = one_index_axis(spec, source), spec.source.window
    if axis is None or window is None or source.window is None or source.window[0] != axis:
        return None
    return Block(axis, window.start, window.stop)


def unit_slice(spec: ReleaseSpec, source: SourceArray, query: Query) -> str | None:
    """Return the dimension of which a unit is one index within a record, None for whole records."""
    axis = one_index_axis(spec, source)
    return None if axis in (None, query.units_axis) else dimension_text(source, axis or 0)


def dimension_text(source: SourceArray, axis: int) -> str:
    """Return the name of a dimension, or which axis it is."""
    names = source.dimension_names
    return f"axis {axis}" if names is None else names[axis]
