"""Which window a series releases next, without a scheduler: cursors, interruptions, changed outputs, growth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zarr
from dpdask.flows.batch import check_batch
from dpdask.flows.series import next_release
from prefect.exceptions import ParameterTypeError
from pydantic import ValidationError

from dpdask.errors import ReleaseError, SourceChanged
from dpdask.releasing import abort, abort_named, release, release_run
from dpdask.spec import parse_release_spec
from tests.release.conftest import Workspace, people


def template(space: Workspace, folder: str = "a", **changes: Any) -> Any:
    return parse_release_spec(space.spec(output={"url": f"{space.folder}/{folder}-{{start}}-{{stop}}.zarr"}, **changes))


def run(space: Workspace, folder: str = "a", **options: Any) -> str | None:
    """What the flow does, without Prefect: the output of the next window, None when there is nothing new."""
    spec = next_release(space.ledger, template(space, folder), "s", 1, None, **options)
    if spec is None:
        return None
    with release_run(spec, unfinished="resume") as under_way:
        return under_way.all_steps().output.rpartition("/")[2]


def grow(space: Workspace, columns: int) -> None:
    array = zarr.open_array(space.folder / "source.zarr" / "x", mode="r+")
    rows, before = array.shape
    array.resize((rows, before + columns))
    array[:, before:] = np.zeros((rows, columns))


def cut_off(space: Workspace, folder: str = "a") -> None:
    spec = next_release(space.ledger, template(space, folder), "s", 1, None)
    assert spec is not None

    def stop(progress: Any) -> None:
        if progress.stage == "key":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        release(spec, on_progress=stop)


def test_an_unfinished_window_is_finished_where_it_began(space: Workspace) -> None:
    """Also when the deployment now says another output: the window is charged once, and the series goes on."""
    space.source(people(60, 4), chunks=(60, 2))
    cut_off(space)
    charged = space.spent()
    assert run(space, "b") == "a-0-4.zarr"
    assert space.spent() == charged
    assert run(space, "b") is None
    grow(space, 2)
    assert run(space, "b") == "b-4-6.zarr"
    assert run(space, "b") is None


def test_an_open_window_does_not_block_a_series_for_good(space: Workspace) -> None:
    """Its staging is lost and its source has changed: nobody can finish it, so it is done again, or aborted by its name."""
    space.source(people(60, 4), chunks=(60, 2))
    cut_off(space)
    for path in space.folder.glob("*.dpdask-staging"):
        path.rename(space.folder / "source.zarr-lost")
    zarr.open_array(space.folder / "source.zarr" / "x", mode="r+")[0, 0] = 0.5
    assert run(space) == "a-0-4.zarr"
    assert run(space) is None
    grow(space, 2)
    assert run(space) == "a-4-6.zarr"
    [record] = space.ledger.open_releases("")
    with pytest.raises(ReleaseError, match=r"dpdask abort --release"):
        abort(template(space))
    abort_named(record.name, space.ledger_url)
    assert sorted(space.ledger.state("people").releases.values()) == ["burn", "commit", "commit"]


def test_whole_chunks_leave_a_chunk_that_is_still_being_filled(space: Workspace) -> None:
    space.source(people(60, 5), chunks=(60, 2))
    assert run(space, whole_chunks=True) == "a-0-4.zarr"
    assert run(space, whole_chunks=True) is None
    grow(space, 1)
    assert run(space, whole_chunks=True) == "a-4-6.zarr"


@pytest.mark.parametrize("whole_chunks", [True, False])
def test_appending_during_a_run_burns_only_windows_that_end_inside_a_chunk(space: Workspace, whole_chunks: bool) -> None:
    space.source(people(60, 5), chunks=(60, 2))
    spec = next_release(space.ledger, template(space), "s", 1, None, whole_chunks)
    assert spec is not None

    def append(progress: Any) -> None:
        if progress.stage == "key":
            grow(space, 1)

    if whole_chunks:
        release(spec, on_progress=append)
    else:
        with pytest.raises(SourceChanged, match="aborted and its charge stays"):
            release(spec, on_progress=append)
    assert list(space.ledger.state("people").releases.values()) == ["commit" if whole_chunks else "burn"]


def test_a_mistyped_adjacency_of_gradients_is_found_by_their_form() -> None:
    from dpdask.flows.gradients import privatize_gradients

    given: dict[str, Any] = {"source": {"url": "s"}, "output": {"url": "o"}, "budget": {"dataset": "d"}}
    with pytest.raises((ParameterTypeError, ValidationError), match="add-remove-one"):
        privatize_gradients.validate_parameters({**given, "epsilon": 1, "delta": 1e-6, "clip_norm": 1, "adjacency": "add"})


def test_a_batch_concludes_what_was_published_but_not_committed(space: Workspace) -> None:
    space.source(people(60, 4), chunks=(60, 2))

    def stop(progress: Any) -> None:
        if progress.stage == "published":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        space.release(on_progress=stop)
    zarr.open_array(space.folder / "source.zarr" / "x", mode="r+")[0, 0] = 0.5
    done, missing = check_batch([parse_release_spec(space.spec())])
    assert (len(done), missing) == (1, [])
    assert list(space.ledger.state("people").releases.values()) == ["commit"]
