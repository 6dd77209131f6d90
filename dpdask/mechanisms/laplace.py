"""Laplace noise: independent entries with density exp(-|n| / b) / (2 b), for pure epsilon.

Neighbours that differ by D have a privacy loss of at most ``||D||_1 / b``, by the triangle
inequality in every entry, so b = s_1 / epsilon with s_1 = sup ||D||_1 over the sensitivity set.
"""

from __future__ import annotations

from dpdask.accounting import PureProfile
from dpdask.mechanisms.base import Calibration, Steps
from dpdask.noise import LaplaceNoise
from dpdask.privacy import Guarantee, PrivacyBudget
from dpdask.sensitivity import SensitivitySet, known_l1
from dpdask.types import Shape

__all__ = ["laplace", "laplace_loss"]

_UP = 1 + 1e-14


def laplace_loss(noise: LaplaceNoise, sensitivity: SensitivitySet) -> float:
    """Return sup ||D||_1 / scale, the largest privacy loss of the noise, rounded up."""
    return known_l1(sensitivity) / noise.scale * _UP


def laplace(
    *,
    budget: PrivacyBudget,
    sensitivity: SensitivitySet,
    shape: Shape,
    steps: Steps = Steps(),
) -> Calibration:
    """Return Laplace noise of scale s_1 / epsilon on every entry.

    Args:
        budget: epsilon of all steps together; delta is not used.
        sensitivity: What one privacy unit can change in one step; s_1 is its l1 sensitivity.
        shape: The shape of the tensor.
        steps: How many steps share the budget, by basic composition.

    Guarantee: pure epsilon-DP (Dwork, McSherry, Nissim & Smith 2006), for noise that is drawn
    exactly.
    """
    step = budget.epsilon / steps.count
    scale = known_l1(sensitivity) / step * (1 + 1e-12)
    noise = LaplaceNoise(shape, scale)
    loss = laplace_loss(noise, sensitivity)
    return Calibration(
        noise=noise,
        guarantee=Guarantee(
            claimed=budget,
            theorem="Dwork, McSherry, Nissim & Smith 2006, Prop. 1"
            + steps.suffix("basic composition"),
            verified=steps.compose(PureProfile(loss), sensitivity.adjacency),
        ),
        quantities={"scale": scale, "loss": loss},
    )
