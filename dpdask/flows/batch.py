"""Many releases against one budget: all planned and checked first, refused as a whole if their sum
does not fit.
"""

import fnmatch
from typing import Any

from prefect import flow, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.states import Failed
from prefect.task_runners import ThreadPoolTaskRunner
from pydantic import BaseModel, Field

from dpdask.errors import DpdaskError, InvalidSpec
from dpdask.flows.steps import one_line, say_it_goes_on, tag_run
from dpdask.ledger import Ledger, open_ledger
from dpdask.planning import ReleasePlan, make_plan
from dpdask.releases.api import finish_published, release_run
from dpdask.spec import ReleaseSpec
from dpdask.storage import array_names, open_storage

__all__ = ["ArraysOfGroup", "privatize_batch"]


class ArraysOfGroup(BaseModel):
    """Every array of the template's source group whose path matches ``arrays``; ``output`` holds
    ``{array}``.
    """

    template: ReleaseSpec
    arrays: str = "*"
    output: str

    def specs(self) -> list[ReleaseSpec]:
        """One spec per array."""
        if "{array}" not in self.output:
            raise InvalidSpec(
                f"output {self.output!r} is the same for every array; put {{array}} into it"
            )
        place = open_storage(self.template.source.url, self.template.source.options)
        names = [name for name in array_names(place) if fnmatch.fnmatch(name, self.arrays)]
        if not names:
            raise InvalidSpec(f"no array of the group matches {self.arrays!r}; widen the pattern")
        made = []
        for name in names:
            source = self.template.source.model_copy(update={"array": name})
            url = self.output.replace("{array}", name.replace("/", "-"))
            output = self.template.output.model_copy(update={"url": url})
            made.append(self.template.model_copy(update={"source": source, "output": output}))
        return made


@task(name="release", cache_policy=NO_CACHE, persist_result=False, task_run_name="release-{number}")
def release_one(spec: ReleaseSpec, number: int) -> str:
    """One release of the batch: its name, or one line that says why not."""
    try:
        with release_run(spec, unfinished="resume") as run:
            return f"published {run.all_steps().release}"
    except DpdaskError as error:
        return one_line(error)


@flow(
    name="privatize-batch",
    persist_result=False,
    on_crashed=[say_it_goes_on],
    on_failure=[say_it_goes_on],
    on_cancellation=[say_it_goes_on],
)
def privatize_batch(
    specs: list[ReleaseSpec] = Field(default_factory=list),  # Prefect reads it as a schema
    group: ArraysOfGroup | None = None,
    concurrency: int = 2,
) -> Any:
    """Publish all of ``specs``, or one release per array of ``group``, at most ``concurrency`` at a
    time.
    """
    refusal = None
    try:
        asked = [
            *(specs if isinstance(specs, list) else []),
            *([] if group is None else group.specs()),
        ]
        done, missing = check_batch(asked)
    except DpdaskError as error:
        refusal = one_line(error)
    if refusal is not None:
        return Failed(message=refusal)
    tag_run(*(f"dataset:{name}" for name in {spec.budget.dataset for spec in asked}))
    runner = ThreadPoolTaskRunner(max_workers=max(1, concurrency))  # type: ignore[var-annotated]
    outcomes = dict.fromkeys((spec.output.url for spec in done), "published before")
    with runner:
        futures = [
            (spec, runner.submit(release_one, {"spec": spec, "number": n}))
            for n, spec in enumerate(missing)
        ]
        outcomes |= {
            spec.output.url: str(future.result(raise_on_failure=False)) for spec, future in futures
        }
    rows = [{"output": url, "outcome": outcome} for url, outcome in outcomes.items()]
    create_table_artifact(table=rows, key="dpdask-batch", description="Releases of the batch")
    failed = [row for row in rows if not row["outcome"].startswith("published")]
    if failed:
        return Failed(
            message=f"{len(rows) - len(failed)} of {len(rows)} published; first failure:"
            f" {failed[0]['outcome']}"
        )
    return {"published": len(rows)}


def check_batch(specs: list[ReleaseSpec]) -> tuple[list[ReleaseSpec], list[ReleaseSpec]]:
    """Plan every release and check that what is not yet charged fits its dataset together;
    (published, missing).
    """
    if not specs:
        raise InvalidSpec("the batch is empty; give specs, or a group with a pattern that matches")
    if len({spec.output.url for spec in specs}) != len(specs):
        raise InvalidSpec("two releases of the batch have the same output; give each its own")
    done, missing = [], []
    uncharged: list[ReleasePlan] = []
    ledger = open_ledger(specs[0].budget.ledger)
    try:
        for spec in specs:
            if (spec.budget.dataset, spec.budget.ledger) != (
                specs[0].budget.dataset,
                specs[0].budget.ledger,
            ):
                raise InvalidSpec("a batch is checked against one dataset of one ledger; split it")
            if finish_published(spec) is not None:
                done.append(spec)
                continue
            made = make_plan(spec, resuming=True)
            record = ledger.entry(made.fingerprint)
            if record is not None and record.last == "commit":
                done.append(spec)
                continue
            if record is not None and record.last == "burn":
                raise InvalidSpec(
                    f"the release to {spec.output.url!r} was burned, and its charge stays; raise"
                    " its publish.edition to ask"
                    " for it anew, or leave it out"
                )
            if record is None:
                make_plan(spec)  # the checks of a fresh start, such as an output that exists
                uncharged.append(made)
            missing.append(spec)
        _check_together(ledger, uncharged)
    finally:
        ledger.close()
    return done, missing


def _check_together(ledger: Ledger, plans: list[ReleasePlan]) -> None:
    """What is to be charged fits the dataset as a whole: its units are the same, and the sum is
    within the total.
    """
    parts = []
    axes: dict[str | None, int | None] = {}
    for made in plans:
        privacy_unit, other = made.privacy_unit, plans[0].privacy_unit
        if (privacy_unit.adjacency, privacy_unit.contributions) != (
            other.adjacency,
            other.contributions,
        ):
            raise InvalidSpec(
                "the releases of the batch differ in privacy_unit.adjacency or"
                " privacy_unit.max_contributions;"
                " give all the same"
            )
        if (
            axes.setdefault(privacy_unit.array, privacy_unit.record_axis)
            != privacy_unit.record_axis
        ):
            raise InvalidSpec(
                "two releases of the batch protect units along different axes of one array;"
                " split the batch"
            )
        parts.append((made.guarantee.verified, privacy_unit))
    if parts:
        ledger.forecast_all(plans[0].spec.budget.dataset, parts)
