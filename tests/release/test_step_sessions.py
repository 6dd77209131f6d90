"""Steps that are handed over one by one: released, replayed, resumed, refused."""

from __future__ import annotations

import math
import shutil
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from click.testing import CliRunner
from dp_accounting.pld import privacy_loss_distribution

import dpdask
from dpdask.cli import main
from dpdask.errors import (
    BudgetExceeded,
    DpdaskError,
    InvalidInput,
    InvalidSpec,
    LedgerCorrupt,
    LedgerError,
    ReleaseError,
    SourceChanged,
)
from dpdask.keystream import ReleaseKey
from dpdask.ledger.keys import default_key_file
from dpdask.planning import make_plan
from dpdask.releases.api import release, resume
from dpdask.releases.verify import verify_release
from dpdask.spec import parse_release_spec
from tests.support.snapshots import restore, state
from tests.support.step_sessions import SHAPE, STEPS, records, session_spec
from tests.support.workspace import Workspace

SAMPLED = {"steps": STEPS, "sampling": {"rate": 0.3, "of": "records"}}


def clipped_sum(values: np.ndarray[Any, Any], norm: float = 1.0) -> np.ndarray[Any, Any]:
    norms = np.sqrt((values.reshape(len(values), -1) ** 2).sum(1))
    factors = np.minimum(1, norm / np.maximum(norms, 1e-300))
    return np.asarray((values * factors[:, None, None]).sum(0))


def all_steps(spec: dict[str, Any], seed: int = 7) -> list[np.ndarray[Any, Any]]:
    with dpdask.steps(spec) as session:
        return [session.step(records(step, seed=seed)) for step in session]


def test_a_session_publishes_the_clipped_sums_of_its_steps_with_their_noise(
    space: Workspace,
) -> None:
    with dpdask.steps(session_spec(space)) as session:
        charged = space.spent()
        assert charged > 0  # all steps at once, before the first
        noisy = [session.step(records(step)) for step in session]
        std = session.plan.entry_std
        assert not (space.folder / "out.zarr").exists()
    assert space.spent() == charged
    published = space.values()
    assert published.shape == (STEPS, *SHAPE)
    assert np.array_equal(published, noisy)
    scores = [(noisy[step] - clipped_sum(records(step))) / std for step in range(STEPS)]
    assert np.abs(scores).max() < 8
    assert 0.5 < np.std(scores) < 1.5
    card = verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)
    assert card.composition.session is not None
    assert card.composition.session.released == STEPS
    assert card.composition.steps_are_independent is None
    assert space.left_behind() == ["out.zarr"]
    assert space.ledger.entry_named(card.release_id).last == "commit"  # type: ignore[union-attr]
    space.ledger.verify()


def test_the_guarantee_is_that_of_dp_accounting_on_the_private_side(space: Workspace) -> None:
    composition = {"steps": 200, "sampling": {"rate": 0.05, "of": "records"}}
    session = dpdask.steps(session_spec(space, composition=composition))
    multiplier = session.noise_multiplier
    sampled = privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=multiplier, sampling_prob=0.05, value_discretization_interval=1e-4
    )
    expected = sampled.self_compose(200).get_epsilon_for_delta(1e-5)
    verified = session.plan.guarantee.verified.epsilon(1e-5)
    assert expected <= verified * (1 + 1e-9)
    assert verified <= expected * 1.002
    assert session.plan.guarantee.certified
    total = space.ledger.state("people").total
    assert space.spent() >= session.plan.guarantee.verified.epsilon(total.delta) * (1 - 1e-9)
    session.abort()


def test_without_sampling_steps_compose_exactly(space: Workspace) -> None:
    plan = make_plan(parse_release_spec(session_spec(space)))
    mu = math.sqrt(STEPS) / plan.to_dict()["steps"]["noise_multiplier"]
    assert plan.guarantee.verified.epsilon(1e-5) == pytest.approx(
        dpdask.GaussianProfile(mu).epsilon(1e-5), rel=1e-9
    )


def test_a_step_that_is_repeated_returns_the_same_numbers(space: Workspace) -> None:
    with dpdask.steps(session_spec(space)) as session:
        first = session.step(records(0))
        session.step(records(1))
        assert np.array_equal(session.step(records(0), index=0), first)
        assert np.array_equal(session.released(0), first)
        assert session.next_step == 2
        shuffled = records(0)[::-1]  # the same sum of integers is the same input
        assert np.array_equal(session.step(shuffled, index=0), first)


def test_a_step_that_is_repeated_with_another_input_burns_the_session(space: Workspace) -> None:
    session = dpdask.steps(session_spec(space))
    session.step(records(0))
    changed = records(0)
    changed[3, 2, 1] += 0.1
    with pytest.raises(SourceChanged, match="step 0 was noted for another input"):
        session.step(changed, index=0)
    with pytest.raises(ReleaseError, match="the session is closed"):
        session.step(records(1))
    [fingerprint] = space.ledger.state("people").releases
    entry = space.ledger.entry(fingerprint)
    assert entry is not None
    assert entry.last == "burn"
    with pytest.raises(LedgerError, match="closed by burn"):
        space.ledger.release_key(fingerprint)
    with pytest.raises(ReleaseError, match=r"publish\.edition"):
        dpdask.steps(session_spec(space))
    assert space.spent() > 0
    assert space.left_behind() == []


@pytest.mark.parametrize("stage", ["step noted", "step staged"])
def test_another_input_after_a_crash_burns_the_session(space: Workspace, stage: str) -> None:
    def stop(progress: Any) -> None:
        if progress.stage == stage:
            raise KeyboardInterrupt

    session = dpdask.steps(session_spec(space), on_progress=stop)
    with pytest.raises(KeyboardInterrupt):
        session.step(records(0))
    session.leave()
    again = dpdask.steps(session_spec(space))
    assert again.next_step == 0
    with pytest.raises(SourceChanged, match="the session was burned"):
        again.step(records(0, seed=8))
    assert space.left_behind() == []


def test_bad_steps_are_refused_and_nothing_is_drawn(space: Workspace) -> None:
    with dpdask.steps(session_spec(space)) as session:
        entries = space.ledger.verify()
        for values, match in (
            (np.zeros((3, 4, 5)), r"give \(n, 5, 4\)"),
            (np.zeros((5, 4)), r"give \(n, 5, 4\)"),
            (np.zeros((3, 5, 4), complex), "only real numbers"),
        ):
            with pytest.raises(DpdaskError, match=match):
                session.step(values)
        with pytest.raises(InvalidInput, match="out of order; step 0 is the next one"):
            session.step(records(2), index=2)
        with pytest.raises(InvalidInput, match="out of order"):
            session.step(records(0), index=-1)
        with pytest.raises(InvalidInput, match="step 0 is not released"):
            session.released(0)
        with pytest.raises(InvalidInput, match="every record takes part"):
            session.sample(10)
        with pytest.raises(ReleaseError, match="no step is released"):
            session.close()
        assert space.ledger.verify() == entries
        for step in session:
            session.step(records(step))
        with pytest.raises(InvalidInput, match="beyond the 6 that were charged"):
            session.step(records(6))
    with pytest.raises(ReleaseError, match="the session is closed"):
        session.step(records(0))


def test_a_turn_of_the_loop_must_release_its_step(space: Workspace) -> None:
    session = dpdask.steps(session_spec(space))
    with pytest.raises(ReleaseError, match="step 0 was not released"):
        list(session)


def test_a_session_is_resumed_where_it_stopped_without_a_further_charge(space: Workspace) -> None:
    spec = session_spec(space)
    with dpdask.steps(spec):
        pass
    kept, charged = state(space.folder), space.spent()
    whole = all_steps(spec)
    restore(space.folder, kept)
    with dpdask.steps(spec) as session:
        for step in session:
            session.step(records(step))
            if step == 2:
                break
    with dpdask.steps(spec) as session:
        assert session.next_step == 3
        assert np.array_equal([session.released(step) for step in range(3)], whole[:3])
        for step in session:
            session.step(records(step))
    assert np.array_equal(space.values(), whole)
    assert space.spent() == charged
    assert len(space.ledger.state("people").releases) == 1


def test_a_session_may_be_closed_early_and_says_so(space: Workspace) -> None:
    with dpdask.steps(session_spec(space)) as session:
        first = [session.step(records(step)) for step in range(2)]
        receipt = session.close()
        assert session.close() is receipt
        assert np.array_equal(session.released(1), first[1])
    assert np.array_equal(space.values(), first)
    card = verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)
    assert card.composition.steps == STEPS  # what was charged
    shown = CliRunner().invoke(main, ["show", str(space.folder / "out.zarr")]).stdout
    assert "2 of 6, noise added to each before the next was computed" in shown


def test_an_aborted_session_keeps_its_charge(space: Workspace) -> None:
    session = dpdask.steps(session_spec(space))
    session.step(records(0))
    session.abort()
    assert space.spent() > 0
    assert space.left_behind() == []
    with pytest.raises(ReleaseError, match="closed by burn"):
        dpdask.steps(session_spec(space))
    again = session_spec(space, publish={"edition": 2})
    assert len(all_steps(again)) == STEPS


def test_an_empty_step_is_a_step_of_noise(space: Workspace) -> None:
    with dpdask.steps(session_spec(space)) as session:
        values = session.step(np.zeros((0, *SHAPE)))
        assert 0 < np.abs(values).max() < 8 * session.plan.entry_std
        again = session.step(np.zeros((4, *SHAPE)), index=0)  # the same sum
        assert np.array_equal(values, again)


def test_missing_values_count_as_zero(space: Workspace) -> None:
    with dpdask.steps(session_spec(space)) as session:
        values = records(0)
        values[2] = np.nan
        first = session.step(values)
        values[2] = 0
        assert np.array_equal(session.step(values, index=0), first)


def test_records_may_come_from_zarr_and_give_the_same_bytes(space: Workspace) -> None:
    spec = session_spec(space, compute={"threads": 2})
    dpdask.steps(spec).leave()
    kept = state(space.folder)
    whole = all_steps(spec)
    restore(space.folder, kept)
    with dpdask.steps(spec) as session:
        for step in session:
            name = f"source.zarr/{step}"
            zarr.create_array(space.folder / name, data=records(step), chunks=(7, 3, 4))
            url = space.folder / "source.zarr"
            session.step(Path(url), array=str(step))
    assert np.array_equal(space.values(), whole)


@pytest.mark.slow
def test_worker_processes_give_the_same_bytes_as_this_one(space: Workspace) -> None:
    spec = session_spec(space, compute={"workers": 2, "threads": 1}, composition={"steps": 2})
    spec["publish"] = {"chunks": [1, 2, 4]}
    dpdask.steps(spec).leave()
    kept = state(space.folder)
    whole = all_steps(spec)
    restore(space.folder, kept)
    data = np.stack([records(step) for step in range(2)])
    zarr.create_array(space.folder / "source.zarr", name="x", data=data, chunks=(1, 7, 3, 4))
    with dpdask.steps(spec) as session:
        for step in session:
            session.step(str(space.folder / "source.zarr"), array="x", entry=step)
    assert np.array_equal(space.values(), whole)


@pytest.mark.parametrize("chunks", [[1, 2, 4], [1, 5, 1]])
def test_a_step_of_several_chunks_has_the_same_sum(space: Workspace, chunks: list[int]) -> None:
    publish = {"chunks": chunks, "codec": "zstd"}
    spec = session_spec(space, publish=publish, privacy={"epsilon": 1e6, "delta": 0.01})
    noisy = all_steps(spec)
    truth = [clipped_sum(records(step)) for step in range(STEPS)]
    np.testing.assert_allclose(noisy, truth, atol=0.2)
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)


def test_finished_results_take_a_declared_sensitivity(space: Workspace) -> None:
    spec = session_spec(
        space,
        privacy_unit={"adjacency": "add-remove-one"},
        query={"name": "precomputed", "l2_sensitivity": 1.0},
        noise={"output_dtype": "int64"},
    )
    with dpdask.steps(spec) as session:
        for step in session:
            total = clipped_sum(records(step))
            noisy = session.step(total)
            assert np.abs(noisy - total).max() < 8 * session.plan.entry_std
        last = session.released(STEPS - 1)
    card = verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)
    assert np.allclose(space.values()[-1] * card.released.scale_factor, last, rtol=1e-15)


TRIANGLE = np.eye(5) + np.tri(5, k=-1) / 4
COLOURED: list[dict[str, Any]] = [
    {"mechanism": {"name": "imgm", "factors": [{"dense": TRIANGLE.tolist()}, "identity"]}},
    {"mechanism": {"name": "imgm", "factors": [{"diagonal": [1.0, 1, 2, 2, 3]}, "identity"]}},
    {
        "mechanism": {"name": "directional", "weights": [4.0, 1.0, 1.0, 0.1]},
        "privacy_unit": {
            "adjacency": "add-remove-one",
            "ranges": [[-1, 1], [0, 1], [-0.5, 0.2], [0, 3]],
            "feature_dim": 2,
        },
    },
]


@pytest.mark.parametrize("changes", COLOURED)
def test_coloured_noise_composes_exactly_over_steps(
    space: Workspace, changes: dict[str, Any]
) -> None:
    spec = session_spec(space, **changes)
    with dpdask.steps(spec) as session:
        plan = session.plan
        assert plan.data.noise.name == "kronecker"
        multiplier = session.noise_multiplier
        exact = dpdask.GaussianProfile(math.sqrt(STEPS) / multiplier).epsilon(1e-5)
        verified = plan.guarantee.verified.epsilon(1e-5)
        assert exact <= verified * (1 + 1e-12)  # what rounding leaves is not claimed back
        assert verified == pytest.approx(exact, rel=1e-4)
        for step in session:
            session.step(records(step))
    card = verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)
    assert card.guarantee.certified
    stds = zarr.open_array(space.folder / "out.zarr" / "data_noise_std", mode="r")
    varies = {5: ("dim_0",), 4: ("dim_1",)}  # the axis of steps is not among them
    assert stds.metadata.dimension_names == varies[stds.shape[0]]  # type: ignore[union-attr]


def test_ranges_and_replace_one_are_steps_too(space: Workspace) -> None:
    spec = session_spec(space, privacy_unit={"ranges": [[-1, 1]], "max_contributions": 2})
    with dpdask.steps(spec) as session:
        assert session.plan.data.query.sensitivity.radius >= 2 * 2 * math.sqrt(20)
        for step in session:
            session.step(records(step, count=3 + step))
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)


def test_the_session_draws_the_samples_it_takes_credit_for(space: Workspace) -> None:
    spec = session_spec(space, composition=SAMPLED)
    with dpdask.steps(spec) as session:
        with pytest.raises(InvalidInput, match="was not drawn"):
            session.step(records(0))
        sample = session.sample(100)
        assert np.array_equal(sample, session.sample(100))
        longer = session.sample(150)  # who is in it does not depend on how many there are
        assert np.array_equal(longer[longer < 100], sample)
        with pytest.raises(InvalidInput, match="not those of its sample") as refused:
            session.step(records(0, len(longer) + 1))
        assert not any(letter.isdigit() for letter in str(refused.value).replace("step 0", ""))
        session.step(records(0, len(longer)))
        assert not np.array_equal(longer, session.sample(150))
    with dpdask.steps(spec) as session:
        assert session.next_step == 1
        again = session.sample(150, index=0)
        assert np.array_equal(again, longer)


def test_whole_units_are_sampled_with_all_their_records(space: Workspace) -> None:
    unit = {"adjacency": "add-remove-one", "l2_clip_norm": 1.0, "max_contributions": 3}
    sampling = {"steps": STEPS, "sampling": {"rate": 0.3, "of": "privacy-units"}}
    with dpdask.steps(session_spec(space, privacy_unit=unit, composition=sampling)) as session:
        drawn = len(session.sample(100))
        with pytest.raises(InvalidInput, match="not those of its sample"):
            session.step(records(0, 3 * drawn + 1))
        session.step(records(0, 2 * drawn))


def sample_score(rate: float, taken: float) -> float:
    """How far the size of samples at ``taken`` is from ``rate``, in standard deviations."""
    stream = ReleaseKey(bytes(range(32))).sample(fingerprint=bytes(32), step=4)
    words = stream.words(0, 200_000)
    drawn = int((words < int(Fraction(taken) * 2**64)).sum())
    return abs(drawn - 200_000 * rate) / math.sqrt(200_000 * rate * (1 - rate))


def test_samples_have_the_rate_of_the_spec() -> None:
    assert sample_score(0.05, 0.05) < 5
    assert sample_score(0.05, 0.06) > 15  # another rate would be noticed


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"query": "mean"}, "is not one of steps"),
        ({"query": "identity"}, "is not one of steps"),
        ({"publish": {"chunks": [2, 5, 4]}}, "cannot be written one by one"),
        ({"publish": {"layers": ["non-negative"]}}, "publish.layers"),
        ({"publish": {"coordinates": ["time"]}}, "publish.coordinates"),
        ({"publish": {"attributes": ["units"]}}, "publish.attributes"),
        ({"privacy_unit": {"l2_clip_norm": 1.0, "record_dim": 1}}, "record_dim=1"),
        ({"privacy_unit": {"l2_clip_norm": 1.0, "ids": "who"}}, "privacy_unit.ids"),
        ({"privacy_unit": {"l2_clip_norm": 1.0, "missing": "count"}}, "privacy_unit.missing"),
        ({"privacy_unit": {}}, "exactly one of l2_clip_norm and ranges"),
        ({"composition": {"steps": 3, "steps_are_independent": True}}, "steps_are_independent"),
        ({"composition": {"steps": 200_000}}, "more than 100000 chunks"),
        ({"source": {"steps": {"shape": [5]}, "url": "x.zarr"}}, "url says what to read"),
        ({"source": {}}, "source: url is missing; add it"),
        ({"source": {"steps": {"shape": []}}}, "source.steps.shape"),
        ({"source": {"url": "x.zarr"}}, "use dpdask.release"),
    ],
)
def test_wrong_specs_of_sessions_are_refused_before_the_charge(
    space: Workspace, changes: dict[str, Any], match: str
) -> None:
    with pytest.raises(DpdaskError, match=match):
        dpdask.steps(session_spec(space, **changes))
    assert space.spent() == 0
    assert space.left_behind() == []


def test_a_budget_that_does_not_suffice_is_refused_at_the_beginning(space: Workspace) -> None:
    space.ledger.open_dataset("few", dpdask.PrivacyBudget(epsilon=1.0, delta=1e-5))
    spec = session_spec(space, budget={"ledger": space.ledger_url, "dataset": "few"})
    with pytest.raises(BudgetExceeded):
        dpdask.steps(spec)
    assert space.left_behind() == []


def test_run_and_resume_name_what_takes_steps(space: Workspace) -> None:
    spec = session_spec(space)
    with pytest.raises(ReleaseError, match=r"dpdask.steps\(spec\)"):
        release(spec)
    assert space.spent() == 0
    dpdask.steps(spec).leave()
    with pytest.raises(ReleaseError, match=r"dpdask.steps\(spec\)"):
        resume(spec)


def test_plan_prints_the_steps_and_the_noise_multiplier(space: Workspace) -> None:
    path = space.write_spec(**session_spec(space, composition=SAMPLED))
    shown = CliRunner().invoke(main, ["plan", str(path)]).stdout
    assert "6, each on a Poisson sample of records at rate 0.3" in shown
    assert "noise multiplier" in shown
    assert "records, handed over step by step" in shown
    assert space.spent() == 0


def test_a_damaged_step_is_asked_for_again(space: Workspace) -> None:
    spec = session_spec(space)
    with dpdask.steps(spec) as session:
        first = [session.step(records(step)) for step in range(4)]
    [chunk] = space.folder.glob("*/*/release/data/c.1.0.0")
    chunk.write_bytes(chunk.read_bytes()[:-1] + b"x")
    with dpdask.steps(spec) as session:
        assert session.next_step == 1
        for step in session:
            noisy = session.step(records(step))
            assert step > 3 or np.array_equal(noisy, first[step])
    assert np.array_equal(space.values()[:4], first)
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)


def test_a_planted_manifest_is_ignored(space: Workspace) -> None:
    spec = session_spec(space)
    with dpdask.steps(spec) as session:
        session.step(records(0))
    [segment] = space.folder.glob("*/*/manifest-000000.json")
    segment.write_bytes(b"0" * 32 + segment.read_bytes()[32:])
    with dpdask.steps(spec) as session:
        assert session.next_step == 0


def test_two_processes_of_one_session_replay_each_other(space: Workspace) -> None:
    spec = session_spec(space)
    one, other = dpdask.steps(spec), dpdask.steps(spec)
    assert np.array_equal(one.step(records(0)), other.step(records(0)))
    one.step(records(1))
    changed = records(1, seed=8)
    with pytest.raises(SourceChanged):
        other.step(changed)
    with pytest.raises(LedgerError, match="closed by burn"):
        one.step(records(2))


def test_nothing_is_added_to_a_session_that_is_complete(space: Workspace) -> None:
    session = dpdask.steps(session_spec(space))
    session.step(records(0))
    [fingerprint] = space.ledger.state("people").releases
    space.ledger.publish(fingerprint, "{}")
    with pytest.raises(LedgerError, match="nothing is added to it any more"):
        session.step(records(1))


@pytest.mark.parametrize("witnessed", [True, False])
def test_a_ledger_from_a_backup_does_not_forget_the_inputs_of_steps(
    space: Workspace, witnessed: bool
) -> None:
    """A ledger without the digests of drawn steps would let the same noise meet other inputs."""
    spec = session_spec(space)
    dpdask.steps(spec).leave()
    backup = {path: path.read_bytes() for path in space.folder.glob("ledger.db*")}
    with dpdask.steps(spec) as session:
        session.step(records(0))
        session.step(records(1))
    for path in space.folder.glob("ledger.db*"):
        path.unlink()
    for path, content in backup.items():
        path.write_bytes(content)
    if not witnessed:  # another user, who has not seen this ledger before
        shutil.rmtree(default_key_file().parent / "heads")
    with pytest.raises(LedgerCorrupt, match="restored from a backup"):
        dpdask.steps(spec)


def test_the_command_line_aborts_a_session(space: Workspace) -> None:
    path = space.write_spec(**session_spec(space))
    with dpdask.steps(path) as session:
        session.step(records(0))
    result = CliRunner().invoke(main, ["abort", str(path)])
    assert result.exit_code == 0, result.output
    assert space.spent() > 0
    assert space.left_behind() == []


def test_a_session_whose_spec_is_another_one_is_refused(space: Workspace) -> None:
    dpdask.steps(session_spec(space)).leave()
    with pytest.raises(ReleaseError, match="began with another spec"):
        dpdask.steps(session_spec(space, composition={"steps": STEPS + 1}))


def test_no_raw_value_or_key_is_in_staging_ledger_or_repr(space: Workspace) -> None:
    canary = 31415926.535897931
    with dpdask.steps(session_spec(space)) as session:
        values = records(0)
        values[4, 2, 2] = canary
        session.step(values)
        key = session._open().staged.key.reveal()
        texts = [repr(session), repr(session._begun), repr(session._open().staged)]
        stored = [path.read_bytes() for path in space.folder.rglob("*") if path.is_file()]
        content = b"".join([*stored, *(text.encode() for text in texts)])
        for spelling in (repr(canary).encode(), np.float64(canary).tobytes(), key, b"31415926"):
            assert spelling not in content


def test_invalid_specs_name_their_place(space: Workspace) -> None:
    with pytest.raises(InvalidSpec, match=r"source\.steps"):
        parse_release_spec(session_spec(space, source={"steps": {"shape": [0]}}))
