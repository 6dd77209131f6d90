"""Row 5: a resume obeyed files outside the trust boundary.

0.1.0 kept the noise directions in staging: swapping them made a resume replay the same integers
along other axes, and the difference of the two results gave the data away. A planted manifest with
planted chunks was published, committed and verified.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google_crc32c import value as crc32c

from dpdask.errors import OutputLockDamaged, StoreError, VerificationFailed
from dpdask.keystream import ReleaseKey
from dpdask.planning import component_with_directions, make_plan, recipe_digest
from dpdask.releases.api import abort, release, resume
from dpdask.releases.verify import verify_release
from dpdask.spec import parse_release_spec
from dpdask.storage import digest_of
from tests.support.snapshots import contents, restore, state
from tests.support.workspace import Workspace, people

STAGING = "out.zarr.dpdask-staging"
SLOWLY: dict[str, Any] = {"compute": {"threads": 1, "task_size": 1}}
DIRECTED: dict[str, Any] = {
    **SLOWLY,
    "mechanism": {
        "name": "mvg",
        "axis": 1,
        "allocation": "binary",
        "tau": 0.9,
        "chosen": [0],
        "directions": {"from": "dp-covariance", "share": 0.2},
    },
}


def interrupted(space: Workspace, stage: str, share: float = 0.5, **changes: Any) -> None:
    """Stop a release in the middle of a stage, as Ctrl-C would."""

    def stop(progress: Any) -> None:
        if progress.stage == stage and progress.done >= share * progress.total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        release(space.spec(**changes), on_progress=stop)


def work_folder(space: Workspace) -> Path:
    """Where the release under way keeps what it stages."""
    folder: Path = (
        space.folder
        / STAGING
        / json.loads((space.folder / STAGING / "release.json").read_text())["release_id"]
    )
    folder.mkdir(exist_ok=True)
    return folder


def planted(space: Workspace, values: float) -> list[list[Any]]:
    """Chunks of the attacker's own, each with its checksum, where the release would put them."""
    work = work_folder(space)
    entries = []
    for index in range(16):
        content = np.full((4, 8), values).tobytes()
        content += crc32c(content).to_bytes(4, "little")
        path = work / "release" / "data" / f"c.{index}.0"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        entries.append([f"data/c.{index}.0", len(content), digest_of([content])])
    return entries


def honest(space: Workspace, kept: dict[str, bytes], **changes: Any) -> dict[str, bytes]:
    """What a resume publishes that nobody interfered with; everything is put back afterwards."""
    resume(space.spec(**changes))
    published = contents(space.folder / "out.zarr")
    restore(space.folder, kept)
    return published


def test_swapped_directions_do_not_turn_the_noise(space: Workspace) -> None:
    space.source(people(64, 8), chunks=(4, 8))
    interrupted(space, "tiles", **DIRECTED)
    kept = state(space.folder)
    expected = honest(space, kept, **DIRECTED)
    work = work_folder(space)
    turned, _ = np.linalg.qr(np.random.default_rng(1).standard_normal((8, 8)))
    (work / "directions.json").write_text(json.dumps({"directions": turned.tolist()}))
    for path in [*work.glob("manifest-*"), *work.glob("release/data/*")]:
        path.unlink()
    resume(space.spec(**DIRECTED))
    assert contents(space.folder / "out.zarr") == expected


def test_other_directions_draw_other_noise(space: Workspace) -> None:
    """Even a driver that was made to believe in other directions replays nothing along them."""
    space.source(people(64, 8), chunks=(4, 8))
    plan = make_plan(parse_release_spec(space.spec(**DIRECTED)))
    turned, _ = np.linalg.qr(np.random.default_rng(1).standard_normal((8, 8)))
    digests = [
        recipe_digest(plan.fingerprint, component_with_directions(plan, d.tolist()))
        for d in (np.eye(8), turned)
    ]
    assert digests[0] != digests[1]
    key, words = ReleaseKey(bytes(32)), np.empty((2, 64), np.uint64)
    for digest, drawn in zip(digests, words, strict=True):
        key.tile(fingerprint=bytes.fromhex(digest), component="data", index=(0, 0)).filler(
            0, drawn
        )()
    assert not np.any(words[0] == words[1])


@pytest.mark.parametrize("listed", [True, False], ids=["with a manifest", "without one"])
def test_planted_chunks_are_never_published(space: Workspace, listed: bool) -> None:
    space.source(people(64, 8), chunks=(4, 8))
    interrupted(space, "key", 0, **SLOWLY)
    kept = state(space.folder)
    expected = honest(space, kept, **SLOWLY)
    entries = planted(space, 1e6)
    if listed:
        work = work_folder(space)
        (work / "manifest-000000.json").write_text(json.dumps(entries))
    resume(space.spec(**SLOWLY))
    assert contents(space.folder / "out.zarr") == expected
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)


def test_chunks_of_an_earlier_run_are_published_only_as_they_were_recorded(
    space: Workspace,
) -> None:
    """The manifest is the release's own, but chunks that it lists were replaced, checksums in
    order.
    """
    space.source(people(64, 8), chunks=(4, 8))
    interrupted(space, "verify", 0, **SLOWLY)
    kept = state(space.folder)
    expected = honest(space, kept, **SLOWLY)
    planted(space, -1e6)
    resume(space.spec(**SLOWLY))
    assert contents(space.folder / "out.zarr") == expected


def test_a_complete_release_is_published_only_as_the_ledger_knows_it(space: Workspace) -> None:
    """Cut off just before it became visible; then its chunks were replaced."""
    space.source(people(64, 8), chunks=(4, 8))
    interrupted(space, "ready", 0, **SLOWLY)
    kept = state(space.folder)
    expected = honest(space, kept, **SLOWLY)
    planted(space, -1e6)
    resume(space.spec(**SLOWLY))
    assert contents(space.folder / "out.zarr") == expected


def test_a_file_planted_in_staging_is_not_published_with_the_release(space: Workspace) -> None:
    space.source(people(64, 8), chunks=(4, 8))
    interrupted(space, "tiles", **SLOWLY)
    kept = state(space.folder)
    expected = honest(space, kept, **SLOWLY)
    work = work_folder(space)
    (work / "release" / "data" / "c.99.0").write_bytes(b"planted")
    (work / "release" / "readme.txt").write_bytes(b"planted")
    (work / "manifest-zzz.json").write_bytes(b"planted")
    resume(space.spec(**SLOWLY))
    assert contents(space.folder / "out.zarr") == expected


@pytest.mark.parametrize("name", ["../../../elsewhere", "a/b", "", "x" * 32])
def test_a_planted_lock_leads_nowhere(space: Workspace, tmp_path: Path, name: str) -> None:
    space.source(people(64, 8), chunks=(4, 8))
    (space.folder / STAGING).mkdir()
    (space.folder / STAGING / "release.json").write_text(json.dumps({"release_id": name}))
    with pytest.raises(OutputLockDamaged, match="damaged"):
        release(space.spec(**SLOWLY))
    assert space.spent() == 0


def test_a_lock_copied_from_another_output_harms_no_release(space: Workspace) -> None:
    """A release to Y was about to be published; its lock is copied beside X, whose curator aborts
    what is there.
    """
    space.source(people(64, 8), chunks=(4, 8))
    interrupted(space, "ready", 0, **SLOWLY)
    other = space.folder / "ledger.db-other.zarr.dpdask-staging"
    other.mkdir()
    shutil.copy(space.folder / STAGING / "release.json", other / "release.json")
    elsewhere = space.spec(output={"url": str(space.folder / "ledger.db-other.zarr")}, **SLOWLY)
    with pytest.raises(OutputLockDamaged, match="another output"):
        resume(elsewhere)
    assert abort(elsewhere) is None
    assert not other.exists() or not list(other.iterdir())
    resume(space.spec(**SLOWLY))
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)


def test_a_root_document_alone_does_not_close_a_release(space: Workspace) -> None:
    """The staged root is put at the output, where it looks like a publication; a commit would
    destroy the key.
    """
    space.source(people(64, 8), chunks=(4, 8))
    interrupted(space, "ready", 0, **SLOWLY)
    kept = state(space.folder)
    expected = honest(space, kept, **SLOWLY)
    (space.folder / "out.zarr").mkdir()
    shutil.copy(
        work_folder(space) / "release" / "zarr.json", space.folder / "out.zarr" / "zarr.json"
    )
    with pytest.raises(VerificationFailed, match="manifest"):
        resume(space.spec(**SLOWLY))
    shutil.rmtree(space.folder / "out.zarr")
    resume(space.spec(**SLOWLY))
    assert contents(space.folder / "out.zarr") == expected


def test_a_link_planted_in_staging_leads_nowhere(
    space: Workspace, tmp_path_factory: pytest.TempPathFactory
) -> None:
    space.source(people(64, 8), chunks=(4, 8))
    interrupted(space, "tiles", **SLOWLY)
    kept = state(space.folder)
    expected = honest(space, kept, **SLOWLY)
    precious = tmp_path_factory.mktemp("precious")
    (precious / "thesis.txt").write_text("irreplaceable")
    (work_folder(space) / "release" / "evil").symlink_to(precious)
    (work_folder(space) / "release" / "nowhere").symlink_to("/nonexistent/file")
    resume(space.spec(**SLOWLY))
    assert (precious / "thesis.txt").read_text() == "irreplaceable"
    assert contents(space.folder / "out.zarr") == expected
    assert not (space.folder / "out.zarr" / "evil").is_symlink()


def test_a_staging_folder_that_is_a_link_is_refused(
    space: Workspace, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What a release removes from its staging would be somebody else's."""
    space.source(people(64, 8), chunks=(4, 8))
    precious = tmp_path_factory.mktemp("precious")
    (precious / "thesis.txt").write_text("irreplaceable")
    (space.folder / STAGING).symlink_to(precious)
    with pytest.raises(StoreError, match="link to somewhere else"):
        release(space.spec(**SLOWLY))
    assert (precious / "thesis.txt").read_text() == "irreplaceable"
    assert space.spent() == 0


def test_only_what_releases_left_is_removed_from_staging(space: Workspace) -> None:
    space.source(people(64, 8), chunks=(4, 8))
    (space.folder / STAGING).mkdir()
    (space.folder / STAGING / "notes.txt").write_text("not a release's")
    (space.folder / STAGING / ("a" * 32)).mkdir()
    release(space.spec(**SLOWLY))
    assert [path.name for path in (space.folder / STAGING).iterdir()] == ["notes.txt"]


def test_another_inverse_is_another_recipe(space: Workspace) -> None:
    """A library or processor that rounds an inverse differently never replays the same integers on
    its own rounding.
    """
    space.source(people(64, 8), chunks=(4, 8))
    dense = np.eye(8) * 2 + 0.1
    mechanism = {"name": "imgm", "factors": ["identity", {"dense": dense.tolist()}]}
    plan = make_plan(parse_release_spec(space.spec(mechanism=mechanism, **SLOWLY)))
    again = make_plan(parse_release_spec(space.spec(mechanism=mechanism, **SLOWLY)))
    assert again.fingerprint == plan.fingerprint
    factor = again.data.privatizer.noise.factors[1]  # type: ignore[attr-defined]
    other = factor.inverse().copy()
    other[0, 0] = np.nextafter(other[0, 0], 1)
    object.__setattr__(factor, "_inverse", other)
    assert recipe_digest(plan.fingerprint, again.data) != recipe_digest(plan.fingerprint, plan.data)
