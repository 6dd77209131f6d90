"""Row 13: a retry of a Dask task overwrote a staged tile.

A worker that was thought lost could come back and replace a tile that had been recorded and
verified, by one computed from what it had read of the source long ago. Staged tiles are created,
never replaced.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpdask.errors import ReleaseError, SourceChanged
from dpdask.planning import make_plan
from dpdask.releases.api import resume
from dpdask.spec import parse_release_spec
from dpdask.storage import Publisher
from tests.support.workspace import Workspace, people

NAME = "0" * 32


@pytest.mark.parametrize("url", ["{folder}/out.zarr", "memory://row-13/out.zarr"])
def test_a_staged_tile_is_created_never_replaced(space: Workspace, url: str) -> None:
    space.source(people(64, 8), chunks=(16, 8))
    plan = make_plan(
        parse_release_spec(space.spec(output={"url": url.format(folder=space.folder)}))
    )
    staging = Publisher.of(plan.output, NAME)
    staging.lock_output()
    first, late = np.ones((16, 8)), np.zeros((16, 8))
    entry = staging.put(plan.layout, (0, 0), first)
    assert entry is not None
    assert staging.put(plan.layout, (0, 0), first) == entry  # a retry that replays is welcome
    assert staging.put(plan.layout, (0, 0), late) is None  # one that does not is told so
    assert staging.check(plan.layout, (0, 0), entry, digest=True)
    staging.discard(charged=True)


def test_a_late_tile_of_another_source_never_gets_into_the_release(space: Workspace) -> None:
    """A zombie worker's tile is there before the driver's own; the driver finds it, and looks at
    the source again.
    """
    space.source(people(64, 8), chunks=(16, 8))
    spec = space.spec()

    def plant(progress: Any) -> None:
        if progress.stage == "key":
            plan = make_plan(parse_release_spec(spec), resuming=True)
            work_folder = next((space.folder / "out.zarr.dpdask-staging").glob("*/"))
            assert (
                Publisher.of(plan.output, work_folder.name).put(
                    plan.layout, (2, 0), np.full((16, 8), 7.0)
                )
                is not None
            )

    space.release(on_progress=plant)
    assert not np.any(space.values() == 7.0)


def test_a_late_tile_and_a_changed_source_burn_the_release(space: Workspace) -> None:
    space.source(people(64, 8), chunks=(16, 8))
    spec = space.spec()

    def plant(progress: Any) -> None:
        if progress.stage == "key":
            plan = make_plan(parse_release_spec(spec), resuming=True)
            work_folder = next((space.folder / "out.zarr.dpdask-staging").glob("*/"))
            Publisher.of(plan.output, work_folder.name).put(
                plan.layout, (2, 0), np.full((16, 8), 7.0)
            )
            space.source(people(64, 8, seed=9), chunks=(16, 8))

    with pytest.raises(SourceChanged, match="its charge stays"):
        space.release(on_progress=plant)
    assert space.left_behind() == []
    with pytest.raises(ReleaseError, match="no release to this output"):
        resume(spec)
