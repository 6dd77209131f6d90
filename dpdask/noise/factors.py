"""Noise factors: the matrix U_k that colours one mode of Kronecker noise, ``Z = N x_1 U_1 ... x_k
U_k``.

Four frozen values: a scaled identity (two numbers), a diagonal, a dense matrix, and an identity
plus low rank, which acts as ``scales[i]`` along the i-th of a few orthonormal directions and as
``base`` on everything orthogonal to them; a million rows with ten special directions cost ten
vectors. Spectra are never expanded: all a mechanism needs of a factor is its power sums, its
smallest singular value and its longest whitened axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dpdask.errors import InvalidNoise
from dpdask.noise.diagonal import DiagonalFactor, Factor, Floats, ScaledIdentity, positive_scales
from dpdask.noise.mixing import DenseFactor, LowRankFactor, check_orthonormal
from dpdask.types import Json

__all__ = [
    "DenseFactor",
    "DiagonalFactor",
    "Factor",
    "Floats",
    "LowRankFactor",
    "ScaledIdentity",
    "along_directions",
    "check_orthonormal",
    "factor_from_dict",
    "mixing_axes",
]


def _scaled_from_dict(configuration: Json) -> Factor:
    return ScaledIdentity(configuration["size"], configuration.get("scale", 1.0))


def _low_rank_from_dict(configuration: Json) -> Factor:
    base, scales = configuration["base"], configuration["scales"]
    return LowRankFactor(base, configuration["directions"], scales)


_FROM_DICT: dict[str, Callable[[Json], Factor]] = {
    "identity": _scaled_from_dict,
    "scaled": _scaled_from_dict,
    "diagonal": lambda configuration: DiagonalFactor(configuration["scales"]),
    "dense": lambda configuration: DenseFactor(configuration["matrix"]),
    "low-rank": _low_rank_from_dict,
}


def factor_from_dict(description: Json) -> Factor:
    """Return the factor that :meth:`Factor.to_dict` wrote."""
    name = description["name"]
    if name not in _FROM_DICT:
        raise InvalidNoise(f"factor {name!r} is unknown; use {', '.join(_FROM_DICT)}")
    return _FROM_DICT[name](description["configuration"])


def along_directions(
    size: int, directions: Floats | None, scales: Sequence[float] | Floats, rest: float | None
) -> Factor:
    """Return the symmetric factor with ``scales`` along ``directions`` and ``rest`` elsewhere.

    Args:
        size: The length of the mode.
        directions: Orthonormal columns; None for the standard basis.
        scales: One scale per direction.
        rest: The scale of everything orthogonal to the directions; None where nothing is.
    """
    values = np.asarray(scales, dtype=np.float64)
    if directions is None:
        return DiagonalFactor(values)
    if directions.shape[1] == size:
        check_orthonormal(directions)
        positive_scales("scales", values)
        return DenseFactor((directions * values) @ directions.T)
    if rest is None:
        raise InvalidNoise(
            f"{directions.shape[1]} directions leave {size - directions.shape[1]} without a scale"
        )
    return LowRankFactor(rest, directions, values)


def mixing_axes(factors: Sequence[Factor]) -> tuple[int, ...]:
    """Return the axes whose factors mix entries."""
    return tuple(axis for axis, factor in enumerate(factors) if factor.diagonal() is None)
