"""Which window a series releases next, without a scheduler: cursors, interruptions, changed
outputs, growth.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zarr
from prefect.exceptions import ParameterTypeError
from pydantic import ValidationError

from dpdask.errors import BudgetExceeded, InvalidSpec, LedgerError, ReleaseError, SourceChanged
from dpdask.privacy import PrivacyBudget
from dpdask.releases.api import abort, abort_named, release, release_or_resume
from dpdask.releases.batch import check_batch
from dpdask.releases.series import Series, next_release
from dpdask.spec import parse_release_spec
from tests.support.workspace import Workspace, people


def template(space: Workspace, folder: str = "a", **changes: Any) -> Any:
    return parse_release_spec(
        space.spec(output={"url": f"{space.folder}/{folder}-{{start}}-{{stop}}.zarr"}, **changes)
    )


def run(
    space: Workspace, folder: str = "a", max_window: int | None = None, **options: Any
) -> str | None:
    """What the flow does, without Prefect: the output of the next window, None when there is
    nothing new.
    """
    series = Series("s", 1, max_window, **options)
    spec = next_release(space.ledger, template(space, folder), series)
    return None if spec is None else release_or_resume(spec).output.rpartition("/")[2]


def grow(space: Workspace, columns: int) -> None:
    array = zarr.open_array(space.folder / "source.zarr" / "x", mode="r+")
    rows, before = array.shape
    array.resize((rows, before + columns))
    array[:, before:] = np.zeros((rows, columns))


def cut_off(space: Workspace, folder: str = "a") -> None:
    spec = next_release(space.ledger, template(space, folder), Series("s", 1))
    assert spec is not None

    def stop(progress: Any) -> None:
        if progress.stage == "key":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        release(spec, on_progress=stop)


def test_an_unfinished_window_is_finished_where_it_began(space: Workspace) -> None:
    """Also when the deployment now says another output: the window is charged once, and the series
    resumes.
    """
    space.source(people(60, 4), chunks=(60, 2))
    cut_off(space)
    charged = space.spent()
    assert run(space, "b") == "a-0000000000-0000000004.zarr"
    assert space.spent() == charged
    assert run(space, "b") is None
    grow(space, 2)
    assert run(space, "b") == "b-0000000004-0000000006.zarr"
    assert run(space, "b") is None


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("{start}-{stop}", "0000000000-0000000004"),
        ("{start:06d}-{stop:03d}", "000000-004"),
        ("{start:d}-{stop:d}", "0-4"),
    ],
)
def test_outputs_of_a_series_have_as_many_digits_as_the_url_says(
    space: Workspace, name: str, output: str
) -> None:
    space.source(people(60, 4), chunks=(60, 2))
    spec = parse_release_spec(space.spec(output={"url": f"{space.folder}/{name}.zarr"}))
    following = next_release(space.ledger, spec, Series("s", 1))
    assert following is not None
    assert following.output.url == f"{space.folder}/{output}.zarr"


@pytest.mark.parametrize("name", ["{start}", "{stop}", "{start}-{stop:x}", "{start:>5}-{stop}"])
def test_outputs_of_a_series_without_both_bounds_are_refused(space: Workspace, name: str) -> None:
    space.source(people(60, 4), chunks=(60, 2))
    spec = parse_release_spec(space.spec(output={"url": f"{space.folder}/{name}.zarr"}))
    with pytest.raises(InvalidSpec, match=r"put \{start\} and \{stop\} into it"):
        next_release(space.ledger, spec, Series("s", 1))


def test_an_open_window_does_not_block_a_series_for_good(space: Workspace) -> None:
    """Its staging is lost and its source has changed: nobody can finish it, so it is done again, or
    aborted by its name.
    """
    space.source(people(60, 4), chunks=(60, 2))
    cut_off(space)
    for path in space.folder.glob("*.dpdask-staging"):
        path.rename(space.folder / "source.zarr-lost")
    zarr.open_array(space.folder / "source.zarr" / "x", mode="r+")[0, 0] = 0.5
    assert run(space) == "a-0000000000-0000000004.zarr"
    assert run(space) is None
    grow(space, 2)
    assert run(space) == "a-0000000004-0000000006.zarr"
    [record] = space.ledger.open_releases("")
    with pytest.raises(ReleaseError, match=r"dpdask abort --release"):
        abort(template(space))
    abort_named(record.release_id, space.ledger_url)
    assert sorted(space.ledger.state("people").releases.values()) == ["burn", "commit", "commit"]


def test_whole_chunks_leave_a_chunk_that_is_still_being_filled(space: Workspace) -> None:
    space.source(people(60, 5), chunks=(60, 2))
    assert run(space, align_to_chunks=True) == "a-0000000000-0000000004.zarr"
    assert run(space, align_to_chunks=True) is None
    grow(space, 1)
    assert run(space, align_to_chunks=True) == "a-0000000004-0000000006.zarr"


@pytest.mark.parametrize("align_to_chunks", [True, False])
def test_appending_during_a_run_burns_only_windows_that_end_inside_a_chunk(
    space: Workspace, align_to_chunks: bool
) -> None:
    space.source(people(60, 5), chunks=(60, 2))
    spec = next_release(space.ledger, template(space), Series("s", 1, None, align_to_chunks))
    assert spec is not None

    def append(progress: Any) -> None:
        if progress.stage == "key":
            grow(space, 1)

    if align_to_chunks:
        release(spec, on_progress=append)
    else:
        with pytest.raises(SourceChanged, match="aborted and its charge stays"):
            release(spec, on_progress=append)
    assert list(space.ledger.state("people").releases.values()) == [
        "commit" if align_to_chunks else "burn"
    ]


def test_a_series_belongs_to_one_axis_of_one_array(space: Workspace) -> None:
    """Another array under the same name neither resumes an open window, and burns it, nor begins
    where this one stopped.
    """
    space.source(people(60, 4), chunks=(60, 2))
    space.source(people(60, 6), file="source.zarr-other", chunks=(60, 2))
    cut_off(space)
    other = template(space, source={"url": str(space.folder / "source.zarr-other"), "array": "x"})
    for spec, axis in ((other, 1), (template(space), 0)):
        with pytest.raises(InvalidSpec, match="belongs to another array or axis"):
            next_release(space.ledger, spec, Series("s", axis))
    assert list(space.ledger.state("people").releases.values()) == ["key"]
    assert run(space) == "a-0000000000-0000000004.zarr"
    found = next_release(space.ledger, other, Series("others", 1, start_index=2))
    assert found is not None
    assert (found.source.window.start, found.source.window.stop) == (2, 6)


def test_a_burned_window_is_asked_for_anew(space: Workspace) -> None:
    """Its source is as it was, so the same spec would be the same, closed, release: the series
    counts the edition up.
    """
    space.source(people(60, 4), chunks=(60, 2))
    for _ in range(2):
        cut_off(space)
        [record] = [r for r in space.ledger.open_releases("") if r.open]
        abort_named(record.release_id, space.ledger_url)
    cut_off(space)
    assert run(space) == "a-0000000000-0000000004.zarr"
    assert run(space) is None
    assert sorted(space.ledger.state("people").releases.values()) == ["burn", "burn", "commit"]


def test_windows_shorter_than_a_chunk_are_refused_where_they_must_end_with_one(
    space: Workspace,
) -> None:
    space.source(people(60, 8), chunks=(60, 4))
    with pytest.raises(InvalidSpec, match="max_window=3 never reaches the end of a chunk of 4"):
        run(space, max_window=3, align_to_chunks=True)
    assert run(space, max_window=5, align_to_chunks=True) == "a-0000000000-0000000004.zarr"


def test_a_mistyped_adjacency_of_gradients_is_found_by_their_form() -> None:
    from dpdask.flows.gradients import privatize_gradients

    given: dict[str, Any] = {
        "source": {"url": "s"},
        "output": {"url": "o"},
        "budget": {"dataset": "d"},
    }
    with pytest.raises((ParameterTypeError, ValidationError), match="add-remove-one"):
        privatize_gradients.validate_parameters(
            {**given, "epsilon": 1, "delta": 1e-6, "clip_norm": 1, "adjacency": "add"}
        )


def test_a_batch_concludes_what_was_published_but_not_committed(space: Workspace) -> None:
    space.source(people(60, 4), chunks=(60, 2))

    def stop(progress: Any) -> None:
        if progress.stage == "published":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        space.release(on_progress=stop)
    zarr.open_array(space.folder / "source.zarr" / "x", mode="r+")[0, 0] = 0.5
    batch_of_one = check_batch([parse_release_spec(space.spec())])
    done, missing = batch_of_one.published, batch_of_one.missing
    assert (len(done), missing) == (1, [])
    assert list(space.ledger.state("people").releases.values()) == ["commit"]


def batch(space: Workspace, *changes: dict[str, Any]) -> list[Any]:
    outputs = [{"url": f"{space.folder}/{n}.zarr"} for n in range(len(changes))]
    return [
        parse_release_spec(space.spec(output=output, **change))
        for output, change in zip(outputs, changes, strict=True)
    ]


def test_a_batch_is_refused_as_a_whole_before_anything_is_charged(space: Workspace) -> None:
    space.source(people(60, 4))
    space.ledger.open_dataset("small", PrivacyBudget(epsilon=1.0, delta=1e-5))
    budget = {"ledger": space.ledger_url, "dataset": "small"}
    loud = {"budget": budget, "query": "sum", "privacy": {"epsilon": 0.9, "delta": 1e-6}}
    other = {"record_dim": 0, "l2_clip_norm": 1.0, "adjacency": "add-remove-one"}
    across = {"record_dim": 1, "l2_clip_norm": 1.0}
    quiet = {"budget": budget, "privacy": {"epsilon": 0.1, "delta": 1e-7}}
    for specs, kind, why in (
        (batch(space, loud, loud), BudgetExceeded, "has spent epsilon 0 of 1"),
        (
            batch(space, loud, {**loud, "privacy_unit": other}),
            InvalidSpec,
            "differ in privacy_unit.adjacency",
        ),
        (
            batch(space, quiet, {**quiet, "privacy_unit": across}),
            InvalidSpec,
            "different axes of one array",
        ),
    ):
        with pytest.raises(kind, match=why):
            check_batch(specs)
    assert space.ledger.state("small").spent_epsilon == 0
    assert len(check_batch(batch(space, quiet, quiet)).missing) == 2


def test_a_batch_with_a_burned_release_is_refused(space: Workspace) -> None:
    space.source(people(60, 4))
    [spec] = batch(space, {})

    def stop(progress: Any) -> None:
        if progress.stage == "key":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        release(spec, on_progress=stop)
    abort(spec)
    with pytest.raises(InvalidSpec, match=r"was burned.*raise its publish\.edition"):
        check_batch([spec])


def test_units_along_another_axis_of_an_array_are_refused(space: Workspace) -> None:
    """One row moves a release that protects columns by more than its sensitivity: their charges do
    not add up.
    """
    space.source(people(60, 4))
    space.release(query="mean")
    spent = space.spent()
    with pytest.raises(
        LedgerError, match="accounted for the privacy units along axis 0 of this array"
    ):
        space.release(
            query="mean",
            privacy_unit={"record_dim": 1, "l2_clip_norm": 1.0},
            output={"url": f"{space.folder}/b.zarr"},
        )
    assert space.spent() == spent
    space.source(people(60, 4).T, file="source.zarr-turned")
    turned = {"url": str(space.folder / "source.zarr-turned"), "array": "x"}
    unit = {"record_dim": 1, "l2_clip_norm": 1.0}
    space.release(
        query="mean", source=turned, privacy_unit=unit, output={"url": f"{space.folder}/b.zarr"}
    )


def test_the_newest_indices_wait_for_data_that_arrive_late(space: Workspace) -> None:
    space.source(people(60, 6), chunks=(60, 2))
    assert run(space, grace=2) == "a-0000000000-0000000004.zarr"
    assert run(space, grace=2) is None
    grow(space, 1)
    assert run(space, grace=2) == "a-0000000004-0000000005.zarr"
    assert run(space) == "a-0000000005-0000000007.zarr"  # the twin: nothing waits
    assert run(space, grace=2) is None


def test_an_array_that_was_cut_is_refused_and_nothing_is_charged(space: Workspace) -> None:
    space.source(people(60, 6), chunks=(60, 2))
    run(space)
    charged = space.spent()
    space.source(people(60, 4), chunks=(60, 2))
    with pytest.raises(InvalidSpec, match="has released up to 6: it was written anew or cut"):
        run(space)
    assert space.spent() == charged


def bounds(output: str | None) -> tuple[int, ...] | None:
    return None if output is None else tuple(map(int, output[2:-5].split("-")))


def test_old_windows_are_filled_in_later_and_the_series_goes_on(space: Workspace) -> None:
    """Before where the series began, and where an aborted window left a gap, in any order."""
    space.source(people(60, 20), chunks=(60, 2))
    assert bounds(run(space, max_window=4, start_index=10)) == (10, 14)
    cut_off(space)
    [record] = [r for r in space.ledger.open_releases("") if r.open]
    assert bounds(run(space, max_window=2)) == (14, 20)  # finishes what was begun
    grow(space, 4)
    with pytest.raises(InvalidSpec, match="not a stretch of what lies before 20"):
        run(space, backfill=(0, 24))
    assert bounds(run(space, backfill=(4, 20), max_window=4)) == (4, 8)
    assert bounds(run(space)) == (20, 24)  # what is new does not wait for it
    assert bounds(run(space, backfill=(4, 20), max_window=4)) == (8, 10)
    assert run(space, backfill=(4, 20), max_window=4) is None
    assert bounds(run(space, backfill=(0, 24), max_window=3, align_to_chunks=True)) == (0, 2)
    assert bounds(run(space, backfill=(0, 24))) == (2, 4)
    assert run(space, backfill=(0, 24)) is None
    assert run(space) is None
    assert record.release_id in {
        details["release_id"] for details in space.ledger.state("people").details.values()
    }


def test_a_gap_that_an_aborted_window_left_is_filled_and_charged_again(space: Workspace) -> None:
    space.source(people(60, 12), chunks=(60, 2))
    assert bounds(run(space, max_window=4)) == (0, 4)
    cut_off_at = next_release(space.ledger, template(space), Series("s", 1, 4))
    assert cut_off_at is not None

    def stop(progress: Any) -> None:
        if progress.stage == "key":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        release(cut_off_at, on_progress=stop)
    [record] = [r for r in space.ledger.open_releases("") if r.open]
    # somebody releases what follows under the same series, then the open one is aborted
    window = {"axis": 1, "start": 8, "stop": 12, "series": "s"}
    url = str(space.folder / "source.zarr")
    release(
        space.spec(
            source={"url": url, "array": "x", "window": window},
            output={"url": f"{space.folder}/a-0000000008-0000000012.zarr"},
        )
    )
    abort_named(record.release_id, space.ledger_url)
    before = space.spent()
    assert run(space) is None
    assert bounds(run(space, backfill=(0, 12))) == (4, 8)
    assert space.spent() > before
    assert run(space, backfill=(0, 12)) is None


def test_back_filled_windows_of_units_with_one_index_cost_what_the_largest_does(
    space: Workspace,
) -> None:
    space.source(people(60, 4), chunks=(20, 4), dimension_names=("flight", "feature"))
    unit = {"record_dim": "flight", "l2_clip_norm": 1.0, "per": "flight"}
    spec = parse_release_spec(
        space.spec(
            query="mean", privacy_unit=unit,
            output={"url": f"{space.folder}/a-{{start}}-{{stop}}.zarr"},
        )
    )  # fmt: skip
    spent = []
    for options in ({"start_index": 40}, {"backfill": (0, 40)}, {"backfill": (0, 40)}):
        windowed = next_release(space.ledger, spec, Series("daily", 0, 20, **options))  # type: ignore[arg-type]
        assert windowed is not None
        release_or_resume(windowed)
        spent.append(space.spent())
    assert spent == [spent[0]] * 3
    assert next_release(space.ledger, spec, Series("daily", 0, 20, backfill=(0, 40))) is None
    # the twin: one of them again is charged again
    [again] = list(space.folder.glob("a-0000000000-*"))
    window = {"axis": 0, "start": 0, "stop": 20}
    url = str(space.folder / "source.zarr")
    space.release(
        query="mean", privacy_unit=unit, source={"url": url, "array": "x", "window": window},
        output={"url": f"{again}-again"}, publish={"edition": 2},
    )  # fmt: skip
    assert space.spent() > spent[0] * 1.2
