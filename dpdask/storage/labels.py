"""Label arrays: one label per record, as numbers or text, by which records are grouped.

Nothing here logs a label or raises with one in the text; any label is read without an error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from dpdask.errors import StoreError
from dpdask.storage.base import Storage
from dpdask.storage.cf import Decoding, holds_times, read_decoding
from dpdask.storage.opened import (
    address_digest,
    content_identity,
    opened_array,
    schema_digest,
    window_objects,
)
from dpdask.storage.zarr_types import ZarrArray, open_zarr_array
from dpdask.types import Array, Floats, Integers

__all__ = ["Group", "LabelArray", "open_labels"]

Group: TypeAlias = int | str
"""A public label that records are grouped by."""

_LARGEST_TABLE = 2**16
_TEXT_KINDS = "USTO"


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
    def address_digest(self) -> str:
        """A digest of where the array is, the same for all windows of it."""
        return address_digest(self.storage, self.path)

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
            **self._array().metadata.to_dict(),
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

    def codes(self, records: slice, groups: tuple[Group, ...]) -> Integers:
        """Return the position of each record's label in ``groups``, -1 for missing or not listed.

        Args:
            records: which records, of the window if there is one.
            groups: the public list, as :meth:`check_groups` accepts it.

        Raises:
            StoreError: the labels cannot be read.
        """
        stored = self._read(records)
        if self.is_text:
            texts = [str(group) for group in groups]
            codes = _text_positions(stored, texts)
            absent = [texts.index(text) for text in self.missing_text if text in texts]
            return np.where(np.isin(codes, absent), -1, codes) if absent else codes
        numbers = [int(group) for group in groups]
        if self.decoding is None:
            return _number_positions(stored, numbers)
        if not self.decoding.to_floats:
            return _number_positions(self.decoding.converted(stored), numbers)
        values = self._decoded(self.decoding, stored)
        if self.decoding.packed or stored.dtype.kind == "f":
            return _number_positions(values, numbers)
        # whole numbers of 64 bits are compared as they are, not as the nearest doubles
        codes = _number_positions(stored.view(np.dtype(self.decoding.codes)), numbers)
        codes[np.isnan(values)] = -1
        return codes

    def values(self, records: slice) -> Floats:
        """Return numeric labels as numbers, NaN where missing.

        Raises:
            StoreError: the labels are text, or cannot be read.
        """
        if self.is_text:
            raise StoreError("labels that are text have no numbers; choose an array of numbers")
        stored = self._read(records)
        if self.decoding is None:
            return stored.astype(np.float64)
        if not self.decoding.to_floats:
            return self.decoding.converted(stored).astype(np.float64)
        return self._decoded(self.decoding, stored).astype(np.float64)

    def _decoded(self, decoding: Decoding, stored: Array) -> Array:
        out = np.empty(stored.shape, decoding.dtype)
        return decoding.apply(stored.view(np.dtype(decoding.codes)), out)

    def _array(self) -> ZarrArray:
        return opened_array(self.storage, self.path, self.metadata_digest)

    def _read(self, records: slice) -> Array:
        """Return stored labels; numbers in native order."""
        first = 0 if self.window is None else self.window[0]
        region = (slice(records.start + first, records.stop + first),)
        try:
            stored = np.asarray(self._array()[region])
            if stored.dtype.kind in "biuf":
                stored = stored.astype(stored.dtype.newbyteorder("="), copy=False)
            return np.ascontiguousarray(stored)
        except MemoryError:
            raise
        except Exception:
            pass
        raise StoreError(
            f"labels cannot be read or decoded near index {records.start}; restore them from a copy"
        )


def open_labels(storage: Storage, path: str, *, length: int, key: str) -> LabelArray:
    """Read the schema of an array of labels, but no label; refuse what records cannot have.

    Args:
        storage: where the hierarchy is.
        path: the array's path in it.
        length: the number of records.
        key: where the array is named in the spec, for error texts.

    Raises:
        StoreError: there is no such array, or it does not hold one label per record.
    """
    path = path.strip("/")
    try:
        array = open_zarr_array(storage.zarr_store(), path)
    except Exception:
        array = None
    if array is None:
        raise StoreError(f"{key}: there is no array {path!r} that zarr can open; check its path")
    if tuple(array.shape) != (length,):
        raise StoreError(
            f"{key}: {path!r} is not a valid array of labels, which has one axis and as many"
            " entries as the source has records; choose another"
        )
    return LabelArray(
        storage=storage,
        path=path,
        length=length,
        dtype=_label_type(array, path, key),
        metadata_digest=schema_digest(array.metadata.to_dict()),
        decoding=None if _is_text(array) else read_decoding(array, f"{key}: {path!r}"),
        missing_text=_missing_text(array) if _is_text(array) else (),
    )


def _is_text(array: ZarrArray) -> bool:
    return np.dtype(array.dtype).kind in _TEXT_KINDS


def _label_type(array: ZarrArray, path: str, key: str) -> str:
    """Return the type of labels; refuse times, and what is neither numbers nor text."""
    dtype = np.dtype(array.dtype)
    numeric = dtype.kind in "biuf" and dtype.itemsize <= 8
    if dtype.kind in "Mm" or (numeric and holds_times(dict(array.attrs))):
        raise StoreError(
            f"{key}: {path!r} holds times; store what you group by as whole numbers, such as the"
            " year or the month, and name that array"
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


def _number_positions(values: Array, groups: list[int]) -> Integers:
    """Return where each value is in a list of whole numbers, -1 where it is not."""
    if values.dtype.kind == "b":
        values = values.astype(np.int64)
    if values.dtype.kind == "f":
        values = values.astype(np.float64, copy=False)
        usable = [place for place, group in enumerate(groups) if _is_double(group)]
    else:
        if values.dtype.itemsize < 8:
            values = values.astype(np.int64)
        limits = np.iinfo(values.dtype.str)
        usable = [p for p, group in enumerate(groups) if limits.min <= group <= limits.max]
    if not usable:
        return np.full(values.shape, -1, np.int64)
    listed = [groups[place] for place in usable]
    low, high = min(listed), max(listed)
    if values.dtype == np.int64 and high - low < _LARGEST_TABLE:
        table = np.full(high - low + 1, -1, np.int64)
        table[np.array(listed) - low] = usable
        inside = (values >= low) & (values <= high)
        offsets = np.where(inside, values, low) - low
        return np.where(inside, table[offsets], -1)
    return _searched(values, np.array(listed, values.dtype), usable)


def _text_positions(values: Array, groups: list[str]) -> Integers:
    """Return where each text is in a list, -1 where it is not."""
    if values.dtype.kind == "O":  # anything may be in it
        known: dict[object, int] = {group: place for place, group in enumerate(groups)}
        known.update({group.encode(): place for place, group in enumerate(groups)})
        positions = (known.get(v, -1) if isinstance(v, str | bytes) else -1 for v in values)
        return np.fromiter(positions, np.int64, len(values))
    places = list(range(len(groups)))
    if values.dtype.kind == "S":
        encoded = [group.encode() for group in groups]
        return _searched(values, np.array(encoded), places)
    listed = np.array(groups, dtype=np.dtypes.StringDType() if values.dtype.kind == "T" else None)
    return _searched(values, listed, places)


def _searched(values: Array, listed: Array, places: list[int]) -> Integers:
    order = np.argsort(listed, kind="stable")
    ordered = listed[order]
    nearest = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    positions = np.array(places, np.int64)[order][nearest]
    return np.where(ordered[nearest] == values, positions, -1)


def _is_double(number: int) -> bool:
    """Return whether a whole number is a floating point number as well."""
    try:
        return int(float(number)) == number
    except OverflowError:
        return False


def _is_unicode(text: str) -> bool:
    """Return whether text can be encoded, which half of a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
