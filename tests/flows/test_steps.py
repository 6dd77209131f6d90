"""A trainer and the flow that releases its steps, as two processes that know folders alone."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from dpdask.releases.verify import verify_release
from tests.flows.conftest import PrefectServer
from tests.flows.test_flows import run_flow
from tests.support.step_sessions import SHAPE, STEPS, session_spec
from tests.support.workspace import Workspace

pytestmark = pytest.mark.slow

CANARY = 31415926.535897931

GROWING = """
import sys
import numpy as np, zarr
import dpdask

folder, steps = sys.argv[1], int(sys.argv[2])
people = np.random.default_rng(3).normal(0, 0.1, (100, 5, 4))
empty, chunks = (0, 5, 4), (1, 5, 4)
stack = zarr.create_array(folder + "/raw.zarr", name="sums", shape=empty, chunks=chunks, dtype="f8")
weights = np.zeros((5, 4))
for step in range(steps):
    gradients = people + weights
    norms = np.sqrt((gradients ** 2).sum((1, 2), keepdims=True))
    total = (gradients * np.minimum(1, 1 / norms)).sum(0)
    stack.append(total[np.newaxis])
    stack.attrs["steps_written"] = step + 1
    weights -= 0.01 * dpdask.wait_for_step(folder + "/out.zarr.steps", step, timeout=150)
np.save(folder + "/weights.npy", weights)
"""

SAMPLED = """
import sys
import numpy as np, zarr
import dpdask

folder, steps = sys.argv[1], int(sys.argv[2])
people = zarr.open_array(folder + "/people.zarr", mode="r")[...]
weights = np.zeros((5, 4))
for step in range(steps):
    sample = dpdask.wait_for_step(folder + "/samples", step, timeout=150)
    records = people[sample] + weights
    array = zarr.create_array(folder + f"/raw-{step:06d}.zarr", data=records, chunks=(16, 5, 4))
    array.attrs["steps_written"] = 1
    weights -= 0.01 * dpdask.wait_for_step(folder + "/out.zarr.steps", step, timeout=150)
np.save(folder + "/weights.npy", weights)
"""

KILLED = """
import json, os, signal, sys
from dpdask.flows import sessions

hand_back = sessions._Exchange.hand_back

def killed(self, step):
    if step == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    hand_back(self, step)

sessions._Exchange.hand_back = killed
sessions.privatize_steps(**json.loads(sys.argv[1]))
"""


def trainer(code: str, folder: Path) -> subprocess.Popen[bytes]:
    log = (folder / "trainer.log").open("w")
    command = [sys.executable, "-c", code, str(folder), str(STEPS)]
    return subprocess.Popen(command, stdout=log, stderr=log)


def weights_of(folder: Path, steps: np.ndarray[Any, Any]) -> None:
    expected = np.zeros(SHAPE)
    for step in steps:
        expected -= 0.01 * step
    assert np.array_equal(np.load(folder / "weights.npy"), expected)


def test_a_trainer_appends_steps_and_waits_for_each(
    server: PrefectServer, space: Workspace
) -> None:
    spec = session_spec(
        space,
        privacy_unit={"adjacency": "add-remove-one"},
        query={"name": "precomputed", "l2_sensitivity": 1.0},
    )
    source = {"url": f"{space.folder}/raw.zarr", "array": "sums"}
    training = trainer(GROWING, space.folder)
    try:
        said = run_flow(server, "privatize_steps", "sessions", spec=spec, steps_source=source)
        assert "COMPLETED" in said
        assert training.wait(60) == 0, (space.folder / "trainer.log").read_text()
    finally:
        training.kill()
    weights_of(space.folder, space.values())
    card = verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)
    runs = server.runs("privatize-steps")
    [run] = [run for run in runs if f"release:{card.release_id}" in run["tags"]]
    artifacts = server.ask(
        "/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [run["id"]]}}}
    )
    assert {"dpdask-card", "dpdask-ledger", "dpdask-output", "dpdask-steps"} <= {
        artifact["key"] for artifact in artifacts
    }


def test_a_killed_flow_resumes_a_sampled_session_while_the_trainer_waits(
    server: PrefectServer, space: Workspace
) -> None:
    people = np.random.default_rng(3).normal(0, 0.3, (200, *SHAPE))
    people[5, 1, 1] = CANARY
    zarr.create_array(space.folder / "people.zarr", data=people)
    composition = {"steps": STEPS, "sampling": {"rate": 0.2, "of": "records"}}
    parameters = {
        "spec": session_spec(space, composition=composition),
        "steps_source": {"url": f"{space.folder}/raw-{{step}}.zarr"},
        "samples": f"{space.folder}/samples",
        "sampled_from": {"url": f"{space.folder}/people.zarr"},
    }
    training = trainer(SAMPLED, space.folder)
    try:
        done = server.python(KILLED, json.dumps(parameters))
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert not (space.folder / "out.zarr").exists()
        charged = space.spent()
        assert "COMPLETED" in run_flow(server, "privatize_steps", "sessions", **parameters)
        assert training.wait(60) == 0, (space.folder / "trainer.log").read_text()
    finally:
        training.kill()
    assert space.spent() == charged
    weights_of(space.folder, space.values())
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)
    database = b"".join(path.read_bytes() for path in server.home.glob("prefect.db*"))
    sizes = [len(np.load(path)) for path in (space.folder / "samples").glob("*.npy")]
    assert len(set(sizes)) > 1  # each step has its own sample
    for needle in (repr(CANARY).encode(), b"31415926", np.float64(CANARY).tobytes()):
        assert needle not in database


def test_a_step_that_does_not_come_leaves_the_session_open(
    server: PrefectServer, space: Workspace
) -> None:
    parameters: dict[str, Any] = {
        "spec": session_spec(space),
        "steps_source": {"url": f"{space.folder}/raw-{{step}}.zarr"},
        "patience_seconds": 1.0,
    }
    said = run_flow(server, "privatize_steps", "sessions", **parameters)
    assert "FAILED" in said
    assert "step 0 did not come within 1 seconds: the session stays open" in said
    assert space.spent() > 0
    parameters["samples"] = "memory://nowhere"
    said = run_flow(server, "privatize_steps", "sessions", **parameters)
    assert "samples and sampled_from go with composition.sampling" in said
