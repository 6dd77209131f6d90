"""Label arrays: one label per record, as numbers or text, by which records are grouped.

Nothing here logs a label or raises with one in the text; any label is read without an error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from dpdask.errors import StorageFault, StoreError
from dpdask.storage.base import Storage
from dpdask.storage.cf import Decoding, holds_times, read_decoding
from dpdask.storage.coordinates import dimension_names
from dpdask.storage.label_positions import number_positions, text_positions
from dpdask.storage.object_faults import raise_if_unavailable
from dpdask.storage.opened import (
    address_digest,
    content_identity,
    opened_array,
    schema_digest,
    window_objects,
)
from dpdask.storage.opening import arrays_beside
from dpdask.storage.zarr_types import ZarrArray, metadata_of, open_zarr_array
from dpdask.types import Array, Floats, Integers, Mask

__all__ = ["Group", "LabelArray", "open_labels"]

Group: TypeAlias = int | str
"""A public label that records are grouped by."""

_TEXT_KINDS = "USTO"
_VARIABLE_TEXT_BYTES = 32  # of a short string; three times that while it is decoded
_COMPARING_BYTES = 41  # of a label: its number, offsets and positions in int64, and a mask


@dataclass(frozen=True, repr=False)
class LabelArray:
    """An opened array of one label per record.

    Args:
        storage: where the hierarchy is.
        path: the array's path in it.
        length: how many labels there are, of the window if there is one.
        dtype: the kind and size of stored labels, such as ``<i4``; ``T`` and ``O`` for text of any
            length.
        metadata_digest: a digest of the schema.
        decoding: how stored numbers become labels, None where they are the labels.
        missing_text: text that stands for a missing label.
        window: start and stop of the part that is read, None for all.
    """

    storage: Storage
    path: str
    length: int
    dtype: str
    metadata_digest: str
    decoding: Decoding | None
    missing_text: tuple[str, ...] = ()
    window: tuple[int, int] | None = None

    def __repr__(self) -> str:
        return "<LabelArray>"

    @property
    def is_text(self) -> bool:
        """Whether labels are text; else they are numbers."""
        return self.dtype.lstrip("<>|=")[0] in _TEXT_KINDS

    @property
    def is_boolean(self) -> bool:
        """Whether labels are yes or no, stored as booleans or as xarray stores them."""
        by_attribute = self.decoding is not None and self.decoding.boolean
        return self.dtype == "|b1" or by_attribute

    @property
    def may_miss_values(self) -> bool:
        """Whether a label may be missing: NaN, or declared so by attributes."""
        declared = self.decoding is not None and self.decoding.declares_missing
        return declared or bool(self.missing_text) or np.dtype(self.dtype).kind == "f"

    @property
    def address_digest(self) -> str:
        """A digest of where the array is, the same for all windows of it."""
        return address_digest(self.storage, self.path)

    @property
    def chunk(self) -> int:
        """How many labels are read at once: a shard, else a chunk."""
        array = self._array()
        return int((array.shards or array.chunks)[0])

    @property
    def entry_bytes(self) -> int:
        """The bytes of one label as it is stored; about, for text of any length."""
        kind = self.dtype.lstrip("<>|=")[0]
        return _VARIABLE_TEXT_BYTES if kind in "TO" else np.dtype(self.dtype).itemsize

    def reading_bytes(self, records: int) -> int:
        """Return what reading so many labels, and comparing them with groups, takes at most.

        These are the labels, copies of them and their positions; and the chunks that are decoded
        at once, stored and decoded, with half as much again for the allocator.
        """
        import zarr

        touched = -(-records // self.chunk) + 1
        chunks = min(touched, -(-self.length // self.chunk) + 1)
        at_once = min(chunks, int(zarr.config.get("async.concurrency")))
        decoding = 3 * at_once * self.chunk * self.entry_bytes
        return records * (2 * self.entry_bytes + _COMPARING_BYTES) + decoding

    def describe(self) -> str:
        """Return how labels are read, for a plan; never for what is published."""
        if self.is_text:
            return "text"
        if self.decoding is not None:
            return self.decoding.describe()
        return f"{np.dtype(self.dtype).name} as stored"

    def identity(self) -> str:
        """Return a digest of the schema and of every object's size and stamp.

        It changes whenever something is written.
        """
        wanted = None
        if self.window is not None and not self.storage.is_archive:
            wanted = window_objects(self._array(), self.path, (0, *self.window))
        return content_identity(
            self.storage, self.path, self.metadata_digest, wanted, "an array of labels"
        )

    def windowed(self, start: int, stop: int) -> LabelArray:
        """Return the same labels, restricted to some records.

        Writes to chunks that hold nothing of the window do not change its identity.
        """
        if not 0 <= start < stop <= self.length:
            raise StoreError(
                f"source.window: {start} to {stop} is not a valid part of the labels; choose"
                " another"
            )
        first = 0 if self.window is None else self.window[0]
        window = (first + start, first + stop)
        document = {
            **metadata_of(self._array()),
            "shape": [],
            "attributes": {},
            "window": window,
            "decoding": None if self.decoding is None else self.decoding.to_dict(),
            "missing_text": self.missing_text,
        }
        digest = schema_digest(document)
        return dataclasses.replace(self, length=stop - start, window=window, metadata_digest=digest)

    def check_groups(self, groups: Sequence[Group], *, key: str) -> None:
        """Refuse groups that no label of this array can be compared with.

        Args:
            groups: the public list.
            key: where it stands in the spec.

        Raises:
            StoreError: the list is empty, holds a group twice, or groups of the wrong kind.
        """
        if not groups:
            raise StoreError(f"{key}: an empty list of groups has no answer; list one or more")
        for group in groups:
            if isinstance(group, str) != self.is_text:
                held, wanted = ("text", "quote it") if self.is_text else ("numbers", "write those")
                raise StoreError(f"{key}: {group!r} is not a valid group of {held}; {wanted}")
            if isinstance(group, bool) and not self.is_boolean:
                raise StoreError(f"{key}: {group!r} is not a valid group of numbers; write those")
            if not isinstance(group, int | str):
                raise StoreError(f"{key}: {group!r} is not a valid whole number; write one")
            if isinstance(group, str) and not group.isascii() and not _is_unicode(group):
                raise StoreError(f"{key}: {group!r} is not a valid Unicode text; correct it")
        repeated = [group for place, group in enumerate(groups) if group in groups[:place]]
        if repeated:
            raise StoreError(f"{key}: {repeated[0]!r} is listed twice; drop one")

    def check_numbers(self, *, key: str) -> None:
        """Refuse text, which has no edges.

        Raises:
            StoreError: labels are text.
        """
        if self.is_text:
            raise StoreError(
                f"{key}: {self.path!r} holds text, which has no edges; list its categories:"
                " {values: [..]}"
            )

    def codes(self, records: slice, groups: tuple[Group, ...]) -> Integers:
        """Return the position of each record's label in ``groups``, -1 for missing or not listed.

        Args:
            records: which records, of the window if there is one.
            groups: the public list, as :meth:`check_groups` accepts it.

        Raises:
            StoreError: the labels cannot be read.
        """
        stored = self.stored(records)
        if self.is_text:
            texts = [str(group) for group in groups]
            codes = text_positions(stored, texts)
            absent = [texts.index(text) for text in self.missing_text if text in texts]
            return np.where(np.isin(codes, absent), -1, codes) if absent else codes
        numbers = [int(group) for group in groups]
        if self.decoding is None:
            return number_positions(stored, numbers)
        if not self.decoding.to_floats:
            return number_positions(self.decoding.converted(stored), numbers)
        values = self._decoded(self.decoding, stored)
        if self.decoding.packed or stored.dtype.kind == "f":
            return number_positions(values, numbers)
        # whole numbers of 64 bits are compared as they are, not as the nearest doubles
        codes = number_positions(stored.view(np.dtype(self.decoding.codes)), numbers)
        codes[np.isnan(values)] = -1
        return codes

    def values(self, records: slice) -> Floats:
        """Return numeric labels as numbers, NaN where missing.

        Raises:
            StoreError: the labels are text, or cannot be read.
        """
        if self.is_text:
            raise StoreError("labels that are text have no numbers; choose an array of numbers")
        stored = self.stored(records)
        if self.decoding is None:
            return stored.astype(np.float64)
        if not self.decoding.to_floats:
            return self.decoding.converted(stored).astype(np.float64)
        return self._decoded(self.decoding, stored).astype(np.float64)

    def missing(self, stored: Array) -> Mask:
        """Return which of some stored numbers are missing."""
        if self.decoding is not None and self.decoding.to_floats:
            return np.isnan(self._decoded(self.decoding, stored))
        return np.isnan(stored) if stored.dtype.kind == "f" else np.zeros(stored.shape, bool)

    def _decoded(self, decoding: Decoding, stored: Array) -> Array:
        out = np.empty(stored.shape, decoding.dtype)
        return decoding.apply(stored.view(np.dtype(decoding.codes)), out)

    def _array(self) -> ZarrArray:
        return opened_array(self.storage, self.path, self.metadata_digest)

    def stored(self, records: slice) -> Array:
        """Return labels as they are stored; numbers in native order."""
        first = 0 if self.window is None else self.window[0]
        region = (slice(records.start + first, records.stop + first),)
        try:
            stored = np.asarray(self._array()[region])
            if stored.dtype.kind in "biuf":
                stored = stored.astype(stored.dtype.newbyteorder("="), copy=False)
            return np.ascontiguousarray(stored)
        except MemoryError:
            raise
        except Exception as error:
            raise_if_unavailable(error)
        raise StorageFault(
            f"labels cannot be read or decoded near index {records.start}; restore them from a copy"
        )


def open_labels(
    storage: Storage,
    path: str,
    *,
    length: int | None,
    key: str,
    decode: bool = True,
    dimension: str | None = None,
) -> LabelArray:
    """Read the schema of an array of labels, but no label; refuse what records cannot have.

    Args:
        storage: where the hierarchy is.
        path: the array's path in it.
        length: the number of records; None takes any.
        key: where the array is named in the spec, for error texts.
        decode: whether numbers are decoded by their attributes, or read as they are stored.
        dimension: what the source calls the dimension of its records; None where it has no name.

    Raises:
        StoreError: there is no such array, or it does not hold one label per record.
    """
    path = path.strip("/")
    try:
        array = open_zarr_array(storage.zarr_store(), path)
    except Exception as error:
        raise_if_unavailable(error)
        array = None
    if array is None:
        raise StoreError(
            f"{key}: there is no array {path!r} that zarr can open{arrays_beside(storage, path)}"
        )
    _check_one_per_record(array, path, length=length, key=key, dimension=dimension)
    is_text = _is_text(array)
    numbers = decode and not is_text
    return LabelArray(
        storage=storage,
        path=path,
        length=array.shape[0],
        dtype=_label_type(array, path, key, decode=decode),
        metadata_digest=schema_digest(metadata_of(array)),
        decoding=read_decoding(array, f"{key}: {path!r}") if numbers else None,
        missing_text=_missing_text(array) if is_text and decode else (),
    )


def _check_one_per_record(
    array: ZarrArray, path: str, *, length: int | None, key: str, dimension: str | None
) -> None:
    if array.ndim != 1 or length not in (None, array.shape[0]):
        raise StoreError(
            f"{key}: {path!r} is not a valid array of one entry per record, which has one axis"
            " and as many entries as the source has records; choose another"
        )
    names = dimension_names(array)
    if dimension is not None and names is not None and names != (dimension,):
        raise StoreError(
            f"{key}: {path!r} lies along {names[0]!r}, not along the records ({dimension!r});"
            " choose another array, or correct the name of its dimension"
        )


def _is_text(array: ZarrArray) -> bool:
    return np.dtype(array.dtype).kind in _TEXT_KINDS


def _label_type(array: ZarrArray, path: str, key: str, *, decode: bool) -> str:
    """Return the type of labels; refuse times, and what is neither numbers nor text."""
    dtype = np.dtype(array.dtype)
    numeric = dtype.kind in "biuf" and dtype.itemsize <= 8
    if dtype.kind in "Mm" or (numeric and decode and holds_times(dict(array.attrs))):
        raise StoreError(
            f"{key}: {path!r} holds times; store them as plain numbers, such as the year, the month"
            " or hours since a public date, and name that array"
        )
    if dtype.names or not (numeric or dtype.kind in _TEXT_KINDS):
        raise StoreError(
            f"{key}: {path!r} holds neither numbers nor text ({dtype}); choose another array"
        )
    return dtype.kind if dtype.kind in "TO" else dtype.str


def _missing_text(array: ZarrArray) -> tuple[str, ...]:
    """Return text that attributes, or Zarr v2 as xarray writes it, declare missing."""
    attributes = dict(array.attrs)
    candidates = [attributes.get("_FillValue"), attributes.get("missing_value")]
    if array.metadata.zarr_format == 2 and "_ARRAY_DIMENSIONS" in attributes:
        candidates.append(getattr(array.metadata, "fill_value", None))
    texts = [_as_text(value) for value in candidates]
    return tuple(sorted({text for text in texts if text is not None}))


def _as_text(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return str(value) if isinstance(value, str) else None


def _is_unicode(text: str) -> bool:
    """Return whether text can be encoded, which half of a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
