"""Check noise directions that were bought: their second moment is of the same records, and the
noise follows from what is published of it.
"""

from __future__ import annotations

import numpy as np

from dpdask.errors import DpdaskError, VerificationFailed
from dpdask.mechanisms import MaxPnr
from dpdask.noise import DiagonalFactor, KroneckerNoise, Noise, noise_from_dict
from dpdask.queries import RecordedAnswer
from dpdask.releases.card import ReleaseCard
from dpdask.releases.card_arrays import LARGE, CardArrays
from dpdask.sensitivity import sensitivity_from_dict
from dpdask.types import Floats, Json

__all__ = ["check_axes", "check_moments", "recorded_moments"]

_ALIGNED = 1e-6  # of the noise along one direction that another may share, relative to the largest
_SHARES = 0.03  # that rounding, for which the noise grows, may change a share of the precision
_FLOOR = 0.05  # the share that is spread evenly where the card does not say it


def recorded_moments(card: ReleaseCard) -> list[RecordedAnswer]:
    """Return the covariance that noise directions came from, if there is one."""
    directions, unit = card.directions, card.privacy_unit
    if directions is None:
        return []
    return [
        RecordedAnswer(
            noise=noise_from_dict(directions.noise),
            sensitivity=sensitivity_from_dict(directions.sensitivity),
            query=directions.query,
            bound=directions.bound,
            grid=directions.grid,
            record_axis=unit.record_axis,
            contributions=unit.max_contributions,
        )
    ]


def check_moments(card: ReleaseCard, data: RecordedAnswer, moments: RecordedAnswer) -> None:
    """Check that the second moment is of the records that the data are, bounded alike.

    Args:
        card: The card.
        data: The data as the card describes them.
        moments: The second moment as the card describes it.

    Raises:
        VerificationFailed: The sensitivity of the second moment would not hold for these records.
    """
    same_bound = moments.bound == card.privacy_unit.bound
    values = data.rules.values_per_record(data), moments.rules.values_per_record(moments)
    if not same_bound or values[0] != values[1]:
        raise VerificationFailed(
            "the card bought directions from records that are not those of its data, or bounded"
            " otherwise"
        )


def check_axes(card: ReleaseCard, noise: Noise, arrays: CardArrays) -> None:
    """Check that the noise lies along the published directions, in shares that follow from the
    published eigenvalues.

    Args:
        card: The card.
        noise: The noise that it describes.
        arrays: The arrays of numbers that are published with it.

    Raises:
        VerificationFailed: It does not.
    """
    if card.directions is None:
        return
    try:
        holds = _along_axes(card.mechanism, noise, arrays)
    except (DpdaskError, ArithmeticError, LookupError, TypeError, ValueError):
        holds = False
    if not holds:
        raise VerificationFailed(
            "the noise on the card does not follow from the directions and eigenvalues that are"
            " published with it"
        )


def _along_axes(mechanism: Json, noise: Noise, arrays: CardArrays) -> bool:
    if not isinstance(noise, KroneckerNoise):
        return False
    rows = arrays["directions"]
    factor = noise.factors[mechanism.get("axis", 0)].to_dense()
    turned = rows @ factor @ rows.T
    scales = np.diag(turned)
    apart = np.max(np.abs(turned - np.diag(scales))) <= _ALIGNED * np.max(np.abs(scales))
    orthonormal = np.allclose(rows @ rows.T, np.eye(len(rows)), atol=1e-9)
    if not (apart and orthonormal):
        return False
    if mechanism.get("allocation") != "max-pnr" or "eigenvalues" in mechanism:
        return "eigenvalues" not in arrays
    if "eigenvalues" not in arrays:
        return len(rows) > LARGE  # public ones, too many for the card to repeat
    return _follows(scales, arrays["eigenvalues"], mechanism.get("floor", _FLOOR))


def _follows(scales: Floats, eigenvalues: Floats, floor: float) -> bool:
    """Return whether the shares of the precision are those of max-PNR, up to rounding."""
    spent = scales**-4.0
    allocation = MaxPnr(eigenvalues=eigenvalues.tolist(), floor=floor)
    own = allocation.factor(len(scales), precision=float(np.sum(spent)))
    assert isinstance(own, DiagonalFactor)
    expected = np.asarray(own.diagonal()) ** -4.0
    return bool(np.max(np.abs(spent - expected)) <= _SHARES * np.sum(spent))
