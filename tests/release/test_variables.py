"""Several variables of a group in one release: one card, one charge, one Dataset."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

from dpdask import PrivacyBudget
from dpdask.accounting import GaussianProfile
from dpdask.errors import (
    BudgetExceeded,
    DpdaskError,
    InvalidMechanism,
    InvalidSensitivity,
    InvalidSpec,
    LedgerError,
    ReleaseError,
    SourceChanged,
    StoreError,
    VerificationFailed,
)
from dpdask.releases.api import plan, release, resume
from dpdask.releases.batch import ArraysOfGroup
from dpdask.releases.card import ReleaseCard, array_attributes
from dpdask.releases.read import open_release, open_release_dataset, read_card
from dpdask.releases.series import Series, next_release
from dpdask.releases.uncertainty import interval
from dpdask.releases.verify import verify_release
from dpdask.spec import parse_release_spec
from dpdask.views.card_rows import card_rows
from dpdask.views.plan_rows import plan_rows
from tests.support.forging import edit_json, reseal, rewrite_card
from tests.support.workspace import Workspace

RECORDS = 3000
ARRAYS: dict[str, dict[str, Any]] = {
    "t2m": {"ranges": [250, 320], "missing": "center"},
    "pr": {"ranges": [0, 200], "missing": "center"},
    "ws": {"ranges": [-5, 25], "missing": "count"},
}


def weather(count: int = RECORDS) -> xr.Dataset:
    rng = np.random.default_rng(7)
    ws = rng.normal(8, 3, (count, 4, 3))
    ws[rng.random(ws.shape) < 0.2] = np.nan
    return xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), rng.normal(285, 8, (count, 4, 3)), {"units": "K"}),
            "pr": (("lat", "time"), rng.gamma(2, 15, (4, count)).astype("f4"), {"units": "mm"}),
            "ws": (("time", "lat", "lon"), ws, {"standard_name": "wind_speed"}),
        },
        coords={"lat": np.linspace(40, 50, 4), "lon": np.arange(3.0), "time": np.arange(count)},
    )


def write(space: Workspace, data: xr.Dataset, file: str = "source.zarr") -> xr.Dataset:
    packed = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 273.15, "_FillValue": -32768}
    data.to_zarr(space.folder / file, mode="w", encoding={"t2m": packed})
    return xr.open_zarr(space.folder / file)


def spec_of(space: Workspace, **changes: Any) -> dict[str, Any]:
    """A spec of three variables; what ``changes`` set to None is left out."""
    base = {
        "source": {"url": str(space.folder / "source.zarr"), "arrays": ARRAYS},
        "output": {"url": str(space.folder / "out.zarr")},
        "privacy_unit": {"record_dim": "time"},
        "query": "mean",
        "privacy": {"epsilon": 1.0, "delta": 1e-6},
        "budget": {"ledger": space.ledger_url, "dataset": "people"},
        "compute": space.compute,
        "publish": {"coordinates": ["lat", "lon"], "attributes": ["units"]},
    }
    return {name: value for name, value in {**base, **changes}.items() if value is not None}


def joint_mu(card: ReleaseCard) -> float:
    return float(card.guarantee.verified.configuration["mu"])


def test_three_variables_are_those_of_xarray_within_their_noise(space: Workspace) -> None:
    source = write(space, weather())
    receipt = release(spec_of(space))
    assert receipt.array == "t2m, pr, ws"
    url = str(space.folder / "out.zarr")
    released = open_release_dataset(url)
    means = source.mean("time").load()
    cards = {own.released.array: own for own in receipt.card.each_variable()}
    for name in ("t2m", "pr"):
        std = cards[name].released.noise_std
        assert std is not None
        assert float(abs(released[name] - means[name]).max()) < 8.5 * std
        width = np.diff(ARRAYS[name]["ranges"])[0]
        assert std / width == pytest.approx((cards["t2m"].released.noise_std or 0) / 70)
    z = (released.ws - means.ws) / released.ws_noise_std
    assert float(abs(z).max()) < 8.5
    present = source.ws.notnull().sum("time")
    assert float(abs(released.ws_count - present).max()) < 0.1 * RECORDS
    assert released.t2m.attrs["units"] == "K"
    assert released.pr.attrs["units"] == "mm"
    assert "units" not in released.ws.attrs
    np.testing.assert_array_equal(released.lat, source.lat)
    assert released.t2m.dims == ("lat", "lon")
    assert released.pr.dims == ("lat",)
    assert verify_release(url, ledger=space.ledger) == receipt.card
    released.to_netcdf(space.folder / "all.nc")
    assert set(xr.open_dataset(space.folder / "all.nc").data_vars) == set(released.data_vars)


def test_the_charge_is_the_root_of_squared_mus_not_the_sum_of_epsilons(space: Workspace) -> None:
    write(space, weather(200))
    space.ledger.open_dataset("tight", PrivacyBudget(epsilon=1.0001, delta=1e-6))
    budget = {"ledger": space.ledger_url, "dataset": "tight"}
    receipt = release(spec_of(space, budget=budget))
    whole = GaussianProfile.meeting(PrivacyBudget(epsilon=1.0, delta=1e-6)).mu
    card = receipt.card
    mus = [math.sqrt(own.share or 0) * joint_mu(card) for own in card.each_variable()]
    assert joint_mu(card) == pytest.approx(math.sqrt(sum(mu**2 for mu in mus)))
    assert whole * (1 - 1e-6) < joint_mu(card) <= whole
    spent = space.ledger.state("tight").spent_epsilon
    assert spent == pytest.approx(1.0, rel=1e-3)
    assert card.guarantee.certified
    alone = [GaussianProfile(mu).epsilon(1e-6) for mu in mus]
    assert sum(alone) > 1.5  # what a charge by epsilons would be
    with pytest.raises(BudgetExceeded):
        release(spec_of(space, budget=budget, output={"url": str(space.folder / "2.zarr")}))


def test_shares_move_noise_from_one_variable_to_another(space: Workspace) -> None:
    write(space, weather(200))
    shares = {"t2m": 0.9, "pr": 0.05, "ws": 0.05}
    arrays = {name: {**own, "share": shares[name]} for name, own in ARRAYS.items()}
    source = {"url": str(space.folder / "source.zarr"), "arrays": arrays}
    card = release(spec_of(space, source=source)).card
    for own in card.each_variable():
        assert own.share == pytest.approx(shares[own.released.array], rel=1e-3)
    assert card.guarantee.certified
    assert joint_mu(card) <= GaussianProfile.meeting(PrivacyBudget(epsilon=1.0, delta=1e-6)).mu


@pytest.mark.parametrize(
    ("query", "unit"),
    [
        ("identity", {"record_dim": "time"}),
        ("sum", {"record_dim": "time", "adjacency": "add-remove-one"}),
        ({"name": "mean", "by": {"array": "season", "groups": [0, 1]}}, {"record_dim": "time"}),
        ("mean", {"record_dim": "time", "max_contributions": 3}),
    ],
)
def test_queries_of_several_variables_verify(
    space: Workspace, query: Any, unit: dict[str, Any]
) -> None:
    data = weather(60).assign(season=("time", np.arange(60) % 3))
    write(space, data)
    arrays = {name: {"ranges": own["ranges"], "missing": "center"} for name, own in ARRAYS.items()}
    spec = spec_of(
        space,
        source={"url": str(space.folder / "source.zarr"), "arrays": arrays},
        query=query,
        privacy_unit=unit,
    )
    card = release(spec).card
    assert verify_release(str(space.folder / "out.zarr"), ledger=space.ledger) == card
    released = open_release_dataset(str(space.folder / "out.zarr"))
    assert {"t2m", "pr", "ws"} <= set(released.data_vars)
    if isinstance(query, dict):
        assert released.t2m.dims == ("season", "lat", "lon")
        assert released.pr.dims == ("season", "lat")
        assert {"t2m_count", "pr_count"} <= set(released.data_vars)
    if query == "identity":
        assert released.pr.dims == ("lat", "time")


def test_a_bound_of_the_privacy_unit_holds_where_a_variable_has_none(space: Workspace) -> None:
    write(space, weather(60))
    spec = spec_of(
        space,
        source={
            "url": str(space.folder / "source.zarr"),
            "arrays": {"t2m": None, "ws": {"l2_clip_norm": 40.0}},
        },
        privacy_unit={
            "record_dim": "time",
            "ranges": [250, 320],
            "center": 280,
            "missing": "center",
        },
    )
    first, second = release(spec).card.each_variable()
    assert first.privacy_unit.bound["kind"] == "ranges"
    assert first.privacy_unit.bound["center"] == 280
    assert second.privacy_unit.bound == {"kind": "l2-clip", "norm": 40.0, "enforced": True}


def test_noise_of_many_numbers_is_published_by_variable(space: Workspace) -> None:
    """More than 100 numbers of the noise are arrays with the card: one of each variable."""
    rng = np.random.default_rng(2)
    data = xr.Dataset(
        {name: (("person", "x"), rng.random((50, 120)) * 10) for name in ("one", "two")}
    )
    data.to_zarr(space.folder / "source.zarr")
    ranges = [[0, 10 if feature % 2 else 1000 + feature] for feature in range(120)]
    spec = spec_of(
        space,
        source={
            "url": str(space.folder / "source.zarr"),
            "arrays": {"one": {"ranges": ranges}, "two": {"ranges": ranges[::-1]}},
        },
        privacy_unit={"record_dim": "person", "missing": "center"},
        compute={"cluster": "local", "threads": 2},
        publish=None,
    )
    card = release(spec).card
    arrays = [str(own.noise) for own in card.each_variable()]
    assert "one_noise_" in arrays[0]
    assert "two_noise_" in arrays[1]
    assert [own.mechanism["name"] for own in card.each_variable()] == ["directional"] * 2
    assert verify_release(str(space.folder / "out.zarr"), ledger=space.ledger) == card


def test_the_order_of_variables_is_part_of_the_spec(space: Workspace) -> None:
    write(space, weather(60))

    def stop(progress: Any) -> None:
        if progress.stage == "key":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        release(spec_of(space), on_progress=stop)
    source = {
        "url": str(space.folder / "source.zarr"),
        "arrays": dict(reversed(ARRAYS.items())),
    }
    with pytest.raises(ReleaseError, match="began with another spec"):
        resume(spec_of(space, source=source))
    resume(spec_of(space))


def test_a_batch_over_a_group_takes_no_template_of_several(space: Workspace) -> None:
    template = parse_release_spec(spec_of(space))
    with pytest.raises(InvalidSpec, match=r"the template names source\.arrays"):
        ArraysOfGroup(template=template, output="{array}.zarr").specs()


def test_one_array_by_name_is_a_release_of_one(space: Workspace) -> None:
    write(space, weather(60))
    one = {"url": str(space.folder / "source.zarr"), "arrays": {"pr": ARRAYS["pr"]}}
    receipt = release(spec_of(space, source=one, publish=None))
    assert receipt.array == receipt.card.released.array == "pr"
    assert receipt.card.share is None
    assert receipt.card.further_variables == []
    assert open_release(str(space.folder / "out.zarr")).name == "pr"


def test_readers_open_one_variable_by_name(space: Workspace) -> None:
    write(space, weather(60))
    release(spec_of(space))
    url = str(space.folder / "out.zarr")
    assert open_release(url, array="ws").shape == (4, 3)
    with pytest.raises(StoreError, match=r"3 variables \(t2m, pr, ws\).*open_release_dataset"):
        open_release(url)
    bounds = interval(url, array="pr")
    assert bounds.lower.dims == ("lat",)
    assert bool((bounds.lower < open_release(url, array="pr")).all())
    with pytest.raises(StoreError, match="name one by array"):
        interval(url)
    with pytest.raises(StoreError, match="'rain' is not in the release; choose from t2m, pr, ws"):
        open_release(url, array="rain")


def test_plan_and_card_show_every_variable(space: Workspace) -> None:
    write(space, weather(60))
    planned = plan(spec_of(space))
    rows = plan_rows(planned.to_dict())
    labels = [row.label for row in rows]
    assert {"t2m noise", "pr noise", "ws noise", "ws counts", "certified"} <= set(labels)
    card = release(spec_of(space)).card
    shown = {row.label: row.value for row in card_rows(card)}
    assert "14.3 % of mu^2" in shown["pr"]
    assert "ws_noise_std" in shown["ws"]
    for own, variable in zip(card.each_variable(), planned.variables, strict=True):
        if own.released.noise_std is not None:
            assert own.released.noise_std == pytest.approx(variable.accuracy.std)


# What a card of several variables cannot be changed to


def drop_last(card: Any) -> None:
    card["further_variables"].pop()


def drop_all_but_the_first(card: Any) -> None:
    del card["further_variables"], card["share"]


def swap(card: Any) -> None:
    one, two = card["further_variables"]
    one["released"], two["released"] = two["released"], one["released"]


def shrink_sensitivity(card: Any) -> None:
    pr = card["further_variables"][0]
    pr["sensitivity"]["set"]["configuration"]["widths"] = [2.0]
    pr["sensitivity"]["l2"] = 2.0 * math.sqrt(4) * (1 + 1e-15)


def shrink_bound(card: Any) -> None:
    shrink_sensitivity(card)
    card["further_variables"][0]["bound"].update(ranges=[[0, 2]], center=1.0)


def shrink_noise(card: Any) -> None:
    card["further_variables"][0]["noise"]["configuration"]["sigma"] /= 2


def move_shares(card: Any) -> None:
    card["share"] += 0.1
    card["further_variables"][0]["share"] -= 0.1


def repeat(card: Any) -> None:
    card["further_variables"].append(dict(card["further_variables"][1]))


@pytest.mark.parametrize(
    "change",
    [
        drop_last,
        drop_all_but_the_first,
        swap,
        shrink_sensitivity,
        shrink_bound,
        shrink_noise,
        move_shares,
        repeat,
    ],
)
def test_a_changed_card_of_several_variables_does_not_verify(
    space: Workspace, change: Callable[[Any], None]
) -> None:
    write(space, weather(60))
    release(spec_of(space))
    group = space.folder / "out.zarr"
    verify_release(str(group))
    rewrite_card(group, change)
    card = read_card(str(group))
    for own in card.each_variable():
        edit_json(
            group / own.released.array / "zarr.json",
            lambda document, own=own: document.update(attributes=array_attributes(own)),
        )
    reseal(group)
    with pytest.raises(VerificationFailed):
        verify_release(str(group))


# The ledger knows every array


def test_every_array_is_charged_to_one_dataset(space: Workspace) -> None:
    write(space, weather(60))
    release(spec_of(space))
    space.ledger.open_dataset("others", PrivacyBudget(epsilon=10, delta=1e-3))
    for name in ARRAYS:
        alone = spec_of(
            space,
            source={"url": str(space.folder / "source.zarr"), "array": name},
            privacy_unit={"record_dim": "time", **ARRAYS[name]},
            output={"url": str(space.folder / f"{name}.zarr")},
            budget={"ledger": space.ledger_url, "dataset": "others"},
            publish=None,
        )
        with pytest.raises(LedgerError, match="charged to dataset 'people' already"):
            release(alone)
    assert space.ledger.state("others").spent_epsilon == 0
    space.ledger.verify()


def test_units_of_a_further_array_lie_along_one_axis(space: Workspace) -> None:
    write(space, weather(60))
    release(spec_of(space))
    other = spec_of(
        space,
        source={"url": str(space.folder / "source.zarr"), "array": "pr"},
        privacy_unit={"record_dim": "lat", **ARRAYS["pr"]},
        output={"url": str(space.folder / "2.zarr")},
        publish=None,
    )
    with pytest.raises(LedgerError, match="along axis 1 of this"):
        release(other)


# A release that is interrupted


def test_a_release_cut_between_two_variables_resumes_with_the_same_bytes(
    space: Workspace,
) -> None:
    write(space, weather(60))
    space.ledger.open_dataset("weather", PrivacyBudget(epsilon=10, delta=1e-6))
    budget = {"ledger": space.ledger_url, "dataset": "weather"}
    spec = spec_of(space, budget=budget)

    class Cut(Exception):
        pass

    seen: list[int] = []

    def cut(progress: Any) -> None:
        if progress.stage == "tiles":
            seen.append(progress.done)
            if progress.done == 2:  # of five arrays in one chunk each
                raise Cut

    with pytest.raises(Cut):
        release(spec, on_progress=cut)
    assert seen[-1] == 2
    charged = space.ledger.state("weather").spent_epsilon
    assert charged == pytest.approx(1, rel=1e-3)
    staged = _staged_chunks(space.folder)
    assert {name.split("/")[0] for name in staged} == {"t2m", "pr"}
    card = resume(spec).card
    assert space.ledger.state("weather").spent_epsilon == charged
    out = space.folder / "out.zarr"
    for name, content in staged.items():
        assert (out / name).read_bytes() == content
    assert verify_release(str(out), ledger=space.ledger) == card


def _staged_chunks(folder: Path) -> dict[str, bytes]:
    """The chunks of t2m, pr and ws that lie in a staging folder."""
    found = {}
    for path in folder.rglob("c.*"):
        if "source.zarr" not in path.parts and path.parent.name in ("t2m", "pr", "ws"):
            found[f"{path.parent.name}/{path.name}"] = path.read_bytes()
    return found


def test_a_change_of_any_variable_burns_the_release(space: Workspace) -> None:
    data = weather(60)
    write(space, data)
    spec = spec_of(space)

    def stop(progress: Any) -> None:
        if progress.stage == "key":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        release(spec, on_progress=stop)
    changed = data.copy(deep=True)
    changed.ws[3] = 1.0
    write(space, changed)
    with pytest.raises(SourceChanged, match="its charge stays"):
        resume(spec)


# Windows and series


def test_a_series_releases_windows_of_all_variables(space: Workspace) -> None:
    write(space, weather(60))
    identity = {
        name: {"ranges": own["ranges"], "missing": "center"} for name, own in ARRAYS.items()
    }
    arrays = {"t2m": identity["t2m"], "ws": identity["ws"]}
    spec = spec_of(
        space,
        source={"url": str(space.folder / "source.zarr"), "arrays": arrays},
        output={"url": str(space.folder / "out-{start}-{stop}.zarr")},
        publish={"coordinates": ["lat", "lon"]},
    )
    series = Series("daily", axis=0, max_window=40)
    parsed = parse_release_spec(spec)
    for bounds in ((0, 40), (40, 60)):
        window = next_release(space.ledger, parsed, series)
        assert window is not None
        card = release(window).card
        for own in card.each_variable():
            assert own.released.window is not None
            assert (own.released.window.start, own.released.window.stop) == bounds
    assert next_release(space.ledger, parsed, series) is None
    _add(space, "ws", np.ones((70, 4, 3)), ("time", "lat", "lon"))  # t2m has not grown yet
    assert next_release(space.ledger, parsed, series) is None
    _add(space, "t2m", np.full((65, 4, 3), 280.0), ("time", "lat", "lon"))
    window = next_release(space.ledger, parsed, series)
    assert window is not None
    assert window.source.window is not None
    assert (window.source.window.start, window.source.window.stop) == (60, 65)
    release(window)
    everything = spec_of(space, output={"url": str(space.folder / "out-{start}-{stop}.zarr")})
    with pytest.raises(InvalidSpec, match="not the same dimension"):
        next_release(space.ledger, parse_release_spec(everything), Series("other", axis=0))


def test_windows_of_whole_chunks_end_where_chunks_of_all_variables_do(space: Workspace) -> None:
    for name, chunk in (("a", 4), ("b", 6)):
        space.source(np.zeros((40, 2)), name=name, chunks=(chunk, 2), dimension_names=("t", "x"))
    spec = parse_release_spec(
        spec_of(
            space,
            source={
                "url": str(space.folder / "source.zarr"),
                "arrays": {"a": {"ranges": [0, 1]}, "b": {"ranges": [0, 1]}},
            },
            privacy_unit={"record_dim": "x"},
            query="identity",
            output={"url": str(space.folder / "out-{start}-{stop}.zarr")},
            publish=None,
        )
    )
    window = next_release(space.ledger, spec, Series("s", 0, 30, True))
    assert window is not None
    assert window.source.window is not None
    assert window.source.window.stop == 24
    with pytest.raises(InvalidSpec, match="never reaches the end of a chunk of 12"):
        next_release(space.ledger, spec, Series("s", 0, 10, True))


def test_disjoint_windows_of_several_variables_are_charged_by_the_largest(
    space: Workspace,
) -> None:
    data = weather(60)
    data["pr"] = data.pr.transpose("time", "lat")
    write(space, data)
    space.ledger.open_dataset("weather", PrivacyBudget(epsilon=1.1, delta=1e-6))
    arrays = {name: {**ARRAYS[name], "missing": "center"} for name in ARRAYS}
    spec = spec_of(
        space,
        source={"url": str(space.folder / "source.zarr"), "arrays": arrays},
        privacy_unit={"record_dim": "time", "per": "time"},
        budget={"ledger": space.ledger_url, "dataset": "weather"},
        publish=None,
    )
    for start in (0, 20, 40):
        window = {"axis": "time", "start": start, "stop": start + 20}
        output = {"url": str(space.folder / f"{start}.zarr")}
        card = release(
            {**spec, "source": {**spec["source"], "window": window}, "output": output}
        ).card
        assert verify_release(output["url"], ledger=space.ledger) == card
    assert space.ledger.state("weather").spent_epsilon == pytest.approx(1, rel=1e-3)
    twice = {"url": str(space.folder / "again.zarr")}
    window = {"axis": "time", "start": 10, "stop": 30}
    with pytest.raises(BudgetExceeded):
        release({**spec, "source": {**spec["source"], "window": window}, "output": twice})
    space.ledger.verify()


def test_units_are_one_index_of_the_same_dimension_in_all_variables(space: Workspace) -> None:
    write(space, weather(60))
    arrays = {name: {**ARRAYS[name], "missing": "center"} for name in ("t2m", "pr")}
    spec = spec_of(
        space,
        source={
            "url": str(space.folder / "source.zarr"),
            "arrays": arrays,
            "window": {"axis": "time", "start": 0, "stop": 20},
        },
        privacy_unit={"record_dim": "time", "per": 0},  # time in t2m, lat in pr
        publish=None,
    )
    with pytest.raises(InvalidSensitivity, match=r"privacy_unit\.per is not the same dimension"):
        release(spec)
    named = {**spec, "privacy_unit": {"record_dim": "time", "per": "time"}}
    card = release(named).card
    assert [own.privacy_unit.per.axis for own in card.each_variable() if own.privacy_unit.per] == [
        0,
        1,
    ]
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)


# Bad input: one line, before anything is charged


def arrays_of(**changes: Any) -> dict[str, Any]:
    return {"source": {"arrays": {**ARRAYS, **changes}}}


PLAIN = {name: ARRAYS[name] for name in ("t2m", "pr")}
BAD: list[tuple[dict[str, Any], type[DpdaskError], str]] = [
    (arrays_of(rain={"ranges": [0, 1]}), StoreError, "rain.*its arrays are .*pr, "),
    (arrays_of(pr={**ARRAYS["pr"], "share": 0.5}), InvalidSpec, "others have none"),
    (
        {
            "source": {
                "arrays": {
                    "t2m": {**ARRAYS["t2m"], "share": 0.5},
                    "pr": {**ARRAYS["pr"], "share": 0.4},
                }
            }
        },
        InvalidSpec,
        r"add up to 0\.9",
    ),
    (
        arrays_of(short={"ranges": [0, 1], "missing": "center"}),
        InvalidSpec,
        "'t2m' and 'short' have different numbers",
    ),
    (
        arrays_of(height={"ranges": [0, 1]}),
        InvalidSensitivity,
        r"source\.arrays\.height: privacy_unit\.record_dim='time' is not a dimension",
    ),
    (arrays_of(wide={"ranges": [0, 1], "missing": "center"}), InvalidSpec, "'lat' has 4 .* and 9"),
    ({"source": {"arrays": ARRAYS, "array": "t2m"}}, InvalidSpec, "both given"),
    ({"source": {"arrays": {}}}, InvalidSpec, "source.arrays"),
    ({"output": {"array": "data"}}, InvalidSpec, "keep their names"),
    ({"query": "second-moment"}, InvalidSpec, "asked of one array"),
    ({"query": {"name": "histogram", "edges": [[0, 1]]}}, InvalidSpec, "asked of one array"),
    ({"query": {"name": "precomputed", "l2_sensitivity": 1}}, InvalidSpec, "asked of one array"),
    ({"mechanism": "laplace", "source": {"arrays": PLAIN}}, InvalidMechanism, "Gaussian"),
    ({"privacy_unit": {}}, InvalidSensitivity, "record_dim"),
    ({"publish": {"dimension_names": ["a", "b"]}}, InvalidSpec, "keep theirs"),
    ({"publish": {"coordinates": ["pr"]}}, StoreError, "'pr' is the name of the released array"),
    ({"publish": {"attributes": ["colour"]}}, StoreError, "none of source.arrays"),
    (arrays_of(t2m={"missing": "center"}), InvalidSensitivity, r"arrays\.t2m: .*exactly one of"),
    (arrays_of(ws={"ranges": [0, 1]}), InvalidSpec, r"arrays\.ws: the source may miss values"),
    (arrays_of(ws_count={"ranges": [0, 1], "missing": "center"}), InvalidSpec, "two arrays"),
]


@pytest.mark.parametrize(("changes", "error", "text"), BAD)
def test_what_several_variables_cannot_be_is_refused_before_the_charge(
    space: Workspace, changes: dict[str, Any], error: type[DpdaskError], text: str
) -> None:
    data = weather(30)
    data = data.assign(
        height=("lat", np.zeros(4)),
        ws_count=data.ws * 1.0,
    )
    write(space, data)
    _add(space, "short", np.zeros(20), ("time",))
    _add(space, "wide", np.zeros((30, 9)), ("time", "lat"))
    base = spec_of(space)
    merged = {
        name: {**base.get(name, {}), **value}
        if isinstance(value, dict) and name != "query"
        else value
        for name, value in changes.items()
    }
    if "privacy_unit" in changes:
        merged["privacy_unit"] = changes["privacy_unit"]
    with pytest.raises(error, match=text) as caught:
        release(spec_of(space, **merged))
    assert "\n" not in str(caught.value)
    assert "30" not in str(caught.value)
    assert space.spent() == 0
    assert space.left_behind() == []


def _add(space: Workspace, name: str, values: Any, dimensions: tuple[str, ...]) -> None:
    zarr.create_array(
        space.folder / "source.zarr",
        name=name,
        data=values,
        dimension_names=dimensions,
        overwrite=True,
    )
    zarr.consolidate_metadata(space.folder / "source.zarr")


def test_every_variable_has_its_own_layers_and_noise(space: Workspace) -> None:
    dataset = weather(60)
    dataset["coast"] = ("lat", np.array([0, 1, 1, 0]))
    dataset.to_zarr(space.folder / "source.zarr", mode="w")
    space.release(
        source={"url": str(space.folder / "source.zarr"), "arrays": ARRAYS},
        privacy_unit={"record_dim": "time"},
        query="mean",
        mechanism="auto",
        publish={"layers": ["clamped", {"name": "masked", "mask": "coast"}]},
    )
    url = str(space.folder / "out.zarr")
    verify_release(url)
    released = open_release_dataset(url)
    kept = xr.DataArray([False, True, True, False], dims="lat")
    for name, section in ARRAYS.items():
        main = released[name]
        low, high = section["ranges"]
        assert np.array_equal(released[f"{name}_clamped"], np.clip(main, low, high))
        assert np.array_equal(released[f"{name}_masked"], main.where(kept), equal_nan=True)
        bounds = interval(url, 0.9, array=name)
        reach = 1.6448536269514722 * released[f"{name}_noise_std"]
        assert np.allclose(bounds.upper - bounds.lower, 2 * reach, rtol=1e-9)
