"""From a URL or a path to the place it names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from dpdask.errors import StoreError
from dpdask.storage.base import Storage
from dpdask.storage.local import LocalStorage, ZipStorage
from dpdask.storage.object_store import MemoryStorage, ObjectStorage, require_obstore

__all__ = ["open_storage"]

Options = Mapping[str, Any]
_OBJECT_SCHEMES = ("s3", "s3a", "gs", "az", "abfs")


def open_storage(url: str, options: Options | None = None) -> Storage:
    """The place that a URL or a path names; a store that cannot be reached from here is an error
    right away.
    """
    given = dict(options or {})
    scheme, host, path = _split(url)
    if scheme in ("", "file"):
        if given:
            raise StoreError(
                f"a local path takes no storage options, got {', '.join(sorted(given))}; drop them"
            )
        if host not in ("", "localhost"):
            raise StoreError(
                f"{url!r} names a path on the host {host!r}; write file:///path, or a path"
                " without file://"
            )
        local = _local_path(path)
        return ZipStorage(local) if local.suffix == ".zip" else LocalStorage(local)
    if scheme == "memory":
        if given:
            raise StoreError(
                f"memory:// takes no storage options, got {', '.join(sorted(given))}; drop them"
            )
        return MemoryStorage(url.rstrip("/"))
    if scheme in _OBJECT_SCHEMES:
        require_obstore()
        return ObjectStorage(url.rstrip("/"), tuple(sorted(given.items())))
    raise StoreError(
        f"{scheme}:// is not a store that dpdask knows; use a path, file://, s3://, gs://, az://"
        " or memory://"
    )


def _split(url: str) -> tuple[str, str, str]:
    """Scheme, host and path; a path without a scheme is taken as it is."""
    if any(ord(character) < 32 or ord(character) == 127 for character in url):
        raise StoreError(
            f"{url!r} holds characters that no path or URL may hold; write it without them"
        )
    if "://" not in url:
        return "", "", url
    try:
        parts = urlsplit(url)
        if parts.scheme == "file" and (parts.query or parts.fragment):
            raise StoreError(
                f"{url!r} holds a ? or #, which would be cut off; write %3F and %23, or a path"
                " without file://"
            )
        return parts.scheme, parts.netloc, unquote(parts.path)
    except ValueError:
        raise StoreError(
            f"{url!r} is not a valid URL; write a path, or a URL such as s3://bucket/name"
        ) from None


def _local_path(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise StoreError(
            f"{path!r} begins with the home of a user that is not known here; write the whole path"
        ) from None
