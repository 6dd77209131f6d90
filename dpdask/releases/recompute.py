"""Recomputing a guarantee: the numbers on a release card follow from the parameters on it, or
verification fails.

Everything is computed again, by the functions that planned the release: the sensitivity from the
unit and its bound, the rounding from the query and the grid, the profile from the noise. What
cannot be computed again fails; nothing is passed over.
"""

from __future__ import annotations

import math

from dpdask.accounting import GaussianProfile, compose, profile_from_dict
from dpdask.errors import DpdaskError, VerificationFailed
from dpdask.mechanisms import Steps, amplified_rate
from dpdask.noise import KroneckerNoise, Noise, SphericalNoise, noise_from_dict
from dpdask.planning.verified import Answer, verified_profile
from dpdask.privacy import Adjacency, PrivacyProfile
from dpdask.releases.card import ReleaseCard
from dpdask.sensitivity import (
    EntrywiseBox,
    L2Ball,
    Origin,
    RecordBall,
    RecordBox,
    SensitivitySet,
    sensitivity_from_dict,
)
from dpdask.types import Json

__all__ = ["check_guarantee"]

_ORIGINS = {
    "l2-clip": Origin.CLIPPED,
    "count": Origin.CLIPPED,
    "ranges": Origin.PUBLIC_RANGE,
    "declared": Origin.DECLARED,
}
_CLOSE = 1e-9  # relative; floats survive JSON, but sums may be taken in another order


def check_guarantee(card: ReleaseCard, noise: Noise) -> None:
    """Raise :class:`VerificationFailed` unless the card's guarantee is what ``noise`` gives.

    ``noise`` is that of the card, its factors included, wherever they are published.
    """
    try:
        profile = _check_numbers(card, noise)
        _check_unit(card)
        _check_enough(card, noise, profile)
        _check_grid(card.noise, card.grid)
        _check_composition(card, profile)
    except VerificationFailed:
        raise
    except (
        DpdaskError,
        ArithmeticError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
    ) as error:
        raise VerificationFailed(
            f"the guarantee on the card cannot be recomputed ({type(error).__name__})"
        ) from None


def _check_numbers(card: ReleaseCard, noise: Noise) -> PrivacyProfile:
    """The verified numbers and the verdict are those of the profile on the card; spherical noise is
    never certified.
    """
    claimed, verified = card.guarantee.claimed, card.guarantee.verified
    profile = profile_from_dict({"name": verified.name, "configuration": verified.configuration})
    found = profile.epsilon(claimed.delta), profile.delta(claimed.epsilon)
    said = verified.epsilon_at_delta, verified.delta_at_epsilon
    if not all(
        math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-300) for a, b in zip(found, said, strict=True)
    ):
        raise VerificationFailed(
            "the verified guarantee does not follow from the profile on the card"
        )
    if card.guarantee.certified != (
        found[1] <= claimed.delta and not isinstance(noise, SphericalNoise)
    ):
        raise VerificationFailed("the card's verdict does not follow from its own numbers")
    return profile


def _check_unit(card: ReleaseCard) -> None:
    """The body of differences covers what one unit can change, by the bound on the card."""
    sensitivity = sensitivity_from_dict(card.sensitivity.set)
    if not math.isclose(sensitivity.radius, card.sensitivity.l2, rel_tol=_CLOSE):
        raise VerificationFailed("the sensitivity on the card is not that of its body")
    if str(sensitivity.origin) != card.sensitivity.origin:
        raise VerificationFailed(
            "the origin of the sensitivity on the card is not that of its body"
        )
    privacy_unit = card.privacy_unit
    origin = _ORIGINS.get(privacy_unit.bound["kind"])
    if card.sensitivity.origin != origin or privacy_unit.bound["enforced"] != (
        origin is not Origin.DECLARED
    ):
        raise VerificationFailed(
            "the card says of another bound that it was enforced, or where it comes from"
        )
    if privacy_unit.max_contributions < 1 or (privacy_unit.max_contributions == 1) != (
        privacy_unit.contributions == "one record per unit"
    ):
        raise VerificationFailed("the card's records per unit contradict each other")
    _check_body(sensitivity, card.query, card.privacy_unit.bound, card)
    if card.directions is not None:
        directions = card.directions
        _check_body(
            sensitivity_from_dict(directions.sensitivity), directions.query, directions.bound, card
        )


def _check_body(sensitivity: SensitivitySet, query: Json, bound: Json, card: ReleaseCard) -> None:
    name, k = query["name"], card.privacy_unit.max_contributions
    if str(sensitivity.adjacency) != card.privacy_unit.adjacency:
        raise VerificationFailed(
            "the sensitivity on the card is for other neighbours than its unit"
        )
    if sensitivity.radius < _least_radius(query, bound, card) * (1 - 1e-12):
        raise VerificationFailed(
            "the sensitivity on the card is smaller than what its bound lets one unit change"
        )
    record_axis = card.privacy_unit.record_axis
    match sensitivity:
        case L2Ball():
            fits = True
        case RecordBall():  # several records could move along several axes of the whitened grid
            fits = name == "identity" and k == 1 and sensitivity.record_axis == record_axis
        case RecordBox():
            fits = (
                name == "identity"
                and sensitivity.record_axis == record_axis
                and _holds_ranges(sensitivity, query, bound, card)
            )
        case EntrywiseBox():
            fits = _holds_ranges(sensitivity, query, bound, card)
        case _:
            fits = False
    if not fits:
        raise VerificationFailed(
            "the body of differences on the card does not go with its query and unit"
        )


def _holds_ranges(
    sensitivity: EntrywiseBox | RecordBox,
    query: Json,
    bound: Json,
    card: ReleaseCard,
) -> bool:
    """Whether a box lets every feature move as far as its own range does."""
    if bound["kind"] != "ranges" or list(sensitivity.shape) != query["answer_shape"]:
        return False
    least = [width * (1 - 1e-12) for width in _least_widths(query, bound, card)]
    size = sensitivity.shape[sensitivity.feature_axis]
    if len(sensitivity.widths) != len(least) or len(least) not in (1, size):
        return False
    return all(width >= needed for width, needed in zip(sensitivity.widths, least, strict=True))


def _least_widths(query: Json, bound: Json, card: ReleaseCard) -> list[float]:
    """How far one unit moves an entry of every feature, by the ranges on the card."""
    k, summed = card.privacy_unit.max_contributions, query["name"] in ("sum", "mean")
    private = Adjacency(card.privacy_unit.adjacency) is Adjacency.ADD_REMOVE_ONE
    widths = [max(abs(low), abs(high)) if private else high - low for low, high in bound["ranges"]]
    return [width * (k if summed else math.sqrt(k)) for width in widths]


def _check_grid(noise: Json, grid: Json) -> None:
    """The grid is the noise's: as many steps to a standard deviation as it says, a power of two
    that the proofs cover.
    """
    ratio = grid["steps_per_sigma"]
    if not (2**6 <= ratio <= 2**30 and math.log2(ratio).is_integer()):
        raise VerificationFailed(
            f"steps_per_sigma={ratio:g} on the card is not a power of two from 2^6 to 2^30"
        )
    if noise["name"] == "iid":
        fits = grid["exact"] and math.isclose(
            grid["step"] * ratio, noise["configuration"]["sigma"], rel_tol=1e-12
        )
    elif noise["name"] == "kronecker":
        fits = grid["exact"] and grid["whitened_step"] * ratio == 1
    else:
        fits = not grid["exact"]
    if not fits:
        raise VerificationFailed("the grid on the card is not that of its noise")


def _check_composition(card: ReleaseCard, profile: PrivacyProfile) -> None:
    """The dataset was charged for this release too, within its total; directions that cost budget
    are on the card.
    """
    composition = card.composition
    if not profile.epsilon(composition.total.delta) <= composition.cumulative_epsilon * (1 + 1e-6):
        raise VerificationFailed(
            "the dataset's spent epsilon on the card is less than this release alone costs"
        )
    if not composition.cumulative_epsilon <= composition.total.epsilon * (1 + 1e-6):
        raise VerificationFailed("the dataset's spent epsilon on the card is above its total")
    estimated = isinstance(card.mechanism.get("directions"), dict)
    if estimated != (card.directions is not None):
        raise VerificationFailed(
            "the card says of directions that they were bought, or what they cost, but not both"
        )


def _least_radius(query: Json, bound: Json, card: ReleaseCard) -> float:
    """sup ||D||, by the bound on the card."""
    name, kind, k = query["name"], bound["kind"], card.privacy_unit.max_contributions
    private = Adjacency(card.privacy_unit.adjacency) is Adjacency.ADD_REMOVE_ONE
    summed = name in ("sum", "mean")
    if kind == "declared" and name == "precomputed":
        return float(bound["l2_sensitivity"])
    if kind == "count" and name == "histogram":
        return k * (1 if private else math.sqrt(2))
    if kind == "l2-clip" and (name == "identity" or summed):
        return float(bound["norm"]) * (1 if private else 2) * (k if summed else math.sqrt(k))
    if kind == "l2-clip" and name == "covariance":
        return float(bound["norm"]) ** 2 * k * (1 if private else math.sqrt(2))
    if kind == "ranges" and (name == "identity" or summed):
        widths = _least_widths(query, bound, card)
        entries = math.prod(query["answer_shape"])
        if name == "identity" and card.privacy_unit.record_axis is not None:
            entries //= query["answer_shape"][card.privacy_unit.record_axis]
        return math.sqrt(math.fsum(width**2 for width in widths) * entries / len(widths))
    raise VerificationFailed(f"a bound of kind {kind!r} does not go with query {name!r}")


def _check_enough(card: ReleaseCard, noise: Noise, profile: PrivacyProfile) -> None:
    """The noise gives what the profile says, rounding and the search for directions included."""
    query, shape = card.query, card.query["answer_shape"]
    if list(noise.tensor_shape) != shape or card.released.shape != shape:
        raise VerificationFailed("the noise on the card is for another shape than its answer")
    shrink = math.sqrt((shape[0] + 1) / (2 * shape[0])) if query["name"] == "covariance" else 1.0
    if not math.isclose(
        noise.entry_std / query.get("divisor", 1) * shrink, card.released.noise_std, rel_tol=_CLOSE
    ):
        raise VerificationFailed("the noise level on the card does not follow from its noise")
    steps = _steps(card)
    needed = verified_profile(
        Answer(
            noise=noise,
            sensitivity=sensitivity_from_dict(card.sensitivity.set),
            query=query,
            bound=card.privacy_unit.bound,
            grid=card.grid,
            record_axis=card.privacy_unit.record_axis,
            contributions=card.privacy_unit.max_contributions,
            steps=steps.count,
        ),
        steps,
    )
    if card.directions is not None:
        needed = compose([(_directions_profile(card), 1), (needed, 1)])
    if not _covers(profile, needed, card, _CLOSE + _looseness(noise)):
        raise VerificationFailed("the noise on the card is smaller than its guarantee needs")


def _steps(card: ReleaseCard) -> Steps:
    """How many releases of the noise the card's composition makes, at which rate a privacy unit
    takes part in each.
    """
    composition = card.composition
    if (composition.steps > 1) != (composition.steps_are_independent is not None):
        raise VerificationFailed(
            "the card's steps are not declared independent, or a single result says that they are"
        )
    if composition.sampling is None:
        return Steps(count=composition.steps)
    sampling = composition.sampling
    rate = amplified_rate(
        rate=sampling.rate, of=sampling.of, contributions=card.privacy_unit.max_contributions
    )
    if not math.isclose(rate, sampling.amplified_rate, rel_tol=1e-12):
        raise VerificationFailed(
            "the amplified sampling rate on the card does not follow from who was sampled"
        )
    return Steps(count=composition.steps, sampling_rate=rate)


def _directions_profile(card: ReleaseCard) -> PrivacyProfile:
    """The profile of the covariance that the noise directions came from."""
    assert card.directions is not None
    directions = card.directions
    answer = Answer(
        noise=noise_from_dict(directions.noise),
        sensitivity=sensitivity_from_dict(directions.sensitivity),
        query=directions.query,
        bound=directions.bound,
        grid=directions.grid,
        record_axis=card.privacy_unit.record_axis,
        contributions=card.privacy_unit.max_contributions,
    )
    return verified_profile(answer, Steps())


def _looseness(noise: Noise) -> float:
    """By how much the norms of computed inverses may differ between machines; too much cannot be
    verified.
    """
    found = (
        sum(factor.looseness() for factor in noise.factors)
        if isinstance(noise, KroneckerNoise)
        else 0.0
    )
    if found > 1e-3:
        raise VerificationFailed(
            "a dense noise factor is too ill-conditioned for its inverse to be recomputed"
        )
    return found


def _covers(
    profile: PrivacyProfile, needed: PrivacyProfile, card: ReleaseCard, tolerance: float
) -> bool:
    """Whether ``profile`` promises no more than ``needed`` gives."""
    if isinstance(needed, GaussianProfile) and isinstance(profile, GaussianProfile):
        return needed.mu <= profile.mu * (1 + tolerance)
    claimed = card.guarantee.claimed
    slack = 1 + 1e-6 + 1e3 * tolerance
    at = [claimed.epsilon * share for share in (0.25, 0.5, 1.0, 2.0)]
    below = all(needed.delta(epsilon) <= profile.delta(epsilon) * slack + 1e-14 for epsilon in at)
    return below and needed.epsilon(claimed.delta) <= profile.epsilon(claimed.delta) * slack
