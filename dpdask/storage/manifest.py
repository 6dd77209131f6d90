"""The manifest: every object of a published group with its size and digest, under one Merkle root.

The root is on the release card, in the ledger and under the curator's signature. The manifest
itself is published beside the data, so that whoever reads one chunk can check that chunk, and a
mismatch names the object that does not match.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

import blake3

from dpdask.errors import VerificationFailed
from dpdask.storage.base import Buffer
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


def digest_of(buffers: Iterable[Buffer]) -> str:
    """Return BLAKE3 of stored bytes, as 64 hexadecimal digits.

    Large buffers are hashed without the interpreter's lock.
    """
    state = blake3.blake3()
    for buffer in buffers:
        state.update(buffer)  # type: ignore[arg-type]  # numpy's arrays are buffers
    return str(state.hexdigest())


def merkle_root(entries: Iterable[ManifestEntry]) -> str:
    """Return the root of a binary tree of BLAKE3 over the entries, sorted by key.

    An odd node is carried up unchanged.
    """
    ordered = sorted(entries)
    if len({entry.key for entry in ordered}) != len(ordered):
        raise VerificationFailed("the manifest names an object twice; restore it from a copy")
    leaves = [f"{entry.digest} {entry.size} {entry.key}".encode() for entry in ordered]
    level = [_hash(_LEAF + leaf) for leaf in leaves] or [_hash(_LEAF)]
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
    """Return one line for each object, sorted by key: digest, size, key."""
    return "".join(
        f"{entry.digest} {entry.size} {entry.key}\n" for entry in sorted(entries)
    ).encode()


def parse_manifest(content: bytes) -> list[ManifestEntry]:
    """Return the entries that :func:`render_manifest` wrote."""
    try:
        # not splitlines, which also splits at characters that a key may hold
        *lines, rest = [line.split(" ", 2) for line in content.decode().split("\n")]
        if rest != [""]:
            raise ValueError
        return [ManifestEntry(key, int(size), digest) for digest, size, key in lines]
    except (ValueError, UnicodeDecodeError):
        raise VerificationFailed("the manifest cannot be read; restore it from a copy") from None


def root_document_digest(document: Json) -> str:
    """Return the digest of the group's own metadata, which holds the card.

    The manifest's root and the signature over it are left out, because they are computed from this
    digest; everything else in the document counts, in canonical JSON.
    """
    attributes: Json = dict(document.get("attributes", {}))
    attributes.pop("dp_signature", None)
    card = attributes.get("dp")
    if isinstance(card, dict):
        attributes["dp"] = {**card, "manifest": None}
    signed = {**document, "attributes": attributes}
    return digest_of([json.dumps(signed, sort_keys=True, separators=(",", ":")).encode()])
