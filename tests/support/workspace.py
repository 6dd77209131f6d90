"""A folder with a source, a ledger and a spec that works; tests change one thing at a time."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
import zarr

from dpdask import PrivacyBudget, execution
from dpdask.keystream import ReleaseKey
from dpdask.ledger import Ledger
from dpdask.planning import ReleasePlan, make_plan
from dpdask.releases.api import release
from dpdask.releases.closing import Receipt
from dpdask.spec import parse_release_spec
from dpdask.storage import Publisher

KEY = bytes(range(32))

KILL_A_WORKER = """
import contextlib
import psutil

killed = []

def is_worker(process):
    with contextlib.suppress(psutil.Error):  # one that ends meanwhile
        return "spawn_main" in " ".join(process.cmdline())

def kill_a_worker(progress):
    if progress.stage == "tiles" and progress.done >= 6 and not killed:
        children = psutil.Process().children(recursive=True)
        killed.append([child for child in children if is_worker(child)][-1])
        killed[0].kill()
        print("KILLED at", progress.done, "of", progress.total, flush=True)
"""


@dataclasses.dataclass
class Workspace:
    """Where a test's release happens; without a cluster, unless a test is about one."""

    folder: Path
    compute: dict[str, Any] = dataclasses.field(default_factory=lambda: {"cluster": "inline"})

    @property
    def ledger_url(self) -> str:
        return f"sqlite:///{self.folder}/ledger.db"

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.ledger_url)

    def source(
        self, values: Any, name: str = "x", file: str = "source.zarr", **options: Any
    ) -> Path:
        array = np.asarray(values)
        options.setdefault("chunks", array.shape)
        zarr.create_array(self.folder / file, name=name, data=array, overwrite=True, **options)
        return self.folder / file

    def spec(self, **changes: Any) -> dict[str, Any]:
        base: dict[str, Any] = {
            "source": {"url": str(self.folder / "source.zarr"), "array": "x"},
            "output": {"url": str(self.folder / "out.zarr")},
            "privacy_unit": {"record_dim": 0, "l2_clip_norm": 1.0},
            "query": "identity",
            "privacy": {"epsilon": 1.0, "delta": 1e-5},
            "mechanism": "analytic-gaussian",
            "budget": {"ledger": self.ledger_url, "dataset": "people"},
            "compute": self.compute,
        }
        return _saying_what_missing_values_do({**base, **changes})

    def write_spec(self, **changes: Any) -> Path:
        path = self.folder / "spec.yaml"
        path.write_text(yaml.safe_dump(self.spec(**changes)))
        return path

    def release(self, on_progress: Any = None, **changes: Any) -> Receipt:
        return release(self.spec(**changes), on_progress=on_progress)

    def values(self, file: str = "out.zarr", array: str = "data") -> np.ndarray[Any, Any]:
        return np.asarray(zarr.open_array(self.folder / file / array, mode="r")[...])

    def left_behind(self) -> list[str]:
        """What lies in the folder beyond the source and the ledger."""
        return sorted(
            p.name
            for p in self.folder.iterdir()
            if not p.name.startswith(("source.zarr", "ledger.db", "spec.yaml"))
        )

    def spent(self) -> float:
        return self.ledger.state("people").spent_epsilon

    def staged(self, **changes: Any) -> dict[str, bytes]:
        """The staged chunks of a release drawn with one fixed key and fingerprint, whatever
        computes it.
        """
        return staged_bytes(make_plan(parse_release_spec(self.spec(**changes))))

    def staged_values(self, **changes: Any) -> np.ndarray[Any, Any]:
        """The main array of :meth:`staged`."""
        return next(iter(self.staged_arrays(**changes).values()))

    def staged_arrays(self, **changes: Any) -> dict[str, np.ndarray[Any, Any]]:
        """All arrays of :meth:`staged`, the main one first."""
        return staged_arrays(make_plan(parse_release_spec(self.spec(**changes))))


def _saying_what_missing_values_do(spec: dict[str, Any]) -> dict[str, Any]:
    """Sums over floats are refused without it; most tests are about something else."""
    query = spec["query"]
    name = query["name"] if isinstance(query, dict) else query
    if name not in ("sum", "mean", "second-moment", "covariance"):
        return spec
    return {**spec, "privacy_unit": {"missing": "center", **spec["privacy_unit"]}}


def staged_arrays(plan: ReleasePlan) -> dict[str, np.ndarray[Any, Any]]:
    """What :func:`staged_bytes` returns, as arrays by name."""
    found = staged_bytes(plan)
    arrays = {}
    for layout in plan.layouts:
        out = np.empty(layout.shape, layout.dtype)
        for index in layout.indices():
            stored = np.frombuffer(found[layout.key(index)][:-4], layout.dtype)
            box = layout.region(index)
            inner = tuple(slice(0, part.stop - part.start) for part in box)
            out[box] = stored.reshape(layout.write_chunk)[inner]
        arrays[layout.name] = out
    return arrays


def staged_bytes(
    plan: ReleasePlan, fingerprint: str = "ab" * 32, client: Any = None
) -> dict[str, bytes]:
    """Run every task of a release with a fixed key; what is staged is removed again."""
    plan = dataclasses.replace(plan, fingerprint=fingerprint)
    staging = Publisher.of(plan.output, "fixed")
    quiet: Callable[[Any], None] = lambda _progress: None  # noqa: E731
    try:
        staging.lock_output()
        with execution.connect(plan.spec.compute, client) as executor:
            kept = execution.select_records(executor, plan, ReleaseKey(KEY), quiet)
            works = [
                execution.TileWork(
                    plan,
                    variable,
                    execution.prepare(executor, plan, variable, quiet, kept, ReleaseKey(KEY)),
                    staging,
                )
                for variable in plan.variables
            ]
            for _ in execution.write(executor, works, ReleaseKey(KEY), set(), quiet):
                pass
        return {name: staging.data.read(name) or b"" for name, _, _ in staging.data.listing()}
    finally:
        shutil.rmtree(staging.control.path, ignore_errors=True)  # type: ignore[attr-defined]


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    made = Workspace(tmp_path)
    made.ledger.open_dataset("people", PrivacyBudget(epsilon=1e6, delta=0.1))
    return made


def people(count: int = 60, features: int = 8, seed: int = 1) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal((count, features)) * 0.2
