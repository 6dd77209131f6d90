"""A test's folder as it was, to be gone back to: the ledger, its key and the staging, but not the
source.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from dpdask.ledger.keys import default_key_file

__all__ = ["contents", "restore", "state"]


def contents(folder: Path) -> dict[str, bytes]:
    """Every file under a folder."""
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }


def state(folder: Path) -> dict[str, bytes]:
    """Every file of a test but the source's."""
    return {
        name: content
        for name, content in contents(folder).items()
        if not name.startswith("source.zarr")
    }


def restore(folder: Path, kept: dict[str, bytes]) -> None:
    """Put everything but the source back as :func:`state` found it.

    What this user saw of ledgers is forgotten, too: otherwise the ledger would be a backup.
    """
    shutil.rmtree(default_key_file().parent / "heads", ignore_errors=True)
    for path in folder.iterdir():
        if path.name != "source.zarr":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name, content in kept.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
