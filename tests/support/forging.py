"""What somebody who can write to a published group, and to nothing else, can do to it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from google_crc32c import value as crc32c
from pydantic import ValidationError

from dpdask.releases.card import ReleaseCard, array_attributes
from dpdask.storage import (
    MANIFEST_ARRAY,
    ROOT,
    ManifestEntry,
    canonical,
    digest_of,
    manifest_documents,
    merkle_root,
    root_document_digest,
)


def edit_json(path: Path, change: Callable[[Any], None]) -> None:
    """Change one JSON document."""
    document = json.loads(path.read_text())
    change(document)
    path.write_bytes(canonical(document))


def edit_card(group: Path, change: Callable[[Any], None]) -> None:
    """Change the card, and nothing that is computed from it."""
    edit_json(group / ROOT, lambda document: change(document["attributes"]["dp"]))


def edit_chunk(path: Path, offset: int = 3) -> None:
    """Change a byte of an uncompressed chunk, its checksum with it."""
    content = bytearray(path.read_bytes()[:-4])
    content[offset] ^= 1
    path.write_bytes(bytes(content) + crc32c(bytes(content)).to_bytes(4, "little"))


def scale_noise_std(card: Any, by: float) -> None:
    """Change every figure of the released noise on a card."""
    released = card["released"]
    released["noise_std"] *= by
    if "noise_std_range" in released:
        released["noise_std_range"] = [std * by for std in released["noise_std_range"]]


def rewrite_card(group: Path, change: Callable[[Any], Any]) -> None:
    """Change the card and everything that follows from it without a key: attributes, digests, the
    manifest and its root.
    """
    edit_card(group, change)
    facts = json.loads((group / ROOT).read_text())["attributes"]["dp"]
    with contextlib.suppress(
        ValidationError, KeyError, FileNotFoundError
    ):  # a card may be damaged on purpose
        card = ReleaseCard.model_validate(facts)
        edit_json(
            group / card.released.array / ROOT,
            lambda document: document.update(attributes=array_attributes(card)),
        )
    reseal(group)


def reseal(group: Path) -> None:
    """Make a changed group agree with itself again: every digest, the manifest, its root on the
    card. No key is needed.
    """
    manifest = group / MANIFEST_ARRAY
    for path in manifest.rglob("*"):
        if path.is_file():
            path.unlink()
    files = {str(path.relative_to(group)): path for path in group.rglob("*") if path.is_file()}
    root = json.loads(files.pop(ROOT).read_text())
    for name, copied in root["consolidated_metadata"]["metadata"].items():
        copied.update(json.loads((group / name / ROOT).read_text()))
    entries = [
        ManifestEntry(name, path.stat().st_size, digest_of([path.read_bytes()]))
        for name, path in files.items()
    ]
    entries.append(ManifestEntry(ROOT, 0, root_document_digest(root)))
    root["attributes"]["dp"]["manifest"].update(root=merkle_root(entries), objects=len(entries))
    (group / ROOT).write_bytes(canonical(root))
    for name, content in manifest_documents(entries).items():
        (group / name).parent.mkdir(parents=True, exist_ok=True)
        (group / name).write_bytes(content)
