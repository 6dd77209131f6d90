"""Recurring releases of a growing array: each run privatises what is new since the last one, at a
measured pace.
"""

import contextlib
import math
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from prefect import flow
from prefect.states import Completed, Failed
from pydantic import BaseModel, Field

from dpdask.errors import DpdaskError, InvalidSpec
from dpdask.flows.steps import carry_out, one_line, say_it_goes_on, tag_run
from dpdask.ledger import Ledger, charged_after, open_ledger
from dpdask.planning import check_no_placeholders, make_plan
from dpdask.privacy import PrivacyBudget
from dpdask.spec import ReleaseSpec
from dpdask.spec.release import WindowSection
from dpdask.storage import open_source, open_storage
from dpdask.types import Json

__all__ = ["RateLimit", "privatize_series"]


class RateLimit(BaseModel):
    """What a dataset may spend within any stretch of ``days``; the budget of one run is the spec's
    own.
    """

    epsilon: Annotated[float, Field(gt=0)]
    delta: Annotated[float, Field(gt=0, lt=1)]
    days: Annotated[float, Field(gt=0)]


class RateLimited(Exception):
    """The window is spent, politely."""


@flow(
    name="privatize-series",
    persist_result=False,
    on_crashed=[say_it_goes_on],
    on_failure=[say_it_goes_on],
    on_cancellation=[say_it_goes_on],
)
def privatize_series(
    spec: ReleaseSpec,
    series: str,
    axis: int,
    rate_limit: RateLimit | None = None,
    max_window: Annotated[int | None, Field(ge=1)] = None,
    align_to_chunks: bool = False,
    start_index: Annotated[int, Field(ge=0)] = 0,
) -> Any:
    """Release what the source gained along ``axis`` since the last run of ``series``.

    The cursor is in the ledger: the end of the last window that was charged and not burned,
    ``start_index`` before there is one. A series belongs to one axis of one array. ``output.url``
    holds ``{start}`` and ``{stop}``. A run that was cut off is finished first, at the output where
    it began; a window without budget ends the run in the state RateLimited. With
    ``align_to_chunks`` windows end where a chunk of the source does: appending to a chunk that a
    run is reading changes the source, and burns that run's release.
    """
    refusal, polite, windowed = None, None, None
    try:
        with contextlib.closing(open_ledger(spec.budget.ledger)) as ledger:
            windowed = next_release(
                ledger, spec, series, axis, max_window, align_to_chunks, start_index
            )
            if windowed is not None and rate_limit is not None:
                check_rate_limit(ledger, windowed, rate_limit)
    except RateLimited as error:
        polite = str(error)
    except DpdaskError as error:
        refusal = one_line(error)
    tag_run(f"series:{series}")
    if polite is not None:
        return Completed(message=polite, name="RateLimited")
    if refusal is not None:
        return Failed(message=refusal)
    if windowed is None:
        return Completed(message=f"nothing new in series {series}", name="NoNewData")
    return carry_out(windowed)


def check_series_output(url: str) -> None:
    """Every run of a series has an output of its own: its url holds ``{start}`` and ``{stop}``, and
    nothing else to fill in.
    """
    if "{start}" not in url or "{stop}" not in url:
        raise InvalidSpec(
            f"output.url {url!r} is the same for every run; put {{start}} and {{stop}} into it"
        )
    check_no_placeholders(_filled(url, 0, 1))


def _filled(url: str, start: int, stop: int) -> str:
    return url.replace("{start}", str(start)).replace("{stop}", str(stop))


def next_release(
    ledger: Ledger,
    spec: ReleaseSpec,
    series: str,
    axis: int,
    max_window: int | None,
    align_to_chunks: bool = False,
    start_index: int = 0,
) -> ReleaseSpec | None:
    """The spec of the next window, an unfinished one first; None when there is nothing new."""
    check_series_output(spec.output.url)
    source = open_source(open_storage(spec.source.url, spec.source.options), spec.source.array)
    if not 0 <= axis < len(source.shape):
        raise InvalidSpec(
            f"axis {axis} is none of the source's axes; choose one from 0 to"
            f" {len(source.shape) - 1}"
        )
    if align_to_chunks and max_window is not None and max_window < source.chunks[axis]:
        raise InvalidSpec(
            f"max_window={max_window} never reaches the end of a chunk of {source.chunks[axis]};"
            " raise it to that"
        )
    past = ledger.windows(spec.budget.dataset, series)
    if any((known.array, known.window["axis"]) != (source.address_digest, axis) for known in past):
        raise InvalidSpec(
            f"series {series!r} of this dataset belongs to another array or axis; give this one"
            " a name of its own, and say with"
            " `start_index` where it begins"
        )
    burned = [known.window for known in past if known.last == "burn"]
    done = [known.window for known in past if known.last == "commit"]
    unfinished = [known for known in past if known.open and known.window not in done]
    if unfinished:
        return _windowed(spec, unfinished[0].window, unfinished[0].output, burned)
    start = max(
        (known.window["stop"] for known in past if known.last != "burn"), default=start_index
    )
    stop = source.shape[axis] if max_window is None else min(source.shape[axis], start + max_window)
    if align_to_chunks:
        stop -= stop % source.chunks[axis]
    if stop <= start:
        return None
    window = {"axis": axis, "start": start, "stop": stop, "series": series}
    return _windowed(spec, window, _filled(spec.output.url, start, stop), burned)


def _windowed(spec: ReleaseSpec, window: Json, url: str, burned: list[Json]) -> ReleaseSpec:
    """The spec of one window; one that was burned before is asked for anew, as another edition."""
    changes = {
        "source": spec.source.model_copy(update={"window": WindowSection(**window)}),
        "output": spec.output.model_copy(update={"url": url}),
        "publish": spec.publish.model_copy(
            update={"edition": spec.publish.edition + burned.count(window)}
        ),
    }
    return spec.model_copy(update=changes)


def check_rate_limit(ledger: Ledger, spec: ReleaseSpec, rate_limit: RateLimit) -> None:
    """Refuse politely when this run would pass what the last ``days`` allow; a release already
    charged goes on.
    """
    made = make_plan(spec, resuming=True)
    if ledger.entry(made.fingerprint) is not None:
        return
    since = datetime.now(UTC) - timedelta(days=rate_limit.days)
    recent = ledger.spent_since(spec.budget.dataset, since)
    after = charged_after(
        recent,
        made.guarantee.verified,
        PrivacyBudget(epsilon=rate_limit.epsilon, delta=rate_limit.delta),
    )
    if after.delta(rate_limit.epsilon) <= rate_limit.delta:
        return
    spent = 0.0 if recent is None else recent.epsilon(rate_limit.delta)
    would = after.epsilon(rate_limit.delta)
    amount = f"{would:.4g}" if math.isfinite(would) else "more than can be reckoned"
    raise RateLimited(
        f"paced: dataset {spec.budget.dataset!r} has spent epsilon {spent:.4g} of"
        f" {rate_limit.epsilon:g} in the last"
        f" {rate_limit.days:g} days, this run would make it {amount}; it goes on when the window"
        " has"
        " moved"
    )
