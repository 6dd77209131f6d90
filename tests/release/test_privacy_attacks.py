"""Ways in which a release could promise more than it keeps, each tried and closed."""

from __future__ import annotations

import math
import os
import shutil
from typing import Any

import numpy as np
import pytest
import zarr

from dpdask.errors import (
    BudgetExceeded,
    InvalidMechanism,
    InvalidSpec,
    LedgerError,
    ReleaseError,
    StoreError,
    VerificationFailed,
)
from dpdask.planning import make_plan
from dpdask.privacy import PrivacyBudget
from dpdask.privatizers.kronecker import KroneckerPrivatizer
from dpdask.releases.api import abort, resume
from dpdask.releases.verify import verify_release
from dpdask.spec import parse_release_spec
from dpdask.storage import Publisher, open_storage, read_output_lock
from tests.support.workspace import Workspace, people


@pytest.mark.parametrize("query", ["identity", "sum", "mean", "second-moment"])
def test_sampling_that_never_happens_is_not_rewarded(space: Workspace, query: str) -> None:
    space.source(people())
    with pytest.raises(InvalidSpec, match="reads them all"):
        space.release(query=query, composition={"sampling": {"rate": 0.01, "of": "records"}})


def test_nothing_published_is_a_hash_of_the_data(space: Workspace) -> None:
    """A name computed from the data would let anybody test a guess of the last record."""
    space.source(people(64, 8), chunks=(16, 8))
    plan = make_plan(parse_release_spec(space.spec()))
    seen: list[str] = []

    def watch(progress: Any) -> None:
        staging = space.folder / "out.zarr.dpdask-staging"
        seen.extend(p.read_text(errors="replace") + str(p) for p in staging.rglob("*.json"))

    receipt = space.release(on_progress=watch)
    assert seen
    shown = "".join(
        p.read_text(errors="replace") for p in (space.folder / "out.zarr").rglob("zarr.json")
    ) + "".join(seen)
    for secret in (plan.fingerprint, plan.identity):
        assert secret not in shown
        assert secret[:16] not in shown
    assert receipt.release_id == receipt.card.release_id
    other = space.release(output={"url": f"{space.folder}/b.zarr"})
    assert other.release_id != receipt.release_id


def test_several_records_of_one_unit_may_add_up_under_a_dense_factor(space: Workspace) -> None:
    """1-D ranges, k records per unit: the whitened reach is that of a ball, not of one record."""
    n = 20
    space.source(np.zeros(n))
    dense = np.linalg.inv(np.eye(n) + np.ones((n, n)))
    mechanism = {"name": "imgm", "factors": [{"dense": ((dense + dense.T) / 2).tolist()}]}
    unit = {"record_dim": 0, "ranges": [0, 1], "max_contributions": n}
    plan = make_plan(parse_release_spec(space.spec(privacy_unit=unit, mechanism=mechanism)))
    [factor] = plan.data.privatizer.noise.factors  # type: ignore[attr-defined]
    real = float(np.linalg.norm(np.linalg.solve(factor.to_dense(), np.ones(n))))
    assert real <= plan.data.mu * (1 + 1e-9)


def test_rounding_counts_every_record_of_a_unit(space: Workspace) -> None:
    """Neighbours that sit on either side of rounding boundaries, in all records of one unit."""
    n = 4000
    space.source(np.zeros((n, 2)), chunks=(n, 2))
    unit = {"record_dim": 0, "ranges": [[0, 1], [0, 1]], "max_contributions": n}
    with pytest.raises(InvalidMechanism, match="not certified"):
        make_plan(
            parse_release_spec(space.spec(privacy_unit=unit, noise={"steps_per_sigma": 2048}))
        )
    plan = make_plan(parse_release_spec(space.spec(privacy_unit=unit)))
    recipe = plan.data.privatizer
    assert isinstance(recipe, KroneckerPrivatizer)
    scale = math.prod(factor.smallest for factor in recipe.noise.factors)
    worst = (
        (np.rint(1 / scale * recipe.steps_per_sigma) + 1)
        / recipe.steps_per_sigma
        * math.sqrt(2 * n)
    )
    verified = plan.guarantee.verified
    assert worst <= verified.mu * (1 + 1e-9)  # type: ignore[attr-defined]


def test_a_change_that_puts_the_old_time_back_is_seen(space: Workspace) -> None:
    space.source(people(64, 8), chunks=(16, 8))
    spec = parse_release_spec(space.spec())
    before = make_plan(spec).identity
    chunk = space.folder / "source.zarr" / "x" / "c" / "0" / "0"
    facts = chunk.stat()
    with chunk.open("r+b") as opened:
        opened.write(b"\x01")
    os.utime(chunk, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert make_plan(spec).identity != before


def test_units_of_different_size_are_not_added_up(space: Workspace) -> None:
    space.source(people())
    space.release()
    with pytest.raises(LedgerError, match="max_contributions: 1"):
        space.release(
            privacy_unit={"record_dim": 0, "l2_clip_norm": 1.0, "max_contributions": 10},
            output={"url": f"{space.folder}/b"},
        )


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("shards", [None, [32, 8]])
def test_the_manifest_knows_the_content_of_every_chunk(
    space: Workspace, codec: str, shards: list[int] | None
) -> None:
    """Whole chunks with checksums in order, in each other's places: only the manifest can tell."""
    space.source(np.zeros((64, 8)), chunks=(16, 8))
    publish = {"codec": codec, "shards": shards}
    first = space.release(publish=publish)
    second = space.release(publish=publish, output={"url": f"{space.folder}/b.zarr"})
    assert first.card.manifest is not None
    assert second.card.manifest is not None
    assert first.card.manifest.root != second.card.manifest.root
    a, b = sorted((space.folder / "out.zarr" / "data").glob("c.*"))[:2]
    swapped = a.read_bytes(), b.read_bytes()
    a.write_bytes(swapped[1])
    b.write_bytes(swapped[0])
    with pytest.raises(VerificationFailed, match="was changed after publication"):
        verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)


def test_an_interrupt_just_after_the_charge_can_be_resumed(space: Workspace) -> None:
    space.source(people(64, 8), chunks=(16, 8))
    space.ledger.open_dataset("tight", PrivacyBudget(epsilon=1.1, delta=1e-5))
    budget = {"dataset": "tight", "ledger": space.ledger_url}

    def interrupt(progress: Any) -> None:
        if progress.stage == "reserved":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        space.release(on_progress=interrupt, budget=budget)
    charged = space.ledger.state("tight").spent_epsilon
    shutil.rmtree(space.folder / "out.zarr.dpdask-staging")  # even if the staging is lost
    space.release(budget=budget)
    assert space.ledger.state("tight").spent_epsilon == charged
    with pytest.raises(BudgetExceeded):
        space.release(budget=budget, output={"url": f"{space.folder}/b.zarr"})


def test_the_staging_of_another_release_is_never_removed(space: Workspace) -> None:
    space.source(people(64, 8), chunks=(16, 8))
    output = open_storage(str(space.folder / "out.zarr"))

    def intrude(progress: Any) -> None:
        if progress.stage == "norms":
            Publisher.of(output, "5" * 32).lock_output()

    with pytest.raises(StoreError, match="another release"):
        space.release(on_progress=intrude, publish={"chunks": [16, 4]})
    assert read_output_lock(output) == "5" * 32
    assert space.spent() == 0


def test_a_foreign_group_at_the_output_stops_neither_resume_nor_abort(space: Workspace) -> None:
    space.source(people(64, 8), chunks=(16, 8))

    def intrude(progress: Any) -> None:
        if progress.stage == "verify" and not (space.folder / "out.zarr").exists():
            zarr.create_group(space.folder / "out.zarr")

    with pytest.raises(StoreError, match="appeared meanwhile"):
        space.release(on_progress=intrude)
    with pytest.raises(StoreError, match="taken by something else"):
        resume(space.spec())
    abort(space.spec())
    with pytest.raises(ReleaseError, match="nothing to abort"):
        abort(space.spec())


@pytest.mark.parametrize("scale", [1e-6, 1.0])
def test_declared_results_keep_their_size_whatever_the_factors(
    space: Workspace, scale: float
) -> None:
    space.source(np.full((6, 4), 1000.0))
    mechanism = {"name": "imgm", "factors": ["identity", {"diagonal": [scale] * 4}]}
    receipt = space.release(
        query={"name": "precomputed", "l2_sensitivity": 1.0}, privacy_unit={}, mechanism=mechanism
    )
    assert np.max(np.abs(space.values() - 1000)) < 10 * receipt.card.released.noise_std < 100
    assert receipt.card.grid["high"] > 1e6


def test_a_replaced_zip_file_is_read_anew(space: Workspace) -> None:
    loud = {"epsilon": 9e4, "delta": 1e-2}
    path = space.folder / "source.zarr.zip"
    for value, out in ((1.0, "a"), (9.0, "b")):
        fresh = space.folder / "source.zarr-new.zip"
        with zarr.storage.ZipStore(fresh, mode="w") as store:
            zarr.create_array(store, name="x", data=np.full((20, 4), value), chunks=(20, 4))
        os.replace(fresh, path)
        unit = {"record_dim": 0, "ranges": [0, 10]}
        url = f"{space.folder}/{out}.zarr"
        space.release(
            source={"url": str(path), "array": "x"},
            privacy_unit=unit,
            privacy=loud,
            output={"url": url},
        )
        assert np.max(np.abs(space.values(f"{out}.zarr") - value)) < 1


def test_packed_integers_that_would_saturate_are_refused(space: Workspace) -> None:
    space.source(np.full((6, 4), 1000.0))
    with pytest.raises(InvalidSpec, match="cannot hold"):
        space.release(
            query={"name": "precomputed", "l2_sensitivity": 1e-6},
            privacy_unit={},
            mechanism="k-norm",
            accept_uncertified=True,
            noise={"output_dtype": "int32"},
        )


def test_an_output_inside_the_source_is_refused(space: Workspace) -> None:
    zarr.create_array(space.folder / "source.zarr", data=people(), overwrite=True)
    for source, output in [
        ("source.zarr", "source.zarr/out.zarr"),
        ("source.zarr/x", "source.zarr"),
    ]:
        with pytest.raises(StoreError, match=r"publish somewhere else|exists"):
            space.release(
                source={"url": f"{space.folder}/{source}"},
                output={"url": f"{space.folder}/{output}"},
            )
    (space.folder / "source.zarr-link").symlink_to(space.folder / "source.zarr")
    with pytest.raises(StoreError, match="publish somewhere else"):
        space.release(
            source={"url": f"{space.folder}/source.zarr"},
            output={"url": f"{space.folder}/source.zarr-link/out.zarr"},
        )
    assert space.spent() == 0


def test_a_range_without_a_grid_point_is_found_by_the_plan(space: Workspace) -> None:
    space.source(people(20, 3))
    unit = {"record_dim": 0, "ranges": [[0, 1e6], [0, 1], [0.5 + 1e-12, 0.5 + 2e-12]]}
    with pytest.raises(Exception, match="no grid point"):
        make_plan(parse_release_spec(space.spec(query="sum", privacy_unit=unit)))


def test_two_runs_of_the_same_release_end_in_one_publication(space: Workspace) -> None:
    """A resume while the first run is still at work: the same bytes, one charge, nothing left
    behind.
    """
    for number, stage in enumerate(("reserved", "key", "verify")):
        receipts: list[Any] = []

        def second_run(progress: Any, stage: str = stage, receipts: list[Any] = receipts) -> None:
            if progress.stage == stage and not receipts:
                receipts.append(resume(space.spec()))

        space.source(people(64, 8, seed=number), chunks=(4, 8))
        refused = ""
        try:
            assert space.release(on_progress=second_run).release_id == receipts[0].release_id
        except LedgerError as error:
            refused = str(error)
        assert (refused == "") == (stage != "reserved"), (
            refused
        )  # else the key was gone before the first run asked for it
        verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)
        assert space.left_behind() == ["out.zarr"]
        open_storage(str(space.folder / "out.zarr")).delete()
    assert list(space.ledger.state("people").releases.values()) == ["commit"] * 3


def test_no_error_plan_or_listing_shows_the_fingerprint(space: Workspace) -> None:
    """It is a hash of the data, so even a part of it would let anybody test a guess."""
    space.source(people(64, 8), chunks=(16, 8))
    plan = make_plan(parse_release_spec(space.spec()))
    space.release()
    ledger, profile = space.ledger, plan.guarantee.verified
    said = [repr(plan.to_dict()), repr(ledger.state("people").to_dict())]
    for refused in (
        lambda: ledger.reserve("people", plan.fingerprint, profile),
        lambda: ledger.release_key(plan.fingerprint),
        lambda: ledger.burn(plan.fingerprint, "again"),
        lambda: ledger.commit("0" * 64),
    ):
        with pytest.raises(LedgerError) as caught:
            refused()
        said.append(str(caught.value))
    assert all(plan.fingerprint[:6] not in text for text in said)


def test_a_cut_chunk_inside_a_window_is_found_before_the_charge(space: Workspace) -> None:
    space.source(people(60, 8), chunks=(60, 2), compressors=None)
    chunk = space.folder / "source.zarr" / "x" / "c" / "0" / "1"
    chunk.write_bytes(chunk.read_bytes()[:-3])
    window = {"axis": 1, "start": 1, "stop": 4}
    with pytest.raises(StoreError, match="restore it"):
        space.release(source={"url": f"{space.folder}/source.zarr", "array": "x", "window": window})
    assert space.spent() == 0
    assert space.left_behind() == []
