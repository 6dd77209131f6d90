"""A batch shares one cluster, leaves none behind, and plans only what is missing (rows 11 and 12 of
the operations review).
"""

from __future__ import annotations

import json
from typing import Any

import distributed
import pytest
from prefect.utilities.callables import parameter_schema

from dpdask.errors import InvalidSpec
from dpdask.flows.batch import privatize_batch
from dpdask.releases import batch as module
from dpdask.releases.api import ledger_of
from dpdask.releases.batch import SharedClusters, check_batch, release_of_batch
from dpdask.spec import parse_release_spec
from dpdask.spec.load import load_release_specs
from tests.support.workspace import Workspace, people


def specs_of(space: Workspace, count: int, **compute: Any) -> list[Any]:
    space.source(people(), chunks=(20, 8))
    return [
        parse_release_spec(
            space.spec(output={"url": f"{space.folder}/out-{number}.zarr"}, compute=compute)
        )
        for number in range(count)
    ]


def alive() -> list[Any]:
    servers = [*distributed.Scheduler._instances, *distributed.Worker._instances]
    return [server for server in servers if server.status.name not in ("closed", "undefined")]


def test_row_12_a_batch_uses_one_cluster_and_leaves_none(space: Workspace) -> None:
    specs = specs_of(space, 5, cluster="local", threads=1)
    before, started = alive(), set(distributed.Scheduler._instances)
    with SharedClusters() as clusters:
        for spec in specs:
            release_of_batch(spec, ledger_of(spec), clusters)
        assert len(alive()) == len(before) + 2  # a scheduler and its worker
    assert len(set(distributed.Scheduler._instances) - started) == 1
    assert alive() == before
    assert check_batch(specs).missing == []


def test_row_12_a_cluster_that_died_is_opened_again_for_the_rest(space: Workspace) -> None:
    specs = specs_of(space, 2, cluster="local", threads=1)
    with SharedClusters() as clusters:
        release_of_batch(specs[0], ledger_of(specs[0]), clusters)
        client: Any = clusters.client(specs[0].compute)
        client.close()
        release_of_batch(specs[1], ledger_of(specs[1]), clusters)
    assert len(space.ledger.state("people").releases) == 2


def test_row_12_what_is_published_is_not_planned_again(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = specs_of(space, 6, cluster="inline")
    with SharedClusters() as clusters:
        for spec in specs[:4]:
            release_of_batch(spec, ledger_of(spec), clusters)
    planned: list[str] = []
    make_plan = module.make_plan

    def counting(spec: Any, **options: Any) -> Any:
        planned.append(spec.output.url)
        return make_plan(spec, **options)

    monkeypatch.setattr(module, "make_plan", counting)
    checked = check_batch(specs)
    assert (len(checked.published), len(checked.missing)) == (4, 2)
    assert planned == [spec.output.url for spec in specs[4:]]


def test_row_11_a_batch_of_a_group_needs_no_list_of_specs() -> None:
    schema = parameter_schema(privatize_batch)
    assert schema.required == []
    assert {"specs", "group", "specs_file", "concurrency"} <= set(schema.properties)


def test_row_11_specs_are_given_by_reference(space: Workspace) -> None:
    space.source(people())
    specs = [space.spec(output={"url": f"{space.folder}/{number}.zarr"}) for number in range(3000)]
    path = space.folder / "spec.yaml-batch.json"
    path.write_text(json.dumps(specs))
    assert path.stat().st_size > 512 * 1024  # more than Prefect takes as parameters
    loaded = load_release_specs(path)
    assert [spec.output.url for spec in loaded] == [spec["output"]["url"] for spec in specs]
    path.write_text(json.dumps([specs[0], {**specs[1], "quarry": "mean"}]))
    with pytest.raises(InvalidSpec, match=r"spec 2 of 2: .*quarry"):
        load_release_specs(path)
