"""Open an array of a source, or say why that is not possible and which arrays there are."""

from __future__ import annotations

from dpdask.errors import StoreError
from dpdask.storage.base import Storage
from dpdask.storage.foreign import check_is_zarr
from dpdask.storage.groups import array_names
from dpdask.storage.object_faults import raise_if_unavailable
from dpdask.storage.zarr_types import ZarrArray, open_zarr_array

__all__ = ["arrays_beside", "check_there", "open_or_explain"]


def check_there(storage: Storage) -> None:
    """Refuse a source that does not exist, or is a file of another format.

    Raises:
        StoreError: with what to do.
    """
    check_is_zarr(storage)
    if not storage.occupied():
        raise StoreError(
            "the source does not exist; check source.url (a relative path is relative to the"
            " current folder)"
        )


def open_or_explain(storage: Storage, path: str) -> ZarrArray:
    """Open an array; where that fails, say which arrays there are.

    Raises:
        StoreError: zarr cannot open it.
    """
    try:
        return open_zarr_array(storage.zarr_store(), path)
    except Exception as error:
        raise_if_unavailable(error)
        kind = type(error).__name__
    missing = f"no array {path!r}" if path else "no array at the root"
    raise StoreError(
        f"the source has {missing} that zarr can open ({kind}){_known_arrays(storage)}"
    )


def _known_arrays(storage: Storage) -> str:
    """Return the end of an error text: which arrays there are."""
    try:
        names = array_names(storage)
    except StoreError:
        names = []
    if not names:
        return "; check source.url and source.array"
    more = ", ..." if len(names) > 6 else ""
    return f"; its arrays are {', '.join(names[:6])}{more}; name one of those"


def arrays_beside(storage: Storage, path: str) -> str:
    """Return the end of an error text: which arrays lie in the same group."""
    folder = path.rpartition("/")[0]
    try:
        names = [name for name in array_names(storage) if name.rpartition("/")[0] == folder]
    except StoreError:
        names = []
    if not names:
        return "; check its path"
    listed = [name.rpartition("/")[2] for name in names]
    more = ", ..." if len(listed) > 12 else ""
    return f"; its group holds {', '.join(listed[:12])}{more}"
