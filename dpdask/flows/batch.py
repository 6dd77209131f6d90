"""Many releases against one budget, refused as a whole if their sum does not fit."""

import contextlib
import uuid
from dataclasses import dataclass

from prefect import flow, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Failed
from prefect.task_runners import ThreadPoolTaskRunner

from dpdask.errors import DpdaskError
from dpdask.flows.steps import one_line, say_next_run_resumes, tag_run
from dpdask.ledger import Ledger
from dpdask.releases.api import ledger_of
from dpdask.releases.batch import (
    ArraysOfGroup,
    SharedClusters,
    check_batch,
    release_of_batch,
)
from dpdask.spec import ReleaseSpec
from dpdask.spec.load import load_release_specs

__all__ = ["privatize_batch"]

_PUBLISHED = "published"


@dataclass(frozen=True, slots=True)
class _Batch:
    """A batch under way in this process."""

    specs: list[ReleaseSpec]
    ledger: Ledger
    clusters: SharedClusters


_under_way: dict[str, _Batch] = {}  # Prefect records the arguments of tasks: they take a key


@task(name="release", cache_policy=NO_CACHE, persist_result=False, task_run_name="release-{number}")
def release_one(token: str, number: int) -> str:
    """Publish one release of the batch; return its id, or one line that says why not."""
    batch = _under_way[token]
    try:
        receipt = release_of_batch(batch.specs[number], batch.ledger, batch.clusters)
    except DpdaskError as error:
        return one_line(error)
    return f"{_PUBLISHED} {receipt.release_id}"


@flow(
    name="privatize-batch",
    persist_result=False,
    on_crashed=[say_next_run_resumes],
    on_failure=[say_next_run_resumes],
    on_cancellation=[say_next_run_resumes],
)
def privatize_batch(
    specs: list[ReleaseSpec] | None = None,
    group: ArraysOfGroup | None = None,
    concurrency: int = 2,
    specs_file: str | None = None,
) -> dict[str, int] | State[None]:
    """Publish all of ``specs``, or one release for each array of ``group``.

    Prefect takes parameters of half a megabyte: name a file where there are hundreds of specs.

    Args:
        specs: The releases.
        group: A group of arrays, each of which is one more release.
        concurrency: How many run at the same time.
        specs_file: A YAML or JSON file, where the flow runs, with a list of further releases.
    """
    refusal: str | None = None
    try:
        further = [] if specs_file is None else load_release_specs(specs_file)
        requested = [*(specs or []), *further, *([] if group is None else group.specs())]
        batch = check_batch(requested)
    except DpdaskError as error:
        refusal = one_line(error)
    if refusal is not None:
        return Failed(message=refusal)
    tag_run(*(f"dataset:{name}" for name in {spec.budget.dataset for spec in requested}))
    outcomes = dict.fromkeys((spec.output.url for spec in batch.published), "published before")
    outcomes |= _release_all(batch.missing, concurrency)
    rows = [{"output": url, "outcome": outcome} for url, outcome in outcomes.items()]
    create_table_artifact(table=rows, key="dpdask-batch", description="Releases of the batch")
    failed = [outcome for outcome in outcomes.values() if not outcome.startswith(_PUBLISHED)]
    if failed:
        published = len(outcomes) - len(failed)
        return Failed(
            message=f"{published} of {len(outcomes)} published; first failure: {failed[0]}"
        )
    return {"published": len(outcomes)}


def _release_all(specs: list[ReleaseSpec], concurrency: int) -> dict[str, str]:
    """Publish every spec, some at the same time; return the outcomes by output.

    All share one connection to the ledger, and one cluster where they name the same.
    """
    if not specs:
        return {}
    runner = ThreadPoolTaskRunner(max_workers=max(1, concurrency))  # type: ignore[var-annotated]
    token = uuid.uuid4().hex
    with contextlib.closing(ledger_of(specs[0])) as ledger, SharedClusters() as clusters:
        _under_way[token] = _Batch(specs, ledger, clusters)
        try:
            with runner:
                futures = {
                    spec.output.url: runner.submit(release_one, {"token": token, "number": number})
                    for number, spec in enumerate(specs)
                }
                return {
                    url: str(future.result(raise_on_failure=False))
                    for url, future in futures.items()
                }
        finally:
            del _under_way[token]
