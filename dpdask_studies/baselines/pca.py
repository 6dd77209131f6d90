"""Methods for principal components that the papers compare with.

All take records in rows, of norm at most 1, and return d x d matrices or d x k orthonormal columns.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import brentq

from dpdask.accounting import GaussianProfile
from dpdask.types import Floats

__all__ = ["bingham", "mod_sulq", "mod_sulq_profile", "ppca", "wishart", "wishart_lost_mass"]


def mod_sulq(records: Floats, *, epsilon: float, delta: float, seed: int) -> Floats:
    """Return the second moments with symmetric Gaussian noise (MOD-SULQ; Chaudhuri, Sarwate &
    Sinha 2012, Alg. 1).

    Args:
        records: n x d.
        epsilon: As published, below 1.
        delta: Of the guarantee.
        seed: Of the noise.

    Guarantee: :func:`mod_sulq_profile`, under replace-one; far stronger than claimed.
    """
    count, features = records.shape
    deviation = _mod_sulq_deviation(count, features, epsilon, delta)
    draws = np.random.default_rng(seed).normal(0, deviation, (features, features))
    noise = np.triu(draws) + np.triu(draws, 1).T
    return np.asarray(records.T @ records / count + noise)


def _mod_sulq_deviation(count: int, features: int, epsilon: float, delta: float) -> float:
    entries = (features**2 + features) / (delta * 2 * math.sqrt(2 * math.pi))
    leading = (features + 1) / (count * epsilon) * math.sqrt(2 * math.log(entries))
    return leading + 1 / (count * math.sqrt(epsilon))


def mod_sulq_profile(*, count: int, features: int, epsilon: float, delta: float) -> GaussianProfile:
    """Return the exact profile of MOD-SULQ's noise.

    Noise is drawn on and above the diagonal. One replaced record changes these entries by at most
    sqrt(2)/n in l2 norm: (||D||² + sum of D_ii²)/2 with ||D||² <= 2/n², attained by two unit
    vectors of the standard basis.
    """
    deviation = _mod_sulq_deviation(count, features, epsilon, delta)
    return GaussianProfile(math.sqrt(2) / (count * deviation))


def wishart(records: Floats, *, epsilon: float, seed: int) -> Floats:
    """Return the second moments plus Wishart noise W_d(d + 1, 3/(2 n epsilon) I) (Jiang, Xie &
    Zhang 2016).

    **Not private as claimed** (pure epsilon): see :func:`wishart_lost_mass`.
    """
    count, features = records.shape
    scale = math.sqrt(3 / (2 * count * epsilon))
    draws = np.random.default_rng(seed).normal(0, scale, (features, features + 1))
    return np.asarray(records.T @ records / count + draws @ draws.T)


def wishart_lost_mass(epsilon: float) -> float:
    """Return a lower bound on delta of the Wishart mechanism, at every epsilon.

    Its noise W is positive semi-definite, so an output Y of the data without v can come from the
    data with v only if W - v v'/n is so, that is v'W^-1 v <= n. As 1/(v'W^-1 v) is c chi²_2, with
    c = 3/(2 n epsilon), that fails with probability 1 - exp(-1/(2 n c)) = 1 - exp(-epsilon/3), and
    then the output tells the two apart for certain.
    """
    return -math.expm1(-epsilon / 3)


def ppca(
    records: Floats, *, components: int, epsilon: float, seed: int, sweeps: int = 30
) -> Floats:
    """Return k components from the density exp(n epsilon/2 tr(V'AV)) (PPCA; Chaudhuri, Sarwate &
    Sinha 2012, Alg. 2), the exponential mechanism with A the second moments.

    Args:
        records: n x d.
        components: k.
        epsilon: Of the guarantee.
        seed: Of the draws.
        sweeps: Of the Gibbs sampler over columns (Hoff 2009), for k > 1.

    Guarantee: pure epsilon for k = 1, up to floating point: the draw is exact by rejection. For
    k > 1 it holds in the limit of many sweeps, which nobody has bounded; to reproduce only.
    """
    features = records.shape[1]
    energy = epsilon / 2 * (records.T @ records)
    generator = np.random.default_rng(seed)
    columns, _ = np.linalg.qr(generator.normal(size=(features, components)))
    for _ in range(1 if components == 1 else sweeps):
        for index in range(components):
            others = np.delete(columns, index, axis=1)
            basis = _orthogonal_to(others, features)
            columns[:, index] = basis @ bingham(basis.T @ energy @ basis, generator)
    return columns


def _orthogonal_to(columns: Floats, features: int) -> Floats:
    """Return an orthonormal basis of the space orthogonal to the columns."""
    if columns.shape[1] == 0:
        return np.eye(features)
    full, _ = np.linalg.qr(columns, mode="complete")
    return np.asarray(full[:, columns.shape[1] :])


def bingham(energy: Floats, generator: np.random.Generator) -> Floats:
    """Return a unit vector x with density proportional to exp(x' energy x), exactly.

    By rejection from an angular central Gaussian (Kent, Ganeiber & Mardia 2013).
    """
    values, vectors = np.linalg.eigh(energy)
    depths = values[-1] - values
    size = len(depths)

    def excess(b: float) -> float:
        return float(np.sum(1 / (b + 2 * depths))) - 1

    b = float(brentq(excess, 1e-12, size)) if excess(size) < 0 else float(size)
    precision = 1 + 2 * depths / b
    log_bound = -(size - b) / 2 + size / 2 * math.log(size / b)
    while True:
        draws = generator.standard_normal((64, size)) / np.sqrt(precision)
        points = draws / np.linalg.norm(draws, axis=1, keepdims=True)
        squares = points**2
        log_ratio = -squares @ depths + size / 2 * np.log(squares @ precision) - log_bound
        accepted = np.log(generator.random(64)) < log_ratio
        if accepted.any():
            return np.asarray(vectors @ points[np.argmax(accepted)])
