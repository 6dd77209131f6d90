"""MVG's theorems and their improvements: constants against a second computation, claims against
brute force.
"""

from __future__ import annotations

import math
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpdask import PrivacyBudget
from dpdask.errors import InvalidMechanism
from dpdask.mechanisms import mvg
from dpdask.mechanisms.reproductions.mvg import precision_bound
from tests.conftest import ball

BUDGET = PrivacyBudget(epsilon=1.0, delta=1e-5)


def harmonic(r: int, power: float = 1.0) -> float:
    return math.fsum(1 / i**power for i in range(1, r + 1))


def second_computation(
    theorem: str, zeta: str, m: int, n: int, epsilon: float, delta: float, s: float, gamma: float
) -> float:
    """phi^2 as the papers write it, by the quadratic formula."""
    r, t = min(m, n), math.log(1 / delta)
    norm = m * n + 2 * math.sqrt(m * n * t) + 2 * t
    norm = norm if zeta == "paper" else math.sqrt(norm)
    h = harmonic(r)
    alpha = {
        "general": (h + harmonic(r, 0.5)) * gamma**2 + 2 * h * gamma * s,
        "general-improved": h * s**2,
        "psd": 4 * h * gamma * s,
    }[theorem]
    beta = 2 * (math.sqrt(r) if theorem == "psd" else (m * n) ** 0.25) * norm * h * s
    return float(((-beta + math.sqrt(beta**2 + 8 * alpha * epsilon)) / (2 * alpha)) ** 2)


@settings(max_examples=60, deadline=None)
@given(
    theorem=st.sampled_from(["general", "general-improved", "psd"]),
    zeta=st.sampled_from(["paper", "sqrt"]),
    m=st.integers(2, 30),
    n=st.integers(2, 30),
    epsilon=st.floats(10, 1e3),
    s=st.floats(0.1, 10),
)
def test_the_bound_is_that_of_the_formulas(
    theorem: str, zeta: str, m: int, n: int, epsilon: float, s: float
) -> None:
    n = m if theorem == "psd" else n
    gamma = 3 * s
    bound = precision_bound(
        theorem=theorem,
        rows=m,
        columns=n,
        budget=PrivacyBudget(epsilon=epsilon, delta=1e-3),
        sensitivity=s,
        gamma=None if theorem == "general-improved" else gamma,
        zeta=zeta,
    )
    expected = second_computation(theorem, zeta, m, n, epsilon, 1e-3, s, gamma)
    assert math.isclose(bound, expected, rel_tol=1e-6)  # the quadratic formula cancels


@pytest.mark.parametrize("theorem", ["general", "general-improved", "psd"])
@pytest.mark.parametrize("zeta", ["paper", "sqrt"])
@settings(max_examples=25, deadline=None)
@given(
    log_epsilon=st.floats(-6, 6),
    log_delta=st.floats(-60, -1),
    shape=st.tuples(st.integers(2, 9), st.integers(2, 9)),
)
def test_every_claim_holds_for_the_noise_that_spends_it(
    theorem: str, zeta: str, log_epsilon: float, log_delta: float, shape: tuple[int, int]
) -> None:
    budget = PrivacyBudget(epsilon=math.exp(log_epsilon), delta=math.exp(log_delta))
    calibration = mvg(
        budget=budget,
        sensitivity=ball(1.0),
        shape=(shape[0], shape[0]) if theorem == "psd" else shape,
        gamma=None if theorem == "general-improved" else 1.0,
        theorem=theorem,
        zeta=zeta,
    )
    assert calibration.guarantee.certified
    assert ("sqrt(zeta)" in calibration.guarantee.theorem) is (zeta == "sqrt")


def test_the_improved_trace_term_is_what_the_loss_is() -> None:
    """R1SMG App. C's transformation: twice the privacy loss, term by term, without ||f||."""
    rng = np.random.default_rng(2)
    m, n = 3, 4
    a, b = rng.normal(size=(m, m)), rng.normal(size=(n, n))
    inverse_sigma, inverse_psi = np.linalg.inv(a @ a.T), np.linalg.inv(b @ b.T)
    f1, d = 100 * rng.normal(size=(m, n)), rng.normal(size=(m, n))
    z = rng.normal(size=(m, n))
    y, f2 = f1 + z, f1 - d

    def energy(x: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> float:
        return float(np.trace(inverse_psi @ x.T @ inverse_sigma @ x))

    loss = (energy(y - f2) - energy(y - f1)) / 2
    terms = energy(d) + 2 * float(np.trace(inverse_psi @ z.T @ inverse_sigma @ d))
    assert math.isclose(2 * loss, terms, rel_tol=1e-9)


def test_the_norm_of_normal_numbers_is_the_square_root_of_zeta() -> None:
    """Laurent & Massart bound the square of the norm by zeta; MVG's Lemma 1 says zeta^2."""
    rng, entries, delta = np.random.default_rng(4), 60, 1e-2
    norms = np.linalg.norm(rng.standard_normal((200_000, entries)), axis=1)
    t = math.log(1 / delta)
    zeta = entries + 2 * math.sqrt(entries * t) + 2 * t
    beyond = float(np.mean(norms > math.sqrt(zeta)))
    assert 1e-4 < beyond < delta  # a bound, and no longer one at 0.8 of it
    assert np.mean(norms > 0.8 * math.sqrt(zeta)) > delta
    assert np.max(norms) < zeta / 5


def test_improvements_gain_and_neither_is_tight() -> None:
    """On 6 x 248 without gamma little changes, sqrt(zeta) gains sqrt(mn) in variance, both are far
    from the analytic Gaussian's mu.
    """
    settings_of = {
        "plain": {"gamma": 38.57},
        "improved": {"theorem": "general-improved"},
        "sqrt": {"gamma": 38.57, "zeta": "sqrt"},
        "both": {"theorem": "general-improved", "zeta": "sqrt"},
    }
    stds = {}
    for name, options in settings_of.items():
        calibration = mvg(budget=BUDGET, sensitivity=ball(4.899), shape=(6, 248), **options)  # type: ignore[arg-type]
        stds[name] = calibration.noise.entry_std
    assert stds["both"] < stds["sqrt"] < stds["improved"] <= stds["plain"]
    assert 30 < stds["improved"] / stds["both"] < math.sqrt(6 * 248) * 1.2
    assert stds["both"] > 18.3  # of the analytic Gaussian


def test_the_least_rank_at_which_thm_4_applies() -> None:
    """MVG Thm 4: H_{r,1/2} >= (2 sqrt(2) - 1) H_r, first at r = 13."""
    first = next(r for r in count(1) if harmonic(r, 0.5) >= (2 * math.sqrt(2) - 1) * harmonic(r))
    assert first == 13


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"theorem": "best"}, "choose one of general, general-improved, psd"),
        ({"zeta": "cubic", "gamma": 1.0}, "choose paper or sqrt"),
        ({}, "no gamma.*general-improved"),
        ({"theorem": "psd", "gamma": 1.0}, "not symmetric"),
    ],
)
def test_what_no_theorem_covers_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidMechanism, match=message):
        mvg(budget=BUDGET, sensitivity=ball(1.0), shape=(2, 3), **options)  # type: ignore[arg-type]
