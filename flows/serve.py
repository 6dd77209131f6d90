"""A long-running process with a schedule: Prefect's serve over one spec or one series."""

from typing import Any

from dpdask.flows.privatize import privatize
from dpdask.flows.series import privatize_series

from dpdask.errors import InvalidSpec
from dpdask.spec import load_release_spec

__all__ = ["serve"]


def serve(
    spec_path: str,
    *,
    every: float | None,
    cron: str | None,
    series: str | None = None,
    axis: int | None = None,
    pacing: dict[str, float] | None = None,
    longest: int | None = None,
    whole_chunks: bool = False,
    first: int = 0,
) -> None:
    """Run the release of a spec on a schedule, until the process is stopped."""
    if (every is None) == (cron is None):
        raise InvalidSpec("a schedule is --every SECONDS or --cron EXPRESSION; give one of them")
    spec = load_release_spec(spec_path).model_dump(mode="json", by_alias=True, exclude_defaults=True)
    parameters: dict[str, Any] = {"spec": spec}
    chosen: Any = privatize
    if series is not None:
        if axis is None:
            raise InvalidSpec("a series grows along an axis; give --axis")
        chosen = privatize_series
        parameters |= {"series": series, "axis": axis, "pacing": pacing}
        parameters |= {"longest": longest, "whole_chunks": whole_chunks, "first": first}
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
