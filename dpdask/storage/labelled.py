"""A source with arrays of one entry per record beside it: labels, and numbers that are counted."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from dpdask.storage.labels import Group, LabelArray, open_labels
from dpdask.storage.source import SourceArray
from dpdask.types import Floats, Integers

__all__ = ["LabelledSource", "with_labels"]


@dataclass(frozen=True, repr=False)
class LabelledSource(SourceArray):
    """A source, and the arrays of one entry per record that a query reads with it, by name.

    Args:
        labels: The arrays, by name.
        ids: The array that says whose every record is; None where nothing does.
    """

    labels: tuple[tuple[str, LabelArray], ...] = ()
    ids: LabelArray | None = None

    def codes(self, name: str, records: slice, groups: tuple[Group, ...]) -> Integers:
        """Return the position of every record's label in ``groups``, -1 where it is not there."""
        return dict(self.labels)[name].codes(records, groups)

    def numbers(self, name: str, records: slice) -> Floats:
        """Return an array of one number per record, NaN where one is missing."""
        return dict(self.labels)[name].values(records)

    @property
    def stored_bytes(self) -> int:
        """The size of the source and of every array beside it, uncompressed."""
        return super().stored_bytes + self._labels_stored

    @property
    def _labels_stored(self) -> int:
        return sum(labels.length * labels.entry_bytes for labels in self._beside)

    @property
    def _beside(self) -> list[LabelArray]:
        """All arrays of one entry per record."""
        ids = [] if self.ids is None else [self.ids]
        return [*(labels for _, labels in self.labels), *ids]

    def check_labels(self, records: slice) -> None:
        """Read the labels of some records; refuse those that cannot be read."""
        for _, labels in self.labels:
            labels.stored(records)

    @property
    def label_digests(self) -> tuple[str, ...]:
        """Digests of where labels of the records are."""
        return tuple(labels.address_digest for labels in self._beside)

    @property
    def label_entry_bytes(self) -> int:
        """The bytes of one record's labels."""
        return sum(labels.entry_bytes for _, labels in self.labels)

    def label_bytes(self, records: int) -> int:
        """Return what reading the labels of so many records takes at most, one array at a time."""
        return max((labels.reading_bytes(records) for _, labels in self.labels), default=0)

    def identity(self) -> str:
        """Return a digest of the source and of every label array."""
        return self._with_labels(super().identity())

    def _with_labels(self, identity: str) -> str:
        digest = hashlib.sha256(identity.encode())
        for labels in self._beside:
            digest.update(labels.identity().encode())
        return digest.hexdigest()

    def labelled(
        self, labels: tuple[tuple[str, LabelArray], ...], ids: LabelArray | None
    ) -> LabelledSource:
        """Return the same source with these arrays beside it."""
        return dataclasses.replace(self, labels=labels, ids=ids)


def with_labels(
    source: SourceArray,
    wanted: Mapping[str, tuple[Group, ...] | None],
    *,
    axis: int,
    keys: Mapping[str, str],
    decode: bool = True,
    ids: str | None = None,
) -> LabelledSource:
    """Return a source with the arrays of one entry per record that lie beside it.

    Args:
        source: The source, of a window if there is one.
        wanted: The public groups of every array by its name, None where it holds numbers.
        axis: The record axis of the source.
        keys: Where every array is named in the spec, for error texts.
        decode: Whether numbers are decoded by their attributes, or read as they are stored.
        ids: The array that says whose every record is.

    Raises:
        StoreError: An array is missing, does not fit the records, or is not of the kind that is
            wanted.
    """
    window = source.window if source.window is not None and source.window[0] == axis else None
    length = source.shape[axis] if window is None else source.stored_shape[axis]
    names = source.dimension_names

    def opened(name: str, key: str) -> LabelArray:
        return open_labels(
            source.storage,
            source.path_beside(name),
            length=length,
            key=key,
            decode=decode,
            dimension=None if names is None else names[axis],
        )

    def windowed(array: LabelArray) -> LabelArray:
        return array if window is None else array.windowed(window[1], window[2])

    labels = []
    for name, groups in wanted.items():
        key = keys[name]
        array = opened(name, key)
        if groups is None:
            array.check_numbers(key=key)
        else:
            array.check_groups(groups, key=f"{key}: {name!r}")
        labels.append((name, windowed(array)))
    if not isinstance(source, LabelledSource):
        fields = {field.name: getattr(source, field.name) for field in dataclasses.fields(source)}
        source = LabelledSource(**fields)
    units = None if ids is None else windowed(opened(ids, "privacy_unit.ids"))
    return source.labelled(tuple(labels), units)
