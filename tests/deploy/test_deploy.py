"""The files of deploy/, checked by the tools that read them, and run where no daemon is needed."""

from __future__ import annotations

import ast
import contextlib
import importlib.metadata
import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from distributed import Client
from distributed.security import Security
from prefect.client.schemas.schedules import CronSchedule

from dpdask.errors import ClusterError
from dpdask.execution.cluster import connect
from dpdask.spec.release import ComputeSection

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
SCRIPTS = Path(sysconfig.get_path("scripts"))
FLOWS = {
    "privatize": "flows/privatize.py:privatize",
    "privatize-batch": "flows/batch.py:privatize_batch",
    "privatize-series": "flows/series.py:privatize_series",
    "privatize-gradients": "flows/gradients.py:privatize_gradients",
    "privatize-steps": "flows/steps.py:privatize_steps",
}
SECRETS = {
    "DPDASK_MASTER_KEY",
    "DPDASK_LEDGER",
    "PGPASSWORD",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "PREFECT_API_AUTH_STRING",
}
NO_SPILL = {
    "DASK_DISTRIBUTED__WORKER__MEMORY__TARGET": "False",
    "DASK_DISTRIBUTED__WORKER__MEMORY__SPILL": "False",
}
NO_TRACKING = {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1"}


def tool(name: str, *args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SCRIPTS / name), *map(str, args)], capture_output=True, text=True, timeout=60
    )


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


MANIFESTS = [
    document
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for document in documents(path)
]
COMPOSE: dict[str, Any] = documents(DEPLOY / "compose.yaml")[0]
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PREFECT: dict[str, Any] = documents(DEPLOY / "prefect.yaml")[0]


def manifest(kind: str) -> dict[str, Any]:
    [found] = [each for each in MANIFESTS if each["kind"] == kind]
    return found


def pods() -> dict[str, dict[str, Any]]:
    dask = manifest("DaskCluster")["spec"]
    return {
        "scheduler": dask["scheduler"]["spec"],
        "worker": dask["worker"]["spec"],
        "prefect-worker": manifest("Deployment")["spec"]["template"]["spec"],
    }


def container(name: str) -> dict[str, Any]:
    [found] = pods()[name]["containers"]
    return found


def literals(name: str) -> dict[str, str]:
    return {
        each["name"]: each["value"] for each in container(name).get("env", []) if "value" in each
    }


# The image


def test_the_image_passes_hadolint() -> None:
    result = tool("hadolint", "--failure-threshold", "info", DEPLOY / "Dockerfile")
    assert (result.returncode, result.stdout) == (0, "")


def test_hadolint_finds_a_bad_image(tmp_path: Path) -> None:
    bad = tmp_path / "Dockerfile"
    bad.write_text(
        (DEPLOY / "Dockerfile").read_text().replace('CMD ["dpdask", "--help"]', "CMD dpdask --help")
    )
    result = tool("hadolint", "--failure-threshold", "info", bad)
    assert result.returncode == 1
    assert "DL3025" in result.stdout


def test_the_image_runs_as_a_plain_user_without_tracking_or_spilling() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    last = text.split("\nFROM ")[-1]
    assert re.findall(r"^USER (\S+)$", last, re.MULTILINE) == ["10001:10001"]
    assert "ENTRYPOINT" not in text
    assert '"/src[flows,cloud,postgres]"' in text
    for name, value in (NO_TRACKING | NO_SPILL).items():
        assert re.search(rf"\b{name}={value}\b", last)


def test_the_image_copies_only_what_its_context_holds() -> None:
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    kept = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    copies = re.findall(
        r"^COPY (?!--from)(?:--\S+ )?(.+) \S+$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE
    )
    assert {source for line in copies for source in line.split()} == kept
    assert [name for name in sorted(kept) if not (ROOT / name).exists()] == []


# Compose


def test_compose_follows_its_schema() -> None:
    result = tool(
        "check-jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml"
    )
    assert result.returncode == 0, result.stdout


def test_the_compose_schema_finds_a_misspelt_key(tmp_path: Path) -> None:
    bad = tmp_path / "compose.yaml"
    bad.write_text((DEPLOY / "compose.yaml").read_text().replace("healthcheck:", "healthchek:", 1))
    assert tool("check-jsonschema", "--builtin-schema", "vendor.compose-spec", bad).returncode == 1


def test_compose_publishes_loopback_ports_only() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


@pytest.mark.parametrize("name", SERVICES)
def test_a_compose_service_is_watched_or_runs_once(name: str) -> None:
    service = SERVICES[name]
    assert isinstance(service.get("command") or service.get("entrypoint") or [], list)
    assert service["restart"] in ("no", "unless-stopped")
    if service["restart"] == "no":
        waiting = [
            other["depends_on"][name]["condition"]
            for other in SERVICES.values()
            if name in other.get("depends_on", {})
        ]
        assert waiting == ["service_completed_successfully"]
    else:
        assert service["healthcheck"]["test"][0] == "CMD"


def _name_of(secret: Any) -> str:
    """The name under which a service sees a secret."""
    return str(secret["target"] if isinstance(secret, dict) else secret)


def test_compose_gives_each_service_only_the_secrets_it_needs() -> None:
    tls = {"dask-ca.pem", "dask-cert.pem", "dask-key.pem"}
    s3 = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
    assert {
        name: {_name_of(secret) for secret in service["secrets"]}
        for name, service in SERVICES.items()
        if "secrets" in service
    } == {
        "prefect-server": {"PREFECT_SERVER_API_AUTH_STRING"},
        "prefect-worker": {"DPDASK_MASTER_KEY", "PGPASSWORD", "PREFECT_API_AUTH_STRING"} | s3 | tls,
        "dask-scheduler": tls,
        "dask-worker": s3 | tls,
        "postgres": {"PGPASSWORD"},
        "ledger-open": {"DPDASK_MASTER_KEY", "PGPASSWORD"},
        "minio": s3,
        "buckets": s3,
    }
    others = {"DPDASK_MASTER_KEY", "PGPASSWORD", "PREFECT_API_AUTH_STRING"}
    assert set(COMPOSE["secrets"]) == tls | s3 | others
    assert all(set(secret) == {"file"} for secret in COMPOSE["secrets"].values())
    in_environments = {
        name for service in SERVICES.values() for name in service.get("environment", {})
    }
    assert in_environments & SECRETS == {"DPDASK_LEDGER"}  # a URL without a password


def test_compose_turns_spilling_and_tracking_off() -> None:
    assert SERVICES["dask-worker"]["environment"].items() >= NO_SPILL.items()
    assert SERVICES["prefect-server"]["environment"].items() >= NO_TRACKING.items()
    assert SERVICES["prefect-worker"]["environment"].items() >= (NO_SPILL | NO_TRACKING).items()


# Kubernetes


def crd() -> dict[str, Any]:
    distribution = importlib.metadata.distribution("dask-kubernetes")
    paths = [
        file
        for file in distribution.files or []
        if file.match("dask-kubernetes-operator/crds/daskcluster.yaml")
    ]
    definition = yaml.safe_load(Path(str(paths[0].locate())).read_text())
    [schema] = [
        each["schema"]["openAPIV3Schema"]
        for each in definition["spec"]["versions"]
        if each["name"] == "v1"
    ]
    return schema


def core_objects() -> list[dict[str, Any]]:
    wrapped = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": pods()[name]}
        for name in ("scheduler", "worker")
    ]
    service = manifest("DaskCluster")["spec"]["scheduler"]["service"]
    wrapped.append(
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "scheduler"}, "spec": service}
    )
    return [each for each in MANIFESTS if each["kind"] != "DaskCluster"] + wrapped


@pytest.mark.parametrize(
    "resource", core_objects(), ids=lambda each: f"{each['kind']}-{each['metadata']['name']}"
)
def test_kubernetes_accepts_every_manifest(resource: dict[str, Any]) -> None:
    kubernetes_validate.validate(resource, "1.31", strict=True)


def test_kubernetes_refuses_a_misspelt_field() -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {**pods()["worker"], "volume": []},
    }
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(pod, "1.31", strict=True)


def test_the_dask_operator_accepts_the_cluster() -> None:
    jsonschema.validate(manifest("DaskCluster"), crd())


def test_the_dask_operator_refuses_a_cluster_without_a_service() -> None:
    cluster = manifest("DaskCluster")
    scheduler = {
        key: value for key, value in cluster["spec"]["scheduler"].items() if key != "service"
    }
    with pytest.raises(jsonschema.ValidationError, match="service"):
        jsonschema.validate({**cluster, "spec": {**cluster["spec"], "scheduler": scheduler}}, crd())


@pytest.mark.parametrize("name", pods())
def test_a_pod_is_confined(name: str) -> None:
    pod, inner = pods()[name], container(name)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert inner["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert set(inner["resources"]["requests"]) == {"cpu", "memory"}
    assert "memory" in inner["resources"]["limits"]
    assert [
        each["name"]
        for each in inner.get("env", [])
        if each["name"] in SECRETS and "secretKeyRef" not in each["valueFrom"]
    ] == []


def test_manifests_only_refer_to_secrets() -> None:
    assert sorted(each["kind"] for each in MANIFESTS) == [
        "DaskCluster",
        "Deployment",
        "ServiceAccount",
    ]


def test_pods_turn_spilling_and_tracking_off() -> None:
    assert literals("worker").items() >= NO_SPILL.items()
    assert literals("prefect-worker").items() >= (NO_SPILL | NO_TRACKING).items()
    assert literals("worker")["DASK_SCHEDULER_ADDRESS"] == "tls://dpdask-scheduler:8786"


# Dask processes, as Compose and Kubernetes start them


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    made = Security.temporary().get_tls_config_for_role("client")
    (folder / "dask-ca.pem").write_text(made["ca_file"])
    (folder / "dask-cert.pem").write_text(made["cert"])
    (folder / "dask-key.pem").write_text(made["key"])
    return folder


@contextlib.contextmanager
def running(command: list[str], log: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("DASK_")}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=inherited | environment, stdout=output, stderr=output, cwd=log.parent
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def started_by(way: str) -> tuple[list[str], list[str], dict[str, str]]:
    if way == "compose":
        worker = SERVICES["dask-worker"]
        environment = {name: worker["environment"][name] for name in NO_SPILL}
        return (
            SERVICES["dask-scheduler"]["command"],
            worker["command"][1:],
            environment,
        )  # without with-secrets
    environment = {
        name: value for name, value in literals("worker").items() if name.startswith("DASK_")
    }
    return container("scheduler")["args"], container("worker")["args"], environment


@pytest.mark.parametrize("way", ["compose", "kubernetes"])
def test_dpdask_trusts_the_dask_cluster(way: str, certificates: Path, tmp_path: Path) -> None:
    ports = {"8786": free_port(), "8787": free_port(), "8788": free_port()}

    def here(text: str) -> str:
        text = text.replace("/run/secrets", str(certificates)).replace(
            "$(DASK_WORKER_NAME)", "worker"
        )
        text = re.sub(r"tls://[a-z-]+:", "tls://127.0.0.1:", text).replace(
            "directory=/tmp", f"directory={tmp_path}"
        )
        return re.sub(r"\b878[678]\b", lambda port: str(ports[port[0]]), text)

    scheduler, worker, environment = started_by(way)
    assert scheduler[0] == worker[0] == "dask"
    commands = [[str(SCRIPTS / "dask"), *map(here, command[1:])] for command in (scheduler, worker)]
    address = f"tls://127.0.0.1:{ports['8786']}"
    paths = {name: str(certificates / f"dask-{file}.pem") for name, file in TLS_FILES.items()}
    environment = {name: here(value) for name, value in environment.items()}
    with (
        running(commands[0], tmp_path / "scheduler.log"),
        running(commands[1], tmp_path / "worker.log", **environment),
        joined(address, paths) as client,
        connect(ComputeSection(cluster=address), client) as trusted,
    ):
        assert trusted.client.submit(sum, [1, 2]).result(timeout=30) == 3
        for port in (ports["8787"], ports["8788"]):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as page:
                assert page.status == 200


TLS_FILES = {"tls_ca_file": "ca", "tls_client_cert": "cert", "tls_client_key": "key"}


@contextlib.contextmanager
def joined(address: str, paths: dict[str, str]) -> Iterator[Client]:
    with Client(
        address,
        security=Security(**paths, require_encryption=True),
        timeout=60,
        set_as_default=False,
    ) as client:
        client.wait_for_workers(1, timeout=60)
        yield client


# SLURM


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(DEPLOY / "slurm"))
    monkeypatch.setenv("DPDASK_MASTER_KEY", "planted-master-key")
    monkeypatch.setenv("PGPASSWORD", "planted-password")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted-s3-key")
    from cluster import slurm_cluster

    options = {"cores": 1, "memory": "1GiB", "queue": "main", "job_script_prologue": ["echo mine"]}
    cluster = slurm_cluster(
        jobs=0, tls_folder=str(tmp_path / "tls"), scheduler_options={"host": "127.0.0.1"}, **options
    )
    with contextlib.closing(cluster):
        yield cluster


def test_slurm_workers_speak_tls_and_do_not_spill(slurm: Any, tmp_path: Path) -> None:
    script = slurm.job_script()
    assert slurm.scheduler_address.startswith("tls://")
    assert f"distributed.cli.dask_worker {slurm.scheduler_address} " in script
    assert "--protocol tls://" in script
    for name in ("ca-file", "cert", "key"):
        [path] = re.findall(rf"--tls-{name} (\S+)", script)
        assert Path(path).parent == tmp_path / "tls"
        assert Path(path).stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "tls").stat().st_mode & 0o777 == 0o700
    for name, value in NO_SPILL.items():
        assert f"export {name}={value}\n" in script
    assert "--no-dashboard --dashboard-address 127.0.0.1:0" in script
    assert "\necho mine\n" in script
    assert "#SBATCH -p main" in script


def test_slurm_workers_get_no_secret_of_the_ledger(slurm: Any) -> None:
    script = slurm.job_script()
    assert "planted" not in script
    assert "PRIVATE KEY" not in script
    [exported] = re.findall(r"^#SBATCH --export=(\S+)$", script, re.MULTILINE)
    assert set(exported.split(",")).isdisjoint(
        {"ALL", "DPDASK_MASTER_KEY", "DPDASK_LEDGER", "PGPASSWORD"}
    )


def test_the_slurm_scheduler_shows_its_pages_on_loopback_only(slurm: Any) -> None:
    sockets = slurm.scheduler.http_server._sockets.values()
    assert {found.getsockname()[0] for found in sockets} == {"127.0.0.1"}


def test_dpdask_trusts_a_slurm_worker(slurm: Any, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(slurm.job_script())
    with (
        running(["bash", str(script)], tmp_path / "job.log", TMPDIR=str(tmp_path)),
        Client(slurm, set_as_default=False) as client,
        connect(ComputeSection(), client) as trusted,
    ):
        assert trusted.client.submit(sum, [1, 2]).result(timeout=30) == 3


def test_dpdask_refuses_a_slurm_worker_that_spills(slurm: Any, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(slurm.job_script().replace("SPILL=False", "SPILL=0.7"))
    with (
        running(["bash", str(script)], tmp_path / "job.log", TMPDIR=str(tmp_path)),
        Client(slurm, set_as_default=False) as client,
        pytest.raises(ClusterError, match="spill"),
        connect(ComputeSection(), client),
    ):
        pass


@pytest.mark.parametrize("name", ["with-secrets", "slurm/release.sbatch"])
def test_scripts_pass_shellcheck(name: str) -> None:
    result = tool("shellcheck", DEPLOY / name)
    assert result.returncode == 0, result.stdout
    assert os.access(DEPLOY / "with-secrets", os.X_OK)


def test_the_batch_job_runs_dpdask_with_secrets_from_files(tmp_path: Path) -> None:
    text = (DEPLOY / "slurm" / "release.sbatch").read_text()
    [exported] = re.findall(r"^#SBATCH --export=(\S+)$", text, re.MULTILINE)
    assert set(exported.split(",")).isdisjoint(SECRETS | {"ALL"})
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "DPDASK_LEDGER").write_text(f"sqlite:///{tmp_path}/ledger.db\n")
    (secrets / "DPDASK_MASTER_KEY").write_text("not hexadecimal\n")
    (tmp_path / "spec.yaml").write_text(
        yaml.safe_dump(
            {
                "source": {"url": str(tmp_path / "in.zarr")},
                "output": {"url": str(tmp_path / "out.zarr")},
                "query": {"name": "precomputed", "l2_sensitivity": 1.0},
                "privacy": {"epsilon": 1.0, "delta": 1e-6},
                "mechanism": "analytic-gaussian",
                "budget": {"dataset": "people"},
            }
        )
    )
    environment = {
        "PATH": f"{SCRIPTS}:{os.defpath}",
        "HOME": str(tmp_path),
        "SLURM_SUBMIT_DIR": str(ROOT),
        "DPDASK_SECRETS_FOLDER": str(secrets),
    }
    command = ["bash", str(DEPLOY / "slurm" / "release.sbatch"), str(tmp_path / "spec.yaml")]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert "DPDASK_MASTER_KEY is not 64 hexadecimal digits" in result.stderr


def test_secret_files_become_variables(tmp_path: Path) -> None:
    (tmp_path / "PGPASSWORD").write_text("two words\n")
    (tmp_path / "dask-key.pem").write_text("not a variable")
    command = [
        str(DEPLOY / "with-secrets"),
        sys.executable,
        "-c",
        "import os; print(dict(os.environ))",
    ]
    environment = {"PATH": os.defpath, "DPDASK_SECRETS_FOLDER": str(tmp_path)}
    result = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=30
    )
    found = ast.literal_eval(result.stdout)
    assert found["PGPASSWORD"] == "two words"
    assert "not a variable" not in found.values()


# Prefect


def test_every_flow_has_a_deployment_on_the_process_pool() -> None:
    assert {each["name"]: each["entrypoint"] for each in PREFECT["deployments"]} == FLOWS
    assert {each["work_pool"]["name"] for each in PREFECT["deployments"]} == {"dpdask"}
    assert PREFECT.keys().isdisjoint({"build", "push"})


def test_every_entrypoint_is_a_flow_that_prefect_can_load() -> None:
    from prefect.flows import Flow, load_flow_from_entrypoint

    for name, entrypoint in FLOWS.items():
        flow: Any = load_flow_from_entrypoint(str(ROOT / entrypoint))
        assert isinstance(flow, Flow)
        assert flow.name == name


@pytest.mark.parametrize("deployment", PREFECT["deployments"], ids=lambda each: each["name"])
def test_schedules_are_valid_and_wait_for_the_users_spec(deployment: dict[str, Any]) -> None:
    assert deployment["schedules"]
    for schedule in deployment["schedules"]:
        CronSchedule(cron=schedule["cron"], timezone=schedule["timezone"])
        assert schedule["active"] is False or deployment.get("parameters")


def test_a_wrong_schedule_is_refused() -> None:
    with pytest.raises(ValueError, match="cron"):
        CronSchedule(cron="0 25 * * *", timezone="UTC")


# All files

LITERALS = {
    "a private key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    "a cloud key": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "a long hexadecimal string": r"\b[0-9a-fA-F]{32,}\b",
    "a URL with a password": r"://[^\s/:@]+:[^\s/@]+@",
    "a value of a secret": (
        r"(?i)\b(?!\w*_FILE\b)\w*(?:PASSWORD|PASSWD|MASTER_KEY|SECRET_ACCESS_KEY|ACCESS_KEY_ID|TOKEN|AUTH_STRING|API_KEY)"
        r"""["']?\s*(?:[:=]|,\s*["']?value["']?\s*:|\n\s*value\s*:)[ \t]*"""
        r"""["']?(?![\s"'${]|false\b)[^\s"'#,}]{3,}"""
    ),
}


def findings(folder: Path) -> list[str]:
    found = []
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.is_file() and inside.parts[0] != "secrets" and "__pycache__" not in inside.parts:
            text = path.read_text()
            for what, pattern in LITERALS.items():
                found += [f"{inside}: {what}" for _ in re.finditer(pattern, text)]
    return found


def test_no_file_holds_a_secret() -> None:
    assert findings(DEPLOY) == []


@pytest.mark.parametrize(
    ("name", "planted"),
    [
        ("compose.yaml", "      POSTGRES_PASSWORD: " + "hun" + "ter2"),
        (
            "compose.yaml",
            "      DPDASK_LEDGER: postgresql://dpdask:" + "hun" + "ter2@postgres/dpdask",
        ),
        (
            "kubernetes/prefect-worker.yaml",
            "            - {name: PGPASSWORD, value: " + "hun" + "ter2}",
        ),
        (
            "kubernetes/prefect-worker.yaml",
            "            - name: PGPASSWORD\n              value: " + "hun" + "ter2",
        ),
        ("Dockerfile", "ENV DPDASK_MASTER_KEY=" + "0123456789abcdef" * 4),
        ("Dockerfile", "RUN echo " + "0123456789abcdef" * 4),
        ("slurm/release.sbatch", 'export AWS_SECRET_ACCESS_KEY="' + "wJalrXUtnFEMI/K7MDENG" + '"'),
        ("slurm/cluster.py", 'KEY = "' + "AKIA" + "Q" * 16 + '"'),
        ("README.md", "-----BEGIN " + "EC PRIVATE KEY-----"),
        ("with-secrets", "token=" + "abcdefgh"),
    ],
)
def test_a_planted_secret_is_found(name: str, planted: str, tmp_path: Path) -> None:
    copy = tmp_path / "deploy"
    shutil.copytree(DEPLOY, copy, ignore=shutil.ignore_patterns("secrets", "__pycache__"))
    with (copy / name).open("a") as file:
        file.write(f"\n{planted}\n")
    assert {line.partition(":")[0] for line in findings(copy)} == {name}


def test_the_guide_names_files_that_exist() -> None:
    named = set(re.findall(r"\bdeploy/[\w./-]*\w", (DEPLOY / "README.md").read_text()))
    assert {"deploy/Dockerfile", "deploy/compose.yaml", "deploy/prefect.yaml"} <= named
    made_by_the_reader = (
        "deploy/secrets",
        "deploy/dpdask-prefect-worker",
    )  # a folder, and a Deployment for kubectl
    assert [
        name
        for name in sorted(named)
        if not name.startswith(made_by_the_reader) and not (ROOT / name).exists()
    ] == []


# The project's own files


def test_the_workflow_runs_what_ci_runs() -> None:
    path = ROOT / ".github" / "workflows" / "ci.yml"
    result = tool("check-jsonschema", "--builtin-schema", "vendor.github-workflows", path)
    assert result.returncode == 0, result.stdout
    jobs = documents(path)[0]["jobs"]
    commands = [step["run"] for step in jobs["test"]["steps"] if "run" in step]
    assert commands == [".ci/run"]
    assert (ROOT / ".ci" / "run").read_text().splitlines()[-1] == "make test"
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_the_license_is_whole_and_is_packaged() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert text.split()[:4] == ["Apache", "License", "Version", "2.0,"]
    assert "END OF TERMS AND CONDITIONS" in text
    assert 'license-files = ["LICENSE"]' in (ROOT / "pyproject.toml").read_text()


def test_the_citation_names_this_version() -> None:
    path = ROOT / "CITATION.cff"
    result = tool("check-jsonschema", "--builtin-schema", "vendor.citation-file-format", path)
    assert result.returncode == 0, result.stdout
    citation = documents(path)[0]
    assert str(citation["version"]) == importlib.metadata.version("dpdask")
    assert citation["license"] == "Apache-2.0"
