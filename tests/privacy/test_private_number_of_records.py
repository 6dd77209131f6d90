"""Under add-remove-one nothing that leaves the trust boundary tells how many records there are.

Cards, objects with their sizes, progress, public rows of plans and warnings are compared for
sources of none, one and many records; under replace-one, the twin, they differ.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpdask import PrivacyBudget
from dpdask.ledger import Ledger
from dpdask.planning import make_plan
from dpdask.releases.card import card_document
from dpdask.releases.read import read_card
from dpdask.spec import parse_release_spec
from dpdask.views.plan_rows import public_plan_rows
from tests.support.workspace import Workspace

RANGES = {"ranges": [250, 320], "missing": "center"}
BY = {"by": {"array": "group", "groups": [3, 7]}}
SEVERAL = {"x": {"ranges": [250, 320]}, "y": {"l2_clip_norm": 3.0}}
CASES: dict[str, dict[str, Any]] = {
    "sum": {"query": "sum", "unit": RANGES},
    "sum, laplace": {"query": "sum", "unit": RANGES, "mechanism": "laplace"},
    "sum, clipped around a centre": {
        "query": "sum",
        "unit": {"l2_clip_norm": 1.0, "center": [1.0, 2.0, 3.0], "missing": "count"},
        "publish": {"chunks": [2]},
    },
    "mean": {
        "query": "mean",
        "unit": {**RANGES, "missing": "count"},
        "publish": {"chunks": [2], "layers": ["non-negative"]},
    },
    "mean by group": {"query": {"name": "mean", **BY}, "unit": RANGES},
    "second moments": {"query": "second-moment", "unit": {"l2_clip_norm": 1, "missing": "center"}},
    "covariance": {"query": {"name": "covariance", "center": "private"}, "unit": RANGES},
    "histogram": {"query": {"name": "histogram", "edges": [[0, 300, 400]], **BY}, "unit": {}},
    "histogram of arrays": {
        "query": {"name": "histogram", "edges": {"group": [0, 5, 10], "late": {"values": [1]}}},
        "unit": {},
        "source": {},
    },
    "several variables": {
        "query": {"name": "mean", **BY},
        "unit": {"missing": "center"},
        "source": {"arrays": SEVERAL},
    },
    "sum by people": {
        "query": "sum",
        "unit": {**RANGES, "ids": "group", "max_contributions": 2},
        "compute": {"cluster": "inline", "task_size": 100},
    },
    "mean of clipped records by people": {
        "query": "mean",
        "unit": {"l2_clip_norm": 1.0, "missing": "center", "ids": "late", "max_contributions": 2},
        "publish": {"chunks": [2]},
        "compute": {"cluster": "inline", "task_size": 100},
    },
    "histogram of arrays by people": {
        "query": {"name": "histogram", "edges": {"group": [0, 5, 10], "late": {"values": [1]}}},
        "unit": {"ids": "late", "max_contributions": 2},
        "source": {},
    },
    "coarsened": {
        "query": "sum",
        "unit": RANGES,
        "source": {"array": "x", "coarsen": {"dim": 1, "by": 3}},
    },
}


def _space(folder: Path, records: int) -> Workspace:
    rng = np.random.default_rng(records)
    folder.mkdir()
    space = Workspace(folder)
    space.ledger.open_dataset("people", PrivacyBudget(epsilon=1e6, delta=0.1))
    for name, columns in (("x", (3,)), ("y", (3,)), ("group", ()), ("late", ())):
        values = rng.normal(285, 30, (records, *columns))
        if not columns:
            values = rng.choice([1, 3, 7], records)
        space.source(values, name=name, chunks=(4, *columns))
    return space


def _shown(folder: Path, case: str, records: int, adjacency: str) -> list[Any]:
    """Return what leaves the trust boundary, without what is random."""
    space = _space(folder / str(records), records)
    content = dict(CASES[case])
    url = {"url": str(space.folder / "source.zarr")}
    spec = {
        "mechanism": content.get("mechanism", "auto"),
        "query": content["query"],
        "privacy_unit": {"record_dim": 0, "adjacency": adjacency, **content["unit"]},
        "publish": content.get("publish", {}),
        "compute": content.get("compute", space.compute),
        "source": {**url, **content.get("source", {"array": "x"})},
    }
    plan = make_plan(parse_release_spec(space.spec(**spec)), ledger=Ledger(space.ledger_url))
    rows = [repr(row) for row in public_plan_rows(plan.to_dict())]
    progress: list[Any] = []
    space.release(lambda each: progress.append((each.stage, each.done, each.total)), **spec)
    card = card_document(read_card(str(space.folder / "out.zarr")))
    objects = card["manifest"]["objects"]
    for name in ("release_id", "reserved_at", "ledger", "manifest"):
        del card[name]
    files = sorted(
        (str(path.relative_to(space.folder)), path.stat().st_size)
        for path in (space.folder / "out.zarr").rglob("*")
        # the manifest and the group's metadata hold digests, hashes and a time
        if path.is_file() and path.name != "zarr.json" and "manifest" not in str(path)
    )
    shutil.rmtree(space.folder)
    return [rows, plan.warnings, card, objects, files, progress]


@pytest.mark.parametrize("case", list(CASES))
def test_nothing_shown_tells_the_number_of_records(tmp_path: Path, case: str) -> None:
    first, *others = (
        _shown(tmp_path, case, records, "add-remove-one") for records in (5, 0, 1, 64)
    )
    for other in others:
        assert other == first


def test_a_public_number_of_records_is_shown(tmp_path: Path) -> None:
    five, six = (_shown(tmp_path, "mean by group", records, "replace-one") for records in (5, 6))
    assert five != six
