"""Places without a filesystem: a prefix of an object store, or this process' memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from dpdask.errors import StoreError
from dpdask.storage.base import Storage, joined
from dpdask.types import Json

__all__ = ["MemoryStorage", "ObjectStorage", "require_obstore"]

_SCHEMES = {"s3a": "s3", "abfs": "az"}  # other names of the same store


@dataclass(frozen=True, repr=False)
class ObjectStorage(Storage):
    """A prefix of an object store, reached through obstore."""

    url: str
    options: tuple[tuple[str, Any], ...] = field(default=())

    def _store(self) -> Any:
        if "_opened" not in self.__dict__:
            object.__setattr__(self, "_opened", _open_object_store(self.url, dict(self.options)))
        return self.__dict__["_opened"]

    def address(self) -> str:
        """The URL, however its scheme and its characters are spelled."""
        scheme, _, rest = self.url.partition("://")
        return f"{_SCHEMES.get(scheme, scheme)}://{unquote(rest)}"

    def __getstate__(self) -> Json:
        return {"url": self.url, "options": self.options}

    def __setstate__(self, state: Json) -> None:
        self.__dict__.update(state)

    def read(self, name: str) -> bytes | None:
        """The object's bytes."""
        import obstore

        with _plain_errors():
            try:
                return bytes(obstore.get(self._store(), name).bytes())
            except FileNotFoundError:
                return None

    def write(self, name: str, content: Any) -> None:
        """One put."""
        import obstore

        with _plain_errors():
            obstore.put(self._store(), name, joined(content))

    def create(self, name: str, content: Any, *, durable: bool = True) -> bool:
        """A conditional put."""
        import obstore

        with _plain_errors():
            try:
                obstore.put(self._store(), name, joined(content), mode="create")
            except (obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError):
                return False
            return True

    def listing(self, folder: str = "") -> Iterator[tuple[str, int, str]]:
        """Sizes and entity tags."""
        import obstore

        with _plain_errors():
            for batch in obstore.list(self._store(), prefix=folder or None):
                for entry in batch:
                    yield (
                        entry["path"],
                        entry["size"],
                        str(entry["e_tag"] or entry["last_modified"]),
                    )

    def delete(self) -> None:
        """Every object under the prefix."""
        import obstore

        names = [name for name, _, _ in self.listing()]
        with _plain_errors():
            for first in range(0, len(names), 1000):
                obstore.delete(self._store(), names[first : first + 1000])

    def remove(self, name: str) -> None:
        """One delete."""
        import obstore

        with _plain_errors(), contextlib.suppress(FileNotFoundError):
            obstore.delete(self._store(), name)

    def occupied(self) -> bool:
        """Whether any object has the prefix."""
        return next(self.listing(), None) is not None

    def inside(self, name: str) -> ObjectStorage:
        """A longer prefix."""
        return ObjectStorage(f"{self.url}/{name}", self.options)

    def beside(self, suffix: str) -> ObjectStorage:
        """Another prefix."""
        return ObjectStorage(self.url + suffix, self.options)

    def zarr_store(self) -> Any:
        """An object store."""
        from zarr.storage import ObjectStore

        return ObjectStore(self._store(), read_only=True)

    def check_writable(self) -> None:
        """Put and delete an empty object beside the prefix."""
        probe = self.beside(".dpdask-probe")
        probe.write("probe", b"")
        probe.delete()


@dataclass(frozen=True, repr=False)
class MemoryStorage(Storage):
    """``memory://name``: fsspec's filesystem in this process' memory, for tests and notebooks."""

    url: str

    @property
    def shared(self) -> bool:
        """Only this process reaches it."""
        return False

    def address(self) -> str:
        """The URL."""
        return self.url

    def _paths(self) -> tuple[Any, str]:
        import fsspec

        return fsspec.filesystem("memory"), "/" + self.url.removeprefix("memory://").strip("/")

    def read(self, name: str) -> bytes | None:
        """The bytes."""
        files, root = self._paths()
        try:
            return bytes(files.cat_file(f"{root}/{name}"))
        except FileNotFoundError:
            return None

    def write(self, name: str, content: Any) -> None:
        """Put the bytes."""
        files, root = self._paths()
        files.pipe_file(f"{root}/{name}", joined(content))

    def create(self, name: str, content: Any, *, durable: bool = True) -> bool:
        """Put the bytes if there are none."""
        if self.read(name) is not None:
            return False
        self.write(name, content)
        return True

    def listing(self, folder: str = "") -> Iterator[tuple[str, int, str]]:
        """Sizes and times."""
        files, root = self._paths()
        for name, facts in files.find(f"{root}/{folder}".rstrip("/"), detail=True).items():
            yield name.removeprefix(root + "/"), facts["size"], str(files.modified(name))

    def delete(self) -> None:
        """Forget everything under the name."""
        files, root = self._paths()
        if files.exists(root):
            files.rm(root, recursive=True)

    def remove(self, name: str) -> None:
        """Forget the bytes."""
        files, root = self._paths()
        with contextlib.suppress(FileNotFoundError):
            files.rm_file(f"{root}/{name}")

    def occupied(self) -> bool:
        """Whether anything has the name."""
        files, root = self._paths()
        return bool(files.exists(root))

    def inside(self, name: str) -> MemoryStorage:
        """A longer name."""
        return MemoryStorage(f"{self.url}/{name}")

    def beside(self, suffix: str) -> MemoryStorage:
        """Another name."""
        return MemoryStorage(self.url + suffix)

    def zarr_store(self) -> Any:
        """fsspec's store."""
        from zarr.storage import FsspecStore

        return FsspecStore.from_url(self.url, read_only=True)


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    """Errors of an object store as one line, without addresses or answers of the server."""
    try:
        yield
    except StoreError:
        raise
    except Exception as error:
        kind = type(error).__name__
        raise StoreError(
            f"the object store cannot be read or written ({kind}); check the bucket, its options"
            " and your credentials"
        ) from None


def require_obstore() -> None:
    """Raise :class:`StoreError` where obstore, an extra of dpdask, is not installed."""
    try:
        import obstore.store  # noqa: F401
    except ImportError:
        raise StoreError(
            "object stores need obstore, which is not installed; pip install 'dpdask[cloud]'"
        ) from None


def _open_object_store(url: str, options: Json) -> Any:
    require_obstore()
    import obstore.store

    resolved = {}
    for name, value in options.items():
        variable = getattr(value, "env", None)
        if variable is not None and variable not in os.environ:
            raise StoreError(
                f"storage option {name} wants the environment variable {variable}, which is not"
                " set; set it"
            )
        resolved[name] = value if variable is None else os.environ[variable]
    client = {"allow_http": True} if resolved.pop("allow_http", False) else {}
    try:
        opened: Any = obstore.store.from_url
        return opened(url, config=resolved, client_options=client)
    except obstore.exceptions.UnknownConfigurationKeyError as error:
        unknown = [name for name in resolved if f"'{name.lower()}'" in str(error).lower()]
        raise StoreError(
            f"storage option {', '.join(unknown) or '?'} is not one of this store; correct or"
            " drop it"
        ) from None
    except Exception as error:
        kind = type(error).__name__
        raise StoreError(
            f"the object store refuses its URL or options ({kind}); check them"
        ) from None
