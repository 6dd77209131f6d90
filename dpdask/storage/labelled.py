"""A source with labels beside it: one label per record, by which records are grouped."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from dpdask.storage.labels import Group, LabelArray, open_labels
from dpdask.storage.source import SourceArray
from dpdask.types import Integers

__all__ = ["LabelledSource", "with_labels"]


@dataclass(frozen=True, repr=False)
class LabelledSource(SourceArray):
    """A source, and the label arrays that a query reads with it, by name."""

    labels: tuple[tuple[str, LabelArray], ...] = ()

    def codes(self, name: str, records: slice, groups: tuple[Group, ...]) -> Integers:
        """Return the position of every record's label in ``groups``, -1 where it is not there."""
        return dict(self.labels)[name].codes(records, groups)

    def identity(self) -> str:
        """Return a digest of the source and of every label array."""
        digest = hashlib.sha256(super().identity().encode())
        for _, labels in self.labels:
            digest.update(labels.identity().encode())
        return digest.hexdigest()


def with_labels(
    source: SourceArray, groups: Mapping[str, tuple[Group, ...]], *, axis: int
) -> LabelledSource:
    """Return a source with the arrays of labels that lie beside it.

    Args:
        source: The source, of a window if there is one.
        groups: The public groups of every array of labels, by its name.
        axis: The record axis of the source.

    Raises:
        StoreError: An array is missing, does not fit the records, or its labels are not of the
            kind of the groups.
    """
    window = source.window if source.window is not None and source.window[0] == axis else None
    length = source.shape[axis] if window is None else source.stored_shape[axis]
    labels = []
    for name, wanted in groups.items():
        key = f"query.by: {name!r}"
        array = open_labels(source.storage, source.path_beside(name), length=length, key=key)
        array.check_groups(wanted, key=key)
        labels.append((name, array if window is None else array.windowed(window[1], window[2])))
    fields = {field.name: getattr(source, field.name) for field in dataclasses.fields(source)}
    return LabelledSource(**fields, labels=tuple(labels))
