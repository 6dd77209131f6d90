"""A source that does not hold still does not drain the budget of a series (row 2 of the operations
review).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zarr

from dpdask.errors import ReleaseError, SourceChanged
from dpdask.releases.api import abort, release
from dpdask.releases.series import Series, next_release
from dpdask.spec import parse_release_spec
from tests.support.workspace import Workspace, people


def run(space: Workspace, touch_at: str | None, max_burns: int = 2) -> None:
    spec = space.spec(output={"url": f"{space.folder}/w-{{start}}-{{stop}}.zarr"})
    series = Series("daily", 0, max_window=20, max_burns=max_burns)
    windowed = next_release(space.ledger, parse_release_spec(spec), series)
    assert windowed is not None

    def touch(progress: Any) -> None:
        if progress.stage == touch_at:
            array = zarr.open_array(space.folder / "source.zarr" / "x", mode="r+")
            array[:, 0] = np.asarray(array[:, 0]) + 1.0

    release(windowed, on_progress=touch)


def test_row_02_a_series_stops_after_two_burns_in_a_row(space: Workspace) -> None:
    space.source(people(), chunks=(20, 8))
    for _ in range(2):
        with pytest.raises(SourceChanged):
            run(space, "tiles")
    spent = space.spent()
    for _ in range(3):
        with pytest.raises(ReleaseError, match=r"stopped: its last 2 .* set max_burns to 3"):
            run(space, "tiles")
    assert space.spent() == spent
    with pytest.raises(SourceChanged):
        run(space, "tiles", max_burns=3)
    run(space, None, max_burns=4)  # the source holds still now
    with pytest.raises(SourceChanged):
        run(space, "tiles")  # the publication reset the count
    assert [window.last for window in space.ledger.windows("people", "daily")] == [
        "burn",
        "burn",
        "burn",
        "commit",
        "burn",
    ]


def test_row_02_what_the_curator_aborts_does_not_stop_a_series(space: Workspace) -> None:
    space.source(people(), chunks=(20, 8))
    template = space.spec(output={"url": f"{space.folder}/w-{{start}}-{{stop}}.zarr"})

    def stop(progress: Any) -> None:
        if progress.stage == "key":
            raise KeyboardInterrupt

    for _ in range(3):
        spec = next_release(space.ledger, parse_release_spec(template), Series("daily", 0))
        assert spec is not None
        with pytest.raises(KeyboardInterrupt):
            release(spec, on_progress=stop)
        abort(spec)
    assert next_release(space.ledger, parse_release_spec(template), Series("daily", 0)) is not None


@pytest.mark.parametrize("query", ["identity", "mean"])
def test_row_02_a_source_that_changed_before_the_charge_costs_nothing(
    space: Workspace, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dpdask.releases import run as module

    space.source(people(), chunks=(20, 8))
    lock_output = module.steps.lock_output

    def touch_and_lock(context: Any) -> bool:
        zarr.open_array(space.folder / "source.zarr" / "x", mode="r+")[0, 0] = 9.0
        return lock_output(context)

    monkeypatch.setattr(module.steps, "lock_output", touch_and_lock)
    with pytest.raises(SourceChanged, match="nothing was charged"):
        space.release(query=query)
    assert space.spent() == 0
    assert space.left_behind() == []
