"""The centre of a bound, and bounds that a release chooses itself, by a noisy histogram."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from dpdask.spec.fields import Number, Ranges, Section, Vector
from dpdask.spec.secrets import StorageOptions, Url

__all__ = ["CenterSection", "ClipNorm", "EntryRanges", "PrivateNormSection", "PrivateRangesSection"]

_Share = Annotated[Number, Field(gt=0, lt=1)]
_MOST_RATIO = 1e12  # of the ends of norms: beyond it, a grid that holds both is too coarse


def _check_between(low: float, high: float) -> None:
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(
            f"[{low:g}, {high:g}] is empty or unbounded; give finite low < high, between which the"
            " bound is chosen"
        )


class CenterSection(Section):
    """A ``center`` that is an array of one record's shape: an earlier release.

    Args:
        url: The group that holds it.
        array: Its path in the group.
        public: Whether it is public although it is not a release of dpdask; refused otherwise.
        options: Options of the storage.
    """

    url: Annotated[Url, Field(min_length=1)]
    array: Annotated[str, Field(min_length=1)]
    public: bool = False
    options: StorageOptions


class PrivateNormSection(Section):
    """``l2_clip_norm``, chosen by a noisy histogram of the records' norms.

    Args:
        quantile: The share of records that the norm leaves as they are; or ``best``.
        best: Choose the norm at which clipping and noise move a sum by about the same.
        between: The smallest and the largest norm that may be chosen.
        share: What the choice costs, as a share of the squared mu of the release.
    """

    quantile: Annotated[Number, Field(gt=0, lt=1)] | None = None
    best: bool = False
    between: Annotated[Vector, Field(min_length=2, max_length=2)]
    share: _Share = 0.05

    @field_validator("between")
    @classmethod
    def _check_norms(cls, value: list[float]) -> list[float]:
        low, high = value
        _check_between(low, high)
        if low <= 0:
            raise ValueError(f"the smallest norm is {low:g}; give a number > 0")
        if not 1.01 <= high / low <= _MOST_RATIO:
            raise ValueError(
                f"[{low:g}, {high:g}] is narrower than 1 % or wider than a factor of"
                f" {_MOST_RATIO:g}; give norms between which a bound can be chosen"
            )
        return value

    @model_validator(mode="after")
    def _check_one(self) -> PrivateNormSection:
        if self.best == (self.quantile is not None):
            raise ValueError("give quantile, such as 0.95, or best: true, exactly one of them")
        return self


class PrivateRangesSection(Section):
    """``ranges``, chosen by a noisy histogram of the values, for all entries or per feature.

    Args:
        quantiles: The shares of values below the lower and the upper end of a range.
        between: The least and the largest value that may be an end: one pair for all entries, or
            one pair per feature. With ``feature_dim`` every feature has a range of its own.
        share: What the choice costs, as a share of the squared mu of the release.
    """

    quantiles: Annotated[Vector, Field(min_length=2, max_length=2)]
    between: Ranges
    share: _Share = 0.05

    @field_validator("quantiles")
    @classmethod
    def _check_quantiles(cls, value: list[float]) -> list[float]:
        low, high = value
        if not 0 < low < high < 1:
            raise ValueError(
                f"[{low:g}, {high:g}] are not increasing and above 0 and below 1; give two such as"
                " [0.01, 0.99]"
            )
        return value

    @field_validator("between")
    @classmethod
    def _check_pairs(cls, value: list[list[float]]) -> list[list[float]]:
        if not value or any(len(row) != 2 for row in value):
            raise ValueError("not pairs of numbers; give one [low, high], or one per feature")
        for low, high in value:
            _check_between(low, high)
            if (high - low) / max(abs(low), abs(high)) < 1e-6:
                raise ValueError(
                    f"[{low:g}, {high:g}] is too narrow to be divided; move its ends further from"
                    " each other"
                )
        return value


def _kind_of_norm(value: object) -> str:
    return "PrivateNormSection" if isinstance(value, dict | PrivateNormSection) else "float"


def _kind_of_ranges(value: object) -> str:
    private = isinstance(value, dict | PrivateRangesSection)
    return "PrivateRangesSection" if private else "list[list]"


ClipNorm = Annotated[
    Annotated[Number, Tag("float")] | Annotated[PrivateNormSection, Tag("PrivateNormSection")],
    Discriminator(_kind_of_norm),
]
"""A clip norm: a number, or how it is chosen."""

EntryRanges = Annotated[
    Annotated[Ranges, Tag("list[list]")]
    | Annotated[PrivateRangesSection, Tag("PrivateRangesSection")],
    Discriminator(_kind_of_ranges),
]
"""Ranges: numbers, or how they are chosen."""
