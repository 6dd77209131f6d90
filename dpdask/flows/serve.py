"""A long-running process with a schedule: Prefect's serve over one spec or one series."""

from typing import Any

from prefect.client.schemas.schedules import CronSchedule
from pydantic import ValidationError

from dpdask.errors import InvalidSpec
from dpdask.flows.privatize import privatize
from dpdask.flows.series import privatize_series
from dpdask.planning import check_no_placeholders
from dpdask.releases.series import RateLimit, check_series_output
from dpdask.spec import load_release_spec
from dpdask.types import Json

__all__ = ["check_schedule", "serve"]

_LONGEST_INTERVAL = 10 * 366 * 86400.0  # seconds


def serve(
    spec_path: str,
    *,
    every: float | None,
    cron: str | None,
    series: str | None = None,
    axis: int | None = None,
    rate_limit: dict[str, float] | None = None,
    max_window: int | None = None,
    align_to_chunks: bool = False,
    start_index: int = 0,
) -> None:
    """Run the release of a spec on a schedule, until the process is stopped.

    What can be refused without looking at the source is refused before Prefect starts.
    """
    check_schedule(every=every, cron=cron)
    loaded = load_release_spec(spec_path)
    spec = loaded.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    parameters: Json = {"spec": spec}
    chosen: Any = privatize
    if series is None:
        if (
            axis is not None
            or rate_limit is not None
            or max_window is not None
            or align_to_chunks
            or start_index
        ):
            raise InvalidSpec(
                "--axis, --rate-limit, --max-window, --align-to-chunks and --start-index belong"
                " to a series; give"
                " --series NAME"
            )
        check_no_placeholders(loaded.output.url)
    else:
        _check_series(loaded.output.url, axis=axis, rate_limit=rate_limit, max_window=max_window)
        chosen = privatize_series
        parameters |= {"series": series, "axis": axis, "rate_limit": rate_limit}
        parameters |= {
            "max_window": max_window,
            "align_to_chunks": align_to_chunks,
            "start_index": start_index,
        }
    name = series or "release"
    chosen.serve(
        name=name,
        parameters=parameters,
        interval=every,
        cron=cron,
        limit=1,
        pause_on_shutdown=False,
        print_starting_message=True,
    )


def check_schedule(*, every: float | None, cron: str | None) -> None:
    """Refuse a schedule that Prefect would not take, or would take for another one."""
    if (every is None) == (cron is None):
        raise InvalidSpec("a schedule is --every SECONDS or --cron EXPRESSION; give one of them")
    if every is not None and not 1 <= every <= _LONGEST_INTERVAL:
        raise InvalidSpec(
            f"--every {every:g} is not a number of seconds from 1 to {_LONGEST_INTERVAL:g};"
            " choose one"
        )
    if cron is None:
        return
    fields = len(cron.split())
    try:
        CronSchedule(cron=cron)
        valid = fields == 5 or cron.startswith(
            "@"
        )  # a sixth field would count seconds, last here and first elsewhere
    except ValidationError:
        valid = False
    if not valid:
        raise InvalidSpec(
            f"--cron {cron!r} is not a valid cron line; give five fields (minute, hour, day of"
            " month, month, day of week),"
            " such as '0 6 * * *'"
        )


def _check_series(
    url: str, *, axis: int | None, rate_limit: dict[str, float] | None, max_window: int | None
) -> None:
    if axis is None or axis < 0:
        raise InvalidSpec(
            "a series grows along an axis; give --axis, from 0 to the last one of the source"
        )
    if max_window is not None and max_window < 1:
        raise InvalidSpec(f"--max-window {max_window} lets no window be; choose at least 1")
    try:
        if rate_limit is not None:
            RateLimit.model_validate(rate_limit)
    except ValidationError as error:
        wrong = ", ".join(str(problem["loc"][0]) for problem in error.errors(include_url=False))
        raise InvalidSpec(
            f"--rate-limit: {wrong} out of range; give EPSILON > 0, 0 < DELTA < 1 and DAYS > 0"
        ) from None
    check_series_output(url)
