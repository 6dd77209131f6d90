"""Shared features, type II (MGM, section 8, Table 3 and Fig. 3)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpdask.types import Floats, Json
from dpdask_studies import data as sets
from dpdask_studies.methods import guarantee_text
from dpdask_studies.study import Chart, Line, Measured, Outcome, Series, Study, Verdict
from dpdask_studies.workbench import Release, Workbench, workbench

__all__ = ["STUDY"]

_DELTA, _WIDTH = 1e-5, 10


@dataclass(frozen=True, slots=True)
class _Parties:
    """Two parties that hold half of the pixels each; what they share, and the labels."""

    features: tuple[Floats, Floats]
    labels: Floats

    @classmethod
    def load(cls) -> _Parties:
        pixels, digits = sets.digits()
        generator = np.random.default_rng(4)
        halves = (pixels[:, :32], pixels[:, 32:])
        shared = [np.tanh(half @ generator.normal(size=(32, _WIDTH)) / 4) for half in halves]
        return cls((shared[0], shared[1]), np.where(digits % 2 == 1, 1.0, -1.0))

    def accuracy(self, features: list[Floats], seed: int) -> float:
        """Return the accuracy of a linear classifier learned from what was shared."""
        inputs = np.column_stack([*features, np.ones(len(self.labels))])
        order = np.random.default_rng(seed).permutation(len(inputs))
        train, test = np.split(order, [int(0.6 * len(order))])
        weights, *_ = np.linalg.lstsq(inputs[train], self.labels[train], rcond=None)
        return float(np.mean(np.sign(inputs[test] @ weights) == self.labels[test]))


def _share(
    bench: Workbench, parties: _Parties, epsilon: float, mechanism: Json, unit: Json
) -> tuple[list[Floats], Release]:
    """Release the features of both parties; return them, and one release."""
    releases = [
        bench.release(
            bench.source(features),
            privacy_unit={"ranges": [-1.0, 1.0], **unit},
            query="identity",
            privacy={"epsilon": epsilon, "delta": _DELTA},
            mechanism=mechanism,
        )
        for features in parties.features
    ]
    return [release.values for release in releases], releases[0]


_MATRIX: Json = {}
_RECORD: Json = {"record_dim": 0, "feature_dim": 1}
_SETTINGS: dict[str, tuple[str, Json]] = {
    "analytic Gaussian": ("analytic-gaussian", _MATRIX),
    "IDN": ("idn", _MATRIX),
    "UDN": ("udn", _MATRIX),
    "MVG": ("mvg", _MATRIX),
    "ours: a record is protected": ("analytic-gaussian", _RECORD),
}
_PRINTED = {"IDN": "best", "MVG": "flat"}


def _run(quick: bool, data: Path | None) -> Outcome:
    epsilons = (1.0, 10.0) if quick else (1.0, 2.0, 5.0, 10.0)
    trials = 2 if quick else 6
    parties = _Parties.load()
    clean = Measured.of([parties.accuracy(list(parties.features), i) for i in range(20)])
    lines = [Line(label="accuracy, non-private", measured=clean, verdict=Verdict.CONTEXT)]
    curves = []
    with workbench() as bench:
        for label, (mechanism, unit) in _SETTINGS.items():
            means = []
            for epsilon in epsilons:
                accuracies = []
                for seed in range(trials):
                    shared, release = _share(bench, parties, epsilon, {"name": mechanism}, unit)
                    accuracies.append(parties.accuracy(shared, seed))
                means.append(Measured.of(accuracies))
            curves.append(
                Series(
                    label,
                    epsilons,
                    [mean.mean for mean in means],
                    [mean.half_width for mean in means],
                )
            )
            lines.append(
                Line(
                    label=f"accuracy, {label}, epsilon {epsilons[-1]:g}",
                    paper=_PRINTED.get(label),
                    formula=f"std {release.card.released.noise_std:.3g}",
                    measured=means[-1],
                    verdict=Verdict.CERTIFIED,
                    why=guarantee_text(release),
                )
            )
    chart = Chart(
        title=f"features of two parties, delta {_DELTA:g}",
        x_label="epsilon",
        y_label="accuracy",
        series=tuple(curves),
    )
    notes = (
        "The paper protects the whole matrix of features at once, s = 2 sqrt(mn): nothing of it"
        " survives, by any mechanism, and the accuracy is that of a coin.",
        "Protecting one record, s = 2 sqrt(features), is what its setting calls for. Even so the"
        " noise is larger than the features up to epsilon 10: release moments or gradients"
        " instead.",
        "The paper prints no values of Fig. 3; its Gaussian adds noise entry by entry.",
    )
    text = f"1,797 digits (scikit-learn), odd or even; {_WIDTH} tanh features from each half"
    return Outcome(data=text, lines=tuple(lines), notes=notes, charts=(chart,))


STUDY = Study(
    name="mgm-features",
    title="Features that two parties share",
    paper="MGM, section 8, Table 3 and Fig. 3 (type II)",
    data="digits (scikit-learn)",
    file=None,
    run=_run,
)
