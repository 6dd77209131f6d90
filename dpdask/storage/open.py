"""Open the storage that a URL or a path names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from dpdask.errors import StoreError
from dpdask.patience import NO_PATIENCE, Patience
from dpdask.storage.base import Storage
from dpdask.storage.local import LocalStorage
from dpdask.storage.memory import MemoryStorage
from dpdask.storage.object_store import ObjectStorage, require_obstore
from dpdask.storage.zip_file import ZipStorage

__all__ = ["open_storage"]

Options = Mapping[str, object]
_OBJECT_SCHEMES = ("s3", "s3a", "gs", "az", "abfs")


def open_storage(
    url: str, options: Options | None = None, patience: Patience = NO_PATIENCE
) -> Storage:
    """Return the storage that a URL or a path names.

    Args:
        url: a path, or a URL of a store.
        options: options of an object store.
        patience: for how long an object store that does not answer is asked again.

    Raises:
        StoreError: the URL is not valid, or names a store that cannot be reached from here.
    """
    settings = dict(options or {})
    scheme, host, path = _split(url)
    if scheme in ("", "file"):
        _check_no_options("a local path", settings)
        if host not in ("", "localhost"):
            raise StoreError(
                f"{url!r} names a path on the host {host!r}; write file:///path, or a path"
                " without file://"
            )
        local = _local_path(path)
        return ZipStorage(local) if local.suffix == ".zip" else LocalStorage(local)
    if scheme == "memory":
        _check_no_options("memory://", settings)
        return MemoryStorage(url.rstrip("/"))
    if scheme in _OBJECT_SCHEMES:
        require_obstore()
        return ObjectStorage(url.rstrip("/"), tuple(sorted(settings.items())), patience)
    raise StoreError(
        f"{scheme}:// is not a store that dpdask knows; use a path, file://, s3://, gs://, az://"
        " or memory://"
    )


def _check_no_options(storage: str, settings: dict[str, object]) -> None:
    if settings:
        raise StoreError(
            f"{storage} takes no storage options, got {', '.join(sorted(settings))}; drop them"
        )


def _split(url: str) -> tuple[str, str, str]:
    """Return scheme, host and path; a path without a scheme is taken as it is."""
    if any(ord(character) < 32 or ord(character) == 127 for character in url):
        raise StoreError(
            f"{url!r} is not a valid path or URL: it holds control characters; remove them"
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
