"""kill -9 at every stage, then resume: the same bytes as without faults, charged once."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from dpdask.errors import ReleaseError, SourceChanged
from dpdask.releases.api import abort, resume
from dpdask.releases.verify import verify_release
from tests.support.snapshots import contents, restore, state
from tests.support.workspace import KILL_A_WORKER, Workspace, people

DRIVER = """
import os, signal, sys
from dpdask.releases.api import release, resume

stage, share, spec, again = sys.argv[1], float(sys.argv[2]), sys.argv[3], sys.argv[4]

def watch(progress):
    if progress.stage == stage and progress.done >= share * progress.total:
        os.kill(os.getpid(), signal.SIGKILL)

(resume if again == "resume" else release)(spec, on_progress=watch)
"""

STAGES = [
    ("reserved", 0),
    ("key", 0),
    ("tiles", 0.5),
    ("tiles", 1),
    ("verify", 0.5),
    ("verify", 1),
    ("ready", 0),
    ("published", 0),
]


def killed_at(stage: str, share: float, spec: Path, again: str = "release") -> None:
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, stage, str(share), str(spec), again],
        capture_output=True,
        text=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.fixture
def begun(space: Workspace) -> tuple[Workspace, Path]:
    """A release killed just after its key was issued, and a spec to resume with."""
    space.source(people(64, 8), chunks=(4, 8))
    spec = space.write_spec(publish={"codec": "zstd"}, compute={"threads": 1, "task_size": 1})
    killed_at("key", 0, spec)
    return space, spec


@pytest.mark.slow
def test_killed_driver_gives_identical_bytes_charged_once(begun: tuple[Workspace, Path]) -> None:
    space, spec = begun
    charged = space.spent()
    assert charged > 0
    kept = state(space.folder)
    resume(spec)
    whole = contents(space.folder / "out.zarr")
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)
    for stage, share in STAGES:
        restore(space.folder, kept)
        killed_at(stage, share, spec, "resume")
        if stage != "published":
            assert not (space.folder / "out.zarr").exists()  # readers see nothing
        resume(spec)
        assert contents(space.folder / "out.zarr") == whole, stage
        assert space.spent() == charged
        assert (
            space.ledger.entry(next(iter(space.ledger.state("people").releases))).last == "commit"
        )  # type: ignore[union-attr]
        assert space.left_behind() == ["out.zarr"]
        verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)


@pytest.mark.parametrize("share", [0.2, 0.6])
def test_a_driver_killed_between_two_variables_gives_identical_bytes(
    space: Workspace, share: float
) -> None:
    for name, shape in {"t2m": (16, 4, 3), "pr": (16, 4), "ws": (16, 4, 3)}.items():
        zarr.create_array(
            space.folder / "source.zarr",
            name=name,
            data=np.random.default_rng(len(name)).normal(10, 1, shape),
            dimension_names=("time", "lat", "lon")[: len(shape)],
        )
    spec = space.write_spec(
        source={
            "url": str(space.folder / "source.zarr"),
            "arrays": {"t2m": None, "pr": {"l2_clip_norm": 30.0}, "ws": {"missing": "count"}},
        },
        privacy_unit={"record_dim": "time", "ranges": [0, 20], "missing": "center"},
        query="mean",
        mechanism="auto",
    )
    killed_at("key", 0, spec)
    kept = state(space.folder)
    resume(spec)
    whole = contents(space.folder / "out.zarr")
    restore(space.folder, kept)
    killed_at("tiles", share, spec, "resume")
    assert not (space.folder / "out.zarr").exists()
    resume(spec)
    assert contents(space.folder / "out.zarr") == whole
    assert len(space.ledger.state("people").releases) == 1
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)


@pytest.mark.parametrize("shards", [None, [6, 6]])
def test_a_killed_driver_gives_identical_layers(space: Workspace, shards: list[int] | None) -> None:
    space.source(people(64, 12), chunks=(16, 12))
    zarr.create_array(
        space.folder / "source.zarr",
        name="kept",
        data=np.arange(12) % 2,
        dimension_names=("dim_0",),
    )
    layers = ["psd", [{"name": "masked", "mask": "kept"}, "non-negative"]]
    spec = space.write_spec(
        query={"name": "covariance", "center": "private"},
        privacy_unit={"record_dim": 0, "ranges": [-1, 1], "missing": "center"},
        publish={"chunks": [3, 3], "shards": shards, "layers": layers},
        compute={"threads": 1, "task_size": 1},
    )
    killed_at("key", 0, spec)
    kept = state(space.folder)
    resume(spec)
    whole = contents(space.folder / "out.zarr")
    assert any("masked_nonnegative/" in name for name in whole)
    for share in (0.3, 1):
        restore(space.folder, kept)
        killed_at("tiles", share, spec, "resume")
        resume(spec)
        assert contents(space.folder / "out.zarr") == whole
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)


CUT_SHORT = """
import os, signal, sys
from dpdask.releases.api import resume

from dpdask.storage import local

in_folder, written = local.rename_into_folder, []

def killed(rename, temporary, target):
    written.append(target)
    if len(written) == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    in_folder(rename, temporary, target)

local.rename_into_folder = killed
resume(sys.argv[2])
"""


@pytest.mark.parametrize("write", [1, 5, 18])
def test_a_file_cut_short_by_a_kill_is_not_published(
    begun: tuple[Workspace, Path], write: int
) -> None:
    """Killed while a file (a chunk, a document) has its temporary name: that file is not one of the
    release's.
    """
    space, spec = begun
    done = subprocess.run(
        [sys.executable, "-c", CUT_SHORT, str(write), str(spec)], capture_output=True, text=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert list(
        (space.folder / "out.zarr.dpdask-staging").rglob("*.part")
    )  # the kill did come in between
    resume(spec)
    assert not list((space.folder / "out.zarr").rglob("*.part"))
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)
    assert space.left_behind() == ["out.zarr"]


def test_killed_between_claim_and_charge_nothing_is_charged(space: Workspace) -> None:
    """A crash before the reservation leaves the output locked; resume or abort unlocks it."""
    space.source(people())
    spec = space.write_spec()
    from dpdask.planning import make_plan
    from dpdask.spec import load_release_spec
    from dpdask.storage import Publisher

    plan = make_plan(load_release_spec(spec))
    assert Publisher.of(plan.output, "0123" * 8).lock_output()
    with pytest.raises(ReleaseError, match="unfinished"):
        space.release()
    assert space.spent() == 0
    resume(spec)
    assert space.spent() > 0


def test_a_published_release_is_concluded_without_its_source(begun: tuple[Workspace, Path]) -> None:
    """Killed between publication and commit, and the source is gone by then: resume needs the
    ledger alone.
    """
    space, spec = begun
    killed_at("published", 0, spec, "resume")
    shutil.rmtree(space.folder / "source.zarr")
    with pytest.raises(ReleaseError, match="published already"):
        abort(spec)
    resume(spec)
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)
    assert space.left_behind() == ["out.zarr"]


def test_source_changed_in_between_is_aborted_and_burned(begun: tuple[Workspace, Path]) -> None:
    space, spec = begun
    charged = space.spent()
    zarr.open_array(space.folder / "source.zarr" / "x", mode="r+")[3, 3] = 0.5
    with pytest.raises(SourceChanged, match="charge stays"):
        resume(spec)
    assert not (space.folder / "out.zarr").exists()
    assert space.left_behind() == []
    assert list(space.ledger.state("people").releases.values()) == ["burn"]
    assert space.spent() == charged
    with pytest.raises(ReleaseError, match="no release"):
        resume(spec)


def test_source_changed_while_tiles_are_written_is_burned(space: Workspace) -> None:
    space.source(people(64, 8), chunks=(4, 8))

    def meddle(progress: Any) -> None:
        if progress.stage == "verify":
            zarr.open_array(space.folder / "source.zarr" / "x", mode="r+")[0, 0] = 9.0

    with pytest.raises(SourceChanged, match="during the release"):
        space.release(on_progress=meddle)
    assert space.left_behind() == []
    assert list(space.ledger.state("people").releases.values()) == ["burn"]


def test_abort_destroys_the_key_and_keeps_the_charge(begun: tuple[Workspace, Path]) -> None:
    space, spec = begun
    charged = space.spent()
    name = abort(spec)
    assert space.left_behind() == []
    assert space.spent() == charged
    with pytest.raises(ReleaseError, match="nothing to abort"):
        abort(spec)
    record = space.ledger.entry_named(name)
    assert record is not None
    assert record.last == "burn"
    with pytest.raises(ReleaseError, match="edition"):
        space.release(publish={"codec": "zstd"}, compute={"threads": 1, "task_size": 1})


def test_resume_refuses_another_spec(begun: tuple[Workspace, Path]) -> None:
    space, _ = begun
    with pytest.raises(ReleaseError, match="began with another spec"):
        resume(space.spec(privacy={"epsilon": 2.0, "delta": 1e-5}))
    assert (space.folder / "out.zarr.dpdask-staging").exists()


def test_a_damaged_staged_chunk_is_written_again(begun: tuple[Workspace, Path]) -> None:
    space, spec = begun
    killed_at("tiles", 1, spec, "resume")
    chunk = next((space.folder / "out.zarr.dpdask-staging").glob("*/release/data/c.*"))
    content = bytearray(chunk.read_bytes())
    content[20] ^= 1
    chunk.write_bytes(content)
    resume(spec)
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)


def test_an_output_that_appears_meanwhile_is_never_replaced(space: Workspace) -> None:
    space.source(people(64, 8), chunks=(4, 8))
    other = space.folder / "out.zarr"

    def meddle(progress: Any) -> None:
        if progress.stage == "verify":
            other.mkdir(exist_ok=True)

    with pytest.raises(ReleaseError, match="appeared meanwhile"):
        space.release(on_progress=meddle)
    assert list(other.iterdir()) == []
    other.rmdir()
    resume(space.spec())
    assert space.values().shape == (64, 8)


WORKER_TEST = f"""{KILL_A_WORKER}
import sys
from dpdask.releases.api import resume

if __name__ == "__main__":
    resume(sys.argv[1], on_progress=kill_a_worker)
"""


@pytest.mark.slow
def test_killed_worker_gives_identical_bytes(space: Workspace) -> None:
    space.source(np.tile(people(600, 64), (4, 40)), chunks=(40, 2560))
    slow = {"workers": 2, "threads": 1, "task_size": 1}
    spec = space.write_spec(compute=slow, publish={"codec": "zstd"})
    killed_at("key", 0, spec)
    charged, kept = space.spent(), state(space.folder)
    resume(spec)
    whole = contents(space.folder / "out.zarr")
    restore(space.folder, kept)
    script = space.folder / "ledger.db-driver.py"
    script.write_text(WORKER_TEST)
    done = subprocess.run(
        [sys.executable, str(script), str(spec)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "of 60" in done.stdout
    assert contents(space.folder / "out.zarr") == whole
    assert space.spent() == charged


def test_interrupting_before_the_charge_leaves_nothing(space: Workspace) -> None:
    space.source(people(64, 8), chunks=(4, 4))

    def interrupt(progress: Any) -> None:
        if progress.stage == "norms":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        space.release(on_progress=interrupt)
    assert space.left_behind() == []
    assert space.spent() == 0


def test_a_driver_killed_by_sigterm_can_be_resumed(space: Workspace) -> None:
    space.source(people(640, 8), chunks=(4, 8))
    spec = space.write_spec(compute={"threads": 1, "task_size": 1})
    watch = "lambda p: print(p.stage, flush=True)"
    code = (
        "import sys; from dpdask.releases.api import release; release(sys.argv[1],"
        f" on_progress={watch})"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(spec)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("tiles"):
            break
    time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.wait()
    if process.returncode != 0:
        resume(spec)
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)
    assert os.environ.get("DPDASK_MASTER_KEY") is None
