"""The ``mechanism`` of a spec: one section class for each mechanism."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field

from dpdask.spec.fields import Matrix, Number, Section, Vector, Whole
from dpdask.spec.registry import NamedSection, SectionRegistry

__all__ = [
    "MECHANISMS",
    "AnalyticGaussianSection",
    "AutoSection",
    "ClassicGaussianSection",
    "DirectionalSection",
    "EstimatedDirections",
    "FactorSection",
    "Factors",
    "IdnSection",
    "ImgmSection",
    "KNormSection",
    "LaplaceSection",
    "LowRankSection",
    "Mechanism",
    "MechanismSection",
    "MgmSection",
    "MvgSection",
    "RankOneSection",
    "UdnSection",
]


class MechanismSection(NamedSection):
    """The base of every section under ``mechanism``.

    ``counts_beside`` says whether its noise is i.i.d. Gaussian, so that counts can share the budget
    of a sum.
    """

    counts_beside: ClassVar[bool] = False


_ALIASES = {
    "gaussian": "analytic-gaussian",
    "gaussian-mechanism": "analytic-gaussian",
    "agm": "analytic-gaussian",
    "analytic": "analytic-gaussian",
    "analytic-gaussian-mechanism": "analytic-gaussian",
    "classic": "classic-gaussian",
    "classical-gaussian": "classic-gaussian",
    "classic-gaussian-mechanism": "classic-gaussian",
    "lap": "laplace",
    "laplacian": "laplace",
    "laplace-mechanism": "laplace",
    "improved-matrix-gaussian": "imgm",
    "improved-matrix-gaussian-mechanism": "imgm",
    "matrix-gaussian": "mgm",
    "matrix-gaussian-mechanism": "mgm",
    "matrix-variate-gaussian": "mvg",
    "matrix-variate-gaussian-mechanism": "mvg",
    "mvgm": "mvg",
    "unimodal-directional-noise": "udn",
    "independent-directional-noise": "idn",
    "directional-noise": "directional",
    "r1smg": "rank-one",
    "rank-1": "rank-one",
    "rank-1-singular-multivariate-gaussian": "rank-one",
    "rank-one-singular-multivariate-gaussian": "rank-one",
    "knorm": "k-norm",
    "k-norm-mechanism": "k-norm",
}
_MEANINGS = {  # the first part that a name holds counts
    "singular": "rank-one",
    "rank": "rank-one",
    "variate": "mvg",
    "matrix": "imgm",
    "kronecker": "imgm",
    "factor": "imgm",
    "anisotropic": "directional",
    "direction": "directional",
    "weight": "directional",
    "spher": "k-norm",
    "pure": "laplace",
    "geometric": "laplace",
    "double-exponential": "laplace",
    "dwork": "classic-gaussian",
    "textbook": "classic-gaussian",
    "balle": "analytic-gaussian",
    "gauss": "analytic-gaussian",
    "normal": "analytic-gaussian",
    "best": "auto",
    "default": "auto",
}
MECHANISMS = SectionRegistry("mechanism", MechanismSection, aliases=_ALIASES, meanings=_MEANINGS)

Mechanism = Annotated[MechanismSection, MECHANISMS]
"""The type of a spec's key ``mechanism``."""


class LowRankSection(Section):
    """A factor with ``scales`` along each row of ``directions`` and ``base`` elsewhere."""

    base: Number
    directions: Matrix
    scales: Vector


class FactorSection(Section):
    """The noise factor of one axis: exactly one of these keys."""

    scaled: Number | None = None
    diagonal: Vector | None = None
    dense: Matrix | None = None
    covariance: Matrix | None = None
    low_rank: LowRankSection | None = None


Factors = list[FactorSection | Literal["identity"]]


@MECHANISMS.register
class ClassicGaussianSection(MechanismSection):
    """``classic-gaussian``: i.i.d. noise by the textbook formula, a theorem for epsilon < 1."""

    counts_beside: ClassVar[bool] = True

    name: Literal["classic-gaussian"]


@MECHANISMS.register
class AnalyticGaussianSection(MechanismSection):
    """``analytic-gaussian``: the least i.i.d. Gaussian noise."""

    counts_beside: ClassVar[bool] = True

    name: Literal["analytic-gaussian"]


@MECHANISMS.register
class ImgmSection(MechanismSection):
    """``imgm``: the analytic Gaussian mechanism, with optional noise factors."""

    name: Literal["imgm"]
    factors: Factors | None = None


class EstimatedDirections(Section):
    """Noise directions from a DP covariance of the records (MVG, Experiment I).

    The covariance is released first and spends ``share`` of the budget.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    source: Annotated[Literal["dp-covariance"], Field(alias="from")]
    share: Annotated[Number, Field(gt=0, lt=1)] = 0.2


@MECHANISMS.register
class MvgSection(MechanismSection):
    """``mvg``: the matrix-variate Gaussian mechanism.

    Args:
        theorem: ``general`` (MVG Thm 2), ``general-improved`` (without gamma, R1SMG App. C), or
            ``psd`` (Thm 3) for positive semi-definite queries.
        zeta: ``paper``, or ``sqrt`` for the square root of zeta (Laurent & Massart).
        gamma: A public bound on ||f||; the ranges give one where it is left out.
        axis: The axis with directional noise.
        modality: ``unimodal`` (one axis) or ``equi-modal`` (both axes of a square matrix).
        allocation: How the precision is shared among directions.
        tau: The share of the chosen directions, for ``binary``.
        chosen: The indices of the chosen directions, for ``binary``.
        directions: Orthonormal rows, or where to estimate them from.
        shares: The share of each direction, for ``given``.
        eigenvalues: Public eigenvalues of the query's covariance, for ``max-pnr``.
        floor: The share that is spread evenly first, for ``max-pnr``.
        factors: Noise factors, instead of an allocation.
    """

    name: Literal["mvg"]
    theorem: Literal["general", "general-improved", "psd"] = "general"
    zeta: Literal["paper", "sqrt"] = "paper"
    gamma: Number | None = None
    axis: Whole = 0
    modality: Literal["unimodal", "equi-modal"] | None = None
    allocation: Literal["uniform", "binary", "given", "max-pnr"] = "uniform"
    tau: Number | None = None
    chosen: list[Whole] | None = None
    directions: Matrix | EstimatedDirections | None = None
    shares: Vector | None = None
    eigenvalues: Vector | None = None
    floor: Number = 0.05
    factors: Factors | None = None


@MECHANISMS.register
class MgmSection(MechanismSection):
    """``mgm``: Kronecker noise with weights or factors for each axis.

    ``floor`` is the share of the precision that is spread evenly, so that weights may be 0.
    """

    name: Literal["mgm"]
    weights: list[Vector | None] | None = None
    utility: list[Matrix | None] | None = None
    directions: list[Matrix | None] | None = None
    floor: Number = 0.0
    factors: Factors | None = None


@MECHANISMS.register
class UdnSection(MechanismSection):
    """``udn``: directional noise along one axis; ``floor`` as for ``mgm``."""

    name: Literal["udn"]
    axis: Whole = 0
    weights: Vector | None = None
    utility: Matrix | None = None
    directions: Matrix | EstimatedDirections | None = None
    floor: Number = 0.0


@MECHANISMS.register
class IdnSection(MechanismSection):
    """``idn``: a diagonal factor along one axis, for entries in a public range; ``floor`` as for
    ``mgm``.
    """

    name: Literal["idn"]
    axis: Whole = 0
    weights: Vector | None = None
    utility: Matrix | None = None
    floor: Number = 0.0


@MECHANISMS.register
class DirectionalSection(MechanismSection):
    """``directional``: the diagonal noise with the least weighted error on a box of ranges;
    ``floor`` as for ``mgm``.
    """

    name: Literal["directional"]
    weights: Vector | None = None
    floor: Number = 0.0


@MECHANISMS.register
class RankOneSection(MechanismSection):
    """``rank-one``: noise along one random direction."""

    name: Literal["rank-one"]
    calibration: Literal["exact", "paper"] = "exact"


@MECHANISMS.register
class KNormSection(MechanismSection):
    """``k-norm``: the l2 K-norm mechanism."""

    name: Literal["k-norm"]


@MECHANISMS.register
class AutoSection(MechanismSection):
    """``auto``: the certified mechanism with the least released error, by public values alone.

    Args:
        name: The name of the mechanism.
        laplace: Whether Laplace noise may be chosen; never for several variables.
    """

    counts_beside: ClassVar[bool] = True

    name: Literal["auto"]
    laplace: bool = True


@MECHANISMS.register
class LaplaceSection(MechanismSection):
    """``laplace``: i.i.d. Laplace noise, for pure epsilon and l1 sensitivities."""

    name: Literal["laplace"]
