"""Principal axes of the records along one axis of an answer, from a DP second moment.

The second moment is a noisy answer of its own, with its own share of the budget. Its eigenvectors
become the directions of the data's noise and, for ``max-pnr``, its eigenvalues those of the query's
covariance: both are post-processing.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass

import numpy as np

from dpdask.errors import InvalidMechanism
from dpdask.planning.build_sensitivity import ROUND_UP
from dpdask.planning.moment_builders import second_moment
from dpdask.planning.plan import Component
from dpdask.planning.query_inputs import QueryInputs
from dpdask.privacy import Adjacency
from dpdask.queries import Clip, ModeMoment, Query, Ranges, SecondMoment
from dpdask.queries.feature_axes import power_along, source_axis
from dpdask.sensitivity import L2Ball, Origin
from dpdask.spec import MechanismSection
from dpdask.spec.mechanism import MvgSection
from dpdask.spec.release import PrivacyUnitSection, StackSection
from dpdask.types import Floats

__all__ = ["PrincipalAxes", "moments_along", "with_axes", "with_unknown_axes"]

_LEAST = 1e-100  # of an eigenvalue that max-pnr takes


@dataclass(frozen=True, kw_only=True)
class PrincipalAxes:
    """Orthonormal rows, the strongest first, and the eigenvalues of f f' along them."""

    directions: list[list[float]]
    eigenvalues: list[float]

    @classmethod
    def of(cls, noisy: Floats, moments: Component, query: Query) -> PrincipalAxes:
        """Return the axes of a noisy second moment.

        Eigenvalues below the standard deviation of its noise count as that.

        Args:
            noisy: The second moment with its noise, divided as it would be released.
            moments: What it is an answer of.
            query: The question whose noise they are for.

        Guarantee: post-processing; no value can raise.
        """
        total = np.nan_to_num((noisy + noisy.T) / 2) * moments.query.divisor
        values, vectors = np.linalg.eigh(total)
        strongest = np.maximum(values[::-1], moments.noise.entry_std)
        powers = np.clip(power_along(query, strongest), _LEAST, 1 / _LEAST)
        rows = np.ascontiguousarray(vectors[:, ::-1].T)
        return cls(directions=rows.tolist(), eigenvalues=powers.tolist())

    def to_json(self, section: MechanismSection) -> str:
        """Return what a mechanism needs of them, for the ledger."""
        if _takes_eigenvalues(section):
            return json.dumps(dataclasses.asdict(self))
        return json.dumps(self.directions)

    @classmethod
    def from_json(cls, text: str) -> PrincipalAxes:
        """Return the axes that :meth:`to_json` wrote, with eigenvalues where it wrote them."""
        content = json.loads(text)
        if isinstance(content, dict):
            return cls(directions=content["directions"], eigenvalues=content["eigenvalues"])
        return cls(directions=content, eigenvalues=[])

    def arrays(self) -> dict[str, Floats]:
        """Return what is published of them."""
        arrays = {"directions": np.asarray(self.directions, dtype=np.float64)}
        if self.eigenvalues:
            arrays["eigenvalues"] = np.asarray(self.eigenvalues, dtype=np.float64)
        return arrays


def _takes_eigenvalues(section: MechanismSection) -> bool:
    """Return whether eigenvalues come with the directions, since the spec gives none."""
    max_pnr = isinstance(section, MvgSection) and section.allocation == "max-pnr"
    return max_pnr and getattr(section, "eigenvalues", None) is None


def with_axes(section: MechanismSection, axes: PrincipalAxes) -> MechanismSection:
    """Return a mechanism with its noise along given axes."""
    update: dict[str, object] = {"directions": axes.directions}
    if _takes_eigenvalues(section):
        update["eigenvalues"] = axes.eigenvalues
    return section.model_copy(update=update)


def with_unknown_axes(section: MechanismSection, size: int) -> MechanismSection:
    """Return a mechanism as it is planned before its axes are known.

    The standard basis stands for the directions. All of the precision but the floor on one of them
    stands for the eigenvalues.

    Guarantee: whatever the axes turn out to be, the noise has no larger mu. Of any basis mu is the
    same, and no eigenvalues give the quietest direction a larger share.
    """
    one = [1.0] + [_LEAST] * (size - 1)
    return with_axes(section, PrincipalAxes(directions=np.eye(size).tolist(), eigenvalues=one))


def moments_along(query: Query, unit: PrivacyUnitSection, axis: int) -> SecondMoment:
    """Return the second moment of the records along an axis of an answer.

    Args:
        query: The question.
        unit: The privacy unit of the release.
        axis: The axis of the answer.

    Raises:
        InvalidMechanism: No features of bounded records lie there.
    """
    order = len(query.answer_shape)
    mode = source_axis(query, axis % order) if -order <= axis < order else None
    bound = query.bound
    if bound is None or bound.record_axis is None or mode is None or query.people is not None:
        raise InvalidMechanism(
            f"directions from dp-covariance lie along features of bounded records, and axis {axis}"
            f" of query {query.spec_name} has none; set mechanism.axis to an axis of features, give"
            " privacy_unit.record_dim with a clip norm or ranges, or give public directions"
        )
    if isinstance(query, SecondMoment):
        return query
    unit = unit.model_copy(update={"record_dim": bound.record_axis})
    if len(query.source_shape) == 2:
        inputs = QueryInputs(
            privacy_unit=unit, shape=query.source_shape, composition=StackSection()
        )
        return second_moment(inputs, bound)
    return _mode_moment(query, unit, bound, mode)


def _mode_moment(
    query: Query, unit: PrivacyUnitSection, bound: Clip | Ranges, mode: int
) -> ModeMoment:
    """Return the second moment along one axis of records that are tensors.

    Args:
        query: The question.
        unit: The privacy unit.
        bound: The bound on a whole record.
        mode: The axis of the source.
    """
    assert bound.record_axis is not None
    shape, size = query.source_shape, query.source_shape[mode]
    private_count = unit.adjacency is Adjacency.ADD_REMOVE_ONE
    origin = Origin.CLIPPED if isinstance(bound, Clip) else Origin.PUBLIC_RANGE
    plain = ModeMoment(
        source_shape=shape,
        answer_shape=(size, size),
        sensitivity=L2Ball(l2=1.0, adjacency=unit.adjacency, origin=origin),
        bound=bound,
        norm_bound=None,
        max_contributions=unit.max_contributions,
        divisor=1 if private_count else shape[bound.record_axis],
        record_axis=bound.record_axis,
        mode=mode,
    )
    of_one = (1.0 if private_count else math.sqrt(2)) * (plain.reach * ROUND_UP) ** 2
    radius = of_one * unit.max_contributions * ROUND_UP
    ball = L2Ball(l2=radius, adjacency=unit.adjacency, origin=origin)
    return dataclasses.replace(plain, sensitivity=ball)
