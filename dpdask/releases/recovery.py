"""What is left of a release that stopped: what the claim, the ledger and the output show, and how
it goes on.
"""

from __future__ import annotations

from dataclasses import dataclass

from dpdask.ledger import open_ledger
from dpdask.releases.verify import published_card
from dpdask.spec.release import ReleaseSpec
from dpdask.storage import open_storage, read_output_lock

__all__ = ["Observation", "observe", "way_on"]


@dataclass(frozen=True, slots=True)
class Observation:
    """How far the release to an output is.

    Args:
        cost: what it is charged, if it is, in words.
        locked: whether the output is locked for a release under way.
        last_step: the ledger's last entry for it; None when nothing was charged.
        published: whether readers see it.
    """

    cost: str
    locked: bool
    last_step: str | None
    published: bool


def observe(spec: ReleaseSpec) -> Observation:
    """Look up the claim, the ledger and the output; nothing is changed."""
    output = open_storage(spec.output.url, spec.output.options)
    ledger = open_ledger(spec.budget.ledger)
    try:
        claim = read_output_lock(output)
        card = published_card(output, claim)
        name = claim if card is None else card.release
        record = None if name is None else ledger.entry_named(name)
    finally:
        ledger.close()
    last_step = None if record is None else record.last
    return Observation(
        _cost(spec), claim is not None, last_step, record is not None and card is not None
    )


def _cost(spec: ReleaseSpec) -> str:
    """What the release of a spec is charged: its budget, or, where that is not what the noise
    gives, the verified cost.
    """
    budget = spec.privacy
    amount = f"epsilon {budget.epsilon:g}, delta {budget.delta:g}"
    if spec.accept_uncertified:
        amount = "the verified epsilon and delta"
    return f"{amount} stay charged to dataset {spec.budget.dataset!r}"


def way_on(observation: Observation, spec: str) -> str:
    """Return one line: what was charged, the command that finishes the release, and the one that
    gives it up.

    Args:
        observation: what is left.
        spec: the spec's path as it is typed in a shell.
    """
    cost, last_step = observation.cost, observation.last_step
    if last_step is None and not observation.locked:
        return f"nothing was charged and nothing is left behind; `dpdask run {spec}` starts again"
    if last_step is None:
        return (
            f"nothing was charged; `dpdask resume {spec}` goes on, `dpdask abort {spec}`"
            " gives the release up"
        )
    if last_step == "burn":
        return (
            f"{cost}, and the release was aborted; raise publish.edition for a new one, which"
            " is a new charge"
        )
    if last_step == "commit" and not observation.locked:
        return f"{cost}, and the release is published and complete: nothing is left to do"
    if observation.published:
        return (
            f"{cost}, and the release is published: `dpdask resume {spec}` concludes it; it"
            " can no longer be given up"
        )
    return (
        f"{cost}, nothing is published; `dpdask resume {spec}` finishes the release with the"
        " same noise and no further charge,"
        f" `dpdask abort {spec}` gives it up"
    )
