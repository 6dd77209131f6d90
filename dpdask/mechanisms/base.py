"""What every mechanism returns, and how T steps share one budget."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from scipy.optimize import brentq

from dpdask.accounting import GaussianProfile, SampledProfile, SphericalProfile, compose
from dpdask.errors import InvalidMechanism
from dpdask.noise import Noise
from dpdask.privacy import Adjacency, Guarantee, PrivacyBudget, PrivacyProfile
from dpdask.types import Json

__all__ = ["Calibration", "Steps", "amortise", "amplified_rate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The noise to add, its guarantee, the theorem's intermediate quantities and warnings."""

    noise: Noise
    guarantee: Guarantee
    calibration: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> Json:
        """Everything as JSON-ready facts."""
        facts: Json = {
            "noise": self.noise.to_dict(),
            "guarantee": self.guarantee.to_dict(),
            "calibration": dict(self.calibration),
        }
        if self.warnings:
            facts["warnings"] = list(self.warnings)
        return facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """T releases of the same noise on the same data, each on all privacy units or on a Poisson
    sample.

    ``sampling_rate`` is the probability with which a privacy unit takes part in a step, by any of
    its records (:func:`amplified_rate`). ``slack`` is the delta' that strong composition sets
    aside, as a share of the budget's delta.
    """

    count: int = 1
    sampling_rate: float | None = None
    slack: float = 1e-5

    def __post_init__(self) -> None:
        if self.count < 1:
            raise InvalidMechanism(f"steps={self.count} releases nothing; choose at least 1")
        if self.sampling_rate is not None and not 0 < self.sampling_rate <= 1:
            raise InvalidMechanism(
                f"sampling_rate={self.sampling_rate:g} is no probability; choose 0 <"
                " sampling_rate <= 1"
            )
        if not 0 < self.slack < 1:
            raise InvalidMechanism(
                f"slack={self.slack:g} is no share of delta; choose 0 < slack < 1"
            )

    @property
    def single(self) -> bool:
        """Whether there is nothing to compose."""
        return self.count == 1 and self.sampling_rate is None

    def compose(
        self, step: GaussianProfile | SphericalProfile, adjacency: Adjacency
    ) -> PrivacyProfile:
        """The verified profile of all steps."""
        if self.sampling_rate is None:
            return compose([(step, self.count)])
        return compose([(SampledProfile(step, self.sampling_rate, adjacency), self.count)])

    def step_mu(self, budget: PrivacyBudget, adjacency: Adjacency) -> float:
        """The largest mu per step whose composition honours ``budget``.

        Exact without sampling (IMGM Thm 4: mu / sqrt(T)); by dp-accounting's privacy loss
        distributions with it, to one part in ten thousand, at the private end.
        """
        if self.sampling_rate is None:
            return GaussianProfile.meeting(budget).mu / math.sqrt(self.count)
        if budget.delta < 1e-12:
            raise InvalidMechanism(
                f"delta={budget.delta:g} is below the 1e-12 that privacy loss distributions"
                " resolve;"
                " choose a larger delta or drop composition.sampling"
            )

        def excess(log_mu: float) -> float:
            found = self.compose(GaussianProfile(math.exp(log_mu)), adjacency).delta(budget.epsilon)
            return math.log(max(found, 1e-300)) - math.log(budget.delta)

        high = low = math.log(GaussianProfile.meeting(budget).mu / math.sqrt(self.count))
        while excess(low) > 0:
            low -= 0.7
        while excess(high) <= 0:
            low, high = high, high + 0.7
            if high > math.log(200):
                return math.exp(low)
        root = float(brentq(excess, low, high, xtol=5e-5))
        while excess(root) > 0:
            root -= 2e-5
        return math.exp(root - 1e-9)

    def strong_step(self, budget: PrivacyBudget) -> PrivacyBudget:
        """The budget of one step by the R1SMG paper's amortisation; ``budget`` itself for a single
        release.
        """
        if self.single:
            return budget
        return amortise(
            budget,
            steps=self.count,
            sampling_rate=self.sampling_rate or 1.0,
            slack=self.slack * budget.delta,
        )

    def basic_step(self, budget: PrivacyBudget) -> PrivacyBudget:
        """An equal share of epsilon and delta for each step (basic composition); sampling only
        helps.
        """
        return PrivacyBudget(epsilon=budget.epsilon / self.count, delta=budget.delta / self.count)

    def suffix(self, composition: str) -> str:
        """How a theorem's name goes on when there are several steps."""
        if self.single:
            return ""
        sampled = (
            "" if self.sampling_rate is None else f", Poisson-sampled at {self.sampling_rate:g}"
        )
        return f"; {self.count} steps by {composition}{sampled}"


def amplified_rate(*, rate: float, of: str, contributions: int) -> float:
    """The probability that a privacy unit takes part in a Poisson-sampled step, rounded up.

    Units that are sampled as a whole take part with ``rate``. Where ``of`` is ``records``, each of
    a unit's up to ``contributions`` records is drawn on its own, and the unit takes part with 1 -
    (1 - rate)^contributions.

    Guarantee: amplification with this rate and the sensitivity of a whole unit is an upper bound on
    the privacy loss, however many of the unit's records are in the sample
    (docs/mechanisms/composition.md has the proof).
    """
    if of == "privacy-units" or contributions == 1 or rate >= 1:
        return rate
    return min(1.0, -math.expm1(contributions * math.log1p(-rate)) * (1 + 1e-14))


def amortise(
    budget: PrivacyBudget, *, steps: float, sampling_rate: float, slack: float
) -> PrivacyBudget:
    """The per-step (epsilon_0, delta_0) that the R1SMG paper's eq. 16 allots to T steps with
    sampling rate q.

        epsilon = sqrt(2 T ln(1/delta')) q epsilon_0 + T q epsilon_0 (e^(q epsilon_0) - 1)
        delta   = T q delta_0 + delta'

    Guarantee: strong composition when q = 1. With q < 1 the paper multiplies epsilon_0 by q, which
    understates the amplified loss ln(1 + q (e^epsilon_0 - 1)); the verified profile says what it is
    worth.
    """
    if not 0 < slack < budget.delta:
        raise InvalidMechanism(
            f"slack={slack:g} leaves nothing of delta={budget.delta:g}; choose 0 < slack < delta"
        )
    spread = math.sqrt(2 * steps * math.log(1 / slack))

    def total(sampled: float) -> float:
        return spread * sampled + steps * sampled * math.expm1(min(sampled, 700.0)) - budget.epsilon

    root = float(brentq(total, 0.0, budget.epsilon / spread, xtol=1e-300, rtol=8.9e-16))
    delta = (budget.delta - slack) / (steps * sampling_rate)
    return PrivacyBudget(epsilon=root / sampling_rate, delta=min(delta, 1 - 1e-16))
