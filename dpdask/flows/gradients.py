"""A stack of independent per-step tensors, such as clipped sums, as one composed release."""

import contextlib
from typing import Annotated

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Failed
from pydantic import BaseModel, Field

from dpdask.errors import DpdaskError
from dpdask.flows.steps import one_line, release_as_tasks, say_next_run_resumes
from dpdask.planning.naming import axis_of
from dpdask.privacy import Adjacency
from dpdask.releases.api import ledger_of
from dpdask.spec import ReleaseSpec, parse_release_spec
from dpdask.spec.calibration import SamplingSection
from dpdask.spec.release import (
    BudgetSection,
    ComputeSection,
    OutputSection,
    PrivacyUnitSection,
    PublishSection,
    SourceSection,
)
from dpdask.storage import open_source, open_storage

__all__ = ["privatize_gradients"]


@flow(
    name="privatize-gradients",
    persist_result=False,
    on_crashed=[say_next_run_resumes],
    on_failure=[say_next_run_resumes],
    on_cancellation=[say_next_run_resumes],
)
def privatize_gradients(
    source: SourceSection,
    output: OutputSection,
    budget: BudgetSection,
    epsilon: float,
    delta: float,
    clip_norm: Annotated[float, Field(gt=0)],
    steps_are_independent: bool,
    sampling: SamplingSection | None = None,
    adjacency: Adjacency = Adjacency.ADD_REMOVE_ONE,
    max_contributions: Annotated[int, Field(ge=1)] = 1,
    compute: ComputeSection = ComputeSection(),  # a frozen value
    publish: PublishSection = PublishSection(),
) -> dict[str, str] | State[None]:
    """Release the steps along the first axis, each a sum of records that the caller clipped.

    Each record is clipped to ``clip_norm`` before it is added, so a privacy unit changes a step by
    ``max_contributions * clip_norm``, twice that under replace-one. The steps share (epsilon,
    delta): their noise is composed exactly, amplified by the Poisson ``sampling`` of privacy units
    or of records.

    ``steps_are_independent`` says that no step was computed from another's raw result. A finished
    training run is not such a stack: its later steps depend on every record through the weights,
    which no clip norm bounds. It is refused otherwise.
    """
    try:
        spec = gradient_spec(
            source=source,
            output=output,
            budget=budget,
            privacy={"epsilon": epsilon, "delta": delta},
            clip_norm=clip_norm,
            steps=_count_steps(source),
            steps_are_independent=steps_are_independent,
            sampling=sampling,
            privacy_unit=PrivacyUnitSection(
                adjacency=adjacency, max_contributions=max_contributions
            ),
            compute=compute,
            publish=publish,
        )
        with contextlib.closing(ledger_of(spec)) as ledger:
            return release_as_tasks(spec, ledger)
    except DpdaskError as error:
        refusal = one_line(error)
    return Failed(message=refusal)


def _count_steps(source: SourceSection) -> int:
    """Return how many steps lie along the first axis of the source, or of its window."""
    storage = open_storage(source.url, source.options)
    array = open_source(storage, source.array, decode=source.decode)
    window = source.window
    if window is None:
        return array.shape[0]
    names = array.dimension_names
    axis = axis_of("source.window.axis", window.axis, shape=array.shape, names=names)
    return window.stop - window.start if axis == 0 else array.shape[0]


def gradient_spec(
    *,
    privacy: dict[str, float],
    clip_norm: float,
    steps: int,
    steps_are_independent: bool,
    sampling: SamplingSection | None,
    privacy_unit: PrivacyUnitSection,
    **sections: BaseModel,
) -> ReleaseSpec:
    """Return the spec of a stack.

    A privacy unit changes a step by one clip norm for each of its records, by two under
    replace-one.

    Args:
        privacy: epsilon and delta of all steps together.
        clip_norm: What each record was clipped to.
        steps: How many steps there are.
        steps_are_independent: Whether no step was computed from another's raw result.
        sampling: Who was sampled for each step, if anyone was.
        privacy_unit: Whom the release protects.
        sections: The other sections of the spec, as they are.
    """
    norms_per_record = 1 if privacy_unit.adjacency is Adjacency.ADD_REMOVE_ONE else 2
    sensitivity = norms_per_record * privacy_unit.max_contributions * clip_norm
    plain = {
        name: section.model_dump(by_alias=True, exclude_defaults=True)
        for name, section in sections.items()
    }
    return parse_release_spec(
        {
            **plain,
            "privacy_unit": privacy_unit.model_dump(mode="json", exclude_defaults=True),
            "query": {"name": "precomputed", "l2_sensitivity": sensitivity},
            "privacy": privacy,
            "mechanism": "analytic-gaussian",
            "composition": {
                "steps": steps,
                "steps_are_independent": steps_are_independent,
                "sampling": None if sampling is None else sampling.model_dump(),
            },
        }
    )
