"""A canary value in the data and a canary key: nowhere but where they belong."""

from __future__ import annotations

import io
import json
import logging
import sqlite3
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpdask import PrivacyBudget
from dpdask.errors import DpdaskError
from dpdask.execution import exact_tasks, tasks
from dpdask.keystream import ReleaseKey
from dpdask.ledger import Ledger
from dpdask.planning import make_plan
from dpdask.spec import parse_release_spec
from dpdask.storage import Publisher
from tests.support.workspace import Workspace, people

CANARY = 31415926.535897931
KEY = bytes.fromhex("c0ffee" * 10 + "c0ff")


def spellings(value: float) -> list[bytes]:
    """A value as text and as bytes, in the forms in which it could slip out."""
    texts = [
        repr(value),
        f"{value:.6f}",
        f"{value:g}",
        f"{value:.3e}",
        str(int(value)),
        repr(float(np.float32(value))),
    ]
    return [text.encode() for text in texts] + [struct.pack("<d", value), struct.pack("<f", value)]


def key_spellings(key: bytes) -> list[bytes]:
    return [key, key.hex().encode(), repr(key).encode(), key[:8], key.hex()[:16].encode()]


def with_canary(count: int = 64) -> np.ndarray[Any, Any]:
    x = people(count, 8)
    x[5, 3] = CANARY
    x[6, :] = np.nan
    return x


def absent(haystack: bytes, needles: list[bytes], where: str) -> None:
    for needle in needles:
        assert needle not in haystack, (where, needle)


PROGRAM = """
import logging, sys
logging.basicConfig(level=logging.DEBUG)
from dpdask.releases.api import release
try:
    release(sys.argv[1], on_progress=lambda p: print(p))
except Exception as error:
    import traceback
    traceback.print_exc()
    print(repr(error), repr(error.__context__), repr(error.__cause__))
"""


@pytest.mark.slow
@pytest.mark.parametrize("query", ["identity", "sum", "fails"])
def test_no_raw_value_in_logs_worker_logs_errors_or_metadata(space: Workspace, query: str) -> None:
    """Debug logs of driver, scheduler and workers (as processes), for a release that works and one
    that fails midway.
    """
    space.source(with_canary(), chunks=(16, 3))
    changes: dict[str, Any] = {"query": "identity" if query == "fails" else query}
    if query == "fails":
        readonly = space.folder / "source.zarr-full"
        readonly.mkdir()
        changes["output"] = {"url": f"{readonly}/out.zarr"}
    spec = space.write_spec(compute={"workers": 2, "threads": 1}, **changes)
    program = PROGRAM
    if query == "fails":  # take the staging away under the writers' feet
        staging = f"{readonly}/out.zarr.dpdask-staging/*"
        find = f"[f for f in __import__('glob').glob('{staging}') if not f.endswith('.json')][0]"
        meddle = (
            f"p.stage == 'key' and __import__('os').symlink('/proc/1/none', {find} + '/release')"
        )
        program = program.replace("print(p))", f"(print(p), {meddle}))")
    script = space.folder / "ledger.db-program.py"
    script.write_text(
        "if __name__ =="
        f" '__main__':\n{''.join('    ' + line + chr(10) for line in program.strip().splitlines())}"
    )
    done = subprocess.run([sys.executable, str(script), str(spec)], capture_output=True)
    output = done.stdout + done.stderr
    assert b"Traceback" in output if query == "fails" else b"published" in output, output[-2000:]
    absent(output, spellings(CANARY), "logs")
    for path in space.folder.rglob("*"):
        assert "31415926" not in path.name
        if path.is_file() and not path.is_relative_to(space.folder / "source.zarr"):
            absent(path.read_bytes(), spellings(CANARY), str(path))


def test_task_graphs_print_neither_values_nor_keys(space: Workspace) -> None:
    from dask._task_spec import Task

    space.source(with_canary(), chunks=(16, 3))
    plan = make_plan(parse_release_spec(space.spec()))
    from dpdask.execution import Intermediates, TileWork

    staging = Publisher.of(plan.output, "name")
    job = TileWork(plan, plan.only, Intermediates(), staging).job(ReleaseKey(KEY))
    sealed = exact_tasks.Opaque(np.array([CANARY]))
    task = Task("tile", tasks.write_tiles, job, [(0, 0)], 0, sealed, sealed)
    graph = {
        "tile": task,
        "norms": Task(
            "norms", exact_tasks.clip_part, plan.data.privatizer.clip_grid, slice(0, 1), sealed
        ),
    }
    for printed in (
        repr(task),
        str(task),
        repr(graph),
        repr(job),
        repr(sealed),
        repr(plan.source),
        str(plan.output),
    ):
        absent(printed.encode(), spellings(CANARY) + key_spellings(KEY), printed)
        assert str(space.folder) not in printed


def test_exceptions_of_tasks_carry_no_value(space: Workspace) -> None:
    space.source(with_canary(), chunks=(16, 8))
    plan = make_plan(parse_release_spec(space.spec()))

    class Broken:
        """A recipe that fails with the data in its message."""

        clip_grid = None
        noise = None

        def release(self, block: Any, *_args: Any, **_options: Any) -> None:
            raise ValueError(f"cannot work with {block.max()!r}")

    from dpdask.execution import Intermediates, TileWork

    staging = Publisher.of(plan.output, "name")
    job = TileWork(plan, plan.only, Intermediates(), staging).job(ReleaseKey(KEY))
    object.__setattr__(job, "privatizer", Broken())
    with pytest.raises(Exception, match="a task failed") as caught:
        tasks.write_tiles(job, [(0, 0)])
    error = caught.value
    assert error.__cause__ is None
    assert error.__context__ is None
    absent(repr(error).encode(), spellings(CANARY), "exception")


def test_the_key_lives_in_the_key_table_alone_and_dies_at_commit(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpdask.keystream.random_bytes", lambda count: KEY[:count])
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(logging.DEBUG)
    space.source(with_canary(), chunks=(16, 8))
    dumps = []

    def watch(progress: Any) -> None:
        if progress.stage == "tiles" and not dumps:
            for path in space.folder.glob("ledger.db*"):  # it is there, and wrapped
                absent(path.read_bytes(), key_spellings(KEY), f"while tiles are written: {path}")
            with sqlite3.connect(f"{space.folder}/ledger.db") as connection:
                assert (
                    connection.execute(
                        "SELECT count(*) FROM dpdask_release_keys WHERE wrapped = 1"
                    ).fetchone()[0]
                    == 1
                )
                dumps.append(
                    "\n".join(
                        line for line in connection.iterdump() if "dpdask_release_keys" not in line
                    )
                )

    try:
        space.release(on_progress=watch)
    finally:
        logging.getLogger().removeHandler(handler)
        logging.getLogger().setLevel(logging.WARNING)
    assert dumps
    absent(dumps[0].encode(), key_spellings(KEY), "ledger without its key table")
    absent(log.getvalue().encode(), key_spellings(KEY) + spellings(CANARY), "log")
    for path in space.folder.rglob("*"):
        if path.is_file() and not path.is_relative_to(space.folder / "source.zarr"):
            absent(path.read_bytes(), key_spellings(KEY), f"after commit: {path}")


def test_a_master_key_wraps_the_release_key(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPDASK_MASTER_KEY", "7f" * 32)
    budget = {"dataset": "people", "ledger": f"sqlite:///{space.folder}/ledger.db-of-this-key"}
    Ledger(budget["ledger"]).open_dataset("people", PrivacyBudget(epsilon=1e6, delta=0.1))
    monkeypatch.setattr("dpdask.keystream.random_bytes", lambda count: KEY[:count])
    space.source(people())
    seen = []

    def watch(progress: Any) -> None:
        if progress.stage == "key":
            seen.append(b"".join(p.read_bytes() for p in space.folder.glob("ledger.db*")))

    space.release(on_progress=watch, budget=budget)
    absent(seen[0], key_spellings(KEY), "wrapped")
    monkeypatch.setenv("DPDASK_MASTER_KEY", "short")
    with pytest.raises(Exception, match="64 hexadecimal digits"):
        space.release(output={"url": f"{space.folder}/b.zarr"})


@pytest.mark.parametrize("query", ["sum", "histogram", "second-moment"])
def test_nothing_published_depends_on_a_private_number_of_records(
    space: Workspace, query: str
) -> None:
    """Under add-remove-one two neighbouring sources make the same card, up to names, digests and
    times.
    """
    cards = []
    asked = {"name": "histogram", "edges": [[-1, 0, 1]]} if query == "histogram" else query
    for count in (63, 64, 257):
        space.source(people(count), chunks=(16, 8))
        unit: dict[str, Any] = {"record_dim": 0, "adjacency": "add-remove-one"}
        if query != "histogram":
            unit["l2_clip_norm"] = 1.0
        for mechanism in (
            ("analytic-gaussian", "mgm") if query != "histogram" else ("analytic-gaussian",)
        ):
            url = f"{space.folder}/{mechanism}{count}.zarr"
            receipt = space.release(
                query=asked, privacy_unit=unit, mechanism=mechanism, output={"url": url}
            )
            card = receipt.card.model_dump(mode="json")
            for varying in ("release_id", "reserved_at", "ledger", "manifest"):
                card.pop(varying)
            card["composition"].pop("cumulative_epsilon")
            cards.append((mechanism, json.dumps(card, sort_keys=True)))
    for mechanism in {name for name, _ in cards}:
        assert len({card for name, card in cards if name == mechanism}) == 1
    names = {p.name for p in Path(space.folder).rglob("c.*")}
    assert names <= {"c.0", "c.0.0"}


@pytest.mark.parametrize(
    "mistake",
    [
        {"privacy_unit": {"record_dim": 2, "adjacency": "add-remove-one", "l2_clip_norm": 1.0}},
        {"privacy_unit": {"record_dim": 0, "adjacency": "add-remove-one", "ranges": [[0, 1]] * 3}},
        {
            "privacy_unit": {
                "record_dim": 0,
                "adjacency": "add-remove-one",
                "ranges": [[0, 1]] * 3,
                "feature_dim": 0,
            }
        },
        {"source": {"window": {"axis": 0, "start": 5, "stop": 99_999_999}}},
        {"query": "identity"},
        {"query": {"name": "histogram", "edges": [[-1, 0, 1]], "columns": [99]}},
        {"publish": {"chunks": [3, 3, 3]}},
    ],
)
def test_no_error_shows_a_private_number_of_records(
    space: Workspace, mistake: dict[str, Any]
) -> None:
    """Errors reach schedulers' databases, where more people read them than may know how many
    records there are.
    """
    count = 48_611
    space.source(np.zeros((count, 8), "f4"))
    asked: dict[str, Any] = {
        "query": "sum",
        "privacy_unit": {"record_dim": 0, "adjacency": "add-remove-one", "l2_clip_norm": 1.0},
        **mistake,
    }
    if "source" in mistake:
        asked["source"] = {**space.spec()["source"], **mistake["source"]}
    with pytest.raises(DpdaskError) as caught:
        space.release(**asked)
    assert str(count) not in str(caught.value)
