"""A source whose cells along one public axis are added up before anything else: days to months.

Every record then has one entry per group of cells; bounds are those of these coarser records.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from dataclasses import dataclass

import numpy as np

from dpdask.errors import StoreError
from dpdask.storage.beside import coordinate_beside, coordinate_schema
from dpdask.storage.cf import holds_times
from dpdask.storage.labelled import LabelledSource
from dpdask.storage.labels import Group
from dpdask.storage.regions import chunks_within
from dpdask.storage.source import SourceArray
from dpdask.types import Array, Region, Shape

__all__ = ["CoarsenedSource", "coarsened_by", "grouped_by"]


@dataclass(frozen=True, repr=False, kw_only=True)
class CoarsenedSource(LabelledSource):
    """A source, its entries along one axis added up by group.

    Args:
        fine: the source as it is stored.
        coarse_axis: the axis along which entries are added up.
        groups: the group of every index along it.
        cell_labels: what the groups are called, empty where they are numbered.
    """

    fine: SourceArray
    coarse_axis: int
    groups: tuple[int, ...]
    cell_labels: tuple[Group, ...] = ()

    @property
    def working_dtype(self) -> np.dtype[np.generic]:
        """Doubles: what entries are added up in."""
        return np.dtype(np.float64)

    @property
    def entry_bytes(self) -> int:
        """The bytes of all entries that are added up to one, on average."""
        per_cell = -(-len(self.groups) // self.shape[self.coarse_axis])
        return max(8, per_cell * self.fine.entry_bytes)

    @property
    def declares_missing(self) -> bool:
        """Whether attributes of the stored array declare values missing."""
        return self.fine.declares_missing

    @property
    def may_miss_values(self) -> bool:
        """Whether a stored value may be missing; a sum of none is missing, too."""
        return self.fine.may_miss_values

    @property
    def stored_bytes(self) -> int:
        """The size of the stored array and of every array beside it, uncompressed."""
        return self.fine.stored_bytes + self._labels_stored

    @property
    def stored_shape(self) -> Shape:
        """The shape of the stored array, added up."""
        shape = list(self.fine.stored_shape)
        shape[self.coarse_axis] = self.shape[self.coarse_axis]
        return tuple(shape)

    def describe_decoding(self) -> str:
        """Return how stored numbers are read, for the plan."""
        cells = self.shape[self.coarse_axis]
        return (
            f"{self.fine.describe_decoding()}; {len(self.groups)} entries along axis"
            f" {self.coarse_axis} added up to {cells}"
        )

    def decoding_bytes(self, extent: Shape) -> int:
        """Return what reading takes beyond the sums: the stored entries, and which are present."""
        fine = self._fine_extent(extent)
        entries = math.prod(fine) * self.fine.working_dtype.itemsize
        return entries + self.fine.decoding_bytes(fine) + 3 * 8 * math.prod(extent)

    def _fine_extent(self, extent: Shape) -> Shape:
        longest = min(len(self.groups), extent[self.coarse_axis] * self._longest_span)
        return tuple(
            longest if axis == self.coarse_axis else size for axis, size in enumerate(extent)
        )

    @property
    def _longest_span(self) -> int:
        """How many stored entries lie between the first and the last one of a group, at most."""
        places = np.asarray(self.groups)
        count = self.shape[self.coarse_axis]
        first, last = np.full(count, len(places)), np.zeros(count, np.int64)
        np.minimum.at(first, places, np.arange(len(places)))
        np.maximum.at(last, places, np.arange(len(places)))
        return int(np.max(last - first)) + 1

    @property
    def coarse_cells(self) -> tuple[int, tuple[Group, ...]]:
        """The axis along which entries are added up, and the labels of the groups."""
        return self.coarse_axis, self.cell_labels

    def check_sizes(self) -> None:
        """Check the chunks of the stored array."""
        self.fine.check_sizes()

    def identity(self) -> str:
        """Return a digest of the stored array, of the groups, and of every label array."""
        groups = repr((self.coarse_axis, self.groups, self.cell_labels))
        own = hashlib.sha256(f"{self.fine.identity()} {groups}".encode()).hexdigest()
        return self._with_labels(own) if self._beside else own

    def windowed(self, axis: int, start: int, stop: int) -> SourceArray:
        """Refuse: a window is cut before entries are added up."""
        raise StoreError("source.window: a coarsened source is cut before it is added up")

    def read(self, region: Region, scratch: object = None) -> Array:
        """Return sums of entries; a missing entry adds nothing, and a sum of none is missing.

        Entries are added one after the other, so that no bit depends on what is read at once.
        """
        axis, part = self.coarse_axis, region[self.coarse_axis]
        places = np.asarray(self.groups)
        wanted = np.flatnonzero((places >= part.start) & (places < part.stop))
        extent = tuple(each.stop - each.start for each in region)
        total = np.zeros((extent[axis], *extent[:axis], *extent[axis + 1 :]))
        present = np.zeros(total.shape, bool)
        first, last = int(wanted[0]), int(wanted[-1]) + 1
        stored = self.fine.read((*region[:axis], slice(first, last), *region[axis + 1 :]))
        entries = np.moveaxis(stored, axis, 0)
        with np.errstate(all="ignore"):  # no value may be told from another by a warning
            for place in wanted:
                cell, entry = places[place] - part.start, entries[place - first]
                there = ~np.isnan(entry) if entry.dtype.kind == "f" else np.True_
                total[cell] += np.where(there, entry, 0)
                present[cell] |= there
        total[~present] = np.nan
        return np.ascontiguousarray(np.moveaxis(total, 0, axis))


def _coarsened(
    source: SourceArray,
    axis: int,
    groups: tuple[int, ...],
    *,
    labels: tuple[Group, ...] = (),
    name: str | None = None,
) -> CoarsenedSource:
    """Return a source, its entries along an axis added up by group."""
    if source.window is not None and source.window[0] == axis:
        raise StoreError(
            "source.window and source.coarsen lie along the same dimension; choose the window along"
            " another one, or store what is to be coarsened on its own"
        )
    count = max(groups) + 1
    shape = (*source.shape[:axis], count, *source.shape[axis + 1 :])
    in_order = all(left <= right for left, right in itertools.pairwise(groups))
    share = source.chunks[axis] * count // len(groups) if in_order else count
    chunks = (*source.chunks[:axis], max(1, share), *source.chunks[axis + 1 :])
    names = source.dimension_names
    if names is not None and name is not None:
        names = (*names[:axis], name, *names[axis + 1 :])
    return CoarsenedSource(
        storage=source.storage,
        path=source.path,
        shape=shape,
        chunks=chunks_within(chunks, shape),
        dtype="<f8",
        dimension_names=names,
        metadata_digest=source.metadata_digest,
        plain=False,
        window=source.window,
        fine=source,
        coarse_axis=axis,
        groups=groups,
        cell_labels=labels,
    )


def coarsened_by(source: SourceArray, axis: int, count: int) -> CoarsenedSource:
    """Return a source, every ``count`` consecutive entries along an axis added up.

    Raises:
        StoreError: The length of the axis is not a multiple of ``count``.
    """
    length = source.shape[axis]
    if length % count:
        raise StoreError(
            f"source.coarsen.by={count} does not divide axis {axis} of length {length}; choose a"
            " divisor, or name an array of groups"
        )
    return _coarsened(source, axis, tuple(place // count for place in range(length)))


def grouped_by(source: SourceArray, axis: int, name: str) -> CoarsenedSource:
    """Return a source, its entries along an axis added up by a public array of labels beside it.

    Args:
        source: the source.
        axis: the axis.
        name: the array: one whole number or text for each index along the axis. It is published.

    Raises:
        StoreError: There is no such array, or it does not fit the axis.
    """
    schema = coordinate_schema(source, name)
    length = source.shape[axis]
    if tuple(schema.shape) != (length,):
        raise StoreError(
            f"source.coarsen.array: {name!r} does not have one label for each of the {length}"
            f" entries along axis {axis}; name an array that has"
        )
    names = source.dimension_names or ()
    [dimension] = schema.dimensions
    if dimension in names and dimension != names[axis]:  # of records, perhaps: never published
        raise StoreError(
            f"source.coarsen.array: {name!r} lies along {dimension!r}, not along {names[axis]!r};"
            " name an array along the dimension that is coarsened"
        )
    _, values, _, attributes = coordinate_beside(source, name, [name])
    labels = np.asarray(values)
    if labels.dtype.kind not in "iuUST" or holds_times(attributes):
        raise StoreError(
            f"source.coarsen.array: {name!r} holds neither whole numbers nor text"
            f" ({labels.dtype}); store labels such as the month, and name that array"
        )
    if labels.dtype.kind == "S":
        labels = np.char.decode(labels, "utf-8", "replace")
    distinct, places = np.unique(labels, return_inverse=True)
    return _coarsened(
        source,
        axis,
        tuple(int(place) for place in places.ravel()),
        labels=tuple(distinct.tolist()),
        name=name,
    )
