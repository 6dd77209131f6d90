"""The commands of deploy/README.md as plain processes: Prefect server, worker, TLS scheduler, Dask
workers, scheduled runs.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed.security import Security

from dpdask.errors import ClusterError
from dpdask.releases.api import release
from dpdask.releases.verify import verify_release
from tests.flows.conftest import BIN, PrefectServer
from tests.support.workspace import Workspace, people

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def running(
    command: list[str], log: Path, environment: dict[str, str], cwd: Path = ROOT
) -> Iterator[None]:
    with log.open("w") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, cwd=cwd)
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture
def cluster(space: Workspace, server: PrefectServer) -> Iterator[dict[str, Any]]:
    """A TLS scheduler and two workers, started by the commands of deploy/README.md."""
    made = Security.temporary().get_tls_config_for_role("client")
    files = {}
    for name, content in (("ca", made["ca_file"]), ("cert", made["cert"]), ("key", made["key"])):
        files[name] = space.folder / f"spec.yaml-{name}.pem"
        files[name].write_text(content)
    tls = [
        "--tls-ca-file",
        str(files["ca"]),
        "--tls-cert",
        str(files["cert"]),
        "--tls-key",
        str(files["key"]),
    ]
    contact = space.folder / "spec.yaml-scheduler.json"
    dask = str(BIN / "dask")
    quiet = {
        "DASK_DISTRIBUTED__WORKER__MEMORY__TARGET": "False",
        "DASK_DISTRIBUTED__WORKER__MEMORY__SPILL": "False",
    }
    environment = {**server.environment, **quiet}
    page = ["--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
    scheduler = [
        dask,
        "scheduler",
        "--protocol",
        "tls",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        *page,
        *tls,
    ]
    with contextlib.ExitStack() as stack:
        log = space.folder / "spec.yaml-scheduler.log"
        stack.enter_context(
            running([*scheduler, "--scheduler-file", str(contact)], log, environment)
        )
        for _ in range(300):
            if contact.exists() and contact.read_text():
                break
            time.sleep(0.1)
        address = json.loads(contact.read_text())["address"]
        worker = [dask, "worker", address, "--protocol", "tls", "--nthreads", "1", *page, *tls]
        for number in range(2):
            stack.enter_context(
                running(worker, space.folder / f"spec.yaml-worker{number}.log", environment)
            )
        paths = {f"{name}_file": str(path) for name, path in files.items()}
        yield {"cluster": address, "tls": paths}


def test_a_release_runs_on_a_tls_cluster_of_two_worker_processes(
    space: Workspace, cluster: dict[str, Any]
) -> None:
    space.source(people(64, 8), chunks=(4, 4))
    alone = space.staged()
    assert space.staged(compute=cluster) == alone  # the same bytes as in this process
    release(space.spec(compute=cluster))
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)
    with pytest.raises(ClusterError, match="cannot be reached"):
        release(
            space.spec(
                compute={"cluster": cluster["cluster"], "patience": 0},
                output={"url": f"{space.folder}/b.zarr"},
            )
        )


def test_a_scheduled_deployment_publishes_by_itself(
    space: Workspace, server: PrefectServer, cluster: dict[str, Any]
) -> None:
    """prefect deploy, a worker of the pool, a schedule, a TLS cluster: two windows of a series come
    out.
    """
    space.source(people(60, 4), chunks=(60, 2))
    prefect = str(BIN / "prefect")
    environment = {**server.environment, "DPDASK_HOME": str(ROOT)}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [prefect, *arguments],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("work-pool", "create", "dpdask", "--type", "process")
    run("--no-prompt", "deploy", "--prefect-file", "deploy/prefect.yaml", "--all")
    [deployment] = server.ask(
        "/deployments/filter", {"deployments": {"name": {"any_": ["privatize-series"]}}}
    )
    spec = space.spec(
        compute=cluster, output={"url": f"{space.folder}/day-{{start}}-{{stop}}.zarr"}
    )
    parameters = {"spec": spec, "series": "deployed", "axis": 1, "max_window": 2}
    code = """
import json, sys
from datetime import timedelta
from uuid import UUID
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentUpdate
from prefect.client.schemas.schedules import IntervalSchedule
with get_client(sync_client=True) as client:
    name = UUID(sys.argv[1])
    client.update_deployment(name, DeploymentUpdate(parameters=json.loads(sys.argv[2])))
    every_ten_seconds = IntervalSchedule(interval=timedelta(seconds=10))
    client.create_deployment_schedules(name, [(every_ten_seconds, True)])
"""
    done = server.python(code, deployment["id"], json.dumps(parameters))
    assert done.returncode == 0, done.stderr
    log = space.folder / "spec.yaml-prefect-worker.log"
    wanted = [
        space.folder / "day-0000000000-0000000002.zarr",
        space.folder / "day-0000000002-0000000004.zarr",
    ]
    with running([prefect, "worker", "start", "--pool", "dpdask"], log, environment):
        for _ in range(150):
            if all(path.exists() for path in wanted):
                break
            time.sleep(1)
        server.python(
            "import sys; from uuid import UUID; from prefect.client.orchestration import"
            " get_client\n"
            "with get_client(sync_client=True) as client:"
            " client.pause_deployment(UUID(sys.argv[1]))",
            deployment["id"],
        )
        for _ in range(30):
            if list(space.ledger.state("people").releases.values()) == ["commit", "commit"]:
                break
            time.sleep(1)
    assert all(path.exists() for path in wanted), log.read_text()[-4000:]
    for path in wanted:
        verify_release(str(path), ledger=space.ledger)
