"""From a URL or a path to the place it names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from dpdask.errors import StoreError
from dpdask.store.local import LocalPlace, ZipPlace
from dpdask.store.objects import MemoryPlace, ObjectPlace
from dpdask.store.place import Place

__all__ = ["place_at"]

Options = Mapping[str, Any]
_OBJECT_SCHEMES = ("s3", "s3a", "gs", "az", "abfs")


def place_at(url: str, options: Options | None = None) -> Place:
    """The place that a URL or a path names."""
    scheme = urlsplit(url).scheme if "://" in url else ""
    given = dict(options or {})
    if scheme in ("", "file"):
        if given:
            raise StoreError(f"a local path takes no storage options, got {', '.join(sorted(given))}; drop them")
        path = Path(unquote(urlsplit(url).path) if scheme else url).expanduser()
        return ZipPlace(path) if path.suffix == ".zip" else LocalPlace(path)
    if scheme == "memory":
        return MemoryPlace(url.rstrip("/"))
    if scheme in _OBJECT_SCHEMES:
        return ObjectPlace(url.rstrip("/"), tuple(sorted(given.items())))
    raise StoreError(f"{scheme}:// is no store dpdask knows; use a path, file://, s3://, gs:// or memory://")
