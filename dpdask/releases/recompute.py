"""Recompute a guarantee: the numbers on a release card follow from its parameters, or verification
fails.

Everything is computed again, by the functions that planned the release: the sensitivity from the
privacy unit and its bound, the rounding from the query and the grid, the profile from the noise.
What cannot be computed again fails; nothing is passed over. What is special to a query comes from
the rules that it registers (:mod:`dpdask.queries.verification`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dpdask.accounting import GaussianProfile, PureProfile, compose, profile_from_dict
from dpdask.errors import DpdaskError, VerificationFailed
from dpdask.mechanisms import Steps, amplified_rate
from dpdask.noise import KroneckerNoise, LaplaceNoise, Noise, SphericalNoise, noise_from_dict
from dpdask.planning.verified import mu_shares, verified_profile
from dpdask.privacy import PrivacyProfile
from dpdask.privatizers.grid import MAX_STEPS_PER_SIGMA, MIN_STEPS_PER_SIGMA
from dpdask.queries import RecordedAnswer, RecordedPart, is_registered, query_rules
from dpdask.queries.people import DISTINCT, NORM, SUBSET_AND_NORM
from dpdask.releases.card import ReleaseCard
from dpdask.releases.card_sections import Composition, Session, Unit
from dpdask.releases.check_bounds import check_histogram, recorded_histogram
from dpdask.releases.check_directions import check_moments, recorded_moments
from dpdask.sensitivity import L1Ball, Origin, known_l1, sensitivity_from_dict
from dpdask.types import Json

__all__ = ["check_guarantee"]

_SCALES = {"iid": "sigma", "laplace": "scale"}  # of noise on one grid, where descriptions keep it
_CLOSE = 1e-9  # relative; floats survive JSON, but sums may be taken in another order


def check_guarantee(card: ReleaseCard, *noises: Noise) -> None:
    """Raise :class:`VerificationFailed` unless the card's guarantee is what the noise gives.

    Args:
        card: The card.
        noises: The noise of every variable as the card describes it, its factors included, wherever
            they are published.
    """
    try:
        variables = list(zip(card.each_variable(), noises, strict=True))
        answers = [_recorded_answer(own, noise) for own, noise in variables]
        directions = recorded_moments(card)
        bounds = [recorded_histogram(own) for own, _ in variables]
        first = [*directions, *filter(None, bounds)]
        profile = _check_numbers(card, noises)
        for answer in (*answers, *first):
            if not is_registered(answer.name):
                raise answer.mismatch()
        for own, _ in variables:
            _check_unit(own)
        for answer in (*answers, *first):
            _check_sensitivity(answer, card)
        for moments in directions:
            check_moments(card, answers[0], moments)
        for (own, noise), answer, histogram in zip(variables, answers, bounds, strict=True):
            _check_noise(own, noise, answer)
            check_histogram(own, answer, histogram)
        _check_enough(card, answers, first, profile)
        _check_shares(card, list(zip(bounds, answers, strict=True)))
        for own, _ in variables:
            _check_grid(own.noise, own.grid)
            for part in own.parts:
                _check_grid(part.noise, part.grid)
            if own.bounds is not None:
                _check_grid(own.bounds.noise, own.bounds.grid)
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


def _recorded_answer(card: ReleaseCard, noise: Noise) -> RecordedAnswer:
    """Return the answer that the card of one variable describes."""
    unit = card.privacy_unit
    return RecordedAnswer(
        noise=noise,
        sensitivity=sensitivity_from_dict(card.sensitivity.set),
        query=card.query,
        bound=unit.bound,
        grid=card.grid,
        record_axis=unit.record_axis,
        contributions=unit.max_contributions,
        enforced=unit.people is not None,
        distinct=unit.people is not None and unit.people.by == DISTINCT,
        together=unit.people is not None and unit.people.by in (NORM, SUBSET_AND_NORM),
        limited=unit.people is None or unit.people.by != NORM,
        steps=1 if card.composition.session is not None else card.composition.steps,
        parts=tuple(
            RecordedPart(name=part.name, noise=noise_from_dict(part.noise), grid=part.grid)
            for part in card.parts
        ),
    )


def _check_shares(
    card: ReleaseCard, variables: list[tuple[RecordedAnswer | None, RecordedAnswer]]
) -> None:
    """Check that the variables of the card are all that share its guarantee, each with its part.

    Args:
        card: The card.
        variables: The answer of every variable, after the one that chose its bound, if any.
    """
    shares = [own.share for own in card.each_variable()]
    if shares == [None]:
        return
    names = [own.released.array for own in card.each_variable()]
    composed = card.composition.steps > 1 or card.composition.sampling is not None
    if len(shares) < 2 or len(set(names)) != len(names) or composed or card.directions is not None:
        raise VerificationFailed(
            "the variables on the card are not those of one release of several"
        )
    groups = [[answer for answer in each if answer is not None] for each in variables]
    looseness = sum(_looseness(answer.noise) for group in groups for answer in group)
    for share, computed in zip(shares, mu_shares(groups), strict=True):
        if share is None or not math.isclose(share, computed, rel_tol=1e-6 + looseness):
            raise VerificationFailed(
                "the share of a variable on the card does not follow from the noise of all"
            )


def _check_numbers(card: ReleaseCard, noises: Sequence[Noise]) -> PrivacyProfile:
    """Check that the verified numbers and the verdict are those of the profile on the card.

    Spherical noise is never certified.
    """
    claimed, verified = card.guarantee.claimed, card.guarantee.verified
    profile = profile_from_dict({"name": verified.name, "configuration": verified.configuration})
    computed = profile.epsilon(claimed.delta), profile.delta(claimed.epsilon)
    recorded = verified.epsilon_at_delta, verified.delta_at_epsilon
    if not all(
        math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-300)
        for one, other in zip(computed, recorded, strict=True)
    ):
        raise VerificationFailed(
            "the verified guarantee does not follow from the profile on the card"
        )
    exact = not any(isinstance(noise, SphericalNoise) for noise in noises)
    if card.guarantee.certified != (computed[1] <= claimed.delta and exact):
        raise VerificationFailed("the card's verdict does not follow from its own numbers")
    return profile


def _check_unit(card: ReleaseCard) -> None:
    """Check that what the card says of the privacy unit and its bound is consistent."""
    sensitivity = sensitivity_from_dict(card.sensitivity.set)
    if not math.isclose(sensitivity.radius, card.sensitivity.l2, rel_tol=_CLOSE):
        raise VerificationFailed("the sensitivity on the card is not the radius of its set")
    released = card.sensitivity.released_l2
    if released is not None and (
        query_rules(card.query["name"]).noise_varies
        or not math.isclose(
            sensitivity.radius / card.query.get("divisor", 1), released, rel_tol=_CLOSE
        )
    ):
        raise VerificationFailed(
            "the sensitivity of the released numbers does not follow from the card"
        )
    if str(sensitivity.origin) != card.sensitivity.origin:
        raise VerificationFailed("the origin of the sensitivity on the card is not that of its set")
    unit = card.privacy_unit
    origin = query_rules(card.query["name"]).origins.get(unit.bound["kind"])
    enforced = origin is not Origin.DECLARED
    if card.sensitivity.origin != origin or unit.bound["enforced"] != enforced:
        raise VerificationFailed(
            "the card says of another bound that it was enforced, or where it comes from"
        )
    _check_bound(unit.bound)
    by = None if unit.people is None else unit.people.by
    if by == DISTINCT and card.query["name"] != "histogram":
        raise VerificationFailed("the card counts cells of a query that has none")
    if by in (NORM, SUBSET_AND_NORM) and unit.bound["kind"] != "l2-clip":
        raise VerificationFailed("the card clips people by another bound than a norm")
    if by == NORM and (unit.max_contributions != 1 or card.query.get("counts", "none") != "none"):
        raise VerificationFailed("the card counts records of people who may have any number")
    if unit.max_contributions < 1 or unit.contributions != _contributions(unit):
        raise VerificationFailed("the card's records per privacy unit contradict each other")
    per = unit.per
    alone = unit.contributions == "one record per unit"
    several = per is not None and per.axis == unit.record_axis and not alone
    several = several or (per is not None and per.axis == 0 and card.composition.steps > 1)
    by_ids = unit.people is not None  # whose records may be at many indices
    if per is not None and (unit.adjacency != "replace-one" or several or by_ids or per.axis < 0):
        raise VerificationFailed(
            "the card says of privacy units that may have several indices that they have one"
        )


def _contributions(unit: Unit) -> str:
    """Return how the number of a privacy unit's records is known."""
    if unit.people is not None and unit.record_axis is not None:
        return "enforced"
    return "one record per unit" if unit.max_contributions == 1 else "declared"


def _check_bound(bound: Json) -> None:
    """Check that a bound is one: finite, not empty, and around a point within its ranges."""
    pairs = bound.get("ranges", [])
    center = bound.get("center", [])
    centers = center if isinstance(center, list) else [center]
    if isinstance(center, dict):  # of an array, which only clipped records have
        centers = [center["rms"]]
    numbers = [bound.get("norm", 1.0), *(end for pair in pairs for end in pair), *centers]
    valid = all(isinstance(number, int | float) and math.isfinite(number) for number in numbers)
    valid = valid and bound.get("norm", 1.0) > 0 and all(low < high for low, high in pairs)
    if valid and pairs and centers:
        inside = zip(pairs, centers * len(pairs) if len(centers) == 1 else centers, strict=True)
        valid = all(low <= point <= high for (low, high), point in inside)
    if not valid:
        raise VerificationFailed("the bound on the card bounds nothing, or not around its centre")


def _check_sensitivity(answer: RecordedAnswer, card: ReleaseCard) -> None:
    """Check that the sensitivity set covers what one privacy unit can change, by the bound."""
    if str(answer.sensitivity.adjacency) != card.privacy_unit.adjacency:
        raise VerificationFailed(
            "the sensitivity on the card is for other neighbours than its privacy unit"
        )
    # "not at least", since no comparison with NaN holds
    if not answer.sensitivity.radius >= answer.rules.least_radius(answer) * (1 - 1e-12):
        raise VerificationFailed(
            "the sensitivity on the card is smaller than what its bound lets a privacy unit change"
        )
    # the l1 norm of a box follows from its widths, which are checked below
    needs_l1 = isinstance(answer.noise, LaplaceNoise) or isinstance(answer.sensitivity, L1Ball)
    l1 = known_l1(answer.sensitivity) if needs_l1 else math.inf
    if needs_l1 and not l1 >= answer.rules.least_l1(answer) * (1 - 1e-12):
        raise VerificationFailed(
            "the l1 sensitivity on the card is smaller than what its bound lets a privacy unit"
            " change"
        )
    if not answer.rules.covers(answer.sensitivity, answer):
        raise VerificationFailed(
            "the sensitivity set on the card does not go with its query and privacy unit"
        )


def _check_grid(noise: Json, grid: Json) -> None:
    """Check that the grid is the noise's: a power of two of steps per sigma that proofs cover."""
    steps: float = grid["steps_per_sigma"]
    in_range = MIN_STEPS_PER_SIGMA <= steps <= MAX_STEPS_PER_SIGMA
    if not (in_range and math.log2(steps).is_integer()):
        raise VerificationFailed(
            f"steps_per_sigma={steps:g} on the card is not a power of two from 2^6 to 2^30"
        )
    if noise["name"] in _SCALES:
        scale = noise["configuration"][_SCALES[noise["name"]]]
        fits = grid["exact"] and math.isclose(grid["step"] * steps, scale, rel_tol=1e-12)
    elif noise["name"] == "kronecker":
        fits = grid["exact"] and grid["whitened_step"] * steps == 1
    else:
        fits = not grid["exact"]
    if not fits:
        raise VerificationFailed("the grid on the card is not that of its noise")


def _check_composition(card: ReleaseCard, profile: PrivacyProfile) -> None:
    """Check that the dataset was charged for this release too, within its total.

    Directions that cost budget are on the card.
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


def _check_noise(card: ReleaseCard, noise: Noise, answer: RecordedAnswer) -> None:
    """Check that the noise is for the released shape, and its level what the card says."""
    shape = card.query["answer_shape"]
    session = card.composition.session
    released = shape if session is None else [session.released, *shape]
    if list(noise.tensor_shape) != shape or card.released.shape != released:
        raise VerificationFailed("the noise on the card is for another shape than its answer")
    if (card.released.noise_std is None) != answer.rules.noise_varies:
        raise VerificationFailed("the card states one noise level for parts that have several")
    if card.released.noise_std is None:
        return
    level = answer.rules.noise_level(noise, card.query)
    if not math.isclose(level.rms, card.released.noise_std, rel_tol=_CLOSE):
        raise VerificationFailed("the noise level on the card does not follow from its noise")
    extremes = card.released.noise_std_range
    if extremes is not None and not all(
        math.isclose(one, other, rel_tol=_CLOSE)
        for one, other in zip(level.extremes(), extremes, strict=True)
    ):
        raise VerificationFailed("the range of the noise on the card does not follow from it")


def _check_enough(
    card: ReleaseCard,
    answers: list[RecordedAnswer],
    first: list[RecordedAnswer],
    profile: PrivacyProfile,
) -> None:
    """Check that the noise gives what the profile says, rounding and what is drawn first included.

    One privacy unit can change all variables at once: their costs are composed.
    """
    steps = _steps(card)
    costs = [(verified_profile(answer, Steps()), 1) for answer in first]
    costs += [(verified_profile(answer, steps), 1) for answer in answers]
    needed = costs[0][0] if len(costs) == 1 else compose(costs)
    looseness = sum(_looseness(answer.noise) for answer in answers)
    if not _covers(profile, needed, card, _CLOSE + looseness):
        raise VerificationFailed("the noise on the card is smaller than its guarantee needs")


def _steps(card: ReleaseCard) -> Steps:
    """Return how many releases of the noise compose, and how often a privacy unit takes part."""
    composition, session = card.composition, card.composition.session
    stacked = composition.steps > 1 and session is None
    if stacked != (composition.steps_are_independent is not None):
        raise VerificationFailed(
            "the card's steps are not declared independent, or a single result says that they are"
        )
    if session is not None:
        _check_session(session, composition)
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


def _check_session(session: Session, composition: Composition) -> None:
    """Check that no more steps were released than charged, and that their samples were drawn."""
    sampled = composition.sampling is not None
    if session.released > composition.steps or (session.sampled_by is not None) != sampled:
        raise VerificationFailed(
            "the card says of steps that more were released than charged, or of samples that"
            " another drew them"
        )


def _looseness(noise: Noise) -> float:
    """Return by how much the norms of computed inverses may differ between machines, relatively."""
    factors = noise.factors if isinstance(noise, KroneckerNoise) else ()
    looseness = sum(factor.looseness() for factor in factors)
    if looseness > 1e-3:
        raise VerificationFailed(
            "a dense noise factor is too ill-conditioned for its inverse to be recomputed"
        )
    return looseness


def _covers(
    profile: PrivacyProfile, needed: PrivacyProfile, card: ReleaseCard, tolerance: float
) -> bool:
    """Return whether ``profile`` promises no more than ``needed`` gives."""
    if isinstance(needed, GaussianProfile) and isinstance(profile, GaussianProfile):
        return needed.mu <= profile.mu * (1 + tolerance)
    if isinstance(needed, PureProfile) and isinstance(profile, PureProfile):
        return needed.largest_loss <= profile.largest_loss * (1 + tolerance)
    claimed = card.guarantee.claimed
    slack = 1 + 1e-6 + 1e3 * tolerance
    at = [claimed.epsilon * share for share in (0.25, 0.5, 1.0, 2.0)]
    below = all(needed.delta(epsilon) <= profile.delta(epsilon) * slack + 1e-14 for epsilon in at)
    return below and needed.epsilon(claimed.delta) <= profile.epsilon(claimed.delta) * slack
