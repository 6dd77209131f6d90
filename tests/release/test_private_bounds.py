"""Bounds that a release chooses itself: whole releases, and whatever bound may come out."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import zarr
from click.testing import CliRunner

from dpdask.cli import main
from dpdask.errors import DpdaskError, SourceChanged, VerificationFailed
from dpdask.noise import IidNoise
from dpdask.planning import make_plan, recipe_digest
from dpdask.planning.component import verified_mu
from dpdask.planning.layouts import layouts_beside
from dpdask.privacy import PureBudget
from dpdask.releases.api import resume
from dpdask.releases.read import read_card
from dpdask.releases.registry import registry_entry
from dpdask.releases.verify import verify_release
from dpdask.spec import parse_release_spec
from dpdask.views.card_rows import card_rows
from dpdask.views.plan_rows import plan_rows, public_plan_rows
from tests.recovery.test_crashes import killed_at
from tests.support.estimates import noisy_estimates, settled_plan
from tests.support.forging import edit_chunk, reseal, rewrite_card
from tests.support.snapshots import contents, restore, state
from tests.support.workspace import Workspace

Anything = np.ndarray[Any, Any]
NORM: dict[str, Any] = {"l2_clip_norm": {"quantile": 0.95, "between": [0.1, 1e4], "share": 0.05}}
BEST: dict[str, Any] = {"l2_clip_norm": {"best": True, "between": [0.1, 1e4], "share": 0.05}}
RANGE: dict[str, Any] = {
    "ranges": {"quantiles": [0.01, 0.99], "between": [-100, 100], "share": 0.05}
}
RANGES: dict[str, Any] = {**RANGE, "feature_dim": 1}
BY = {"array": "group", "groups": [1, 2, 3]}
ADD_REMOVE = {"adjacency": "add-remove-one"}
LOUD = {"epsilon": 20.0, "delta": 1e-5}  # the choice is far from any other, whatever the key
MANIFEST = "dp_release/manifest/c/0"


def records(count: int = 4000) -> Anything:
    rng = np.random.default_rng(0)
    return rng.standard_normal((count, 4)) * [1, 2, 3, 4] + [0, 10, 0, -5]


def store(space: Workspace, values: Anything | None = None, **options: Any) -> Anything:
    values = records() if values is None else values
    options.setdefault("chunks", (700, *values.shape[1:]))
    space.source(values, **options)
    group = zarr.open_group(space.folder / "source.zarr", mode="a")
    count, rng = len(values), np.random.default_rng(1)
    for name, labels in {
        "group": rng.integers(1, 5, count),
        "who": rng.integers(0, count // 2 + 1, count),
    }.items():
        group.create_array(name, data=labels, chunks=(311,), overwrite=True)
    return values


def asked(unit: dict[str, Any], query: Any = "mean", **changes: Any) -> dict[str, Any]:
    unit = {"record_dim": 0, **unit}
    return {"query": query, "privacy_unit": unit, "mechanism": "auto", **changes}


IDS = {"ids": "who", "max_contributions": 2}
CASES: dict[str, dict[str, Any]] = {
    "mean, norm": asked(NORM),
    "mean, best norm": asked({**BEST, **ADD_REMOVE}),
    "mean, best norm, groups": asked(BEST, {"name": "mean", "by": BY}),
    "mean, norm, missing counted": asked({**NORM, "missing": "count", **ADD_REMOVE}),
    "mean, norm around a centre": asked({**NORM, "center": [0.0, 10.0, 0.0, -5.0]}),
    "sum, range": asked({**RANGE, **ADD_REMOVE}, "sum"),
    "sum, ranges, replace-one": asked(RANGES, "sum"),
    "mean, ranges, groups": asked({**RANGES, **ADD_REMOVE}, {"name": "mean", "by": BY}),
    "mean, range, missing counted": asked({**RANGE, "missing": "count"}),
    "mean, ranges, ids": asked({**RANGES, **IDS, **ADD_REMOVE}),
    "mean, norm, ids": asked({**NORM, **IDS}),
    "identity, norm": asked(NORM, "identity"),
    "identity, range, ids": asked({**RANGE, **IDS}, "identity"),
    "identity, ranges, float32": asked(RANGES, "identity", noise={"output_dtype": "float32"}),
    "identity, norm, integers": asked(NORM, "identity", noise={"output_dtype": "int64"}),
    "mean, range, clamped": asked(RANGE, publish={"layers": ["clamped"]}),
    "second moment": asked(NORM, "second-moment"),
    "covariance": asked({**NORM, **ADD_REMOVE}, {"name": "covariance", "center": "private"}),
    "twelve contributions": asked({**NORM, "max_contributions": 12}, "sum"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_bound_is_chosen_released_and_verified(space: Workspace, name: str) -> None:
    values = store(space)
    case = {**CASES[name], "privacy": LOUD}
    plan = make_plan(parse_release_spec(space.spec(**case)))
    card = space.release(**case).card
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)
    bounds = card.bounds
    assert bounds is not None
    assert card.guarantee.certified
    assert bounds.share == pytest.approx(0.05, rel=0.01)
    assert card.guarantee.verified.epsilon_at_delta <= 20.0
    centered = values - np.asarray(CASES[name]["privacy_unit"].get("center", 0.0))
    if "norm" in bounds.chosen:
        kept = np.mean(np.linalg.norm(centered, axis=1) <= bounds.chosen["norm"])
        assert 0.85 < kept <= 1
        assert bounds.chosen["norm"] < 60
        assert card.privacy_unit.bound["norm"] == bounds.chosen["norm"]
    else:
        assert card.privacy_unit.bound["ranges"] == bounds.chosen["ranges"]
        for low, high in bounds.chosen["ranges"]:
            assert -25 <= low < high <= 25
    assert not bounds.at_end
    released = zarr.open_group(space.folder / "out.zarr", mode="r")["dp_release"]
    assert released[bounds.counts].shape == tuple(bounds.query["answer_shape"])
    assert (
        plan.guarantee.verified.to_dict()["configuration"] == card.guarantee.verified.configuration
    )


def test_the_chosen_bound_is_what_limits_the_result(space: Workspace) -> None:
    store(space)
    card = space.release(
        **asked(RANGES, "identity", privacy={"epsilon": 100.0, "delta": 1e-5})
    ).card
    assert card.bounds is not None
    ranges = np.asarray(card.bounds.chosen["ranges"])
    values, expected = space.values(), np.clip(records(), ranges[:, 0], ranges[:, 1])
    assert np.abs(values - expected).max() < 20 * (card.released.noise_std or 0.0)
    assert np.abs(expected - records()).max() > 1


@pytest.mark.parametrize("name", CASES)
def test_whatever_bound_is_chosen_the_release_can_be_finished(space: Workspace, name: str) -> None:
    """Charged as planned, stored as planned, for every norm and for all kinds of ranges."""
    store(space, records(200))
    plan = make_plan(parse_release_spec(space.spec(**CASES[name])))
    planned, histogram = plan.data, plan.estimated[0].component.query
    edges: Anything = histogram.edges  # type: ignore[attr-defined]
    if edges.ndim == 1:
        choices: list[Any] = [{"norm": edge} for edge in edges.tolist()]
    else:
        rng = np.random.default_rng(2)
        choices = []
        for _ in range(40):
            lows = rng.integers(0, 100, len(edges))
            highs = [rng.integers(low + 1, 101) for low in lows]
            pairs = [[e[i], e[j]] for e, i, j in zip(edges.tolist(), lows, highs, strict=True)]
            choices.append({"ranges": pairs})
        for low, high in ((0, 1), (99, 100), (49, 51), (0, 100)):  # 49 to 51: the middle is 0
            choices.append({"ranges": [[e[low], e[high]] for e in edges.tolist()]})
    digests = set()
    for chosen in choices:
        settled = settled_plan(plan, chosen)
        component = settled.data
        assert verified_mu(component) <= verified_mu(planned)
        assert component.tiling == planned.tiling
        layout = settled.layout
        assert layouts_beside(layout, component.arrays_beside(layout)) == settled.only.beside
        assert type(component.query) is type(planned.query)
        assert [part.name for part in component.parts] == [part.name for part in planned.parts]
        assert component.noise.entry_std <= planned.noise.entry_std * (1 + 1e-6)
        digests.add(recipe_digest("ab" * 32, component))
    assert len(digests) == len({json.dumps(choice) for choice in choices})


@pytest.mark.parametrize(
    ("values", "expected"),
    [(1e9, 1e4), (1e-9, 0.1), (np.inf, 1e4), (np.nan, 0.1), (0.0, 0.1)],
)
def test_data_outside_what_can_be_chosen_give_an_end_and_never_an_error(
    space: Workspace, values: float, expected: float
) -> None:
    store(space, np.full((4000, 4), values))
    card = space.release(**asked(NORM, privacy=LOUD)).card
    assert card.bounds is not None
    assert card.bounds.chosen == {"norm": expected}
    assert card.bounds.at_end
    [row] = [row.value for row in card_rows(card) if row.label == "bound"]
    assert "so the data may lie beyond it" in row


@pytest.mark.parametrize(
    ("values", "expected"),
    [(1e9, [98.0, 100.0]), (-np.inf, [-100.0, -98.0]), (7.0, [6.0, 8.0]), (100.0, [98.0, 100.0])],
)
def test_a_range_is_never_empty(space: Workspace, values: float, expected: list[float]) -> None:
    store(space, np.full((4000, 4), values))
    card = space.release(**asked(RANGE, privacy=LOUD)).card
    assert card.bounds is not None
    assert card.bounds.chosen == {"ranges": [expected]}


@pytest.mark.parametrize("unit", [NORM, BEST, RANGE, RANGES], ids=["norm", "best", "range", "each"])
@pytest.mark.parametrize("count", [0, 1])
def test_no_records_are_as_good_as_one(space: Workspace, unit: dict[str, Any], count: int) -> None:
    store(space, np.ones((count, 4)), chunks=(1, 4))
    space.release(**asked({**unit, **ADD_REMOVE}))
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)


def test_values_that_are_all_missing_choose_a_range_too(space: Workspace) -> None:
    store(space, np.full((300, 4), np.nan))
    card = space.release(**asked({**RANGES, "missing": "count"})).card
    assert card.bounds is not None
    assert all(low < high for low, high in card.bounds.chosen["ranges"])


def test_a_packed_source_is_bounded_in_decoded_units(space: Workspace) -> None:
    codes = np.random.default_rng(0).integers(2000, 3000, (4000, 4)).astype(np.int16)
    codes[::7] = -1
    attributes = {"scale_factor": 0.01, "add_offset": 270.0, "_FillValue": -1}
    store(space, codes, attributes=attributes)
    card = space.release(
        **asked(
            {"ranges": {"quantiles": [0.01, 0.99], "between": [200, 400], "share": 0.2}},
            privacy=LOUD,
        )
    ).card
    assert card.bounds is not None
    [(low, high)] = card.bounds.chosen["ranges"]
    assert 286 <= low <= 292
    assert 298 <= high <= 304


def test_windows_choose_by_what_they_read(space: Workspace) -> None:
    values = np.concatenate([np.full((2000, 3), 5.0), np.full((2000, 3), 50.0)])
    store(space, values)
    unit = {"record_dim": 0, "per": 0, **RANGE}
    for start, expected in ((0, [4.0, 6.0]), (2000, [50.0, 52.0])):
        card = space.release(
            query="mean",
            privacy_unit=unit,
            privacy=LOUD,
            source={
                "url": str(space.folder / "source.zarr"),
                "array": "x",
                "window": {"axis": 0, "start": start, "stop": start + 2000},
            },
            output={"url": str(space.folder / f"out{start}.zarr")},
        ).card
        assert card.bounds is not None
        assert card.bounds.chosen == {"ranges": [expected]}
        verify_release(str(space.folder / f"out{start}.zarr"), ledger=space.ledger)
    assert space.spent() == pytest.approx(
        verify_release(str(space.folder / "out0.zarr")).composition.cumulative_epsilon
    )


def test_every_variable_may_choose_its_own_bound(space: Workspace) -> None:
    for name, scale in {"a": 1.0, "b": 30.0, "c": 1.0}.items():
        zarr.create_array(
            space.folder / "source.zarr",
            name=name,
            data=np.random.default_rng(0).standard_normal((4000, 4)) * scale,
            dimension_names=("time", "place"),
            chunks=(500, 2),
        )
    arrays = {"a": NORM, "b": {"ranges": {"quantiles": [0.05, 0.95], "between": [-500, 500]}},
              "c": {"l2_clip_norm": 3.0}}  # fmt: skip
    changes: dict[str, Any] = {
        "source": {"url": str(space.folder / "source.zarr"), "arrays": arrays},
        "privacy_unit": {"record_dim": "time", "missing": "center"},
        "query": "mean",
        "mechanism": "auto",
        "privacy": LOUD,
    }
    card = space.release(**changes).card
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)
    first, second, third = card.each_variable()
    assert first.bounds is not None
    assert 2 < first.bounds.chosen["norm"] < 6
    assert second.bounds is not None
    assert second.bounds.counts == "b_bounds"
    assert -80 < second.bounds.chosen["ranges"][0][0] < -30
    assert third.bounds is None
    assert sum(own.share or 0 for own in (first, second, third)) == pytest.approx(1)
    assert {"a bound", "b bound"} <= {row.label for row in card_rows(card)}

    def other_share(facts: Any) -> None:
        facts["further_variables"][0]["bounds"]["share"] *= 1.1

    rewrite_card(space.folder / "out.zarr", other_share)
    with pytest.raises(VerificationFailed, match="share of the bound"):
        verify_release(str(space.folder / "out.zarr"))


def _norm(card: Any) -> None:
    card["bounds"]["chosen"]["norm"] *= 2


def _norm_and_bound(card: Any) -> None:
    _norm(card)
    card["privacy_unit"]["bound"]["norm"] *= 2


def _share(card: Any) -> None:
    card["bounds"]["share"] = 0.04


def _noise(card: Any) -> None:
    bounds = card["bounds"]
    for holder, key in ((bounds["noise"]["configuration"], "sigma"), (bounds, "noise_std")):
        holder[key] *= 0.9
    bounds["grid"]["step"] *= 0.9


def _noise_std(card: Any) -> None:
    card["bounds"]["noise_std"] *= 0.5


def _sensitivity(card: Any) -> None:
    card["bounds"]["sensitivity"]["configuration"]["l2"] *= 0.5


def _rule(card: Any) -> None:
    card["bounds"]["rule"]["quantile"] = 0.2


def _between(card: Any) -> None:
    card["bounds"]["between"] = [[0.1, 2e4]]


def _end(card: Any) -> None:
    card["bounds"]["at_end"] = True


def _histogram(card: Any) -> None:
    card["bounds"]["query"]["name"] = "value-histogram"


def _none(card: Any) -> None:
    del card["bounds"]


@pytest.mark.parametrize(
    "change",
    [_norm, _norm_and_bound, _share, _noise, _noise_std, _sensitivity, _rule, _between, _end,
     _histogram],
)  # fmt: skip
def test_what_is_changed_on_the_card_does_not_verify(space: Workspace, change: Any) -> None:
    store(space)
    space.release(**asked(NORM))
    rewrite_card(space.folder / "out.zarr", change)
    with pytest.raises(VerificationFailed):
        verify_release(str(space.folder / "out.zarr"))
    done = CliRunner().invoke(main, ["verify", str(space.folder / "out.zarr")])
    assert done.exit_code == 4


def test_a_card_that_leaves_out_how_its_bound_was_chosen_is_not_the_ledgers(
    space: Workspace,
) -> None:
    """By itself it is the card of a release with that bound, of less than was charged."""
    store(space)
    space.release(**asked(NORM))
    rewrite_card(space.folder / "out.zarr", _none)
    with pytest.raises(VerificationFailed):
        verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)


def test_other_counts_do_not_verify(space: Workspace) -> None:
    store(space)
    space.release(**asked(NORM))
    group = space.folder / "out.zarr"
    edit_chunk(group / "dp_release" / "bounds" / "c" / "0", offset=6)
    with pytest.raises(VerificationFailed, match="was changed after publication"):
        verify_release(str(group))
    reseal(group)
    with pytest.raises(VerificationFailed, match="does not follow from the noisy counts"):
        verify_release(str(group))


def test_counts_of_a_histogram_that_counts_too_few_entries_do_not_verify(space: Workspace) -> None:
    store(space)
    space.release(**asked(RANGE))

    def fewer(card: Any) -> None:
        card["bounds"]["query"]["record_entries"] = 1

    rewrite_card(space.folder / "out.zarr", fewer)
    with pytest.raises(VerificationFailed, match="other entries than its records"):
        verify_release(str(space.folder / "out.zarr"))


@pytest.mark.parametrize("name", ["mean, norm", "mean, ranges, ids", "identity, ranges, float32"])
def test_a_killed_release_takes_the_same_bound(space: Workspace, name: str) -> None:
    store(space)
    case = {**CASES[name], "compute": {"threads": 1, "task_size": 20000}}
    spec = space.write_spec(**case)
    killed_at("key", 0, spec)
    begun, charged = state(space.folder), space.spent()
    resume(spec)
    whole = released(space)
    restore(space.folder, begun)
    for stage in ("bounds", "tiles", "verify"):  # before the ledger notes the bound, and after it
        killed_at(stage, 0, spec, "resume")
        assert not (space.folder / "out.zarr").exists()
    resume(spec)
    assert released(space) == whole
    assert space.spent() == charged
    assert space.left_behind() == ["out.zarr"]
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)


def released(space: Workspace) -> dict[str, Any]:
    """All that was published but what depends on when the ledger noted the bound: its head."""
    files: dict[str, Any] = contents(space.folder / "out.zarr")
    card = read_card(str(space.folder / "out.zarr"))
    left = card.model_dump(exclude={"ledger", "manifest"})
    return {
        "card": left,
        **{name: own for name, own in files.items() if name not in ("zarr.json", MANIFEST)},
    }


def test_the_ledger_notes_the_bound_before_the_data_are_drawn(space: Workspace) -> None:
    store(space)
    noted: list[Any] = []

    def watch(progress: Any) -> None:
        releases = space.ledger.state("people").releases
        if progress.stage in ("bounds", "sums", "tiles") and releases:
            [fingerprint] = releases
            text = space.ledger.get_once(fingerprint, "bounds")
            noted.append((progress.stage, None if text is None else json.loads(text)))

    card = space.release(on_progress=watch, **asked(NORM)).card
    assert card.bounds is not None
    assert noted[0] == ("bounds", None)
    assert noted[1:]
    assert all(chosen == card.bounds.chosen for _, chosen in noted[1:])


@pytest.mark.parametrize("name", ["mean, ranges, ids", "mean, best norm, groups", "identity, norm"])
def test_chunks_workers_and_tasks_change_nothing(space: Workspace, name: str) -> None:
    noisy = []
    computes = [
        {"cluster": "inline"},
        {"cluster": "inline", "task_size": 5000},
        {"cluster": "local", "workers": 2, "threads": 1, "task_size": 20000},
    ]
    arrays = []
    for compute, chunks in zip(computes, [(4000, 4), (97, 3), (700, 1)], strict=True):
        store(space, chunks=chunks)
        case = {**CASES[name], "compute": compute, "publish": {"chunks": None}}
        plan = make_plan(parse_release_spec(space.spec(**case)))
        noisy.append(noisy_estimates(plan)[0])
        arrays.append(settled_plan(plan).data.noise)
    np.testing.assert_array_equal(noisy[0], noisy[1])
    np.testing.assert_array_equal(noisy[0], noisy[2])
    assert arrays[0] == arrays[1] == arrays[2]


def test_a_source_that_changes_after_the_charge_burns_the_release(space: Workspace) -> None:
    store(space)

    def change(progress: Any) -> None:
        if progress.stage == "bounds":
            zarr.open_array(space.folder / "source.zarr" / "x")[:5] = 1e9

    with pytest.raises(SourceChanged, match="the source changed during the release"):
        space.release(on_progress=change, **asked(NORM))
    assert space.spent() > 0
    assert not (space.folder / "out.zarr").exists()


def test_a_damaged_source_is_refused_before_the_charge(space: Workspace) -> None:
    store(space)
    chunk = space.folder / "source.zarr" / "x" / "c" / "2" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-9])
    for unit in (NORM, {**RANGES, **IDS}):
        with pytest.raises(DpdaskError):
            space.release(**asked(unit))
    assert space.spent() == 0


def test_damaged_labels_are_refused_before_the_charge(space: Workspace) -> None:
    store(space)
    chunk = space.folder / "source.zarr" / "group" / "c" / "3"
    chunk.write_bytes(chunk.read_bytes()[:-9])
    with pytest.raises(DpdaskError):
        space.release(**asked(NORM, {"name": "mean", "by": BY}))
    assert space.spent() == 0


QUANTILE = NORM["l2_clip_norm"]
BAD: list[tuple[dict[str, Any], Any, dict[str, Any], str]] = [
    ({"l2_clip_norm": {**QUANTILE, "between": [3, 3]}}, "mean", {}, "between: .* is empty"),
    ({"l2_clip_norm": {**QUANTILE, "between": [0, 3]}}, "mean", {}, "give a number > 0"),
    ({"l2_clip_norm": {**QUANTILE, "between": [1, 1e15]}}, "mean", {}, "wider than a factor"),
    ({"l2_clip_norm": {**QUANTILE, "between": [1, ".inf"]}}, "mean", {}, "between"),
    ({"l2_clip_norm": {**QUANTILE, "quantile": 1.0}}, "mean", {}, "quantile: .* less than 1"),
    ({"l2_clip_norm": {**QUANTILE, "share": 0}}, "mean", {}, "share: .* greater than 0"),
    ({"l2_clip_norm": {**QUANTILE, "best": True}}, "mean", {}, "exactly one of them"),
    ({"ranges": {"quantiles": [0.9, 0.1], "between": [0, 1]}}, "mean", {}, "not increasing"),
    ({"ranges": {"quantiles": [0.0, 0.9], "between": [0, 1]}}, "mean", {}, "not increasing"),
    ({"ranges": {"quantiles": [0.1, 0.9], "between": [1, 0]}}, "mean", {}, "is empty"),
    ({"ranges": {"quantiles": [0.1, 0.9], "between": [1e9, 1e9 + 1]}}, "mean", {}, "too narrow"),
    ({"ranges": {"quantiles": [0.1, 0.9], "between": [[0, 1]] * 3}}, "mean", {}, "3 ranges do not"),
    ({**RANGE, "center": 3.0}, "mean", {}, "have their middle as the centre"),
    ({**RANGE, **NORM}, "mean", {}, "exactly one of l2_clip_norm and ranges"),
    (BEST, "identity", {}, "is not a sum of records; give quantile"),
    (BEST, "covariance", {}, "is not a sum of records; give quantile"),
    (RANGE, "covariance", {}, "of query covariance is not chosen privately; give l2_clip_norm"),
    (NORM, {"name": "histogram", "edges": [[0, 1]] * 4}, {}, "needs no clip norm"),
    (NORM, {"name": "precomputed", "l2_sensitivity": 1.0}, {}, "no records any more"),
    (NORM, "mean", {"mechanism": "laplace"}, "use mechanism: auto or analytic-gaussian"),
    (RANGES, "mean", {"mechanism": "directional"}, "use mechanism: auto or analytic-gaussian"),
    (
        NORM,
        "identity",
        {"mechanism": {"name": "udn", "axis": 1, "weights": [1, 1, 1, 1],
                       "directions": {"from": "dp-covariance"}}},
        "use mechanism: auto or analytic-gaussian",
    ),
    ({**NORM, **IDS, "clip": "person"}, "sum", {}, "drop clip, or state the norm"),
    ({**RANGE, "record_dim": None}, "identity", {}, "record_dim"),
    (NORM, "mean", {"privacy": {"epsilon": 1e-9, "delta": 1e-300}}, "share"),
    ({**RANGE, **ADD_REMOVE}, "identity", {}, "add-remove-one changes how many records"),
]  # fmt: skip


@pytest.mark.parametrize(("unit", "query", "changes", "text"), BAD)
def test_what_cannot_be_chosen_is_refused_before_anything_is_charged(
    space: Workspace, unit: dict[str, Any], query: Any, changes: dict[str, Any], text: str
) -> None:
    store(space, records(100))
    with pytest.raises(DpdaskError, match=text):
        space.release(**asked(unit, query, **changes))
    assert space.spent() == 0
    assert space.left_behind() == []


def test_a_dataset_of_pure_epsilon_takes_no_chosen_bound(space: Workspace) -> None:
    store(space)
    space.ledger.open_dataset("pure", PureBudget(epsilon=10.0), policy="pure")
    budget = {"ledger": space.ledger_url, "dataset": "pure"}
    for unit in (RANGE, NORM):
        with pytest.raises(DpdaskError, match=r"auto or analytic-gaussian|policy pure"):
            space.release(**asked(unit), budget=budget)
    assert space.ledger.state("pure").spent_epsilon == 0


def test_the_plan_says_how_the_bound_is_chosen_and_reads_no_value(space: Workspace) -> None:
    store(space)
    plan = make_plan(parse_release_spec(space.spec(**asked(NORM))))
    rows = {row.label: row.value for row in plan_rows(plan.to_dict())}
    assert "chosen privately between 0.1 and 10000" in rows["bound"]
    assert "quantile 0.95 of the norms" in rows["bound"]
    assert "5 % of mu^2" in rows["bound"]
    best = make_plan(parse_release_spec(space.spec(**asked({**BEST, **ADD_REMOVE}))))
    [text] = [row.value for row in public_plan_rows(best.to_dict()) if row.label == "bound"]
    assert "records are longer" in text
    noise = best.data.noise
    assert isinstance(noise, IidNoise)
    above = best.to_dict()["bound_chosen"]["above"]
    assert above == pytest.approx(2 * noise.sigma / 1e4, rel=1e-9)  # sqrt(4 entries)


def test_the_number_of_records_is_on_no_plan_of_a_private_count(space: Workspace) -> None:
    texts = []
    for count in (1000, 1001):
        store(space, records(count), chunks=(100, 4))
        plan = make_plan(parse_release_spec(space.spec(**asked({**RANGES, **ADD_REMOVE}))))
        texts.append(public_plan_rows(plan.to_dict()))
        assert plan.estimated[0].component.grid_to_dict()["high"] > 2**30
    assert texts[0] == texts[1]


def test_the_registry_and_the_card_name_the_histogram(space: Workspace) -> None:
    store(space)
    space.release(**asked(BEST))
    card = read_card(str(space.folder / "out.zarr"))
    assert "for bounds, then for the data; mu^2 adds" in card.guarantee.claimed.theorem
    assert "for bounds" in json.dumps(registry_entry(card))
    assert card.mechanism == {"name": "analytic-gaussian"}
