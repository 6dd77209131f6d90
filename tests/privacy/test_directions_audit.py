"""Hostile neighbours through noise along principal axes: neither the second moment that these come
from nor the data along them show more than was verified.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpdask.accounting import GaussianProfile
from dpdask.planning import component_with_directions
from dpdask.queries import ModeMoment
from tests.privacy.audit import SourceFile, Subject, audit_group, verified_mu
from tests.privacy.neighbours import record_groups

CLIPPED: dict[str, Any] = {"l2_clip_norm": 2.5, "max_contributions": 2}
RANGES: dict[str, Any] = {"ranges": [[-1.0, 2.0]], "max_contributions": 1}
CASES: dict[str, dict[str, Any]] = {
    "identity in ranges": {"shape": (9, 4), "axis": 1, "record": 0, "unit": RANGES},
    "tensors": {"shape": (7, 2, 3), "axis": 2, "record": 0, "unit": CLIPPED},
    "tensors along the middle": {"shape": (2, 7, 3), "axis": 0, "record": 1, "unit": CLIPPED},
    "tensors in ranges": {
        "shape": (3, 2, 7),
        "axis": 0,
        "record": 2,
        "unit": {"ranges": [[-1.0, 2.0], [0.0, 1.0]], "feature_dim": 1, "max_contributions": 2},
    },
    "sum": {"shape": (7, 2, 3), "axis": 0, "record": 0, "unit": CLIPPED, "query": "sum"},
    "mean in ranges": {"shape": (7, 2, 3), "axis": 1, "record": 0, "unit": RANGES, "query": "mean"},
    "second moment": {
        "shape": (7, 3),
        "axis": 0,
        "record": 0,
        "unit": CLIPPED,
        "query": "second-moment",
    },
}


def subject_of(case: dict[str, Any], tmp_path: Path) -> tuple[Subject, SourceFile]:
    """A release of MVG along principal axes, without its second moment."""
    shape = case["shape"]
    file = SourceFile(tmp_path / "source", shape, "f8", shape, compressors=None)
    file.put(np.zeros(shape))
    unit = {"record_dim": case["record"], "missing": "center", **case["unit"]}
    if case.get("query", "identity") == "identity":
        del unit["missing"]
    subject = Subject.of(
        {
            "source": {"url": str(tmp_path / "source"), "array": "x"},
            "output": {"url": "memory://audited"},
            "privacy": {"epsilon": 1.0, "delta": 1e-6},
            "budget": {"dataset": "audit"},
            "privacy_unit": unit,
            "query": case.get("query", "identity"),
            "mechanism": {
                "name": "mvg",
                "axis": case["axis"],
                "theorem": "general-improved",
                "zeta": "sqrt",
                "allocation": "max-pnr",
                "directions": {"from": "dp-covariance", "share": 0.3},
            },
        },
        file,
    )
    return subject, file


def ratio(subject: Subject, case: dict[str, Any], file: SourceFile, rng: Any) -> float:
    """How much of what was verified the worst of some hostile neighbours shows."""
    groups = record_groups(
        subject.component,
        shape=case["shape"],
        dtype=file.dtype,
        axis=case["record"],
        contributions=case["unit"]["max_contributions"],
        window=None,
        rng=rng,
        groups=3,
        variants=20,
    )
    return max(audit_group([subject], group).ratio for group in groups)


@pytest.mark.parametrize("name", CASES)
def test_second_moments_and_data_along_their_axes(name: str, tmp_path: Path) -> None:
    case, rng = CASES[name], np.random.default_rng(len(name))
    subject, file = subject_of(case, tmp_path)
    plan = subject.plan
    assert plan.directions is not None
    first = dataclasses.replace(subject, component=plan.directions)
    size = plan.directions.query.answer_shape[0]
    along = np.linalg.qr(rng.standard_normal((size, size)))[0].tolist()
    for eigenvalues in ([1e9] + [1e-9] * (size - 1), [1.0] * size):
        component = component_with_directions(plan, along, eigenvalues)
        second = dataclasses.replace(subject, component=component)
        assert verified_mu(component)[1] <= verified_mu(plan.data)[1] * (1 + 1e-12)
        for audited in (first, second):
            audited.check_noise(np.zeros(case["shape"]))
            shown = ratio(audited, case, file, rng)
            assert (0.45 if audited is first else 0.0) < shown <= 1
    assert isinstance(plan.guarantee.verified, GaussianProfile)
    assert plan.guarantee.verified.mu >= math.hypot(
        verified_mu(first.component)[1], verified_mu(plan.data)[1]
    ) * (1 - 1e-12)


def test_a_second_moment_of_single_fibres_would_be_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: the norm of one fibre for that of the whole record is too small a sensitivity."""
    whole = ModeMoment.reach.fget
    monkeypatch.setattr(
        ModeMoment, "reach", property(lambda self: whole(self) / math.sqrt(self.fibres))
    )
    case = {**CASES["tensors in ranges"], "shape": (3, 4, 7)}
    case["unit"] = {**RANGES, "feature_dim": 1}
    subject, file = subject_of(case, tmp_path)
    assert subject.plan.directions is not None
    first = dataclasses.replace(subject, component=subject.plan.directions)
    assert ratio(first, case, file, np.random.default_rng(1)) > 1
