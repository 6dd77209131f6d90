"""One real Prefect server for all flow tests, in a folder of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dpdask import PrivacyBudget
from tests.support.workspace import Workspace

BIN = Path(sys.executable).parent


class PrefectServer:
    """A running server and the environment to talk to it."""

    def __init__(self, home: Path, port: int) -> None:
        self.home = home
        self.api = f"http://127.0.0.1:{port}/api"
        self.environment = {
            **os.environ,
            "PREFECT_HOME": str(home),
            "PREFECT_API_URL": self.api,
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
            "PATH": f"{BIN}:{os.environ['PATH']}",
        }

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        request = urllib.request.Request(
            self.api + path,
            json.dumps(body or {}).encode(),
            {"Content-Type": "application/json"},
            method="POST",
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())

    def runs(self, flow: str) -> list[dict[str, Any]]:
        found = self.ask(
            "/flow_runs/filter", {"flows": {"name": {"any_": [flow]}}, "sort": "START_TIME_ASC"}
        )
        return [run for run in found if run["state"]["type"] != "SCHEDULED"]

    def python(
        self, code: str, *arguments: str, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=180,
            **options,
        )


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    made = PrefectServer(tmp_path_factory.mktemp("prefect"), port)
    log = (made.home / "server.log").open("w")
    process = subprocess.Popen(
        [
            str(BIN / "prefect"),
            "server",
            "start",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--analytics-off",
        ],
        env={**made.environment, "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "2"},
        stdout=log,
        stderr=log,
    )
    for _ in range(300):
        try:
            urllib.request.urlopen(made.api + "/health", timeout=2)
            break
        except OSError:
            assert process.poll() is None, (made.home / "server.log").read_text()
            time.sleep(0.5)
    yield made
    process.terminate()
    process.wait(30)


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    made = Workspace(tmp_path, {"threads": 2})
    made.ledger.open_dataset("people", PrivacyBudget(epsilon=1e6, delta=0.1))
    return made
