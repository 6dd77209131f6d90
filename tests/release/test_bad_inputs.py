"""User mistakes on the command line: one line with the way out, an exit code, nothing charged,
nothing left behind.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
import zarr
from click.testing import CliRunner, Result
from distributed.comm import connect as distributed_connect
from distributed.comm import listen

from dpdask.cli import main
from dpdask.execution import connect
from dpdask.ledger import Ledger
from dpdask.privacy import PrivacyBudget
from dpdask.spec.release import ComputeSection
from tests.support.workspace import Workspace, people


def run(space: Workspace, *arguments: str, **changes: Any) -> Result:
    spec = space.write_spec(**changes)
    return CliRunner().invoke(main, [*(arguments or ("run",)), str(spec)])


def refused(space: Workspace, result: Result, text: str, code: int = 2) -> None:
    assert result.exit_code == code, result.output
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert text in errors[0]
    assert "Traceback" not in result.output
    assert space.spent() == 0
    assert space.left_behind() == []


DTYPES: list[tuple[str, Any, str]] = [
    ("complex", np.zeros((6, 2), "c16"), "complex"),
    ("string", np.array([["a", "b"]] * 6), "only real numbers"),
    ("datetime", np.zeros((6, 2), "M8[s]"), "holds times"),
    ("structured", np.zeros((6, 2), [("a", "f4"), ("b", "i4")]), "structured"),
]


@pytest.mark.parametrize(("name", "values", "text"), DTYPES)
@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
@pytest.mark.filterwarnings("ignore::zarr.core.dtype.common.UnstableSpecificationWarning")
def test_arrays_that_are_no_real_numbers_are_refused(
    space: Workspace, name: str, values: Any, text: str
) -> None:
    version = 2 if name in ("datetime", "structured") else 3
    array = zarr.create_array(
        space.folder / "source.zarr",
        name="x",
        shape=values.shape,
        chunks=(3, 2),
        dtype=values.dtype,
        zarr_format=version,
    )
    array[...] = values
    refused(space, run(space), text)


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"source": {"url": "nowhere.zarr", "array": "x"}}, "does not exist"),
    ({"source": {"url": "SOURCE", "array": "y"}}, "array 'y'"),
    ({"source": {"url": "SOURCE"}}, "no array at the root"),
    ({"source": {"url": "ftp://x/y"}}, "ftp:// is not a store"),
    ({"source": {"url": "hdfs://x/y"}}, "hdfs:// is not a store"),
    ({"output": {"url": "https://example.org/y"}}, "https:// is not a store"),
    ({"output": {"url": "az://container/y"}}, "object store refuses its URL or options"),
    (
        {"output": {"url": "s3://bucket/y", "options": {"regoin": "eu"}}},
        "option regoin may be a secret",
    ),
    (
        {"output": {"url": "s3://bucket/y", "options": {"regoin": {"env": "HOME"}}}},
        "storage option regoin is not a valid option",
    ),
    (
        {"output": {"url": "s3://bucket/y", "options": {"region": {"env": "NOT_SET"}}}},
        "variable NOT_SET",
    ),
    (
        {"output": {"url": "memory://y", "options": {"region": "eu"}}},
        "memory:// takes no storage options",
    ),
    ({"output": {"url": "file://host/y"}}, "on the host 'host'"),
    ({"output": {"url": "file:///y?part"}}, "holds a ? or #"),
    ({"output": {"url": "s3://[y"}}, "output.url"),
    ({"output": {"url": "a\0b"}}, "holds control characters"),
    ({"output": {"url": "/"}}, "root of the filesystem"),
    ({"output": {"url": "~nobody-knows-this-user/y"}}, "home of a user"),
    ({"output": {"url": "day-{start}-{stop}.zarr"}}, "holds {start}, {stop}, which only a series"),
    ({"output": {"url": "{array}.zarr"}}, "holds {array}"),
    ({"composition": {"sampling_rate": 0.1}}, "of: privacy-units"),
    ({"output": {"url": "SOURCE"}}, "publish somewhere else"),
    ({"output": {"url": "OUT", "array": "../up"}}, "output.array"),
    ({"privacy_unit": {"record_dim": 7, "l2_clip_norm": 1.0}}, "record_dim=7"),
    ({"privacy_unit": {"record_dim": 0, "ranges": [[0, 1], [0, 1]]}}, "2 ranges do not fit"),
    ({"privacy_unit": {"record_axes": 0, "l2_clip_norm": 1.0}}, "did you mean 'record_dim'?"),
    ({"compute": {"cluster": "tcp://192.0.2.7:8786"}}, "does not encrypt"),
    ({"compute": {"cluster": "no.such.module:factory"}}, "importable"),
    ({"compute": {"cluster": "os:getcwd"}}, "returned no Dask cluster"),
    ({"compute": {"task_size": "many"}}, "is not a valid size"),
    ({"mechanism": "gaussian-ish"}, "choose one of"),
    ({"query": "median"}, "choose one of identity, sum"),
    ({"query": {"name": "precomputed"}}, "query.l2_sensitivity is missing"),
    ({"privacy": {"epsilon": 0, "delta": 1e-5}}, "epsilon=0"),
    ({"noise": {"steps_per_sigma": 1000}}, "power of two"),
    ({"publish": {"coordinates": ["nope"]}}, "no array 'nope'"),
    ({"publish": {"attributes": ["nope"]}}, "no attribute 'nope'"),
    ({"budget": {"dataset": "strangers", "ledger": "LEDGER"}}, "not in the ledger"),
]


@pytest.mark.parametrize(("changes", "text"), MISTAKES, ids=[text for _, text in MISTAKES])
def test_mistakes_get_one_line_with_the_way_out(
    space: Workspace, changes: dict[str, Any], text: str
) -> None:
    space.source(people(), chunks=(20, 8))
    names = {
        "SOURCE": str(space.folder / "source.zarr"),
        "OUT": str(space.folder / "out.zarr"),
        "LEDGER": space.ledger_url,
    }
    placed = {
        section: {
            key: names.get(value, value) if isinstance(value, str) else value
            for key, value in given.items()
        }
        if isinstance(given, dict)
        else given
        for section, given in changes.items()
    }
    refused(space, run(space, **placed), text)


def test_an_output_that_exists_is_refused(space: Workspace) -> None:
    space.source(people())
    (space.folder / "source.zarr-out").mkdir()
    refused(
        space, run(space, output={"url": f"{space.folder}/source.zarr-out"}), "replaces nothing"
    )


def test_a_scheduler_that_is_not_there_is_found_before_anything_is_charged(
    space: Workspace,
) -> None:
    space.source(people(), chunks=(20, 8))
    compute = {"cluster": "tcp://127.0.0.1:9", "patience": 0}
    refused(space, run(space, compute=compute), "cannot be reached", code=5)


def test_an_output_that_cannot_be_written_is_found_before_anything_is_charged(
    space: Workspace,
) -> None:
    space.source(people(), chunks=(20, 8))
    output = {"url": "/proc/nothing/here.zarr"}
    refused(space, run(space, output=output), "cannot write", code=6)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small filesystem")
def test_a_disk_that_is_too_small_is_found_before_anything_is_charged(space: Workspace) -> None:
    small = space.folder / "source.zarr-small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(small)], capture_output=True
    )
    if (
        mounted.returncode != 0
    ):  # no right to mount here: a file of quota size would not test the same thing
        pytest.skip("mounting is not allowed here")
    try:
        space.source(np.zeros((1000, 1000)), chunks=(100, 1000))
        refused(space, run(space, output={"url": f"{small}/out.zarr"}), "MB left", code=6)
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", str(small)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small filesystem")
def test_a_disk_that_fills_up_on_the_way_leaves_a_release_to_resume(space: Workspace) -> None:
    small = space.folder / "source.zarr-small"
    small.mkdir()
    if (
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=12m", "none", str(small)], capture_output=True
        ).returncode
        != 0
    ):
        pytest.skip("mounting is not allowed here")
    try:
        space.source(np.zeros((1000, 1000)), chunks=(50, 1000))
        from dpdask.errors import StoreError
        from dpdask.releases.api import resume
        from dpdask.releases.verify import verify_release

        def fill(progress: Any) -> None:
            if progress.stage == "key":
                (small / "filler").write_bytes(bytes(8 * 10**6))

        where = {"output": {"url": f"{small}/out.zarr"}}
        with pytest.raises(StoreError, match="disk is full"):
            space.release(on_progress=fill, **where)
        (small / "filler").unlink()
        resume(space.spec(**where))
        verify_release(f"{small}/out.zarr", ledger=space.ledger)
    finally:
        subprocess.run(["umount", str(small)], check=True)


@pytest.mark.parametrize("damage", ["cut", "flip"])
@pytest.mark.parametrize("codec", ["none", "zstd", "crc32c"])
def test_a_corrupt_source_chunk_is_found_before_anything_is_charged(
    space: Workspace, damage: str, codec: str
) -> None:
    compressors: Any = {
        "none": None,
        "zstd": zarr.codecs.ZstdCodec(checksum=True),
        "crc32c": zarr.codecs.Crc32cCodec(),
    }[codec]
    space.source(people(), chunks=(20, 8), compressors=compressors)
    chunk = space.folder / "source.zarr" / "x" / "c" / "1" / "0"
    content = bytearray(chunk.read_bytes())
    if damage == "flip":
        if codec == "none":
            return  # nothing in the store could tell
        content[len(content) // 2] ^= 1
    chunk.write_bytes(content[:-5] if damage == "cut" else content)
    result = run(space)
    refused(space, result, "restore it from a copy", code=6)


def test_a_spent_budget_is_refused_before_any_task_runs(space: Workspace, tmp_path: Path) -> None:
    space.source(people())
    Ledger(space.ledger_url).open_dataset("small", PrivacyBudget(epsilon=2.0, delta=1e-5))
    budget = {"dataset": "small", "ledger": space.ledger_url}
    stages = []
    for edition in range(1, 7):
        url = {"url": f"{space.folder}/out{edition}.zarr"}
        result = run(space, budget=budget, output=url)
        stages.append(result.exit_code)
    assert stages[0] == 0
    assert stages[-1] == 3
    assert "has spent epsilon" in result.stderr
    assert "norms" not in result.stderr
    assert "check source" not in result.stderr
    assert not (space.folder / "out6.zarr").exists()
    assert space.ledger.state("small").spent_epsilon <= 2.0


def test_plan_touches_no_value_and_spends_nothing(space: Workspace) -> None:
    space.source(people(), chunks=(20, 8))
    for chunk in (space.folder / "source.zarr" / "x" / "c").glob("*/0"):
        chunk.write_bytes(b"not a chunk at all")  # any attempt to read would fail
    result = run(space, "plan")
    assert result.exit_code == 0, result.output
    for words in ("verified", "memory", "tiles", "dataset people"):
        assert words in result.stdout
    assert space.spent() == 0
    assert space.left_behind() == []
    assert (
        CliRunner().invoke(main, ["plan", str(space.folder / "spec.yaml"), "--json"]).exit_code == 0
    )


def test_the_commands_of_a_release_work_together(space: Workspace) -> None:
    space.source(people(), chunks=(20, 8))
    assert run(space).exit_code == 0
    url = str(space.folder / "out.zarr")
    runner = CliRunner()
    assert "release card" in runner.invoke(main, ["show", url]).stdout
    assert "hold" in runner.invoke(main, ["verify", url, "--ledger", space.ledger_url]).stdout
    entry = yaml.safe_load(runner.invoke(main, ["registry", url]).stdout)
    assert entry["privacy_loss"]["privacy_parameters"] == {"epsilon": 1.0, "delta": 1e-5}
    assert set(entry) == {
        "status",
        "deployment",
        "dp_flavor",
        "privacy_loss",
        "model",
        "accounting",
        "implementation",
    }
    assert (
        "commit"
        in runner.invoke(main, ["ledger", "show", "people", "--ledger", space.ledger_url]).stdout
    )
    assert run(space, "resume").exit_code == 2
    assert run(space, "abort").exit_code == 2
    assert runner.invoke(main, ["show", str(space.folder)]).exit_code == 2


@pytest.mark.slow
def test_the_demo_and_the_commands_it_prints_work(tmp_path: Path) -> None:
    program = str(Path(sys.executable).parent / "dpdask")
    done = subprocess.run([program, "demo"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "tiles" in done.stderr
    assert "release card" in done.stdout
    commands = [
        line.strip() for line in done.stdout.split("Read it:")[1].splitlines() if line.strip()
    ]
    assert len(commands) >= 4
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for command in commands:
        again = subprocess.run(
            command, shell=True, cwd=tmp_path, capture_output=True, text=True, env=environment
        )
        assert again.returncode == 0, (command, again.stderr)
    assert (
        subprocess.run([program, "demo"], cwd=tmp_path, capture_output=True).returncode == 0
    )  # again, in a new folder


def test_a_heartbeat_that_finds_its_own_cluster_closed_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A worker in this process may be asking its scheduler when both are closed; a lost scheduler
    elsewhere is an error.
    """
    with connect(ComputeSection(threads=1)):
        pass

    async def read_after_closing(address: str) -> None:
        async def handle(comm: Any) -> None:
            await comm.close()

        async with listen(address, handle) as listener:
            comm = await distributed_connect(listener.contact_address)
            try:
                await comm.read()
            except OSError:
                logging.getLogger("distributed.worker").exception(
                    "Failed to communicate with scheduler"
                )

    for address, shown in (("inproc://", False), ("tcp://127.0.0.1:0", True)):
        caplog.clear()
        asyncio.run(read_after_closing(address))
        assert ("CommClosedError" in caplog.text) == shown


DUPLICATES = {
    "top.yaml": (
        "query: sum\nprivacy: {epsilon: 1, delta: 1.0e-5}\nquery: mean\n",
        "key 'query' twice, on lines 1 and 3",
    ),
    "inner.yaml": (
        "privacy:\n  epsilon: 1\n  delta: 1.0e-5\n  'epsilon': 8\n",
        "key 'epsilon' twice, on lines 2 and 4",
    ),
    "flow.yaml": ("privacy: {epsilon: 1, epsilon: 2}\n", "key 'epsilon' twice, on lines 1 and 1"),
    "listed.yaml": ("query: {edges: [{low: 0,\n low: 1}]}\n", "key 'low' twice, on lines 1 and 2"),
    "inner.json": ('{"privacy": {"epsilon": 1, "epsilon": 8}}', "key 'epsilon' twice"),
    "date.yaml": ("budget: {dataset: 2024-13-45}\n", "does not exist"),
    "digits.yaml": (f"privacy: {{epsilon: {'9' * 5000}}}\n", "does not exist"),
    "digits.json": (f'{{"privacy": {{"epsilon": {"9" * 5000}}}}}', "does not exist"),
    "deep.yaml": ("[" * 30_000, "nested too deeply"),
    "deep.json": ("[" * 300_000, "nested too deeply"),
}


@pytest.mark.parametrize("name", DUPLICATES)
def test_a_spec_in_which_one_value_would_silently_win_is_refused(
    space: Workspace, name: str
) -> None:
    text, expected = DUPLICATES[name]
    path = space.folder / f"spec.yaml-{name}"
    path.write_text(text)
    for command in ("run", "calibrate"):
        refused(space, CliRunner().invoke(main, [command, str(path)]), expected)


def test_a_key_may_override_one_that_is_merged_in(space: Workspace) -> None:
    space.source(people(12, 3))
    path = space.write_spec()
    text = path.read_text().replace("privacy:\n", "privacy:\n  <<: {epsilon: 7.0}\n")
    path.write_text(text)
    result = CliRunner().invoke(main, ["plan", str(path), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["guarantee"]["claimed"]["epsilon"] == 1.0


@pytest.mark.parametrize(
    ("section", "command"),
    [
        ("source", "plan"),
        ("source", "run"),
        ("output", "plan"),
        ("output", "run"),
        ("output", "resume"),
        ("output", "abort"),
    ],
)
def test_an_object_store_without_its_extra_says_what_to_install(
    space: Workspace, section: str, command: str
) -> None:
    """In a process in which obstore cannot be imported: a folder of that name, first on the path,
    refuses.
    """
    space.source(people())
    (space.folder / "ledger.db-blocked" / "obstore").mkdir(parents=True)
    (space.folder / "ledger.db-blocked" / "obstore" / "__init__.py").write_text(
        "raise ImportError('no obstore here')\n"
    )
    path = space.write_spec(
        **{section: {"url": "s3://bucket/name", **({"array": "x"} if section == "source" else {})}}
    )
    environment = {**os.environ, "PYTHONPATH": str(space.folder / "ledger.db-blocked")}
    program = [sys.executable, "-c", "from dpdask.cli import main; main()", command, str(path)]
    done = subprocess.run(
        program, env=environment, capture_output=True, text=True, cwd=space.folder
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.strip().splitlines() == [
        "error: object stores need obstore, which is not installed; pip install 'dpdask[cloud]'"
    ]
    assert space.spent() == 0
    assert space.left_behind() == []


@pytest.mark.parametrize("command", ["show", "verify", "registry"])
@pytest.mark.parametrize(
    "url", ["s3://[y", "hdfs://x", "a\tb", "~nobody-knows-this-user/x", "file://host/x"]
)
def test_readers_get_one_line_for_an_address_that_is_none(command: str, url: str) -> None:
    result = CliRunner().invoke(main, [command, url])
    assert result.exit_code == 2
    assert len(result.stderr.strip().splitlines()) == 1


SCHEDULES: list[tuple[list[str], str]] = [
    (["--cron", "abc"], "--cron 'abc' is not a valid cron line"),
    (["--cron", ""], "not a valid cron line"),
    (["--cron", "61 * * * *"], "not a valid cron line"),
    (["--cron", "0 6 * *"], "not a valid cron line"),
    (["--cron", "0 0 6 * * *"], "give five fields"),
    (["--cron", "R * * * *"], "not a valid cron line"),
    (["--every", "0"], "--every 0 is not a number of seconds"),
    (["--every", "-5"], "--every -5"),
    (["--every", "nan"], "--every nan"),
    (["--every", "1e300"], "--every 1e+300"),
    ([], "one of them"),
    (["--every", "60", "--cron", "0 6 * * *"], "one of them"),
    (["--every", "60", "--rate-limit", "1,1e-6,30"], "belong to a series"),
    (["--every", "60", "--series", "days"], "give --axis"),
    (["--every", "60", "--series", "days", "--axis", "-1"], "give --axis"),
    (["--every", "60", "--series", "days", "--axis", "0", "--max-window", "0"], "--max-window 0"),
    (
        ["--every", "60", "--series", "days", "--axis", "0", "--rate-limit", "1,2,30"],
        "delta out of range",
    ),
    (["--every", "60", "--series", "days", "--axis", "0"], "put {start} and {stop} into it"),
]


@pytest.fixture(scope="module")
def prefect_is_loaded() -> None:
    """Prefect keeps the standard output that it finds when it is loaded: not the runner's, which is
    closed afterwards.
    """
    importlib.import_module("dpdask.flows.serve")


@pytest.mark.usefixtures("prefect_is_loaded")
@pytest.mark.parametrize(
    ("options", "text"), SCHEDULES, ids=[" ".join(options) for options, _ in SCHEDULES]
)
def test_a_wrong_schedule_is_refused_before_prefect_starts(
    space: Workspace, options: list[str], text: str
) -> None:
    path = space.write_spec()
    refused(space, CliRunner().invoke(main, ["serve", str(path), *options]), text)


@pytest.mark.usefixtures("prefect_is_loaded")
@pytest.mark.parametrize("options", [[], ["--series", "days", "--axis", "0"]])
def test_a_placeholder_that_nothing_fills_is_refused_before_prefect_starts(
    space: Workspace, options: list[str]
) -> None:
    path = space.write_spec(
        output={"url": "day-{start}-{stop}-{day}.zarr" if options else "day-{start}.zarr"}
    )
    refused(
        space,
        CliRunner().invoke(main, ["serve", str(path), "--every", "60", *options]),
        "which only a series",
    )
