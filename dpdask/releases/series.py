"""Recurring releases of a growing array: which window is next, and whether the rate allows it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, Field

from dpdask.errors import InvalidSpec
from dpdask.ledger import Allowance, Ledger, SeriesWindow
from dpdask.planning import ReleasePlan, check_no_placeholders
from dpdask.planning.sources import open_whole_source, source_storage
from dpdask.planning.variables import variable_specs
from dpdask.privacy import PrivacyBudget
from dpdask.releases.breaker import check_not_burning
from dpdask.spec import ReleaseSpec
from dpdask.spec.release import WindowSection
from dpdask.storage import SourceArray
from dpdask.types import Json

__all__ = [
    "RateLimit",
    "Series",
    "check_rate_limit",
    "check_series_output",
    "next_release",
]


class RateLimit(BaseModel):
    """What a dataset may spend within any stretch of ``days``."""

    epsilon: Annotated[float, Field(gt=0)]
    delta: Annotated[float, Field(gt=0, lt=1)]
    days: Annotated[float, Field(gt=0)]

    @property
    def allowance(self) -> Allowance:
        """The same, as the ledger checks it."""
        return Allowance(PrivacyBudget(epsilon=self.epsilon, delta=self.delta), self.days)


@dataclass(frozen=True, slots=True)
class Series:
    """A recurring release of what an array gained along one axis.

    Args:
        name: The name under which the ledger keeps its windows.
        axis: The axis along which the array grows.
        max_window: The most indices of one run, None for all that are new.
        align_to_chunks: Whether windows end where a chunk of the source does.
        start_index: Where a series without releases begins.
        grace: How many of the newest indices wait, because data for them may still arrive.
        max_burns: After how many burned releases in a row the series stops.
        backfill: Old indices, from one to before another, of which what was never released is
            released instead of what is new.
    """

    name: str
    axis: int
    max_window: int | None = None
    align_to_chunks: bool = False
    start_index: int = 0
    grace: int = 0
    max_burns: int = 2
    backfill: tuple[int, int] | None = None


_BOUND = re.compile(r"\{(start|stop)(?::(0?[1-9]?[0-9])?d)?\}")
_DIGITS = "010"  # so that names sort in time


def check_series_output(url: str) -> None:
    """Check that every run has an output of its own: ``{start}`` and ``{stop}``, nothing else.

    Both are written with ten digits; ``{start:06d}`` chooses six, ``{start:d}`` as few as needed.
    """
    if {match[1] for match in _BOUND.finditer(url)} != {"start", "stop"}:
        raise InvalidSpec(
            f"output.url {url!r} is the same for every run; put {{start}} and {{stop}} into it"
        )
    check_no_placeholders(_filled(url, 0, 1))


def _filled(url: str, start: int, stop: int) -> str:
    """Return the output of one window."""
    bounds = {"start": start, "stop": stop}

    def digits(match: re.Match[str]) -> str:
        chosen = ":" in match[0]
        width = (match[2] or "") if chosen else _DIGITS
        return format(bounds[match[1]], f"{width}d")

    return _BOUND.sub(digits, url)


def next_release(ledger: Ledger, spec: ReleaseSpec, series: Series) -> ReleaseSpec | None:
    """Return the spec of the next window, an unfinished one first; None when nothing is new.

    Args:
        ledger: Where the windows of the series were charged.
        spec: The spec of every run, without a window.
        series: How the array grows.

    Raises:
        InvalidSpec: The series does not fit the source, or belongs to another one.
        ReleaseError: Its last releases were all burned.
    """
    check_series_output(spec.output.url)
    storage = source_storage(spec)
    sources = [open_whole_source(own, storage) for own in variable_specs(spec)]
    _check_axis(sources, series)
    past = ledger.windows(spec.budget.dataset, series.name)
    if any(not _is_of(window, sources[0], series.axis) for window in past):
        raise InvalidSpec(
            f"series {series.name!r} of this dataset belongs to another array or axis; give this"
            " one a name of its own, and say with `start_index` where it begins"
        )
    burned = [known.window for known in past if known.last == "burn"]
    committed = [known.window for known in past if known.last == "commit"]
    for known in past:
        if known.open and known.window not in committed:
            return _windowed(spec, known.window, known.output, burned)
    check_not_burning(series.name, past, series.max_burns)
    charged = [known.window for known in past if known.last != "burn"]
    bounds = _next_bounds(sources, series, [(old["start"], old["stop"]) for old in charged])
    if bounds is None:
        return None
    start, stop = bounds
    window = {"axis": series.axis, "start": start, "stop": stop, "series": series.name}
    return _windowed(spec, window, _filled(spec.output.url, start, stop), burned)


def _next_bounds(
    sources: Sequence[SourceArray], series: Series, charged: list[tuple[int, int]]
) -> tuple[int, int] | None:
    """Return where the next window begins and ends: what is new, or what was left out before."""
    _check_not_cut(sources, series, max((stop for _, stop in charged), default=0))
    start = max((stop for _, stop in charged), default=series.start_index)
    if series.backfill is not None:
        return _first_gap(sources, series, charged, start)
    stop = _next_stop(sources, series, start)
    return (start, stop) if stop > start else None


def _first_gap(
    sources: Sequence[SourceArray], series: Series, charged: list[tuple[int, int]], cursor: int
) -> tuple[int, int] | None:
    """Return the first old indices that no window has; None where all were released.

    A window ends with the gap, where it is too long with ``max_window``, there with a chunk if
    windows do.
    """
    assert series.backfill is not None
    start, end = series.backfill
    if not 0 <= start < end <= cursor:
        raise InvalidSpec(
            f"backfill from {start} to {end} is not a stretch of what lies before {cursor}, where"
            f" series {series.name!r} continues by itself; give 0 <= START < STOP <= {cursor}"
        )
    for first, last in sorted(charged):
        if first > start:
            break
        start = max(start, last)
    following = (first for first, _ in charged if first > start)
    stop = min((end, *following))
    if stop <= start:
        return None
    most = series.max_window
    if most is not None and start + most < stop:
        stop = start + most
        if series.align_to_chunks:
            stop -= stop % _chunk_of(sources, series.axis)
            stop = stop if stop > start else start + most
    return start, stop


def _check_axis(sources: Sequence[SourceArray], series: Series) -> None:
    """Refuse an axis that the source does not have, or that is not the same in all variables."""
    axis, most = series.axis, series.max_window
    for source in sources:
        if not 0 <= axis < len(source.shape):
            raise InvalidSpec(
                f"axis {axis} is not a valid axis of the source; choose one from 0 to"
                f" {len(source.shape) - 1}"
            )
    names = {source.dimension_names and source.dimension_names[axis] for source in sources}
    if len(names) > 1:
        raise InvalidSpec(
            f"axis {axis} is not the same dimension in all of source.arrays; give each its own"
            " series"
        )
    chunk = _chunk_of(sources, axis)
    if series.align_to_chunks and most is not None and most < chunk:
        raise InvalidSpec(
            f"max_window={most} never reaches the end of a chunk of {chunk}; raise it to that"
        )


def _check_not_cut(sources: Sequence[SourceArray], series: Series, released: int) -> None:
    """Refuse an array that ends before what was released of it: it is not the one that grew."""
    length = min(source.shape[series.axis] for source in sources)
    if length < released:
        raise InvalidSpec(
            f"the source ends at {length} along axis {series.axis}, and series {series.name!r} has"
            f" released up to {released}: it was written anew or cut; restore it, or give the new"
            " array a series of its own, without privacy_unit.per if the same people are in it"
        )


def _chunk_of(sources: Sequence[SourceArray], axis: int) -> int:
    """Return the least length at which a chunk of every variable ends."""
    return math.lcm(*(source.chunks[axis] for source in sources))


def _is_of(known: SeriesWindow, source: SourceArray, axis: int) -> bool:
    return bool(known.array == source.address_digest and known.window["axis"] == axis)


def _next_stop(sources: Sequence[SourceArray], series: Series, start: int) -> int:
    """Return where the next window ends, at most where the shortest variable does."""
    stop = min(source.shape[series.axis] for source in sources) - series.grace
    if series.max_window is not None:
        stop = min(stop, start + series.max_window)
    if series.align_to_chunks:
        stop -= stop % _chunk_of(sources, series.axis)
    return stop


def _windowed(spec: ReleaseSpec, window: Json, url: str, burned: list[Json]) -> ReleaseSpec:
    """Return the spec of one window; one that was burned before is another edition."""
    edition = spec.publish.edition + burned.count(window)
    changes = {
        "source": spec.source.model_copy(update={"window": WindowSection(**window)}),
        "output": spec.output.model_copy(update={"url": url}),
        "publish": spec.publish.model_copy(update={"edition": edition}),
    }
    return spec.model_copy(update=changes)


def check_rate_limit(ledger: Ledger, plan: ReleasePlan, rate_limit: RateLimit) -> None:
    """Check that a run stays within what the last ``days`` allow; a charged release passes.

    Args:
        ledger: What was spent.
        plan: The release that would be charged.
        rate_limit: What the dataset may spend.

    Raises:
        RateLimited: It would spend more; nothing was charged.
    """
    if ledger.entry(plan.fingerprint) is not None:
        return
    dataset, verified = plan.spec.budget.dataset, plan.guarantee.verified
    ledger.check_allowance(dataset, rate_limit.allowance, verified, plan.privacy_unit)
