"""A mechanism or a query takes one file and one registration line, and is released like any
other.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import jsonschema
import numpy as np
import pytest
import zarr

from dpdask import PrivacyBudget, release
from dpdask.errors import InvalidSensitivity, InvalidSpec
from dpdask.ledger import Ledger
from dpdask.planning import make_plan
from dpdask.planning.build_mechanism import unregister_mechanism
from dpdask.releases.verify import verify_release
from dpdask.spec import MECHANISMS, QUERIES, ReleaseSpec, parse_release_spec
from dpdask.spec.mechanism import MechanismSection
from tests.support import toy_mechanism, toy_query
from tests.support.workspace import Workspace, people


@pytest.fixture
def toy_section() -> Iterator[type[MechanismSection]]:
    toy_mechanism.register()
    yield toy_mechanism.ZcdpGaussianSection
    unregister_mechanism(toy_mechanism.ZcdpGaussianSection)


@pytest.fixture
def toy_query_section() -> Iterator[None]:
    toy_query.register()
    yield
    toy_query.unregister()


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    workspace = Workspace(tmp_path)
    workspace.ledger.open_dataset("people", PrivacyBudget(epsilon=1e6, delta=0.1))
    workspace.source(people())
    return workspace


def verified(space: Workspace) -> None:
    verify_release(str(space.folder / "out.zarr"), ledger=Ledger(space.ledger_url))


def test_a_mechanism_of_one_file_is_released_and_verified(
    space: Workspace, toy_section: type[MechanismSection]
) -> None:
    receipt = release(space.spec(mechanism={"name": "zcdp-gaussian", "margin": 1.5}))
    verified(space)
    assert receipt.card.mechanism == {"name": "zcdp-gaussian", "margin": 1.5}
    assert receipt.card.guarantee.certified
    assert receipt.card.guarantee.claimed.theorem.startswith("Bun & Steinke")
    plain = make_plan(parse_release_spec(space.spec(output={"url": "elsewhere.zarr"})))
    assert receipt.card.released.noise_std > plain.entry_std


def test_a_query_of_one_file_is_released_and_verified(
    space: Workspace, toy_query_section: None
) -> None:
    receipt = release(
        space.spec(
            query={"name": "count-above", "threshold": 0.1},
            privacy_unit={"record_dim": 0, "adjacency": "add-remove-one", "missing": "center"},
            privacy={"epsilon": 50.0, "delta": 1e-3},
        )
    )
    verified(space)
    assert receipt.card.query["name"] == "count-above"
    assert receipt.card.query["threshold"] == 0.1
    assert receipt.card.guarantee.certified
    exact = np.sum(people() > 0.1, axis=0)
    noise = receipt.card.released.noise_std
    assert noise < 1
    assert np.max(np.abs(space.values() - exact)) < 8 * noise


def test_a_registered_section_is_in_the_schema_and_keeps_every_field(
    space: Workspace, toy_section: type[MechanismSection]
) -> None:
    content = space.spec(mechanism={"name": "zcdp-gaussian", "margin": 2.0})
    spec = parse_release_spec(content)
    schema = ReleaseSpec.model_json_schema()
    jsonschema.validate(content, schema)
    assert "ZcdpGaussianSection" in schema["$defs"]
    for again in (
        ReleaseSpec.model_validate(spec.model_dump(by_alias=True)),
        ReleaseSpec.model_validate_json(spec.model_dump_json(by_alias=True)),
    ):
        assert again == spec
        assert again.mechanism == toy_mechanism.ZcdpGaussianSection(
            name="zcdp-gaussian", margin=2.0
        )


@pytest.mark.parametrize(
    ("mechanism", "text"),
    [
        ("zcdp-gausian", "did you mean 'zcdp-gaussian'"),
        ({"name": "zcdp-gaussian", "margins": 2}, "mechanism.margins .* did you mean 'margin'"),
        ({"name": "zcdp-gaussian", "margin": 0.5}, "mechanism.margin: "),
    ],
)
def test_mistakes_in_a_registered_section_get_a_suggestion(
    space: Workspace, toy_section: type[MechanismSection], mechanism: Any, text: str
) -> None:
    with pytest.raises(InvalidSpec, match=text):
        parse_release_spec(space.spec(mechanism=mechanism))


def test_what_is_unregistered_is_unknown_again(space: Workspace) -> None:
    toy_mechanism.register()
    toy_query.register()
    unregister_mechanism(toy_mechanism.ZcdpGaussianSection)
    toy_query.unregister()
    assert "zcdp-gaussian" not in MECHANISMS
    assert "count-above" not in QUERIES
    with pytest.raises(InvalidSpec, match="not a valid mechanism"):
        parse_release_spec(space.spec(mechanism="zcdp-gaussian"))


def test_a_name_that_is_taken_is_not_replaced() -> None:
    class Impostor(MechanismSection):
        name: Literal["analytic-gaussian"]

    with pytest.raises(InvalidSpec, match="registered already"):
        MECHANISMS.register(Impostor)
    assert MECHANISMS["analytic-gaussian"] is not Impostor


def test_a_query_still_refuses_what_it_does_not_bound(
    space: Workspace, toy_query_section: None
) -> None:
    with pytest.raises(InvalidSensitivity, match="drop ranges"):
        make_plan(parse_release_spec(space.spec(query={"name": "count-above", "threshold": 0})))


def test_a_query_that_does_not_leave_records_out_takes_no_ids(
    space: Workspace, toy_query_section: None
) -> None:
    unit = {
        "record_dim": 0,
        "adjacency": "add-remove-one",
        "missing": "center",
        "ids": "who",
        "max_contributions": 2,
    }
    who = np.arange(people().shape[0]) % 7
    zarr.create_array(space.folder / "source.zarr", name="who", data=who)
    with pytest.raises(InvalidSensitivity, match="does not leave out the records"):
        release(space.spec(query={"name": "count-above", "threshold": 0.1}, privacy_unit=unit))
    assert space.spent() == 0
