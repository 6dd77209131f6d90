"""Ids of privacy units, one per record, as keyed digests: no id leaves a task in clear.

Nothing here logs an id or raises with one in the text; any id is read without an error.
"""

from __future__ import annotations

import numpy as np

from dpdask.keystream import SelectionStream, Words
from dpdask.storage.labels import LabelArray
from dpdask.types import Array, Mask

__all__ = ["id_digests"]

_LONG = 64  # characters; longer texts are rare, and padding all others to them would cost memory
_BLOCK = 16  # bytes


def id_digests(ids: LabelArray, records: slice, stream: SelectionStream) -> tuple[Words, Mask]:
    """Return the digests of some records' ids, a row of two words each, and which are missing.

    Missing are NaN, what attributes declare so, and empty texts.

    Args:
        ids: The array of ids.
        records: Which records, of the window if there is one.
        stream: What ids are digested with.

    Raises:
        StoreError: The ids cannot be read.
    """
    stored = ids.stored(records)
    if not ids.is_text:
        missing = ids.missing(stored)
        return stream.number_digests(_as_words(stored)), missing
    texts, long_texts = _texts(stored)
    digests = _short_digests(texts, stream)
    for row, text in long_texts.items():
        digests[row] = stream.long_text_digest(text)
    return digests, _missing(texts, ids.missing_text, long_texts)


def _missing(texts: Array, missing_text: tuple[str, ...], long_texts: dict[int, bytes]) -> Mask:
    """Return which texts are empty, or stand for a missing one."""
    missing: Mask = texts == texts.dtype.type()
    for text in missing_text:
        value = text.encode() if texts.dtype.kind == "S" else text
        missing |= texts == np.array(value)
    rows = [
        row for row, text in long_texts.items() if text.decode(errors="replace") in missing_text
    ]
    missing[list(long_texts)] = False
    missing[rows] = True
    return missing


def _as_words(stored: Array) -> Words:
    """Return numbers as 64 bits that are equal where the numbers are."""
    if stored.dtype.kind == "f":
        return (stored.astype(np.float64) + 0.0).view(np.uint64)  # there are two zeros
    if stored.dtype.kind == "i":
        return stored.astype(np.int64).view(np.uint64)
    return stored.astype(np.uint64)


def _texts(stored: Array) -> tuple[Array, dict[int, bytes]]:
    """Return texts of fixed length, and those that are longer, by their rows."""
    if stored.dtype.kind in "US" and stored.dtype.itemsize <= 4 * _LONG:
        return stored.astype(stored.dtype.newbyteorder("="), copy=False), {}
    if stored.dtype.kind == "T":
        lengths = np.strings.str_len(stored)
        rows = np.flatnonzero(lengths > _LONG)
        long_texts = {int(row): _encoded(stored[row]) for row in rows}
        short = stored
        if rows.size:
            short = stored.copy()
            short[rows] = ""
        return short.astype(f"U{max(1, int(lengths.max(initial=0, where=lengths <= _LONG)))}"), (
            long_texts
        )
    contents = [_encoded(value) for value in stored]  # anything may be in it
    long_texts = {row: text for row, text in enumerate(contents) if len(text) > _LONG}
    return np.array([b"" if len(c) > _LONG else c for c in contents], f"S{_LONG}"), long_texts


def _encoded(value: object) -> bytes:
    """Return text as bytes; what is not text is missing."""
    if isinstance(value, bytes):
        return value
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else b""


def _short_digests(texts: Array, stream: SelectionStream) -> Words:
    """Return the digests of texts of fixed length; NULs at their end do not count."""
    contiguous = np.ascontiguousarray(texts)
    width = max(1, contiguous.dtype.itemsize)
    padded = np.zeros((texts.size, -(-width // _BLOCK) * _BLOCK), np.uint8)
    if contiguous.dtype.itemsize:
        padded[:, :width] = contiguous.view(np.uint8).reshape(texts.size, width)
    blocks = padded.view(np.uint64)
    used: Mask = np.any(blocks.reshape(texts.size, blocks.shape[1] // 2, 2) != 0, axis=2)
    last = used.shape[1] - np.argmax(used[:, ::-1], axis=1)
    return stream.text_digests(blocks, np.where(used.any(axis=1), last, 0).astype(np.uint64))
