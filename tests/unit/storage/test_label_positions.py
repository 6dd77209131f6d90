"""Labels in a public list: by the definition, for hostile labels of every kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpdask.storage.label_positions import number_positions, text_positions

TEXTS = [
    "", "a", "b", "ab", "abc", "abcd", "aB", "\u00fc", "u\u0308", "\u00fcber", "\U0001f600",
    "z" * 40, "a ", " a", "a\x00b", "\x00", "A", "\uffff", "10", "9",
]  # fmt: skip
LISTS = [
    ["a"],
    ["b", "a"],
    ["abc", "", "\u00fc"],
    ["z" * 40, "a"],
    [t for t in TEXTS if "\x00" not in t],
]
LISTS += [["nowhere"], ["abcde", "ab", "\U0001f600"], [str(i) for i in range(300)]]


def by_definition(values: list[Any], groups: list[Any]) -> list[int]:
    return [groups.index(value) if value in groups else -1 for value in values]


@pytest.mark.parametrize("groups", LISTS, ids=range(len(LISTS)))
@pytest.mark.parametrize("kind", ["U", ">U40", "U2", "S", "T", "O"])
def test_text_is_found_where_it_is_equal(kind: str, groups: list[str]) -> None:
    if kind == "S":
        values = np.array([text.encode() for text in TEXTS])
        seen = [value.decode(errors="surrogateescape") for value in values.tolist()]
    elif kind == "T":
        values = np.array(TEXTS, dtype=np.dtypes.StringDType())
        seen = TEXTS
    else:
        values = np.array(TEXTS, dtype=object if kind == "O" else kind)
        seen = values.tolist()
    assert text_positions(values, groups).tolist() == by_definition(seen, groups)
    assert text_positions(values[:0], groups).tolist() == []
    assert text_positions(values[::3], groups).tolist() == by_definition(seen[::3], groups)


def test_a_text_that_ends_in_nulls_is_another_text() -> None:
    texts = ["a", "a\x00", "a\x00\x00\x00b", "b", "z" * 40 + "\x00", "z" * 40]
    values = np.array(texts, dtype=np.dtypes.StringDType())
    assert text_positions(values, ["a", "b"]).tolist() == [0, -1, -1, 1, -1, -1]
    many = [*"0123456789", "a"]
    assert text_positions(values, many).tolist() == [10, -1, -1, -1, -1, -1]
    assert text_positions(values, ["a", "z" * 40]).tolist() == [0, -1, -1, -1, -1, 1]


NUMBERS = [0, 1, -1, 5, 127, -128, 255, 2**31, -(2**31), 2**53, 2**53 + 1, 2**63 - 1, -(2**63)]
NUMBER_LISTS: list[list[int]] = [
    [0], [5, -1, 1], [2**63 - 1, -(2**63)], [2**53 + 1, 2**53], [10**30, 5], [2**64 - 1, 255],
    list(range(-130, 260)), [70_000, 1, -70_000],
]  # fmt: skip


@pytest.mark.parametrize("groups", NUMBER_LISTS, ids=range(len(NUMBER_LISTS)))
@pytest.mark.parametrize("kind", ["i1", "u1", "i2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "b1"])
def test_numbers_are_found_where_they_are_equal(kind: str, groups: list[int]) -> None:
    dtype = np.dtype(kind)
    with np.errstate(all="ignore"):
        values = np.array([n % 2**64 for n in NUMBERS], np.uint64).astype(dtype)
        if dtype.kind == "f":
            special = [np.nan, np.inf, -np.inf, 0.5, 5.5, -0.0, 254.999, 1e300]
            values = np.concatenate([values, np.array(special, dtype)])
    seen = [int(v) if dtype.kind == "b" else v for v in values.tolist()]
    assert number_positions(values, groups).tolist() == by_definition(seen, groups)
    assert number_positions(values[::2], groups).tolist() == by_definition(seen[::2], groups)
