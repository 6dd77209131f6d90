"""The exact audit of histograms over several arrays: neighbours that change category, bin and group
at once go through the real tasks with one fixed key.

The noise cancels, so the distance of two runs in units of the noise is exactly what this pair
shows; it must not exceed what was verified. Twins with a planted bug must.
"""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from dpdask import execution
from dpdask.accounting import GaussianProfile, PureProfile
from dpdask.execution import InlineExecutor
from dpdask.keystream import ReleaseKey
from dpdask.planning import ReleasePlan, histogram_builder, make_plan
from dpdask.planning.verified import recorded_answer, verified_step
from dpdask.queries import Histogram
from dpdask.spec import parse_release_spec
from dpdask.storage import Publisher, open_storage
from tests.privacy.audit import _decoded

pytestmark = pytest.mark.filterwarnings("ignore")

Values = np.ndarray[Any, Any]
Records = list[tuple[float, str, int]]
RNG = np.random.default_rng(8)
OTHERS: Records = [
    (float(RNG.choice([0.5, 1.5, np.nan])), str(RNG.choice(["E", "J", "?"])), int(RNG.integers(5)))
    for _ in range(10)
]
HOSTILE: Records = list(
    itertools.product([0.0, 2.0, np.nextafter(2.0, 3.0), np.nan], ["E", "J", ""], [0, 1, 2**62])
)


def _write(folder: Path, records: Records) -> None:
    delays, origins, groups = ([row[column] for row in records] for column in range(3))
    content = {
        "delay": np.array(delays, dtype="f8"),
        "origin": np.array(origins, dtype="<U2"),
        "group": np.array(groups, dtype="i8"),
    }
    for name, values in content.items():
        zarr.create_array(
            folder / "source.zarr", name=name, data=values, chunks=(4,), overwrite=True
        )


def _plan(folder: Path, mechanism: str, unit: dict[str, Any]) -> ReleasePlan:
    spec = {
        "source": {"url": str(folder / "source.zarr")},
        "output": {"url": str(folder / "out.zarr")},
        "privacy_unit": {"record_dim": 0, **unit},
        "query": {
            "name": "histogram",
            "edges": {"delay": [0, 1, 2], "origin": {"values": ["E", "J"]}},
            "by": {"array": "group", "groups": [0, 1]},
        },
        "privacy": {"epsilon": 1.0, "delta": 1e-6},
        "mechanism": mechanism,
        "budget": {"ledger": f"sqlite:///{folder}/ledger.db", "dataset": "people"},
        "publish": {"chunks": [1, 2, 1]},
        "compute": {"cluster": "inline", "task_size": 64},
    }
    return make_plan(parse_release_spec(spec))


def _released(plan: ReleasePlan) -> Values:
    """Integers of the grid, noise included."""
    plan = dataclasses.replace(plan, fingerprint="ab" * 32)
    place = open_storage(f"memory://histogram-{id(plan)}")
    staging = Publisher.of(place, "audit")
    executor, quiet = InlineExecutor(), lambda _progress: None
    [variable] = plan.variables
    intermediates = execution.prepare(executor, plan, variable, quiet)
    work = execution.TileWork(plan, variable, intermediates, staging)
    for written in execution.write(executor, [work], ReleaseKey(bytes(range(32))), set(), quiet):
        assert not written.conflicts
    layout = variable.layout
    out = np.empty(layout.shape)
    for index in layout.indices():
        stored = staging.data.read(layout.key(index)) or b""
        out[layout.region(index)] = _decoded(layout, index, stored)
    place.delete()
    step = plan.data.privatizer.step
    assert step is not None
    np.testing.assert_allclose(out / step, np.rint(out / step), atol=0.2)
    return np.rint(out / step)


def _distance(plan: ReleasePlan, one: Values, two: Values) -> float:
    difference = (one - two) / plan.data.privatizer.to_dict()["steps_per_sigma"]
    if isinstance(_profile(plan), PureProfile):
        return float(np.abs(difference).sum())
    return float(np.sqrt((difference**2).sum()))


def _profile(plan: ReleasePlan) -> Any:
    return verified_step(recorded_answer(plan.data))


def _ratio(folder: Path, mechanism: str, unit: dict[str, Any]) -> float:
    """The largest distance of neighbours over the verified one."""
    contributions = unit.get("max_contributions", 1)
    versions = [[*(row,) * contributions, *OTHERS] for row in HOSTILE]
    if unit["adjacency"] == "add-remove-one":
        versions = [OTHERS, *versions]
    runs = []
    for records in versions:
        _write(folder, records)
        plan = _plan(folder, mechanism, unit)
        runs.append(_released(plan))
    others = [0] if unit["adjacency"] == "add-remove-one" else range(len(runs))
    worst = max(_distance(plan, runs[one], run) for one in others for run in runs)
    profile = _profile(plan)
    verified = profile.mu if isinstance(profile, GaussianProfile) else profile.largest_loss
    return worst / verified


CASES = list(
    itertools.product(["analytic-gaussian", "laplace"], ["replace-one", "add-remove-one"], [1, 3])
)


@pytest.mark.parametrize(("mechanism", "adjacency", "contributions"), CASES)
def test_no_neighbours_differ_by_more_than_was_verified(
    tmp_path: Path, mechanism: str, adjacency: str, contributions: int
) -> None:
    unit = {"adjacency": adjacency, "max_contributions": contributions}
    assert 0.99 < _ratio(tmp_path, mechanism, unit) <= 1


@pytest.mark.parametrize("mechanism", ["analytic-gaussian", "laplace"])
def test_a_record_that_is_counted_in_two_cells_is_noticed(
    tmp_path: Path, mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Histogram.partial

    def twice(self: Histogram, *arguments: Any) -> Values:
        found = real(self, *arguments)
        return found + np.roll(found, 1)

    monkeypatch.setattr(Histogram, "partial", twice)
    assert _ratio(tmp_path, mechanism, {"adjacency": "replace-one"}) > 1.4


@pytest.mark.parametrize("mechanism", ["analytic-gaussian", "laplace"])
def test_a_sensitivity_of_one_cell_under_replace_one_is_noticed(
    tmp_path: Path, mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = histogram_builder.L1Ball

    def one_cell(**fields: Any) -> Any:
        return real(**fields | {"l1_radius": 1.0, "l2": 1.0})

    monkeypatch.setattr(histogram_builder, "L1Ball", one_cell)
    assert _ratio(tmp_path, mechanism, {"adjacency": "replace-one"}) > 1.4
