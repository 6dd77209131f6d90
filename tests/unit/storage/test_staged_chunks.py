"""Raw chunks that are staged piece by piece: the bytes of the whole, read back, never replaced."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dpdask.errors import StoreError
from dpdask.storage import Layout, LocalStorage, Publisher, Storage, open_storage
from dpdask.storage import local as local_storage
from dpdask.storage.manifest import digest_of

ROWS = 300_000  # 2.4 MB: several pieces
LAYOUT = Layout(
    name="data",
    shape=(2 * ROWS,),
    chunks=(ROWS,),
    shards=None,
    dtype="<f8",
    codec="none",
    dimension_names=("row",),
)
VALUES = np.random.default_rng(0).standard_normal(ROWS)


@pytest.fixture(params=["folder", "memory"])
def publisher(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Publisher]:
    folder = str(tmp_path) if request.param == "folder" else f"memory://{tmp_path.name}"
    output = open_storage(f"{folder}/out.zarr")
    publisher = Publisher.of(output, "1" * 32)
    publisher.lock_output()
    yield publisher
    output.delete()
    output.beside(".dpdask-staging").delete()


def reused(values: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Pieces that all lie in the same memory, as a task computes them."""
    memory = np.empty(size, np.uint8)
    content = values.view(np.uint8)
    for first in range(0, content.size, size):
        part = content[first : first + size]
        memory[: part.size] = part
        yield memory[: part.size]


def has_files(storage: Storage) -> bool:
    return storage.file_path("") is not None


@pytest.mark.parametrize("size", [8, 4099, 2**20, 2**30])
def test_pieces_of_any_size_give_the_chunk_of_the_whole(publisher: Publisher, size: int) -> None:
    values = VALUES if size > 8 else VALUES[:50]
    layout = Layout(**{**vars(LAYOUT), "shape": values.shape, "chunks": values.shape})
    staged = publisher.stage_pieces(layout, (0,), reused(values, min(size, values.nbytes)))
    assert staged is not None
    stored = publisher.data.read(staged.entry.key)
    assert stored is not None
    assert stored[:-4] == values.tobytes()
    assert staged.entry == (staged.entry.key, values.nbytes + 4, digest_of([stored]))
    assert layout.check((0,), np.frombuffer(stored, np.uint8))
    assert bool(staged.stamp) == has_files(publisher.data)


def test_a_chunk_that_is_there_is_kept(publisher: Publisher) -> None:
    first = publisher.stage(LAYOUT, (1,), VALUES)
    again = publisher.stage_pieces(LAYOUT, (1,), reused(VALUES, 2**20))
    assert first is not None
    assert again is not None
    assert (again.entry, again.stamp) == (first.entry, "")  # nobody read it back now
    assert publisher.stage(LAYOUT, (1,), VALUES + 1) is None
    assert (publisher.data.read(first.entry.key) or b"")[:-4] == VALUES.tobytes()


def test_a_stamp_changes_with_every_write(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.write("a", b"1234")
    first = storage.stamp("a")
    assert first == storage.stamp("a") != None  # noqa: E711
    status = os.stat(tmp_path / "a")
    (tmp_path / "a").write_bytes(b"1235")
    os.utime(tmp_path / "a", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert storage.stamp("a") != first
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert storage.stamp("link") is None
    assert storage.stamp("nothing") is None


def test_an_error_while_pieces_are_computed_leaves_no_file(tmp_path: Path) -> None:
    publisher = Publisher.of(open_storage(f"{tmp_path}/out.zarr"), "1" * 32)
    publisher.lock_output()

    def failing() -> Iterator[np.ndarray]:
        yield VALUES.view(np.uint8)[: 2**20]
        raise StoreError("the source is gone")

    with pytest.raises(StoreError, match="the source is gone"):
        publisher.stage_pieces(LAYOUT, (0,), failing())
    assert list(tmp_path.rglob("*.part")) == []
    assert publisher.data.read(LAYOUT.key((0,))) is None


def test_a_disk_without_room_is_noticed_before_a_byte_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = Publisher.of(open_storage(f"{tmp_path}/out.zarr"), "1" * 32)
    publisher.lock_output()

    def full(descriptor: int, size: int) -> None:
        assert size == ROWS * 8 + 4
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(local_storage, "allocate", full)
    with pytest.raises(StoreError, match="disk is full"):
        publisher.stage_pieces(LAYOUT, (0,), reused(VALUES, 2**20))
    assert list(tmp_path.rglob("*.part")) == []
