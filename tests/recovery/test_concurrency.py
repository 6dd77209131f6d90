"""Releases that get in each other's way: nothing of one ever ends up in the other, and no answer is
public but uncharged.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import zarr

from dpdask.errors import InvalidSensitivity, LedgerError, ReleaseError, StoreError
from dpdask.execution import DaskExecutor
from dpdask.ledger import Ledger
from dpdask.planning import make_plan
from dpdask.releases import build_card as cards
from dpdask.releases import staging as stages
from dpdask.releases.api import abort, abort_named, release, release_run, resume
from dpdask.releases.read import published_card, read_card
from dpdask.releases.verify import verify_release
from dpdask.spec import parse_release_spec
from dpdask.storage import Publisher, Storage, open_storage
from dpdask.storage.local import LocalStorage
from tests.support.workspace import Workspace

LOUD, QUIET = {"epsilon": 50.0, "delta": 1e-5}, {"epsilon": 0.1, "delta": 1e-5}
STAGING = "out.zarr.dpdask-staging"
PATIENCE = 60


def zeros(space: Workspace, rows: int = 32) -> None:
    """A source on which little noise (epsilon 50) and much (epsilon 0.1) look different."""
    space.source(np.zeros((rows, 64)), chunks=(2, 64))


def is_quiet(values: Any) -> bool:
    """Whether every tile of two rows has the noise of epsilon 0.1: a standard deviation of about
    62, not of 0.3.
    """
    return all(30 < np.std(values[row : row + 2]) < 120 for row in range(0, len(values), 2))


def stopped_at(spec: dict[str, Any], stage: str) -> None:
    """A release cut off at a stage, as by a kill."""

    def stop(progress: Any) -> None:
        if progress.stage == stage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        release(spec, on_progress=stop)


def test_what_an_aborted_release_left_is_never_taken_up(space: Workspace) -> None:
    zeros(space)
    loud = space.spec(privacy=LOUD, compute={"threads": 1, "task_size": 1})
    stopped_at(loud, "verify")
    left = space.folder / "left"
    shutil.copytree(space.folder / STAGING, left)
    abort(loud)
    assert not (space.folder / STAGING).exists()
    (left / "release.json").unlink()  # an abort that was cut off, or whose driver kept writing
    left.rename(space.folder / STAGING)
    space.release(privacy=QUIET)
    assert is_quiet(space.values())
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)
    assert space.left_behind() == ["out.zarr"]
    assert not is_quiet(
        np.random.default_rng(0).normal(0, 0.3, (32, 64))
    )  # the eye sees the difference


def test_an_aborted_driver_that_lives_on_does_not_touch_the_next_release(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    zeros(space)
    monkeypatch.setattr(
        DaskExecutor, "concurrency", 1
    )  # so that it still has tiles to write when it wakes
    stalled, awake, over = threading.Event(), threading.Event(), threading.Event()
    outcome: list[str] = []

    def stall(progress: Any) -> None:
        if progress.stage == "tiles" and 0 < progress.done < progress.total:
            stalled.set()
            awake.wait(PATIENCE)

    def first() -> None:
        try:
            release(space.spec(privacy=LOUD), on_progress=stall)
        except (ReleaseError, LedgerError) as error:
            outcome.append(str(error))
        over.set()

    thread = threading.Thread(target=first)
    thread.start()
    assert stalled.wait(PATIENCE)
    abort(space.spec(privacy=LOUD))

    def wake(progress: Any) -> None:
        if progress.stage == "verify" and progress.done == progress.total:
            awake.set()
            over.wait(PATIENCE)

    space.release(privacy=QUIET, on_progress=wake)
    thread.join()
    assert "gone" in outcome[0] or "closed" in outcome[0]
    assert is_quiet(space.values())
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)
    assert list(space.ledger.state("people").releases.values()) == ["burn", "commit"]
    assert space.left_behind() == ["out.zarr"]
    assert (
        dask.config.get("scheduler", None) is None
    )  # two releases at once leave the process as it was


@pytest.mark.parametrize("url", ["memory://rivals/out.zarr", "{folder}/out.zarr"])
def test_an_output_that_appears_while_a_release_prepares_is_refused_before_the_charge(
    space: Workspace, url: str
) -> None:
    zeros(space)
    output = {"url": url.format(folder=space.folder)}
    loud, quiet = space.spec(privacy=LOUD, output=output), space.spec(privacy=QUIET, output=output)
    with contextlib.suppress(KeyboardInterrupt), release_run(loud) as run:
        run.prepare()
        release(quiet)
        charged = space.spent()
        with pytest.raises(StoreError, match="appeared meanwhile"):
            run.reserve()
        raise KeyboardInterrupt
    assert space.spent() == charged
    assert verify_release(output["url"], ledger=space.ledger).guarantee.claimed.epsilon == 0.1
    with pytest.raises(ReleaseError, match="no release to this output"):
        resume(loud)
    if url.startswith("memory"):
        import fsspec

        fsspec.filesystem("memory").rm("/rivals", recursive=True)


def test_on_an_object_store_no_chunk_is_written_over_another(space: Workspace) -> None:
    zeros(space)
    plan = make_plan(parse_release_spec(space.spec(output={"url": "memory://over/out.zarr"})))
    first, second = (Publisher.of(plan.output, name) for name in ("a", "b"))
    block = np.ones((2, 64))
    first.put(plan.layout, (0, 0), block)
    assert first.put(plan.layout, (0, 0), block) == first.put(
        plan.layout, (0, 0), block
    )  # a retry replays
    assert second.put(plan.layout, (0, 0), 2 * block) is None
    with plan.output.viewed(plan.layout.key((0, 0))) as stored:
        assert stored is not None
        assert plan.layout.check((0, 0), stored)
        assert np.all(np.frombuffer(stored[:-4].tobytes(), plan.layout.dtype) == 1)
    plan.output.delete()


@pytest.mark.parametrize(
    ("url", "moment", "published"),
    [
        ("{folder}/out.zarr", (Publisher, "ready"), False),
        ("{folder}/out.zarr", (LocalStorage, "move_to"), False),
        ("memory://either-1/out.zarr", (Publisher, "check_no_foreign_objects"), False),
        ("memory://either-2/out.zarr", (Publisher, "ready"), True),
        ("memory://either-3/out.zarr", (Publisher, "publish"), True),
    ],
)
def test_a_release_is_either_published_or_aborted(
    space: Workspace,
    monkeypatch: pytest.MonkeyPatch,
    url: str,
    moment: tuple[Any, str],
    published: bool,
) -> None:
    """An abort in the middle of a publication stops it, or comes too late; never both."""
    zeros(space)
    spec = space.spec(output={"url": url.format(folder=space.folder)})
    said: list[str] = []
    step = getattr(*moment)

    def give_up() -> None:
        try:
            abort(spec)
            said.append("aborted")
        except (ReleaseError, LedgerError) as error:
            said.append(str(error))

    def interrupted(*args: Any) -> Any:
        give_up()
        return step(*args)

    monkeypatch.setattr(*moment, interrupted)
    if published:
        release(spec)
        assert "may be visible" in said[0]
        verify_release(spec["output"]["url"], ledger=space.ledger)
    else:
        with pytest.raises((LedgerError, ReleaseError)):
            release(spec)
        assert said == ["aborted"]
        with pytest.raises(StoreError, match="no published release"):
            read_card(spec["output"]["url"])
    assert list(space.ledger.state("people").releases.values()) == [
        "commit" if published else "burn"
    ]
    if url.startswith("memory"):
        open_storage(url).delete()
    else:
        assert space.left_behind() == []


def steps(space: Workspace) -> list[str]:
    return list(space.ledger.state("people").releases.values())


def staging_of(spec: dict[str, Any]) -> Storage:
    return open_storage(spec["output"]["url"]).beside(".dpdask-staging")


@pytest.fixture(params=["local", "memory"])
def anywhere(request: pytest.FixtureRequest, space: Workspace) -> Iterator[dict[str, Any]]:
    """An output on a filesystem, or on what behaves like an object store."""
    url = (
        f"{space.folder}/out.zarr"
        if request.param == "local"
        else f"memory://rivals-{space.folder.name}/out.zarr"
    )
    zeros(space)
    yield {"url": url}
    for place in (open_storage(url), open_storage(url).beside(".dpdask-staging")):
        place.delete()


def test_two_specs_never_share_a_claim(
    space: Workspace, anywhere: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One waits for the ledger, another takes its uncharged claim up: only one of them is charged
    under that name.
    """
    loud, quiet = (
        space.spec(privacy=LOUD, output=anywhere),
        space.spec(privacy=QUIET, output=anywhere),
    )
    reserve, taken = Ledger.reserve, []

    def overtaken(self: Ledger, *args: Any) -> Any:
        if not taken:
            taken.append(1)
            resume(quiet)
        return reserve(self, *args)

    monkeypatch.setattr(Ledger, "reserve", overtaken)
    with pytest.raises(LedgerError, match="took over"):
        release(loud)
    assert verify_release(anywhere["url"], ledger=space.ledger).guarantee.claimed.epsilon == 0.1
    assert steps(space) == ["commit"]


def test_who_is_refused_leaves_the_other_ones_claim_alone(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    zeros(space)
    loud, quiet = space.spec(privacy=LOUD), space.spec(privacy=QUIET)
    reserve, taken = Ledger.reserve, []

    def overtaken(self: Ledger, *args: Any) -> Any:
        if not taken:
            taken.append(1)

            def stop(progress: Any) -> None:
                if progress.stage == "verify":
                    raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                resume(quiet, on_progress=stop)
        return reserve(self, *args)

    monkeypatch.setattr(Ledger, "reserve", overtaken)
    with pytest.raises(LedgerError, match="took over"):
        release(loud)
    resume(quiet)
    assert is_quiet(space.values())


def test_a_claim_aborted_before_its_charge_is_not_written_for(
    space: Workspace, anywhere: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = space.spec(output=anywhere)
    reserve, aborted = Ledger.reserve, []

    def give_up(self: Ledger, *args: Any) -> Any:
        if not aborted:
            aborted.append(abort(spec))
        return reserve(self, *args)

    monkeypatch.setattr(Ledger, "reserve", give_up)
    with pytest.raises(ReleaseError, match="aborted while it was being charged"):
        release(spec)
    assert steps(space) == ["burn"]
    assert not open_storage(anywhere["url"]).occupied()
    assert not staging_of(spec).occupied()


def test_a_live_driver_that_is_aborted_leaves_nothing_and_blocks_nobody(
    space: Workspace, anywhere: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DaskExecutor, "concurrency", 1)
    loud = space.spec(privacy=LOUD, output=anywhere, compute={"threads": 1, "task_size": 1})
    aborted: list[Any] = []

    def give_up(progress: Any) -> None:
        if progress.stage == "tiles" and progress.done and not aborted:
            aborted.append(abort(loud))

    with pytest.raises(ReleaseError):
        release(loud, on_progress=give_up)
    assert not open_storage(anywhere["url"]).occupied()
    assert not staging_of(loud).occupied()
    space.release(privacy=QUIET, output=anywhere)
    verify_release(anywhere["url"], ledger=space.ledger)


def test_strays_of_an_aborted_driver_are_not_published(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an object store its late chunks can lie at keys that the next release, in larger chunks,
    never writes.
    """
    zeros(space)
    monkeypatch.setattr(DaskExecutor, "concurrency", 1)
    output = {"url": "memory://strays/out.zarr"}
    loud = space.spec(privacy=LOUD, output=output, compute={"threads": 1, "task_size": 1})
    quiet = space.spec(privacy=QUIET, output=output, publish={"chunks": [32, 64]})
    said: list[str] = []

    def swap(progress: Any) -> None:
        if progress.stage == "tiles" and progress.done and not said:
            said.append("")
            abort(loud)
            for _ in range(
                20
                # tasks that are under way may still write; those that the driver submits later
                # certainly do
            ):
                time.sleep(0.1)
                open_storage(output["url"]).delete()
            with contextlib.suppress(KeyboardInterrupt), release_run(quiet) as run:
                for step in (run.prepare, run.reserve, run.write, run.verify):
                    step()
                raise KeyboardInterrupt

    with pytest.raises(ReleaseError):
        release(loud, on_progress=swap)
    with pytest.raises(StoreError, match="not of this release"):
        resume(quiet)
    assert published_card(open_storage(output["url"])) is None
    abort(quiet)
    assert not open_storage(output["url"]).occupied()
    assert steps(space) == ["burn", "burn"]


def test_late_metadata_never_replaces_what_is_published(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    zeros(space)
    output = {"url": "memory://late/out.zarr"}
    loud = space.spec(privacy=LOUD, output=output)
    ready, once = Publisher.ready, []

    def late(self: Publisher, documents: dict[str, bytes], keys: set[str]) -> None:
        if not once:
            once.append(1)
            [record] = space.ledger.open_releases("")
            space.ledger.burn(
                record.fingerprint, "as if it had been aborted in time", invisible=True
            )
            Publisher.of(open_storage(output["url"]), record.release_id).discard()
            release(space.spec(privacy=QUIET, output=output, publish={"chunks": [32, 64]}))
        ready(self, documents, keys)

    monkeypatch.setattr(Publisher, "ready", late)
    with pytest.raises(StoreError, match="not of this release"):
        release(loud)
    assert verify_release(output["url"], ledger=space.ledger).guarantee.claimed.epsilon == 0.1
    plain = zarr.open_array(open_storage(output["url"]).zarr_store(), path="data", mode="r")
    assert is_quiet(np.asarray(plain[...]))
    open_storage(output["url"]).delete()


@pytest.mark.parametrize("lost", ["work", "staging"])
@pytest.mark.parametrize("stage", ["ready", "published"])
def test_a_complete_release_is_finished_whatever_is_lost_beside_it(
    space: Workspace, anywhere: dict[str, Any], stage: str, lost: str
) -> None:
    spec = space.spec(output=anywhere)
    stopped_at(spec, stage)
    charged = space.spent()
    control = staging_of(spec)
    if lost == "staging":
        control.delete()
    else:
        for name in control.names() - {"release.json"}:
            control.inside(name).delete()
    if stage == "published" or lost == "work":
        resume(spec)
    else:
        release(spec)
    verify_release(anywhere["url"], ledger=space.ledger)
    assert space.spent() == charged
    assert not control.occupied()


def test_a_library_that_changed_before_the_end_does_not_change_the_card(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    zeros(space)
    stopped_at(space.spec(), "ready")
    shutil.rmtree(space.folder / STAGING)
    versions = cards.software_versions()
    monkeypatch.setattr(cards, "software_versions", lambda: {**versions, "dask": "9"})
    assert space.release().card.software == versions
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)


def test_a_claim_of_a_killed_driver_does_not_own_what_appears_at_the_output(
    space: Workspace,
) -> None:
    zeros(space)
    spec = space.spec(output={"url": "memory://precious/out.zarr"})
    place = open_storage("memory://precious/out.zarr")
    Publisher.of(place, "ab" * 16).lock_output()  # killed before its charge
    place.write("precious", b"x")
    with pytest.raises(StoreError, match="appeared meanwhile"):
        resume(spec)
    abort(spec)
    assert place.read("precious") == b"x"
    assert space.spent() == 0
    place.delete()


def test_an_abort_from_where_the_output_is_not_closes_nothing_that_may_be_visible(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    zeros(space)
    monkeypatch.chdir(space.folder)
    stopped_at(space.spec(output={"url": "out.zarr"}), "ready")
    [record] = space.ledger.open_releases("")
    assert record.output_address == str(space.folder / "out.zarr")
    aside = space.folder / "source.zarr-aside"  # as on a host that does not have this filesystem
    (space.folder / STAGING).rename(aside)
    with pytest.raises(LedgerError, match="may be visible"):
        abort_named(record.release_id, space.ledger_url)
    aside.rename(space.folder / STAGING)
    (space.folder / "elsewhere").mkdir()
    monkeypatch.chdir(space.folder / "elsewhere")
    abort_named(record.release_id, space.ledger_url)
    assert steps(space) == ["burn"]
    assert space.left_behind() == ["elsewhere"]
    monkeypatch.chdir(space.folder)
    stopped_at(space.spec(output={"url": "out.zarr"}, publish={"edition": 2}), "ready")
    shutil.rmtree(space.folder / STAGING)
    [record] = space.ledger.open_releases("")
    abort_named(record.release_id, space.ledger_url, never_published=True)
    assert steps(space) == ["burn", "burn"]


def test_a_driver_that_is_overtaken_ends_with_the_others_receipt(
    space: Workspace, anywhere: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "_SEGMENT_SECONDS", 0.0)
    spec = space.spec(output=anywhere, compute={"threads": 1, "task_size": 1})
    other: list[Any] = []

    def overtake(progress: Any) -> None:
        if progress.stage == "tiles" and progress.done and not other:
            other.append(None)
            other[0] = resume(spec)

    assert release(spec, on_progress=overtake).release_id == other[0].release_id
    assert steps(space) == ["commit"]


def test_a_manifest_that_a_power_cut_damaged_counts_for_nothing(space: Workspace) -> None:
    zeros(space)
    stopped_at(space.spec(), "verify")
    [segment] = (space.folder / STAGING).rglob("manifest-*")
    segment.write_bytes(bytes(50))
    resume(space.spec())
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)


def test_removing_a_claim_that_changed_hands_puts_it_back(tmp_path: Path) -> None:
    place = LocalStorage(tmp_path)
    place.create("claim", b"mine")
    assert not place.remove_if("claim", b"yours")
    assert place.read("claim") == b"mine"
    assert place.remove_if("claim", b"mine")
    assert place.names() == set()


def test_an_abort_that_was_cut_off_is_finished_by_the_next(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    zeros(space)
    stopped_at(space.spec(), "verify")
    remove = shutil.rmtree

    def killed(*_args: Any, **_options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        abort(space.spec())
    monkeypatch.setattr(shutil, "rmtree", remove)
    abort(space.spec())
    assert space.left_behind() == []
    assert steps(space) == ["burn"]


def test_a_damaged_claim_has_a_way_out(space: Workspace) -> None:
    zeros(space)
    stopped_at(space.spec(), "key")
    charged = space.spent()
    (space.folder / STAGING / "release.json").write_text("")
    for step in (space.release, lambda: resume(space.spec())):
        with pytest.raises(StoreError, match=r"damaged; `dpdask abort`"):
            step()
    assert abort(space.spec()) is None
    space.release()
    assert space.spent() == charged
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)


def test_a_release_is_aborted_by_its_name_alone(space: Workspace) -> None:
    zeros(space)
    stopped_at(space.spec(), "key")
    [record] = space.ledger.open_releases("")
    with pytest.raises(ReleaseError, match="0 open releases"):
        abort_named("nobody-here", space.ledger_url)
    assert abort_named(record.release_id[:8], space.ledger_url) == record.release_id
    assert list(space.ledger.state("people").releases.values()) == ["burn"]
    assert space.left_behind() == []


@pytest.mark.parametrize(
    "query", ["sum", "second-moment", {"name": "histogram", "edges": [[-1, 0, 1]]}]
)
def test_a_window_of_records_under_add_remove_one_is_refused(space: Workspace, query: Any) -> None:
    """Take one record away and another one moves into the window: the answer changes by two
    records, not by one.
    """
    zeros(space)
    window = {"axis": 0, "start": 0, "stop": 4}
    asked = {
        "source": {**space.spec()["source"], "window": window},
        "privacy_unit": {"record_dim": -2, "adjacency": "add-remove-one", "l2_clip_norm": 1.0},
        "query": query,
    }
    if isinstance(query, dict):
        del asked["privacy_unit"]["l2_clip_norm"]
    with pytest.raises(InvalidSensitivity, match="record axis"):
        space.release(**asked)
    asked["privacy_unit"]["adjacency"] = "replace-one"
    space.release(**asked)
