"""kill -9 in the middle of a session, then resume: the same bytes as without faults, charged once.

The trainer is a process of its own whose weights follow from the noisy steps alone.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from dpdask.releases.verify import verify_release
from tests.support.snapshots import contents, restore, state
from tests.support.step_sessions import STEPS, session_spec
from tests.support.workspace import Workspace

TRAINER = """
import os, signal, sys
import numpy as np
import dpdask

stage, at, spec = sys.argv[1], int(sys.argv[2]), sys.argv[3]
seen = []

def watch(progress):
    seen.append(progress.stage)
    if progress.stage == stage and seen.count(stage) > at:
        os.kill(os.getpid(), signal.SIGKILL)

people = np.random.default_rng(3).normal(0, 0.4, (200, 5, 4))
with dpdask.steps(spec, on_progress=watch) as session:
    weights = np.zeros((5, 4))
    for step in range(session.next_step):  # what was learned before the crash
        weights -= 0.01 * session.released(step)
    for step in session:
        sample = session.sample(len(people))
        weights -= 0.01 * session.step(people[sample] + weights)
np.save(sys.argv[4], weights)
"""

KILLS = [
    ("step noted", 0),
    ("step staged", 2),
    ("step listed", 2),
    ("ready", 0),
    ("published", 0),
]


def released(folder: Path) -> dict[str, bytes]:
    """All that is published but what says when steps were noted: the ledger's head, and what is
    computed from it.
    """
    dated = ("zarr.json", "dp_release/manifest/")
    return {name: data for name, data in contents(folder).items() if not name.startswith(dated)}


def train(stage: str, at: int, spec: Path) -> int:
    command = [sys.executable, "-c", TRAINER, stage, str(at), str(spec), f"{spec}-weights.npy"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


@pytest.mark.slow
def test_a_killed_trainer_resumes_with_identical_steps_charged_once(space: Workspace) -> None:
    composition = {"steps": STEPS, "sampling": {"rate": 0.2, "of": "records"}}
    spec = space.folder / "spec.yaml"
    spec.write_text(yaml.safe_dump(session_spec(space, composition=composition)))
    assert train("key", 0, spec) == -signal.SIGKILL
    charged, kept = space.spent(), state(space.folder)
    assert charged > 0
    assert train("never", 0, spec) == 0
    whole = released(space.folder / "out.zarr")
    assert sum(name.startswith("data/c") for name in whole) == STEPS
    weights = np.load(f"{spec}-weights.npy")
    for stage, at in KILLS:
        restore(space.folder, kept)
        assert train(stage, at, spec) == -signal.SIGKILL, stage
        if stage != "published":
            assert not (space.folder / "out.zarr").exists()
        assert train("never", 0, spec) == 0, stage
        assert released(space.folder / "out.zarr") == whole, stage
        assert np.array_equal(np.load(f"{spec}-weights.npy"), weights), stage
        assert space.spent() == charged
        verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)
