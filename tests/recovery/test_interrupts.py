"""Ctrl-C and SIGTERM: one line that says what was charged and how to resume, exit code 130 or 143,
and nothing is lost.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from dpdask import PrivacyBudget
from dpdask.ledger import Ledger
from dpdask.releases.api import abort, resume
from dpdask.releases.verify import verify_release
from tests.recovery.test_crashes import killed_at
from tests.support.snapshots import contents, restore, state
from tests.support.workspace import Workspace, people

# The command as users start it, but for the progress, which says when a moment has come and then
# waits for the signal, continues towards it, or waits again when it comes.
COMMAND = """
import sys, time
from dpdask.releases import api as releasing

stage, share, then = sys.argv[1], float(sys.argv[2]), sys.argv[3]

def watch(progress):
    if progress.stage == stage and progress.done >= share * progress.total:
        # at full speed for a while, so that the signal comes anywhere, then slowly, so it comes
        if then == "continue":
            print("NOW", flush=True)
            time.sleep(0.25 if progress.done > 0.6 * progress.total else 0)
            return
        try:
            print("NOW", flush=True)
            sys.stdin.readline()
        finally:
            if then == "clean up for ever":
                print("CLEANING", flush=True)
                sys.stdin.readline()

def watched(function):
    return lambda spec, on_progress: function(spec, on_progress=watch)

if __name__ == "__main__":
    releasing.release, releasing.resume = watched(releasing.release), watched(releasing.resume)
    from dpdask.cli import main
    main(sys.argv[4:], prog_name="dpdask")
"""


@dataclass(frozen=True)
class Stopped:
    """What an interrupted command left at the terminal."""

    code: int
    line: str
    processes: list[psutil.Process]

    def ended(self) -> bool:
        _, alive = psutil.wait_procs(self.processes, timeout=5)
        return not alive


def started(
    folder: Path, stage: str, share: float, then: str, *command: str
) -> subprocess.Popen[str]:
    """A command that has come to a moment of its work."""
    script = (
        folder / "ledger.db-command.py"
    )  # by a name that a workspace does not count as left behind
    script.write_text(COMMAND)
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen(
        [sys.executable, str(script), stage, str(share), then, *command],
        text=True,
        start_new_session=True,
        cwd=folder,
        env={**os.environ, "DPDASK_NO_PROGRESS": "1"},
        **pipes,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line == "NOW\n":
            return process
    raise AssertionError(f"the moment did not come: {process.communicate()[1]}")


def stopped(
    process: subprocess.Popen[str], signum: signal.Signals, *, group: bool = False
) -> Stopped:
    """Interrupt a command as ``kill`` does, or as a terminal does, which tells all processes of the
    command.
    """
    others = psutil.Process(process.pid).children(recursive=True)
    (os.killpg if group else os.kill)(process.pid, signum)
    _, errors = process.communicate(timeout=60)
    assert errors.count("\n") == 1, errors
    assert "Traceback" not in errors
    return Stopped(process.returncode, errors.rstrip("\n"), others)


@dataclass(frozen=True)
class Begun:
    """A release that has its key, as a state to start from, and the bytes that it gives when
    nothing interrupts it.
    """

    space: Workspace
    kept: dict[str, bytes]
    whole: dict[str, bytes]
    charged: float

    def spec(self, workers: int = 1) -> Path:
        """The spec, for so many workers, which change no byte."""
        compute = {"workers": workers, "threads": 1, "task_size": 1}
        return self.space.write_spec(publish={"codec": "zstd"}, compute=compute)

    def resumed(self) -> None:
        """Resume: charged once, and the bytes of a release that nothing interrupted."""
        space = self.space
        assert not (space.folder / "out.zarr").exists()
        assert space.spent() == self.charged
        resume(self.spec())
        assert contents(space.folder / "out.zarr") == self.whole
        assert space.spent() == self.charged
        assert space.left_behind() == ["out.zarr"]
        verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Begun:
    space = Workspace(tmp_path_factory.mktemp("begun"))
    space.ledger.open_dataset("people", PrivacyBudget(epsilon=1e6, delta=0.1))
    space.source(people(160, 8), chunks=(4, 8))
    found = Begun(space, {}, {}, 0.0)
    killed_at("key", 0, found.spec())
    charged, kept = space.spent(), state(space.folder)
    assert charged > 0
    resume(found.spec())
    return Begun(space, kept, contents(space.folder / "out.zarr"), charged)


@pytest.fixture
def begun(finished: Begun) -> Begun:
    restore(finished.space.folder, finished.kept)
    return finished


def way_on(spec: Path) -> str:
    return (
        "interrupted: epsilon 1, delta 1e-05 stay charged to dataset 'people', nothing is"
        " published;"
        f" `dpdask resume {spec}` finishes the release with the same noise and no further charge,"
        f" `dpdask abort {spec}` aborts it"
    )


@pytest.mark.parametrize(
    ("signum", "stage", "share", "then"),
    [
        (signal.SIGTERM, "tiles", 0.5, "wait"),
        (signal.SIGINT, "tiles", 0.1, "continue"),
        (signal.SIGTERM, "verify", 0.5, "wait"),
        (signal.SIGINT, "ready", 0, "wait"),
    ],
)
def test_an_interrupted_release_resumes_to_identical_bytes(
    begun: Begun, signum: signal.Signals, stage: str, share: float, then: str
) -> None:
    spec = begun.spec()
    found = stopped(started(begun.space.folder, stage, share, then, "resume", str(spec)), signum)
    assert (found.code, found.line) == (128 + signum, way_on(spec))
    begun.resumed()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signum", "stage", "then"),
    [(signal.SIGINT, "tiles", "continue"), (signal.SIGTERM, "verify", "wait")],
    ids=["Ctrl-C", "kill"],
)
def test_worker_processes_end_with_an_interrupted_command(
    begun: Begun, signum: signal.Signals, stage: str, then: str
) -> None:
    """A terminal sends Ctrl-C to the workers too: they print nothing, and end with the rest."""
    spec = begun.spec(workers=2)
    process = started(begun.space.folder, stage, 0.1, then, "resume", str(spec))
    found = stopped(process, signum, group=signum == signal.SIGINT)
    assert (found.code, found.line) == (128 + signum, way_on(spec))
    assert len(found.processes) >= 2
    assert found.ended()
    begun.resumed()


def test_an_interrupted_release_can_be_given_up(space: Workspace) -> None:
    space.source(people(64, 8), chunks=(4, 8))
    spec = space.write_spec(compute={"threads": 1, "task_size": 1})
    found = stopped(started(space.folder, "tiles", 0.2, "wait", "run", str(spec)), signal.SIGINT)
    assert (found.code, found.line) == (130, way_on(spec))
    charged = space.spent()
    assert charged > 0
    abort(spec)
    assert space.left_behind() == []
    assert space.spent() == charged
    assert list(space.ledger.state("people").releases.values()) == ["burn"]


def test_interrupted_after_publication_resume_concludes(begun: Begun) -> None:
    space, spec = begun.space, begun.spec()
    found = stopped(
        started(space.folder, "published", 0, "wait", "resume", str(spec)), signal.SIGTERM
    )
    assert found.code == 143
    assert (
        f"is published: `dpdask resume {spec}` commits it; it can no longer be aborted"
        in found.line
    )
    assert contents(space.folder / "out.zarr") == begun.whole
    resume(spec)
    assert space.left_behind() == ["out.zarr"]
    assert list(space.ledger.state("people").releases.values()) == ["commit"]


def test_interrupted_before_the_charge_nothing_is_charged_or_left(space: Workspace) -> None:
    space.source(people(64, 8), chunks=(4, 4))
    spec = space.write_spec()
    found = stopped(started(space.folder, "norms", 0, "wait", "run", str(spec)), signal.SIGTERM)
    assert found.code == 143
    assert (
        found.line
        == f"interrupted: nothing was charged and nothing is left behind; `dpdask run {spec}`"
        " starts again"
    )
    assert space.spent() == 0
    assert space.left_behind() == []


def test_a_second_ctrl_c_ends_at_once(begun: Begun) -> None:
    process = started(
        begun.space.folder, "tiles", 0.5, "clean up for ever", "resume", str(begun.spec())
    )
    assert process.stdout is not None
    os.kill(process.pid, signal.SIGINT)
    assert "CLEANING\n" in iter(process.stdout.readline, "")
    os.kill(
        process.pid, signal.SIGINT
    )  # the same press, passed on by a wrapper: it waits for the clean-up
    time.sleep(0.7)
    assert process.poll() is None
    begin = time.monotonic()
    found = stopped(process, signal.SIGTERM)
    assert time.monotonic() - begin < 5
    assert found.code == 130  # what stopped it was Ctrl-C
    assert found.line.startswith(
        "interrupted, ended at once: what was charged, if anything, stays; `dpdask resume"
    )
    begun.resumed()


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("run", "interrupted before the release began: this command charged nothing"),
        ("plan", "interrupted"),
    ],
)
def test_interrupted_while_the_spec_is_read(tmp_path: Path, command: str, line: str) -> None:
    """A spec that is a pipe holds the command where it opens it."""
    os.mkfifo(tmp_path / "spec.yaml")
    code = "from dpdask.cli import main; main(prog_name='dpdask')"
    pipes: dict[str, Any] = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen(
        [sys.executable, "-c", code, command, str(tmp_path / "spec.yaml")], text=True, **pipes
    )
    with (tmp_path / "spec.yaml").open("w"):  # waits until the command reads it
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == ("", f"{line}\n")
    assert process.returncode == 130


def test_an_interrupted_demo_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = started(tmp_path, "reserved", 0, "wait", "demo", "--folder", "shown")
    found = stopped(process, signal.SIGINT)
    assert found.code == 130
    assert "epsilon 1, delta 1e-06 stay charged to dataset 'demo'" in found.line
    assert "`dpdask resume shown/release.yaml`" in found.line
    monkeypatch.chdir(tmp_path)
    resume("shown/release.yaml")
    verify_release("shown/released.zarr", ledger=Ledger("sqlite:///shown/ledger.db"))
