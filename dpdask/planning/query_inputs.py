"""What a query is built from, besides its own section: the privacy unit on a source."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpdask.errors import InvalidSensitivity
from dpdask.planning.build_sensitivity import feature_axis, range_pairs
from dpdask.planning.naming import axis_of
from dpdask.planning.public_center import read_center
from dpdask.queries import ORIGIN, Center, ChosenBound, Clip, People, Ranges
from dpdask.spec.bounds import PrivateNormSection, PrivateRangesSection
from dpdask.spec.release import CenterSection, PrivacyUnitSection, StackSection
from dpdask.types import Shape

__all__ = ["ChosenBound", "QueryInputs"]

_LEAST, _MOST = 1e-100, 1e100


@dataclass(frozen=True, kw_only=True)
class QueryInputs:
    """A privacy unit on a source of some shape.

    Args:
        privacy_unit: Whom the release protects, and the bound on one record.
        shape: The shape of the source.
        composition: The steps of a finished stack.
        dimension_names: The names of the source's dimensions, None where it has none.
        counts_beside: Whether the mechanism's noise can be shared between a sum and counts.
        people: Who the privacy units are, None where records are.
        center_key: Where the spec has the centre, for error texts.
        chosen: The bound that was chosen privately; None before it is, and where the spec says it.
    """

    privacy_unit: PrivacyUnitSection
    shape: Shape
    composition: StackSection
    dimension_names: tuple[str, ...] | None = None
    counts_beside: bool = True
    people: People | None = None
    center_key: str = "privacy_unit.center"
    chosen: ChosenBound | None = None

    @property
    def chooses_ranges(self) -> bool:
        """Whether ranges, and with them their middle, are chosen privately."""
        return isinstance(self.privacy_unit.ranges, PrivateRangesSection)

    @property
    def clips_people(self) -> bool:
        """Whether the clip norm is that of all records of a person together."""
        return self.people is not None and self.people.clipped

    @property
    def bounds_per_unit(self) -> int:
        """How many times the bound of a record one privacy unit may reach."""
        return 1 if self.clips_people else self.privacy_unit.max_contributions

    @property
    def leaves_out(self) -> bool:
        """Whether ids may leave records out, so that the number of the others is private."""
        return self.people is not None and self.people.leaves_out

    def check_counted(self) -> None:
        """Refuse to count records of which a person may have any number.

        Raises:
            InvalidSensitivity: Nothing bounds how many records of a person are counted.
        """
        if self.people is not None and not self.people.limited:
            raise InvalidSensitivity(
                "privacy_unit.clip: person bounds what a person adds to a sum, not how many records"
                " it adds to a count, and here records are counted; give max_contributions, too,"
                " or, for a query that is not grouped, replace-one and missing_ids: own, so that"
                " none is left out"
            )

    def record_axis(self) -> int | None:
        """Return the axis of ``privacy_unit.record_dim``, None where the spec names none."""
        dimension = self.privacy_unit.record_dim
        if dimension is None:
            return None
        return self._axis("privacy_unit.record_dim", dimension)

    def check_reach(self) -> None:
        """Refuse numbers whose squares are out of reach of doubles, wherever they stand.

        Raises:
            InvalidSensitivity: A bound, a centre or a distance is too large or too small.
        """
        unit = self.privacy_unit
        ranges = unit.ranges
        if isinstance(ranges, PrivateRangesSection):
            ranges = ranges.between
        pairs = [row for row in ranges or [] if len(row) == 2]
        center = unit.center if isinstance(unit.center, int | float | list) else None
        numbers = {
            "ranges": [high - low for low, high in pairs] + [max(map(abs, row)) for row in pairs],
            "center": center if isinstance(center, list) else [center or 0.0],
            "expected_distance": [unit.expected_distance or 0.0],
        }
        for key, values in numbers.items():
            finite = [abs(value) for value in values if value and math.isfinite(value)]
            if not all(_LEAST <= value <= _MOST for value in finite):
                raise InvalidSensitivity(
                    f"privacy_unit.{key}: a number, or the width of a range, is not from"
                    f" {_LEAST:g} to {_MOST:g}, beyond which squares leave the range of doubles;"
                    " rescale the data"
                )

    def bound(self) -> Clip | Ranges:
        """Return the bound on one record, which the pipeline enforces.

        Of a bound that is chosen privately, the widest one before it is chosen.
        """
        unit = self.privacy_unit
        if (unit.l2_clip_norm is None) == (unit.ranges is None):
            raise InvalidSensitivity(
                "privacy_unit needs exactly one of l2_clip_norm and ranges, which bound one"
                " record; give one of them"
            )
        if isinstance(unit.l2_clip_norm, PrivateNormSection):
            chosen = None if self.chosen is None else self.chosen.norm
            return self._clip(unit.l2_clip_norm.between[1] if chosen is None else chosen)
        if unit.l2_clip_norm is not None:
            return self._clip(unit.l2_clip_norm)
        if isinstance(unit.ranges, PrivateRangesSection):
            return self._chosen_ranges(unit.ranges)
        return self._ranges(unit.ranges or [])

    def _chosen_ranges(self, section: PrivateRangesSection) -> Ranges:
        """Return ranges that are chosen privately: one for all entries, or one per feature."""
        unit, between = self.privacy_unit, section.between
        if unit.center is not None:
            raise InvalidSensitivity(
                f"{self.center_key} goes with ranges that the spec says; those that are chosen"
                " have their middle as the centre: drop it"
            )
        if self.chosen is not None:
            return self._ranges([list(pair) for pair in self.chosen.ranges])
        if unit.feature_dim is not None and len(between) == 1:
            between = between * self.shape[self._feature_axis(self.record_axis(), 1)]
        return self._ranges(between)

    def _clip(self, norm: float) -> Clip:
        one_per_feature = isinstance(self.privacy_unit.center, list)
        if self.privacy_unit.feature_dim is not None and not one_per_feature:
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
        if not _LEAST <= norm <= _MOST:
            raise InvalidSensitivity(
                f"privacy_unit.l2_clip_norm={norm:g} bounds nothing; give a finite number > 0"
            )
        return Clip(norm=norm, record_axis=record_axis, center=self._center_of_clip(record_axis))

    def _center_of_clip(self, record_axis: int) -> Center:
        """Return the centre of a clip norm: the origin, a number, one per feature, an array."""
        center = self.privacy_unit.center
        if center is None:
            return ORIGIN
        if isinstance(center, CenterSection):
            return read_center(center, shape=self.shape, record_axis=record_axis)
        numbers = tuple(center) if isinstance(center, list) else (center,)
        axis = self._feature_axis(record_axis, len(numbers))
        self._check_center(numbers, axis)
        return Center.per_feature(numbers, axis=axis, order=len(self.shape))

    def _check_center(self, numbers: tuple[float, ...], axis: int) -> None:
        if not all(math.isfinite(number) for number in numbers):
            raise InvalidSensitivity(f"{self.center_key} is not finite; give finite numbers")
        if len(numbers) not in (1, self.shape[axis]):
            raise InvalidSensitivity(
                f"{self.center_key}: {len(numbers)} numbers do not fit axis {axis} of length"
                f" {self.shape[axis]}; give one number for all or {self.shape[axis]} of them"
            )

    def _center_of_ranges(self, pairs: list[tuple[float, float]], axis: int) -> Center:
        """Return the middle of the ranges, or the point within them that the spec names."""
        order, center = len(self.shape), self.privacy_unit.center
        if center is None:
            middles = tuple(low + (high - low) / 2 for low, high in pairs)
            return Center.per_feature(middles, axis=axis, order=order)
        if isinstance(center, CenterSection):
            raise InvalidSensitivity(
                "privacy_unit.center: an array goes with l2_clip_norm; for ranges give one number,"
                " or one per range"
            )
        numbers = tuple(center) if isinstance(center, list) else (center,) * len(pairs)
        if len(numbers) != len(pairs):
            raise InvalidSensitivity(
                f"{self.center_key}: {len(numbers)} numbers do not fit {len(pairs)} ranges; give"
                " one number, or one per range"
            )
        for number, (low, high) in zip(numbers, pairs, strict=True):
            if not low <= number <= high:
                raise InvalidSensitivity(
                    f"{self.center_key}={number:g} lies outside its range [{low:g}, {high:g}];"
                    " choose a point within it"
                )
        return Center.per_feature(numbers, axis=axis, order=order)

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
        return Ranges(
            pairs=tuple(pairs),
            feature_axis=axis,
            record_axis=record_axis,
            center=self._center_of_ranges(pairs, axis),
        )

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
        return axis_of(
            key,
            dimension,
            shape=self.shape,
            names=self.dimension_names,
            error=InvalidSensitivity,
        )
