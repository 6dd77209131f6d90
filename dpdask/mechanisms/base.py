"""What every mechanism returns, and how T steps share one budget."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from scipy.optimize import brentq

from dpdask.accounting import GaussianProfile, SampledProfile, StepProfile, compose
from dpdask.errors import InvalidMechanism
from dpdask.figures import number_text
from dpdask.noise import Noise
from dpdask.privacy import Adjacency, Guarantee, PrivacyBudget, PrivacyProfile
from dpdask.types import Json

__all__ = ["Calibration", "Choice", "Steps", "amortise", "amplified_rate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The mechanism that ``auto`` chose, and why; both follow from public values alone.

    Args:
        name: The name of the mechanism.
        stds: All candidates with the root mean square of an entry's noise, the chosen one first.
        note: What else there is to say of the choice.
    """

    name: str
    stds: tuple[tuple[str, float], ...]
    note: str = ""

    def reason(self, share: float = 1.0) -> str:
        """Return the choice in words, for entries released with ``share`` of the noise."""
        (name, std), *others = self.stds
        texts = [name]
        if others:
            texts = [f"{name}: std {number_text(std * share)} per entry"]
            texts += [f"{other} {number_text(noise * share)}" for other, noise in others]
        return "; ".join(filter(None, [*texts, self.note]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What a mechanism returns.

    Args:
        noise: The noise to add.
        guarantee: What the theorem claims of it, and what its exact profile verifies.
        quantities: The theorem's intermediate quantities, by name; ``mu`` for Gaussian noise.
        warnings: What a user should know before using it.
        choice: Which mechanism ``auto`` chose, and why; None where the user named one.
    """

    noise: Noise
    guarantee: Guarantee
    quantities: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    choice: Choice | None = None

    def to_dict(self) -> Json:
        """Return the calibration as JSON-ready values."""
        content: Json = {
            "noise": self.noise.to_dict(),
            "guarantee": self.guarantee.to_dict(),
            "quantities": dict(self.quantities),
        }
        if self.warnings:
            content["warnings"] = list(self.warnings)
        if self.choice is not None:
            content["chosen"] = {"name": self.choice.name, "reason": self.choice.reason()}
        return content


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """T releases of the same noise on the same data, each on all privacy units or on a Poisson
    sample.

    Args:
        count: T.
        sampling_rate: The probability with which a privacy unit takes part in a step, by any of its
            records (:func:`amplified_rate`); None where every unit takes part in every step.
        slack: The delta' that strong composition sets aside, as a share of the budget's delta.
    """

    count: int = 1
    sampling_rate: float | None = None
    slack: float = 1e-5

    def __post_init__(self) -> None:
        if self.count < 1:
            raise InvalidMechanism(f"steps={self.count} releases nothing; choose at least 1")
        if self.sampling_rate is not None and not 0 < self.sampling_rate <= 1:
            raise InvalidMechanism(
                f"sampling_rate={self.sampling_rate:g} is not a probability; choose 0 <"
                " sampling_rate <= 1"
            )
        if not 0 < self.slack < 1:
            raise InvalidMechanism(
                f"slack={self.slack:g} is not a valid share of delta; choose 0 < slack < 1"
            )

    @property
    def single(self) -> bool:
        """Return whether there is nothing to compose."""
        return self.count == 1 and self.sampling_rate is None

    def compose(self, step: StepProfile, adjacency: Adjacency) -> PrivacyProfile:
        """Return the verified profile of all steps."""
        if self.sampling_rate is None:
            return compose([(step, self.count)])
        return compose([(SampledProfile(step, self.sampling_rate, adjacency), self.count)])

    def step_mu(self, budget: PrivacyBudget, adjacency: Adjacency) -> float:
        """Return the largest mu per step whose composition meets ``budget``.

        Guarantee: exact without sampling (IMGM Thm 4: mu / sqrt(T)). With sampling, by
        dp-accounting's privacy loss distributions, to one part in ten thousand and on the
        conservative side.
        """
        if self.sampling_rate is None:
            return GaussianProfile.meeting(budget).mu / math.sqrt(self.count)
        if budget.delta < 1e-12:
            raise InvalidMechanism(
                f"delta={budget.delta:g} is below the 1e-12 that privacy loss distributions"
                " resolve; choose a larger delta or drop composition.sampling"
            )

        def excess(log_mu: float) -> float:
            profile = self.compose(GaussianProfile(math.exp(log_mu)), adjacency)
            delta = profile.delta(budget.epsilon)
            return math.log(max(delta, 1e-300)) - math.log(budget.delta)

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
        """Return the budget of one step by strong composition (R1SMG eq. 16)."""
        if self.single:
            return budget
        return amortise(
            budget,
            steps=self.count,
            sampling_rate=self.sampling_rate or 1.0,
            slack=self.slack * budget.delta,
        )

    def basic_step(self, budget: PrivacyBudget) -> PrivacyBudget:
        """Return an equal share of epsilon and delta for each step (basic composition).

        Guarantee: sufficient; sampling only lowers the privacy loss.
        """
        return PrivacyBudget(epsilon=budget.epsilon / self.count, delta=budget.delta / self.count)

    def suffix(self, composition: str) -> str:
        """Return what to append to a theorem's name where there are several steps."""
        if self.single:
            return ""
        sampled = (
            "" if self.sampling_rate is None else f", Poisson-sampled at {self.sampling_rate:g}"
        )
        return f"; {self.count} steps by {composition}{sampled}"


def amplified_rate(*, rate: float, of: str, contributions: int) -> float:
    """Return the probability that a privacy unit takes part in a Poisson-sampled step, rounded up.

    A privacy unit that is sampled as a whole takes part with probability ``rate``. Where ``of`` is
    ``records``, each of its up to ``contributions`` records is drawn independently, and the unit
    takes part with probability 1 - (1 - rate)^contributions.

    Args:
        rate: The probability with which each of ``of`` is drawn.
        of: ``privacy-units`` or ``records``.
        contributions: How many records a privacy unit has at most.

    Guarantee: amplification with this rate and the sensitivity of a whole privacy unit is an upper
    bound on the privacy loss, however many of the unit's records are in the sample
    (docs/mechanisms/composition.md has the proof).
    """
    if of == "privacy-units" or contributions == 1 or rate >= 1:
        return rate
    return min(1.0, -math.expm1(contributions * math.log1p(-rate)) * (1 + 1e-14))


def amortise(
    budget: PrivacyBudget, *, steps: float, sampling_rate: float, slack: float
) -> PrivacyBudget:
    """Return the per-step (epsilon_0, delta_0) of T steps at sampling rate q by R1SMG eq. 16.

        epsilon = sqrt(2 T ln(1/delta')) q epsilon_0 + T q epsilon_0 (e^(q epsilon_0) - 1)
        delta   = T q delta_0 + delta'

    Args:
        budget: (epsilon, delta) of all steps together.
        steps: T.
        sampling_rate: q.
        slack: delta'.

    Guarantee: strong composition where q = 1. Where q < 1 the paper multiplies epsilon_0 by q,
    which understates the amplified loss ln(1 + q (e^epsilon_0 - 1)); rely on the verified profile.
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
