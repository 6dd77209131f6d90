"""A centre that is an array of one record's shape: an earlier release, or declared public."""

from __future__ import annotations

import json
import math

import numpy as np

from dpdask.errors import InvalidSensitivity
from dpdask.queries import Center
from dpdask.spec.release import CenterSection
from dpdask.storage import ROOT, Storage, open_source, open_storage
from dpdask.types import Shape

__all__ = ["read_center"]

_MOST_ENTRIES = 2**22  # every task carries it


def read_center(section: CenterSection, *, shape: Shape, record_axis: int) -> Center:
    """Return the centre that an array holds. Its values are public, so planning may read them.

    Args:
        section: The array.
        shape: The shape of the source.
        record_axis: The axis of the source along which records lie.

    Raises:
        InvalidSensitivity: It is not public, or does not fit the source.
    """
    storage = open_storage(section.url, section.options)
    if not section.public and not _is_release(storage):
        raise InvalidSensitivity(
            f"privacy_unit.center: {section.url!r} is not a release of dpdask, and a centre is"
            " published; name a release, or set public: true in center if it holds nothing private"
        )
    array = open_source(storage, section.array)
    record = tuple(size for axis, size in enumerate(shape) if axis != record_axis)
    if array.shape != record:
        raise InvalidSensitivity(
            f"privacy_unit.center: {section.array!r} has the shape {list(array.shape)}, and one"
            f" record {list(record)}; give an array of one record's shape"
        )
    if math.prod(record) > _MOST_ENTRIES:
        raise InvalidSensitivity(
            f"privacy_unit.center: {section.array!r} has more than {_MOST_ENTRIES} entries, which"
            " tasks would have to carry; give a number, or release parts of the source"
        )
    values = array.read(tuple(slice(0, size) for size in record)).astype(np.float64)
    if not np.all(np.isfinite(values)):
        raise InvalidSensitivity(
            f"privacy_unit.center: {section.array!r} is not finite everywhere; fill what is missing"
        )
    return Center(np.expand_dims(values, record_axis))


def _is_release(storage: Storage) -> bool:
    """Return whether a group has a release card."""
    try:
        attributes = json.loads(storage.read(ROOT) or b"{}").get("attributes", {})
        return "release_id" in attributes["dp"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return False
