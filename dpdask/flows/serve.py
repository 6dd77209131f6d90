"""Serve one spec or one series on a schedule, in a process that stays."""

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
_SERVING = {"limit": 1, "pause_on_shutdown": False, "print_starting_message": True}


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
    grace: int = 0,
    max_burns: int = 2,
    backfill: tuple[int, int] | None = None,
) -> None:
    """Run the release of a spec on a schedule, until the process is stopped.

    What can be refused without looking at the source is refused before Prefect starts.

    Args:
        spec_path: The spec file.
        every: Seconds between runs, or None with ``cron``.
        cron: A cron expression, or None with ``every``.
        series: The name of a series; without one, the same release is run every time.
        axis: The axis along which the series grows.
        rate_limit: epsilon, delta and days of its rate limit.
        max_window: The most indices of one run.
        align_to_chunks: Whether windows end with chunks.
        start_index: Where a series without releases begins.
        grace: How many of the newest indices wait.
        max_burns: After how many burned releases in a row the series stops.
        backfill: Old indices to release instead of what is new, where no window has them.
    """
    check_schedule(every=every, cron=cron)
    spec = load_release_spec(spec_path)
    parameters: Json = {"spec": spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)}
    schedule: Json = {"interval": every, "cron": cron, **_SERVING}
    options: Json = {
        "axis": axis,
        "rate_limit": rate_limit,
        "max_window": max_window,
        "align_to_chunks": align_to_chunks,
        "start_index": start_index,
        "grace": grace,
        "backfill": backfill,
    }
    if series is None:
        _check_no_series_options(options)
        check_no_placeholders(spec.output.url)
        privatize.serve(name="release", parameters=parameters, **schedule)
    else:
        _check_series(spec.output.url, axis=axis, rate_limit=rate_limit, max_window=max_window)
        parameters |= {"series": series, **options, "max_burns": max_burns}
        privatize_series.serve(name=series, parameters=parameters, **schedule)


def _check_no_series_options(options: Json) -> None:
    set_options = [name for name, value in options.items() if value not in (None, False, 0)]
    if set_options or options["axis"] is not None:
        raise InvalidSpec(
            "--axis, --rate-limit, --max-window, --align-to-chunks, --start-index, --grace and"
            " --backfill belong to a series; give --series NAME"
        )


def check_schedule(*, every: float | None, cron: str | None) -> None:
    """Refuse a schedule that Prefect would not accept, or would read as another one."""
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
        # A sixth field would count seconds: last here, first elsewhere.
        valid = fields == 5 or cron.startswith("@")
    except ValidationError:
        valid = False
    if not valid:
        raise InvalidSpec(
            f"--cron {cron!r} is not a valid cron line; give five fields (minute, hour, day of"
            " month, month, day of week), such as '0 6 * * *'"
        )


def _check_series(
    url: str, *, axis: int | None, rate_limit: dict[str, float] | None, max_window: int | None
) -> None:
    if axis is None or axis < 0:
        raise InvalidSpec(
            "a series grows along an axis; give --axis, from 0 to the last one of the source"
        )
    if max_window is not None and max_window < 1:
        raise InvalidSpec(
            f"--max-window {max_window} is not a valid length of a window; choose at least 1"
        )
    try:
        if rate_limit is not None:
            RateLimit.model_validate(rate_limit)
    except ValidationError as error:
        wrong = ", ".join(str(problem["loc"][0]) for problem in error.errors(include_url=False))
        raise InvalidSpec(
            f"--rate-limit: {wrong} out of range; give EPSILON > 0, 0 < DELTA < 1 and DAYS > 0"
        ) from None
    check_series_output(url)
