"""Recurring releases of a growing array: each run releases what is new since the last one."""

import contextlib
from typing import Annotated

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed
from pydantic import Field

from dpdask.errors import DpdaskError, RateLimited
from dpdask.flows.messages import with_next_step
from dpdask.flows.steps import one_line, release_as_tasks, say_next_run_resumes, tag_run
from dpdask.releases.api import ledger_of
from dpdask.releases.series import RateLimit, Series, next_release
from dpdask.spec import ReleaseSpec

__all__ = ["privatize_series"]


@flow(
    name="privatize-series",
    persist_result=False,
    on_crashed=[say_next_run_resumes],
    on_failure=[say_next_run_resumes],
    on_cancellation=[say_next_run_resumes],
)
def privatize_series(
    spec: ReleaseSpec,
    series: str,
    axis: int,
    rate_limit: RateLimit | None = None,
    max_window: Annotated[int | None, Field(ge=1)] = None,
    align_to_chunks: bool = False,
    start_index: Annotated[int, Field(ge=0)] = 0,
    grace: Annotated[int, Field(ge=0)] = 0,
    max_burns: Annotated[int, Field(ge=1)] = 2,
    backfill: tuple[int, int] | None = None,
) -> dict[str, str] | State[None]:
    """Release what the source gained along ``axis`` since the last run of ``series``.

    The cursor is in the ledger: the end of the last window that was charged and not burned,
    ``start_index`` before there is one. A series belongs to one axis of one array. ``output.url``
    holds ``{start}`` and ``{stop}``. A run that was interrupted is finished first, at the output
    where it began; a window that the rate limit does not allow ends the run in the state
    RateLimited. With ``align_to_chunks`` windows end where a chunk of the source does: appending to
    a chunk that a run is reading changes the source, and burns that run's release.

    Args:
        spec: The spec of every run, without a window.
        series: The name of the series in the ledger.
        axis: The axis along which the array grows.
        rate_limit: What the dataset may spend within some days.
        max_window: The most indices of one run.
        align_to_chunks: Whether windows end with chunks.
        start_index: Where a series without releases begins.
        grace: How many of the newest indices wait, because data for them may still arrive.
        max_burns: After how many burned releases in a row the series stops.
        backfill: Old indices, from one to before another, of which a run releases what no window
            has, instead of what is new; charged as any window.
    """
    rules = Series(
        series, axis, max_window, align_to_chunks, start_index, grace, max_burns, backfill
    )
    tag_run(f"series:{series}")
    windowed: ReleaseSpec | None = None
    try:
        with contextlib.closing(ledger_of(spec)) as ledger:
            windowed = next_release(ledger, spec, rules)
            if windowed is None:
                return Completed(message=f"nothing new in series {series}", name="NoNewData")
            return release_as_tasks(windowed, ledger, rate_limit)
    except RateLimited as error:
        ended: State[None] = Completed(message=str(error), name="RateLimited")
    except DpdaskError as error:
        ended = Failed(message=with_next_step(one_line(error), windowed))
    return ended
