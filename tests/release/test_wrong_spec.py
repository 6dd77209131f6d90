"""Slips of a curator around a release under way are refused, and nothing is burned."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from dpdask.cli import main
from dpdask.errors import DpdaskError, LedgerError, ReleaseError
from dpdask.privacy import PrivacyBudget
from dpdask.releases.api import abort_named, finish_published, release, resume
from dpdask.releases.verify import verify_release
from dpdask.spec import parse_release_spec
from tests.recovery.test_concurrency import stopped_at
from tests.support.workspace import Workspace, people


def last_steps(space: Workspace) -> list[str]:
    return list(space.ledger.state("people").releases.values())


@pytest.mark.parametrize("stage", ["key", "ready"])
@pytest.mark.parametrize(
    "slip",
    [
        {"source": "source.zarr-other"},
        {"privacy": {"epsilon": 0.1, "delta": 1e-5}},
        {"query": "mean"},
    ],
)
def test_another_spec_does_not_touch_a_release_under_way(
    space: Workspace, stage: str, slip: dict[str, Any]
) -> None:
    """Above all it does not burn it: a mistyped source is not a changed one."""
    space.source(people())
    space.source(people(seed=2), file="source.zarr-other")
    stopped_at(space.spec(), stage)
    before = last_steps(space)
    if "source" in slip:
        slip = {"source": {"url": str(space.folder / slip["source"]), "array": "x"}}
    with pytest.raises(ReleaseError, match="began with another spec"):
        resume(space.spec(**slip))
    assert last_steps(space) == before
    resume(space.spec())
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)
    assert last_steps(space) == ["commit"]


def test_what_is_published_is_not_concluded_for_another_spec(space: Workspace) -> None:
    space.source(people())
    stopped_at(space.spec(), "published")
    with pytest.raises(ReleaseError, match="began with another spec"):
        finish_published(parse_release_spec(space.spec(query="mean")))
    assert last_steps(space) == ["commit"], (
        "what is visible is closed, and its key destroyed, whatever is asked for"
    )
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)


def test_the_axis_of_the_units_is_compared_however_the_array_is_spelled(space: Workspace) -> None:
    space.source(people())
    space.release(query="mean")
    across = {"record_dim": 1, "l2_clip_norm": 1.0}
    file = space.folder / "source.zarr"
    for source in (
        {"url": f"{file}/x"},
        {"url": f"file://{file}/", "array": "x"},
        {"url": f"{file}/../source.zarr", "array": "/x/"},
    ):
        with pytest.raises(LedgerError, match="units along axis 0 of this array"):
            space.release(
                query="mean",
                source=source,
                privacy_unit=across,
                output={"url": f"{space.folder}/b.zarr"},
            )


def test_very_many_contributions_are_refused_or_released_never_charged_in_vain(
    space: Workspace,
) -> None:
    space.source(people(4, 2))
    for number, many in enumerate((2**30, 2**62)):
        unit = {"record_dim": 0, "ranges": [0, 1], "max_contributions": many}
        space.ledger.open_dataset(f"d{number}", PrivacyBudget(epsilon=2.0, delta=1e-4))
        spec = space.spec(
            query="sum", privacy_unit=unit, output={"url": f"{space.folder}/{number}.zarr"}
        )
        spec["budget"]["dataset"] = f"d{number}"
        try:
            release(spec)
        except DpdaskError:
            assert space.ledger.state(f"d{number}").spent_epsilon == 0


def test_a_link_that_leads_elsewhere_burns_nothing(space: Workspace) -> None:
    space.source(people(), file="source.zarr-one")
    space.source(people(seed=2), file="source.zarr-two")
    link = space.folder / "source.zarr"
    link.symlink_to(space.folder / "source.zarr-one")
    stopped_at(space.spec(), "key")
    link.unlink()
    link.symlink_to(space.folder / "source.zarr-two")
    with pytest.raises(ReleaseError, match="leads to another array"):
        resume(space.spec())
    assert last_steps(space) == ["key"]
    link.unlink()
    link.symlink_to(space.folder / "source.zarr-one")
    resume(space.spec())


@pytest.mark.parametrize("name", ["", "a", "0123456"])
def test_a_name_that_is_no_name_aborts_nothing(space: Workspace, name: str) -> None:
    """An unset variable in a script would otherwise burn whatever is open."""
    space.source(people())
    stopped_at(space.spec(), "key")
    with pytest.raises(ReleaseError, match="too short to name a release"):
        abort_named(name, space.ledger_url)
    said = CliRunner().invoke(main, ["abort", "--release", name, "--ledger", space.ledger_url])
    assert said.exit_code == 2
    assert last_steps(space) == ["key"]


def test_a_histograms_card_names_the_axis_of_its_records(space: Workspace) -> None:
    space.source(np.random.default_rng(0).uniform(size=(3, 200)))
    query = {"name": "histogram", "edges": [[0.0, 0.5, 1.0]], "columns": [1]}
    card = space.release(query=query, privacy_unit={"record_dim": 1}).card
    assert card.privacy_unit.record_axis == 1
