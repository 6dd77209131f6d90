"""A stack of T independent per-step tensors, such as clipped sums, as one composed release, sampled
or not.
"""

from typing import Annotated, Any

from prefect import flow
from prefect.states import Failed
from pydantic import Field

from dpdask.errors import DpdaskError
from dpdask.flows.steps import carry_out, one_line, say_it_goes_on
from dpdask.privacy import Adjacency
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
    on_crashed=[say_it_goes_on],
    on_failure=[say_it_goes_on],
    on_cancellation=[say_it_goes_on],
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
) -> Any:
    """Release the steps along the source's first axis, each a sum of records that the caller
    clipped, one by one.

    Each record is clipped to ``clip_norm`` before it is added, so a unit moves a step by
    ``max_contributions * clip_norm``, twice that under replace-one. The steps share (epsilon,
    delta): their noise is composed exactly, amplified by the Poisson ``sampling`` of privacy units
    or of records.

    ``steps_are_independent`` says that no step was computed from another's raw result. A finished
    training run is not such a stack: its later steps depend on every record through the weights,
    which no clip norm bounds. It is refused otherwise.
    """
    refusal = None
    try:
        opened = open_source(open_storage(source.url, source.options), source.array)
        window = source.window
        steps = (
            window.stop - window.start
            if window is not None and window.axis == 0
            else opened.shape[0]
        )
        spec = gradient_spec(
            source=source,
            output=output,
            budget=budget,
            privacy={"epsilon": epsilon, "delta": delta},
            clip_norm=clip_norm,
            steps=steps,
            steps_are_independent=steps_are_independent,
            sampling=sampling,
            privacy_unit=PrivacyUnitSection(
                adjacency=adjacency, max_contributions=max_contributions
            ),
            compute=compute,
            publish=publish,
        )
    except DpdaskError as error:
        refusal = one_line(error)
    if refusal is not None:
        return Failed(message=refusal)
    return carry_out(spec)


def gradient_spec(
    *,
    privacy: dict[str, float],
    clip_norm: float,
    steps: int,
    steps_are_independent: bool,
    sampling: SamplingSection | None,
    privacy_unit: PrivacyUnitSection,
    **sections: Any,
) -> ReleaseSpec:
    """The release of a stack: a unit moves a step by a clip norm for each of its records, by two
    under replace-one.
    """
    moves = 1 if privacy_unit.adjacency is Adjacency.ADD_REMOVE_ONE else 2
    sensitivity = moves * privacy_unit.max_contributions * clip_norm
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
