"""Files of deploy/ on a real Prefect server: job variables that nobody can override, an automation
for runs whose node is gone, a server that asks for credentials (rows 3 and 9 of the operations
review).
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.flows.conftest import BIN, PrefectServer

DEPLOY = Path(__file__).parents[2] / "deploy"


def prefect(server: PrefectServer, *arguments: str) -> str:
    done = subprocess.run(
        [str(BIN / "prefect"), "--no-prompt", *arguments],
        env=server.environment,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_row_03_no_run_brings_job_variables_of_its_own(server: PrefectServer) -> None:
    template = str(DEPLOY / "work-pool.json")
    create = ("work-pool", "create", "fixed", "--type", "process")
    prefect(server, *create, "--base-job-template", template)
    request = urllib.request.Request(f"{server.api}/work_pools/fixed")
    with urllib.request.urlopen(request, timeout=30) as answer:
        stored = json.loads(answer.read())["base_job_template"]
    assert stored == json.loads((DEPLOY / "work-pool.json").read_text())
    flow = server.ask("/flows/", {"name": "for-fixed-variables"})
    deployment = {"name": "fixed", "flow_id": flow["id"], "work_pool_name": "fixed"}
    made = server.ask("/deployments/", deployment)
    assert refused(server, "/deployments/", {**deployment, "job_variables": {"env": {"X": "1"}}})
    run = f"/deployments/{made['id']}/create_flow_run"
    for hostile in ({"env": {"X": "1"}}, {"command": "env"}, {"working_dir": "/"}):
        assert refused(server, run, {"job_variables": hostile})
    assert server.ask(run)["state"]["type"] == "SCHEDULED"


def refused(server: PrefectServer, path: str, body: dict[str, Any]) -> bool:
    try:
        server.ask(path, body)
    except urllib.error.HTTPError as error:
        return 400 <= error.code < 500
    return False


def test_row_03_a_server_with_an_auth_string_answers_nobody_else(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "PREFECT_HOME": str(tmp_path),
        "PREFECT_SERVER_API_AUTH_STRING": "dpdask:canary",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PATH": f"{BIN}:{os.environ['PATH']}",
    }
    command = ["server", "start", "--host", "127.0.0.1", "--port", str(port), "--analytics-off"]
    process = subprocess.Popen(
        [str(BIN / "prefect"), *command],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    api = f"http://127.0.0.1:{port}/api"
    try:
        for _ in range(300):  # what health checks ask stays open
            try:
                urllib.request.urlopen(f"{api}/health", timeout=2)
                break
            except OSError:
                time.sleep(0.5)
        try:
            urllib.request.urlopen(f"{api}/admin/version", timeout=10)
            status = 200
        except urllib.error.HTTPError as error:
            status = error.code
        assert status == 401
    finally:
        process.terminate()
        process.wait(30)


def test_row_09_a_run_whose_node_is_gone_is_marked_by_an_automation(server: PrefectServer) -> None:
    prefect(server, "automation", "create", "--from-file", str(DEPLOY / "automations.yaml"))
    [automation] = server.ask("/automations/filter")
    assert automation["name"] == "dpdask-zombie-runs"
    assert automation["enabled"]
    assert automation["actions"][0]["state"] == "CRASHED"
    assert automation["trigger"]["within"] == 90
