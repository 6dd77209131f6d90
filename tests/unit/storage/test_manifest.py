"""The manifest: a Merkle root that every entry, its order and its neighbours are part of."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdask.errors import VerificationFailed
from dpdask.storage import ManifestEntry, digest_of, merkle_root, parse_manifest
from dpdask.storage.manifest import render_manifest
from dpdask.storage.object_store import ObjectStorage

KEYS = st.text(st.characters(codec="utf-8", exclude_characters="\n"), min_size=1, max_size=12)
ENTRIES = st.dictionaries(KEYS, st.integers(0, 2**40), max_size=9).map(
    lambda sizes: [
        ManifestEntry(key, size, digest_of([f"{key}{size}".encode()]))
        for key, size in sizes.items()
    ]
)


@pytest.mark.slow
@given(ENTRIES)
def test_a_manifest_survives_being_written_and_read(entries: list[ManifestEntry]) -> None:
    assert parse_manifest(render_manifest(entries)) == sorted(entries)


@given(ENTRIES)
def test_the_root_depends_on_what_is_listed_and_not_on_the_order(
    entries: list[ManifestEntry],
) -> None:
    root = merkle_root(entries)
    assert merkle_root(reversed(entries)) == root
    for entry in entries:
        others = [other for other in entries if other is not entry]
        changed = [
            entry._replace(size=entry.size + 1),
            entry._replace(digest="0" * 64),
            entry._replace(key=entry.key + "x"),
        ]
        assert merkle_root(others) != root
        for other in changed:
            if other.key not in {kept.key for kept in others}:
                assert merkle_root([*others, other]) != root


def test_roots_of_different_lengths_differ() -> None:
    entries = [ManifestEntry(f"k{n}", n, digest_of([bytes([n])])) for n in range(20)]
    roots = [merkle_root(entries[:count]) for count in range(21)]
    assert all(a != b for a, b in itertools.combinations(roots, 2))


def test_a_name_that_is_there_twice_is_refused() -> None:
    entry = ManifestEntry("k", 1, digest_of([b"a"]))
    with pytest.raises(VerificationFailed, match="twice"):
        merkle_root([entry, entry._replace(size=2)])


@pytest.mark.parametrize("content", [b"no lines", b"a b\n", b"\xff\xfe x y\n"])
def test_a_damaged_manifest_is_one_line(content: bytes) -> None:
    with pytest.raises(VerificationFailed, match="cannot be read"):
        parse_manifest(content)


def test_one_store_has_one_address_however_it_is_spelled() -> None:
    spelled = [ObjectStorage(url).address() for url in ("s3://b/a", "s3a://b/a", "s3://b/%61")]
    assert len(set(spelled)) == 1
    assert ObjectStorage("s3://b/c").address() not in spelled
