"""Tiles that are computed piece by piece: to the bytes of whole tiles, on any layout; and what a
task has read back is read again only if somebody wrote to it since.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpdask.errors import StoreError
from dpdask.execution import streaming, tasks
from dpdask.planning import make_plan
from dpdask.releases.verify import verify_release
from dpdask.spec import parse_release_spec
from dpdask.storage import Publisher, SourceArray
from dpdask.storage.staged_chunks import StagedChunk
from tests.support.workspace import Workspace, people, staged_bytes

CLIP = {"record_dim": 0, "l2_clip_norm": 3.0}
RANGE = {"record_dim": 0, "ranges": [-1.0, 2.0]}

MECHANISMS: dict[str, dict[str, Any]] = {
    "clip": {"privacy_unit": CLIP},
    "clip, records along the last axis": {"privacy_unit": {**CLIP, "record_dim": -1}},
    "range": {"privacy_unit": RANGE},
    "range, integers": {"privacy_unit": RANGE, "noise": {"output_dtype": "int32"}},
    "range, float32": {"privacy_unit": RANGE, "noise": {"output_dtype": "float32"}},
    "laplace": {"privacy_unit": RANGE, "mechanism": "laplace"},
    "diagonal": {"privacy_unit": RANGE, "mechanism": {"name": "mgm", "weights": "diagonal"}},
    "diagonal, clip": {"privacy_unit": CLIP, "mechanism": {"name": "mgm", "weights": "diagonal"}},
}


def spied(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Note for every tile whether it is computed in pieces."""
    used: list[bool] = []
    original = streaming.released_pieces

    def spy(*args: Any, **kwargs: Any) -> Any:
        pieces = original(*args, **kwargs)
        used.append(pieces is not None)
        return pieces

    monkeypatch.setattr(tasks, "released_pieces", spy)
    return used


def random_layout(generator: np.random.Generator) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    """A shape, chunks that may not divide it, and a dtype."""
    order = int(generator.integers(1, 4))
    chunks = tuple(int(n) for n in generator.integers(1, {1: 6000, 2: 80, 3: 18}[order], order))
    counts = generator.integers(1, 4, order)
    cut = generator.random(order) < 0.3
    shape = tuple(
        max(1, int(count * size - (size // 3 if short else 0)))
        for count, size, short in zip(counts, chunks, cut, strict=True)
    )
    dtype = str(generator.choice(["float32", "float64", "int32", "int64"]))
    return shape, tuple(min(c, n) for c, n in zip(chunks, shape, strict=True)), dtype


def changes_for(name: str, shape: tuple[int, ...], chunks: tuple[int, ...]) -> dict[str, Any]:
    changes = {**MECHANISMS[name], "publish": {"chunks": list(chunks)}}
    mechanism = changes.get("mechanism")
    if isinstance(mechanism, dict):
        weights = [None] * len(shape)
        weights[-1] = np.linspace(1, 2, shape[-1]).tolist()
        changes["mechanism"] = {**mechanism, "weights": weights}
    unit = dict(changes["privacy_unit"])
    unit["record_dim"] %= len(shape)
    return {**changes, "privacy_unit": unit}


@pytest.mark.parametrize("name", MECHANISMS)
def test_pieces_give_the_bytes_of_whole_tiles(
    space: Workspace, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(len(name))
    used = spied(monkeypatch)
    for trial in range(8):
        shape, chunks, dtype = random_layout(generator)
        if "mgm" in str(MECHANISMS[name]) and len(shape) == 1:
            shape, chunks = (2, *shape), (1, *chunks)
        values = generator.standard_normal(shape) * 3
        if dtype.startswith("float"):
            values[generator.random(shape) < 0.02] = np.nan
            values.flat[0] = np.inf
        space.source(values.astype(dtype), chunks=chunks, compressors=None)
        plan = make_plan(parse_release_spec(space.spec(**changes_for(name, shape, chunks))))
        monkeypatch.setattr(streaming, "PIECE_BYTES", int(generator.choice([64, 4096, 2**20])))
        in_pieces = staged_bytes(plan)
        with monkeypatch.context() as patched:
            patched.setattr(tasks, "released_pieces", lambda *args, **kwargs: None)
            assert staged_bytes(plan) == in_pieces, (trial, shape, chunks, dtype)
    assert any(used) or name == "diagonal, clip"


def test_a_source_chunk_that_was_never_written_counts_as_its_fill_value(space: Workspace) -> None:
    space.source(people(32, 8), chunks=(16, 8), compressors=None)
    (space.folder / "source.zarr" / "x" / "c" / "1" / "0").unlink()
    plan = make_plan(parse_release_spec(space.spec(publish={"chunks": [16, 8]})))
    assert set(staged_bytes(plan)) == {"data/c.0.0", "data/c.1.0"}


def test_a_source_chunk_cut_while_it_is_read_is_an_error_that_names_the_place(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    space.source(people(32, 8), chunks=(16, 8), compressors=None)
    file = space.folder / "source.zarr" / "x" / "c" / "1" / "0"
    plan = make_plan(parse_release_spec(space.spec(publish={"chunks": [16, 8]})))
    monkeypatch.setattr(SourceArray, "check_sizes", lambda self: None)
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(StoreError, match=r"near index \(16, 0\)"):
        staged_bytes(plan)


def read_again(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note the chunks that the step of verification reads."""
    read: list[str] = []
    original = Publisher.check

    def check(self: Publisher, layout: Any, index: Any, entry: Any, *, digest: bool) -> bool:
        read.append(f"{entry.key} {digest}")
        return original(self, layout, index, entry, digest=digest)

    monkeypatch.setattr(Publisher, "check", check)
    return read


def test_what_a_task_has_read_back_is_not_read_again(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    space.source(people(64, 8), chunks=(16, 8), compressors=None)
    read = read_again(monkeypatch)
    space.release()
    assert read == []


@pytest.mark.parametrize("damage", ["flip", "replace", "remove"])
def test_a_chunk_changed_after_it_was_read_back_is_found_and_written_again(
    space: Workspace, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """Bytes in place, another file with a right checksum, no file: stamps or digests tell."""
    space.source(people(64, 8), chunks=(16, 8), compressors=None)
    read = read_again(monkeypatch)
    harmed: list[str] = []

    def harm(progress: Any) -> None:
        if progress.stage == "verify" or harmed or progress.stage != "tiles":
            return
        if progress.done < progress.total:
            return
        [file] = (space.folder / "out.zarr.dpdask-staging").glob("*/release/data/c.2.0")
        harmed.append(_damage(file, file.with_name("c.1.0"), damage))

    space.release(on_progress=harm)
    assert harmed == [damage]
    assert read == ["data/c.2.0 True"]  # by digest; the one that replaced it was read back
    assert np.all(np.isfinite(space.values()))
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)


def _damage(file: Path, other: Path, damage: str) -> str:
    if damage == "flip":
        content = bytearray(file.read_bytes())
        content[3] ^= 1
        file.write_bytes(bytes(content))
    elif damage == "replace":
        planted = file.with_name("planted")
        planted.write_bytes(other.read_bytes())
        planted.rename(file)
    else:
        file.unlink()
    return damage


def test_a_chunk_that_cannot_be_read_back_is_left_to_verification(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that loses a bit: the task does not vouch for the chunk, and verification finds it."""
    space.source(people(64, 8), chunks=(16, 8), compressors=None)
    read = read_again(monkeypatch)
    lost: list[str] = []
    original = Publisher.stage_pieces

    def lossy(self: Publisher, layout: Any, index: Any, pieces: Any) -> StagedChunk | None:
        staged = original(self, layout, index, pieces)
        if not lost and staged is not None:
            lost.append(staged.entry.key)
            file = Path(str(self.data.file_path(staged.entry.key)))
            file.write_bytes(file.read_bytes()[:-1] + b"?")
            return StagedChunk(staged.entry)
        return staged

    monkeypatch.setattr(Publisher, "stage_pieces", lossy)
    space.release()
    assert read == [f"{lost[0]} False"]
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)
