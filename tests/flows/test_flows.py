"""Flows as users meet them: on a real server, scheduled, killed, raced, resumed."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
import zarr

from dpdask import PrivacyBudget
from dpdask.ledger import Ledger
from dpdask.releases.verify import verify_release
from tests.flows.conftest import BIN, PrefectServer
from tests.release.test_leakage import CANARY, spellings, with_canary
from tests.support.snapshots import contents, restore, state
from tests.support.workspace import KILL_A_WORKER, Workspace, people

pytestmark = pytest.mark.slow

RUN = """
import json, sys
from dpdask.flows.{module} import {flow}
state = {flow}(**json.loads(sys.argv[1]), return_state=True)
print("STATE", state.type.value, state.name, state.message)
"""


def run_flow(server: PrefectServer, flow: str, module: str, **parameters: Any) -> str:
    done = server.python(RUN.format(module=module, flow=flow), json.dumps(parameters))
    lines = [line for line in done.stdout.splitlines() if line.startswith("STATE")]
    assert lines, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    return lines[0]


def test_one_release_leaves_card_ledger_progress_link_and_tags(
    server: PrefectServer, space: Workspace
) -> None:
    space.source(people(64, 8), chunks=(16, 8))
    assert "COMPLETED" in run_flow(server, "privatize", "privatize", spec=space.spec())
    card = verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)
    [run] = [run for run in server.runs("privatize") if f"release:{card.release_id}" in run["tags"]]
    assert "dataset:people" in run["tags"]
    artifacts = server.ask(
        "/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [run["id"]]}}}
    )
    found = {artifact["key"]: artifact for artifact in artifacts}
    assert {"dpdask-plan", "dpdask-card", "dpdask-ledger", "dpdask-output", "dpdask-tiles"} <= set(
        found
    )
    assert card.release_id[:12] in found["dpdask-card"]["data"]
    assert {"protects", "one record"} <= set(json.loads(found["dpdask-plan"]["data"])[0].values())
    [budget] = json.loads(found["dpdask-ledger"]["data"])
    assert budget["protects"] == "one record"
    assert float(found["dpdask-tiles"]["data"]) == 100
    tasks = server.ask("/task_runs/filter", {"flow_runs": {"id": {"any_": [run["id"]]}}})
    assert sorted(task["name"].split("-")[0] for task in tasks) == [
        "plan",
        "publish",
        "reserve",
        "verify",
        "write",
    ]


def test_a_refusal_is_one_line_without_a_traceback(server: PrefectServer, space: Workspace) -> None:
    space.source(people())
    space.ledger.open_dataset("small", PrivacyBudget(epsilon=0.5, delta=1e-5))
    budget = {"ledger": space.ledger_url, "dataset": "small"}
    said = run_flow(server, "privatize", "privatize", spec=space.spec(budget=budget))
    assert "FAILED" in said
    assert "BudgetExceeded: dataset 'small' has spent epsilon 0 of 0.5" in said
    assert "Now nothing was charged, and nothing is left behind" in said
    assert space.ledger.state("small").spent_epsilon == 0
    assert space.left_behind() == []


def test_the_form_rejects_bad_parameters_at_submission(
    server: PrefectServer, space: Workspace
) -> None:
    code = RUN.format(module="privatize", flow="privatize")
    spec = space.spec(
        privacy_unit={"record_dim": 0, "l2_clip_norm": "much"}, budget={"dataset": ""}
    )
    done = server.python(code, json.dumps({"spec": spec}))
    assert "Validation" in done.stdout + done.stderr
    assert space.spent() == 0


KILL = """
import json, os, signal, sys
import dpdask.flows.steps as steps
from dpdask.flows.privatize import privatize

def die(progress):
    if progress.stage == "tiles" and progress.done >= progress.total / 2:
        os.kill(os.getpid(), signal.SIGKILL)

steps.watchers.append(die)
privatize(json.loads(sys.argv[1]))
"""


def test_a_killed_flow_is_resumed_by_the_next_run_charged_once(
    server: PrefectServer, space: Workspace
) -> None:
    space.source(people(64, 8), chunks=(4, 8))
    spec = space.spec(compute={"threads": 1, "task_size": 1})
    killed = server.python(KILL, json.dumps(spec))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    charged = space.spent()
    assert charged > 0
    assert not (space.folder / "out.zarr").exists()
    assert "COMPLETED" in run_flow(server, "privatize", "privatize", spec=spec)
    assert space.spent() == charged
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)


def test_a_terminated_flow_says_how_to_go_on_and_is_resumed(
    server: PrefectServer, space: Workspace
) -> None:
    """SIGTERM, by which runs are stopped: the run crashes in Prefect, its log says what to do, and
    nothing is lost.
    """
    space.source(people(64, 8), chunks=(4, 8))
    spec = space.spec(compute={"threads": 1, "task_size": 1})
    stopped = server.python(KILL.replace("SIGKILL", "SIGTERM"), json.dumps(spec))
    assert stopped.returncode == -signal.SIGTERM, stopped.stderr
    said = stopped.stdout + stopped.stderr
    assert "a charge that was made stays" in said
    assert "`dpdask resume SPEC.yaml`" in said
    assert "`dpdask abort SPEC.yaml` aborts it" in said
    [run] = [run for run in server.runs("privatize") if run["parameters"]["spec"] == spec]
    assert run["state"]["type"] == "CRASHED"  # row 14: its state says it, too
    assert "epsilon 1, delta 1e-05 stay charged to dataset 'people'" in run["state"]["message"]
    assert "the next run of this deployment" in run["state"]["message"]
    charged = space.spent()
    assert charged > 0
    assert not (space.folder / "out.zarr").exists()
    assert "COMPLETED" in run_flow(server, "privatize", "privatize", spec=spec)
    assert space.spent() == charged
    assert space.left_behind() == ["out.zarr"]


def test_ctrl_c_during_the_demo_as_a_flow_is_one_line(tmp_path: Path) -> None:
    """The embedded server is a process of the same terminal: it does not hear of Ctrl-C, prints
    nothing, and ends.
    """
    kept = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    environment = {**kept, "PREFECT_HOME": str(tmp_path / "prefect"), "DPDASK_NO_PROGRESS": "1"}
    process = subprocess.Popen(
        [str(BIN / "dpdask"), "demo", "--flow", "--folder", "demo"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    staging = tmp_path / "demo" / "released.zarr.dpdask-staging"
    while not staging.exists():  # made just before the charge
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert errors.splitlines()[-1].startswith("interrupted: ")
    time.sleep(1)
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)  # the server, too, is gone


def test_every_flow_says_how_to_go_on_however_it_was_stopped() -> None:
    from dpdask.flows.batch import privatize_batch
    from dpdask.flows.gradients import privatize_gradients
    from dpdask.flows.privatize import privatize
    from dpdask.flows.series import privatize_series
    from dpdask.flows.steps import say_how_to_resume, say_next_run_resumes

    own_specs = [privatize_batch, privatize_gradients, privatize_series]
    for flow, hook in [
        (privatize, say_how_to_resume),
        *((flow, say_next_run_resumes) for flow in own_specs),
    ]:
        assert (
            flow.on_failure_hooks == flow.on_crashed_hooks == flow.on_cancellation_hooks == [hook]
        )


KILL_WORKER = f"""{KILL_A_WORKER}
import json, sys
import dpdask.flows.steps as steps
from dpdask.flows.privatize import privatize

if __name__ == "__main__":
    steps.watchers.append(kill_a_worker)
    state = privatize(json.loads(sys.argv[1]), return_state=True)
    print("STATE", state.type.value, state.message)
"""


def test_a_killed_worker_mid_flow_gives_identical_bytes(
    server: PrefectServer, space: Workspace
) -> None:
    space.source(np.tile(people(600, 64), (4, 40)), chunks=(40, 2560))
    spec = space.spec(
        compute={"workers": 2, "threads": 1, "task_size": 1}, publish={"codec": "zstd"}
    )
    killed = server.python(
        KILL.replace('"tiles" and progress.done >= progress.total / 2', '"key"'), json.dumps(spec)
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    charged, kept = space.spent(), state(space.folder)
    assert "COMPLETED" in run_flow(
        server, "privatize", "privatize", spec={**spec, "compute": {"threads": 2}}
    )
    whole = contents(space.folder / "out.zarr")
    restore(space.folder, kept)
    script = space.folder / "ledger.db-flow.py"
    script.write_text(KILL_WORKER)
    done = subprocess.run(
        [sys.executable, str(script), json.dumps(spec)],
        env=server.environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "KILLED" in done.stdout, done.stderr
    assert "STATE COMPLETED" in done.stdout, done.stdout + done.stderr
    assert contents(space.folder / "out.zarr") == whole
    assert space.spent() == charged


def test_two_flows_racing_for_one_budget_one_is_refused_cleanly(
    server: PrefectServer, space: Workspace
) -> None:
    space.source(people())
    space.ledger.open_dataset("race", PrivacyBudget(epsilon=1.2, delta=1e-5))
    budget = {"ledger": space.ledger_url, "dataset": "race"}
    code = RUN.format(module="privatize", flow="privatize")
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                code,
                json.dumps(
                    {"spec": space.spec(budget=budget, output={"url": f"{space.folder}/{n}.zarr"})}
                ),
            ],
            env=server.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for n in range(2)
    ]
    said = [process.communicate(timeout=180) for process in processes]
    states = sorted(
        line.split()[1] for out, _ in said for line in out.splitlines() if line.startswith("STATE")
    )
    assert states == ["COMPLETED", "FAILED"]
    assert any("BudgetExceeded" in out for out, _ in said)
    assert all("Traceback" not in out + err for out, err in said)
    assert space.ledger.state("race").spent_epsilon <= 1.2
    assert len([name for name in space.left_behind() if name.endswith(".zarr")]) == 1


def test_no_canary_in_prefects_storage(server: PrefectServer, space: Workspace) -> None:
    """Neither a raw value nor a secret of the environment is in Prefect's database, results or
    logs.
    """
    space.source(with_canary(), chunks=(16, 3))
    wrapped = f"sqlite:///{space.folder}/ledger.db-wrapped"
    book = Ledger(wrapped, master_key=bytes.fromhex("deadbeef" * 8))
    book.open_dataset("people", PrivacyBudget(epsilon=1e6, delta=0.1))
    budget = {"ledger": wrapped, "dataset": "people"}
    server.environment["DPDASK_MASTER_KEY"] = "deadbeef" * 8
    server.environment["CANARY_SECRET"] = "canary-secret-of-storage"
    try:
        for query in ("identity", "sum"):
            url = {"url": f"{space.folder}/{query}.zarr"}
            spec = space.spec(query=query, output=url, budget=budget)
            assert "COMPLETED" in run_flow(server, "privatize", "privatize", spec=spec)
        options = {
            "endpoint": "http://127.0.0.1:9",
            "allow_http": True,
            "secret_access_key": {"env": "CANARY_SECRET"},
        }
        away = {
            "url": "s3://bucket/x",
            "options": {**options, "access_key_id": {"env": "CANARY_SECRET"}},
        }
        failing = space.spec(
            source={**away, "array": "x"},
            output={"url": f"{space.folder}/never.zarr"},
            compute={"cluster": "inline", "patience": 2},
        )
        failing["source"]["options"]["region"] = "us-east-1"
        assert "FAILED" in run_flow(server, "privatize", "privatize", spec=failing)
    finally:
        del server.environment["DPDASK_MASTER_KEY"], server.environment["CANARY_SECRET"]
    time.sleep(3)  # logs are sent in batches
    database = server.home / "prefect.db"
    with sqlite3.connect(database) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        dump = "\n".join(connection.iterdump())
    assert "privatize" in dump
    needles = [*spellings(CANARY)[:6], b"deadbeefdeadbeef", b"canary-secret-of-storage"]
    for path in [p for p in server.home.rglob("*") if p.is_file()]:
        content = path.read_bytes()
        assert not [needle for needle in needles if needle in content], path
    assert not list((server.home / "storage").rglob("*")) or all(
        b"sk-" not in p.read_bytes() for p in (server.home / "storage").rglob("*") if p.is_file()
    )


def batch_spec(space: Workspace, dataset: str) -> dict[str, Any]:
    template = space.spec(
        source={"url": str(space.folder / "source.zarr")},
        output={"url": f"{space.folder}/unused"},
        budget={"ledger": space.ledger_url, "dataset": dataset},
    )
    return {"template": template, "arrays": "day/*", "output": f"{space.folder}/out-{{array}}.zarr"}


def test_a_batch_is_refused_as_a_whole_or_published_as_a_whole(
    server: PrefectServer, space: Workspace
) -> None:
    for day in range(3):
        zarr.create_array(
            space.folder / "source.zarr", name=f"day/{day}", data=people(seed=day), chunks=(20, 8)
        )
    zarr.create_array(space.folder / "source.zarr", name="other", data=people())
    space.ledger.open_dataset("tight", PrivacyBudget(epsilon=1.3, delta=1e-5))
    said = run_flow(server, "privatize_batch", "batch", group=batch_spec(space, "tight"))
    assert "FAILED" in said
    assert "BudgetExceeded" in said
    assert space.ledger.state("tight").spent_epsilon == 0
    assert space.left_behind() == []
    assert "COMPLETED" in run_flow(
        server, "privatize_batch", "batch", group=batch_spec(space, "people")
    )
    assert space.left_behind() == [f"out-day-{n}.zarr" for n in range(3)]
    charged = space.spent()
    assert "COMPLETED" in run_flow(
        server, "privatize_batch", "batch", group=batch_spec(space, "people")
    )  # again: nothing to do
    assert space.spent() == charged


def test_a_stack_of_steps_may_be_a_window_and_joins_a_dataset_of_larger_units(
    server: PrefectServer, space: Workspace
) -> None:
    space.source(people(60, 4))
    space.release(privacy_unit={"record_dim": 0, "l2_clip_norm": 1.0, "max_contributions": 3})
    said = run_flow(
        server,
        "privatize_gradients",
        "gradients",
        source={**space.spec()["source"], "window": {"axis": 0, "start": 2, "stop": 6}},
        output={"url": str(space.folder / "steps.zarr")},
        budget=space.spec()["budget"],
        epsilon=1,
        delta=1e-6,
        clip_norm=1.0,
        steps_are_independent=True,
        adjacency="replace-one",
        max_contributions=3,
    )
    assert "COMPLETED" in said
    assert space.values("steps.zarr").shape == (4, 4)
    card = verify_release(str(space.folder / "steps.zarr"), ledger=space.ledger)
    assert (
        card.sensitivity.l2 == 6.0
    )  # three records of a unit, each clipped to 1, replaced by three others


def test_gradients_are_one_composed_release(server: PrefectServer, space: Workspace) -> None:
    space.source(np.zeros((50, 40)), chunks=(10, 40))
    said = run_flow(
        server,
        "privatize_gradients",
        "gradients",
        source={"url": str(space.folder / "source.zarr"), "array": "x"},
        output={"url": str(space.folder / "out.zarr")},
        budget={"ledger": space.ledger_url, "dataset": "people"},
        epsilon=2.0,
        delta=1e-5,
        clip_norm=1.0,
        steps_are_independent=True,
        max_contributions=4,
        sampling={"rate": 0.05, "of": "records"},
    )
    assert "COMPLETED" in said, said
    card = verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)
    assert card.composition.steps == 50
    assert card.composition.steps_are_independent == "declared"
    assert card.composition.sampling is not None
    assert (card.composition.sampling.rate, card.composition.sampling.of) == (0.05, "records")
    assert card.composition.sampling.amplified_rate == pytest.approx(1 - 0.95**4)
    assert card.sensitivity.l2 == 4.0
    assert card.guarantee.certified
    assert card.released.noise_std == pytest.approx(float(np.std(space.values())), rel=0.1)


def test_a_served_series_publishes_twice_by_itself_and_is_then_paced(
    server: PrefectServer, space: Workspace
) -> None:
    """The whole product: a schedule, a growing array, a cursor in the ledger, a polite refusal."""
    space.source(people(60, 8), chunks=(60, 2))
    spec = space.spec(output={"url": f"{space.folder}/day-{{start}}-{{stop}}.zarr"})
    path = space.folder / "spec.yaml"
    path.write_text(yaml.safe_dump(spec))
    command = [
        str(BIN / "dpdask"),
        "serve",
        str(path),
        "--every",
        "8",
        "--series",
        "days",
        "--axis",
        "1",
        "--max-window",
        "2",
    ]
    with (space.folder / "spec.yaml.log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--rate-limit", "1.6,1e-5,30"],
            env=server.environment,
            stdout=log,
            stderr=log,
        )
        try:
            for _ in range(280):
                runs = server.runs("privatize-series")
                if any(run["state"]["name"] == "RateLimited" for run in runs):
                    break
                time.sleep(1)
        finally:
            # not SIGINT, which a process started in the background of a script ignores
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    names = [run["state"]["name"] for run in server.runs("privatize-series")]
    said = (space.folder / "spec.yaml.log").read_text()
    assert names.count("Completed") == 2, (names, said[-3000:])
    [message] = {
        run["state"]["message"]
        for run in server.runs("privatize-series")
        if run["state"]["name"] == "RateLimited"
    }
    assert "rate limited: dataset 'people' has spent" in message
    assert list(space.ledger.state("people").releases.values()) == ["commit", "commit"]
    assert space.left_behind() == [
        "day-0000000000-0000000002.zarr",
        "day-0000000002-0000000004.zarr",
    ]
    assert zarr.open_array(
        space.folder / "day-0000000002-0000000004.zarr" / "data", mode="r"
    ).shape == (60, 2)
    before, stopped, _ = said.partition(
        "SIGTERM received"
    )  # what Prefect says when it is stopped in the middle of a run is its own
    assert stopped
    assert "Traceback" not in before


def test_a_series_goes_on_when_the_array_grows(server: PrefectServer, space: Workspace) -> None:
    space.source(people(60, 4), chunks=(60, 2))
    spec = space.spec(output={"url": f"{space.folder}/day-{{start}}-{{stop}}.zarr"})
    given: dict[str, Any] = {"spec": spec, "series": "growing", "axis": 1}
    assert "COMPLETED" in run_flow(server, "privatize_series", "series", **given)
    assert "NoNewData nothing new" in run_flow(server, "privatize_series", "series", **given)
    array = zarr.open_array(space.folder / "source.zarr" / "x", mode="r+")
    array.resize((60, 7))
    array[:, 4:] = people(60, 3)
    assert "COMPLETED" in run_flow(server, "privatize_series", "series", **given)
    assert space.left_behind() == [
        "day-0000000000-0000000004.zarr",
        "day-0000000004-0000000007.zarr",
    ]
    later = {**given, "series": "later", "start_index": 6}
    assert "COMPLETED" in run_flow(server, "privatize_series", "series", **later)
    old = {**later, "backfill": [5, 6]}
    assert "COMPLETED" in run_flow(server, "privatize_series", "series", **old)
    assert "NoNewData nothing new" in run_flow(server, "privatize_series", "series", **old)
    wrong = run_flow(server, "privatize_series", "series", **{**later, "backfill": [5, 9]})
    assert "FAILED" in wrong
    assert "backfill from 5 to 9 is not a stretch of what lies before 7" in wrong


def test_flows_work_with_no_server_configured_offline(
    space: Workspace, tmp_path_factory: pytest.TempPathFactory
) -> None:
    space.source(people())
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PREFECT")
    }
    environment["PREFECT_HOME"] = str(tmp_path_factory.mktemp("ephemeral"))
    code = RUN.format(module="privatize", flow="privatize")
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps({"spec": space.spec()})],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert "STATE COMPLETED" in done.stdout, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)


def test_importing_dpdask_and_help_do_not_import_prefect() -> None:
    code = (
        "import sys, time; start = time.perf_counter(); import dpdask, dpdask.cli;"
        "from click.testing import CliRunner; assert CliRunner().invoke(dpdask.cli.main,"
        " ['--help']).exit_code == 0;"
        "heavy = {'prefect', 'distributed', 'zarr', 'sqlalchemy'} & set(sys.modules);"
        " print(sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
