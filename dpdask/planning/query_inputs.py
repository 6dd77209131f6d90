"""What a query is built from, besides its own section: the privacy unit on a source."""

from __future__ import annotations

from dataclasses import dataclass

from dpdask.errors import InvalidSensitivity
from dpdask.planning.build_sensitivity import feature_axis, range_pairs
from dpdask.queries import Clip, Ranges
from dpdask.spec.release import PrivacyUnitSection, StackSection
from dpdask.types import Shape

__all__ = ["QueryInputs"]


@dataclass(frozen=True, kw_only=True)
class QueryInputs:
    """A privacy unit on a source of some shape.

    Args:
        privacy_unit: Whom the release protects, and the bound on one record.
        shape: The shape of the source.
        composition: The steps of a finished stack.
        dimension_names: The names of the source's dimensions, None where it has none.
    """

    privacy_unit: PrivacyUnitSection
    shape: Shape
    composition: StackSection
    dimension_names: tuple[str, ...] | None = None

    def record_axis(self) -> int | None:
        """Return the axis of ``privacy_unit.record_dim``, None where the spec names none."""
        dimension = self.privacy_unit.record_dim
        if dimension is None:
            return None
        return self._axis("privacy_unit.record_dim", dimension)

    def bound(self) -> Clip | Ranges:
        """Return the bound on one record, which the pipeline enforces."""
        unit = self.privacy_unit
        if (unit.l2_clip_norm is None) == (unit.ranges is None):
            raise InvalidSensitivity(
                "privacy_unit needs exactly one of l2_clip_norm and ranges, which bound one"
                " record; give one of them"
            )
        if unit.l2_clip_norm is not None:
            return self._clip(unit.l2_clip_norm)
        return self._ranges(unit.ranges or [])

    def _clip(self, norm: float) -> Clip:
        if self.privacy_unit.feature_dim is not None:
            raise InvalidSensitivity(
                "privacy_unit.feature_dim goes with ranges; drop it, or give ranges instead of"
                " l2_clip_norm"
            )
        record_axis = self.record_axis()
        if record_axis is None:
            raise InvalidSensitivity(
                "privacy_unit.l2_clip_norm clips records; name the dimension along which they lie:"
                " privacy_unit.record_dim"
            )
        if not 1e-100 <= norm <= 1e100:
            raise InvalidSensitivity(
                f"privacy_unit.l2_clip_norm={norm:g} bounds nothing; give a finite number > 0"
            )
        return Clip(norm=norm, record_axis=record_axis)

    def _ranges(self, ranges: list[list[float]]) -> Ranges:
        pairs = range_pairs(ranges)
        if not pairs:
            raise InvalidSensitivity(
                "privacy_unit.ranges is empty; give one [low, high] or one per feature"
            )
        record_axis = self.record_axis()
        axis = self._feature_axis(record_axis, len(pairs))
        size = self.shape[axis]
        if len(pairs) not in (1, size):
            raise InvalidSensitivity(
                f"privacy_unit.ranges: {len(pairs)} ranges do not fit axis {axis} of length"
                f" {size}; give one range for all or {size} of them"
            )
        return Ranges(pairs=tuple(pairs), feature_axis=axis, record_axis=record_axis)

    def _feature_axis(self, record_axis: int | None, count: int) -> int:
        key = "privacy_unit.feature_dim"
        dimension = self.privacy_unit.feature_dim
        if dimension is None:
            return feature_axis(self.shape, record_axis, count=count, key=key)
        axis = self._axis(key, dimension)
        if axis == record_axis:
            raise InvalidSensitivity(
                f"{key}={dimension} is the dimension of the records; features lie along another"
                " one, choose that"
            )
        return axis

    def _axis(self, key: str, dimension: int | str) -> int:
        """Return the axis that a name or an index stands for."""
        if isinstance(dimension, int):
            if not -len(self.shape) <= dimension < len(self.shape):
                raise InvalidSensitivity(
                    f"{key}={dimension} is not an axis of the source; choose one from 0 to"
                    f" {len(self.shape) - 1}"
                )
            return dimension % len(self.shape)
        if self.dimension_names is None:
            raise InvalidSensitivity(
                f"{key}={dimension!r}: the dimensions of the source have no names; give an index"
                f" from 0 to {len(self.shape) - 1}, or name all dimensions of the array"
            )
        names = ", ".join(self.dimension_names)
        matches = self.dimension_names.count(dimension)
        if matches == 0:
            raise InvalidSensitivity(
                f"{key}={dimension!r} is not a dimension of the source; choose one of {names}"
            )
        if matches > 1:
            raise InvalidSensitivity(
                f"{key}={dimension!r} names {matches} dimensions of the source ({names}); give an"
                f" index from 0 to {len(self.shape) - 1}"
            )
        return self.dimension_names.index(dimension)
