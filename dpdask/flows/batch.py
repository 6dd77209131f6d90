"""Many releases against one budget, refused as a whole if their sum does not fit."""

from prefect import flow, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Failed
from prefect.task_runners import ThreadPoolTaskRunner
from pydantic import Field

from dpdask.errors import DpdaskError
from dpdask.flows.steps import one_line, say_next_run_resumes, tag_run
from dpdask.releases.api import release_or_resume
from dpdask.releases.batch import ArraysOfGroup, check_batch
from dpdask.spec import ReleaseSpec

__all__ = ["privatize_batch"]

_PUBLISHED = "published"


@task(name="release", cache_policy=NO_CACHE, persist_result=False, task_run_name="release-{number}")
def release_one(spec: ReleaseSpec, number: int) -> str:
    """Publish one release of the batch; return its id, or one line that says why not."""
    try:
        return f"{_PUBLISHED} {release_or_resume(spec).release_id}"
    except DpdaskError as error:
        return one_line(error)


@flow(
    name="privatize-batch",
    persist_result=False,
    on_crashed=[say_next_run_resumes],
    on_failure=[say_next_run_resumes],
    on_cancellation=[say_next_run_resumes],
)
def privatize_batch(
    specs: list[ReleaseSpec] = Field(default_factory=list),  # Prefect reads it as a schema
    group: ArraysOfGroup | None = None,
    concurrency: int = 2,
) -> dict[str, int] | State[None]:
    """Publish all of ``specs``, or one release for each array of ``group``.

    Args:
        specs: The releases.
        group: A group of arrays, each of which is one more release.
        concurrency: How many run at the same time.
    """
    refusal: str | None = None
    try:
        listed = specs if isinstance(specs, list) else []
        requested = [*listed, *([] if group is None else group.specs())]
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
    """Publish every spec, some at the same time; return the outcomes by output."""
    runner = ThreadPoolTaskRunner(max_workers=max(1, concurrency))  # type: ignore[var-annotated]
    with runner:
        futures = {
            spec.output.url: runner.submit(release_one, {"spec": spec, "number": number})
            for number, spec in enumerate(specs)
        }
        return {url: str(future.result(raise_on_failure=False)) for url, future in futures.items()}
