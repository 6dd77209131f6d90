"""Storage under a prefix of an object store: S3, Google Cloud Storage or Azure."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from dpdask.errors import StorageFault, StoreError
from dpdask.patience import (
    FIRST_PAUSE,
    GROWTH,
    LONGEST_PAUSE,
    NO_PATIENCE,
    Patience,
    told_if_slow,
)
from dpdask.storage.base import Content, ListedObject, Storage, joined
from dpdask.storage.object_faults import plain_errors
from dpdask.types import Json

if TYPE_CHECKING:
    import obstore.store
    from zarr.abc.store import Store

__all__ = ["ObjectStorage", "require_obstore"]

_WHO = "the object store"
_CONNECT = timedelta(seconds=10)
_ANSWER = timedelta(seconds=60)  # to one request
_LEAST_PATIENCE = 3.0  # seconds: busy stores refuse a request now and then
_SCHEMES = {"s3a": "s3", "abfs": "az"}  # other names of the same store


@dataclass(frozen=True, repr=False)
class ObjectStorage(Storage):
    """A prefix of an object store, reached through obstore.

    Args:
        url: the store's scheme, its bucket and the prefix.
        options: the store's options by name; an option with an attribute ``env`` is read from
            that environment variable when the store is opened.
        patience: for how long a store that does not answer is asked again.
    """

    url: str
    options: tuple[tuple[str, object], ...] = field(default=())
    patience: Patience = field(default=NO_PATIENCE, compare=False)

    def _store(self) -> obstore.store.ObjectStore:
        """Return the client, opened once per process."""
        opened: obstore.store.ObjectStore | None = self.__dict__.get("_opened")
        if opened is None:
            opened = _open_object_store(self.url, dict(self.options), self.patience)
            object.__setattr__(self, "_opened", opened)
        return opened

    def address(self) -> str:
        """Return the URL in one spelling of its scheme and its characters."""
        scheme, _, rest = self.url.partition("://")
        return f"{_SCHEMES.get(scheme, scheme)}://{unquote(rest)}"

    def __getstate__(self) -> Json:
        return {"url": self.url, "options": self.options, "patience": self.patience}

    def __setstate__(self, state: Json) -> None:
        self.__dict__.update(state)

    def read(self, name: str) -> bytes | None:
        """Return the object's bytes, None if there is no such object."""
        import obstore

        try:
            with plain_errors(), told_if_slow(_WHO):
                return bytes(obstore.get(self._store(), name).bytes())
        except FileNotFoundError:
            return None

    def write(self, name: str, content: Content) -> None:
        """Put an object; an older one is replaced."""
        import obstore

        with plain_errors(), _needs_bucket(), told_if_slow(_WHO):
            obstore.put(self._store(), name, joined(content))

    def create(self, name: str, content: Content, *, durable: bool = True) -> bool:
        """Put an object only if there is none, by one conditional request.

        A request whose answer was lost may have put it: asked again, what is there is compared.
        """
        data = joined(content)
        return self.patience.keep_asking(
            lambda: self._create(name, data),
            lambda: self._create(name, data) or self.read(name) == data,
        )

    def _create(self, name: str, data: bytes) -> bool:
        import obstore

        with plain_errors(), _needs_bucket(), told_if_slow(_WHO):
            try:
                obstore.put(self._store(), name, data, mode="create")
            except (obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError):
                return False
            return True

    def listing(self, folder: str = "") -> Iterator[ListedObject]:
        """List all objects with their sizes; stamps are entity tags."""
        import obstore

        with plain_errors():
            for batch in obstore.list(self._store(), prefix=folder or None):
                for entry in batch:
                    stamp = str(entry["e_tag"] or entry["last_modified"])
                    yield entry["path"], entry["size"], stamp

    def delete(self) -> None:
        """Remove every object under the prefix. Idempotent."""
        import obstore

        names = [name for name, _, _ in self.listing()]
        with plain_errors():
            for first in range(0, len(names), 1000):
                obstore.delete(self._store(), names[first : first + 1000])

    def remove(self, name: str) -> None:
        """Remove one object. Idempotent."""
        import obstore

        with contextlib.suppress(FileNotFoundError), plain_errors():
            obstore.delete(self._store(), name)

    def occupied(self) -> bool:
        """Return whether any object has the prefix."""
        return next(self.listing(), None) is not None

    def inside(self, name: str) -> ObjectStorage:
        """Return the storage of a longer prefix."""
        return ObjectStorage(f"{self.url}/{name}", self.options, self.patience)

    def beside(self, suffix: str) -> ObjectStorage:
        """Return the storage whose prefix is this one's with ``suffix`` appended."""
        return ObjectStorage(self.url + suffix, self.options, self.patience)

    def zarr_store(self) -> Store:
        """Return a store of the same client."""
        from zarr.storage import ObjectStore

        return ObjectStore(self._store(), read_only=True)

    def check_writable(self) -> None:
        """Put and delete an empty object beside the prefix."""
        probe = self.beside(".dpdask-probe")
        probe.write("probe", b"")
        probe.delete()


@contextlib.contextmanager
def _needs_bucket() -> Iterator[None]:
    """Let a put fail as one: there is nothing that it could miss but its bucket."""
    try:
        yield
    except FileNotFoundError:
        raise StorageFault(
            "the object store has no such bucket; check its name, or create it"
        ) from None


def require_obstore() -> None:
    """Raise :class:`StoreError` unless obstore, an extra of dpdask, is installed."""
    try:
        import obstore.store  # noqa: F401
    except ImportError:
        raise StoreError(
            "object stores need obstore, which is not installed; pip install 'dpdask[cloud]'"
        ) from None


def _open_object_store(
    url: str, options: dict[str, object], patience: Patience
) -> obstore.store.ObjectStore:
    require_obstore()
    import obstore.store

    resolved = {name: _resolved(name, value) for name, value in options.items()}
    client: dict[str, object] = {"timeout": _ANSWER, "connect_timeout": _CONNECT}
    if resolved.pop("allow_http", False):
        client["allow_http"] = True
    try:
        from_url: Any = obstore.store.from_url  # its overloads list every option of every store
        opened: obstore.store.ObjectStore = from_url(
            url, config=resolved, client_options=client, retry_config=_retries(patience)
        )
        return opened
    except obstore.exceptions.UnknownConfigurationKeyError as error:
        unknown = [name for name in resolved if f"'{name.lower()}'" in str(error).lower()]
        raise StoreError(
            f"storage option {', '.join(unknown) or '?'} is not a valid option of this store;"
            " correct or drop it"
        ) from None
    except Exception as error:
        kind = type(error).__name__
        raise StoreError(
            f"the object store refuses its URL or options ({kind}); check them"
        ) from None


def _retries(patience: Patience) -> dict[str, object]:
    """Return how the client itself asks again; also for what zarr reads through it."""
    return {
        "max_retries": 10_000,
        "retry_timeout": timedelta(seconds=max(_LEAST_PATIENCE, patience.seconds)),
        "backoff": {
            "init_backoff": timedelta(seconds=FIRST_PAUSE),
            "max_backoff": timedelta(seconds=LONGEST_PAUSE),
            "base": GROWTH,
        },
    }


def _resolved(name: str, value: object) -> object:
    """Return the value of an option, read from the environment if it names a variable."""
    variable: str | None = getattr(value, "env", None)
    if variable is None:
        return value
    if variable not in os.environ:
        raise StoreError(
            f"storage option {name} needs the environment variable {variable}, which is not"
            " set; set it"
        )
    return os.environ[variable]
