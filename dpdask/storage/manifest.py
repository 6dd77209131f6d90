"""The manifest: every object of a published group with its size and BLAKE3 digest, under one Merkle
root.

The root is on the release card, in the ledger and under the curator's signature; the manifest
itself is published beside the data, so that whoever reads one chunk can check that one, and a
mismatch names the object that does not fit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

import blake3

from dpdask.errors import VerificationFailed
from dpdask.types import Json

__all__ = [
    "ManifestEntry",
    "digest_of",
    "merkle_root",
    "parse_manifest",
    "render_manifest",
    "root_document_digest",
]

_LEAF, _NODE = b"\x00", b"\x01"  # a leaf can never be taken for an inner node


class ManifestEntry(NamedTuple):
    """One stored object: its name within the group, its number of bytes, and their digest."""

    key: str
    size: int
    digest: str


def digest_of(buffers: Iterable[Any]) -> str:
    """BLAKE3 of stored bytes, as 64 hexadecimal digits; large buffers are hashed without the
    interpreter's lock.
    """
    state = blake3.blake3()
    for buffer in buffers:
        state.update(buffer)
    return str(state.hexdigest())


def merkle_root(entries: Iterable[ManifestEntry]) -> str:
    """The root of a binary tree of BLAKE3 over the entries, sorted by key; an odd node is carried
    up unchanged.
    """
    ordered = sorted(entries)
    if len({entry.key for entry in ordered}) != len(ordered):
        raise VerificationFailed("the manifest names an object twice; restore it from a copy")
    level = [
        _hash(_LEAF + f"{entry.digest} {entry.size} {entry.key}".encode()) for entry in ordered
    ] or [_hash(_LEAF)]
    while len(level) > 1:
        paired = [
            _hash(_NODE + left + right)
            for left, right in zip(level[::2], level[1::2], strict=False)
        ]
        level = paired + level[2 * len(paired) :]
    return level[0].hex()


def _hash(content: bytes) -> bytes:
    return bytes(blake3.blake3(content).digest())


def render_manifest(entries: Iterable[ManifestEntry]) -> bytes:
    """One line per object, sorted by key: digest, size, key."""
    return "".join(
        f"{entry.digest} {entry.size} {entry.key}\n" for entry in sorted(entries)
    ).encode()


def parse_manifest(content: bytes) -> list[ManifestEntry]:
    """The entries that :func:`render_manifest` wrote."""
    try:
        *lines, rest = [
            line.split(" ", 2) for line in content.decode().split("\n")
        ]  # not splitlines, which knows other ends
        if rest != [""]:
            raise ValueError
        return [ManifestEntry(key, int(size), digest) for digest, size, key in lines]
    except (ValueError, UnicodeDecodeError):
        raise VerificationFailed("the manifest cannot be read; restore it from a copy") from None


def root_document_digest(document: Json) -> str:
    """The digest of the group's own metadata, which holds the card, without the manifest's root and
    the signature over it.

    Those two are computed from this digest; everything else in the document counts, in canonical
    JSON.
    """
    attributes = {
        name: value
        for name, value in document.get("attributes", {}).items()
        if name != "dp_signature"
    }
    card = attributes.get("dp")
    if isinstance(card, dict):
        attributes["dp"] = {**card, "manifest": None}
    return digest_of(
        [
            json.dumps(
                {**document, "attributes": attributes}, sort_keys=True, separators=(",", ":")
            ).encode()
        ]
    )
