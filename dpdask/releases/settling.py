"""What is decided after the charge: noise directions and bounds that follow from a noisy answer.

Each is noted once in the ledger before the data are drawn: a retry takes the same. The noise of the
data is drawn for what was decided, so another decision draws other noise.
"""

from __future__ import annotations

from dpdask import execution
from dpdask.errors import ReleaseError
from dpdask.execution import Handle, Intermediates, TileWork
from dpdask.keystream import ReleaseKey
from dpdask.planning import Variable, recipe_digest
from dpdask.releases.card_arrays import CardArrays
from dpdask.releases.context import Context, check_unchanged
from dpdask.types import Floats

__all__ = ["OTHER_MACHINE", "compute_intermediates", "settle_variables"]

_RECIPE = "recipe"

OTHER_MACHINE = (
    "the format of dpdask, its libraries or the kind of processor are not those it began with, and"
    " round differently; restore them, or `dpdask abort`"
)


def compute_intermediates(
    context: Context, variables: tuple[Variable, ...], key: ReleaseKey, kept: Handle | None
) -> tuple[Intermediates, ...]:
    """Compute what waited for the key: clip factors and exact answers of the records that count.

    Args:
        context: The run.
        variables: The data, or what is drawn before them.
        key: The release key.
        kept: The bitmap of the records that count; None for all.
    """
    computed = tuple(
        execution.prepare(context.executor, context.plan, variable, context.on_progress, kept, key)
        for variable in variables
    )
    if variables:
        check_unchanged(context)
    return computed


def settle_variables(
    context: Context,
    estimates: tuple[Intermediates, ...] | None,
    key: ReleaseKey,
    kept: Handle | None,
) -> tuple[tuple[Variable, ...], CardArrays]:
    """Return the variables as they are released, and what is published of how that was decided.

    Args:
        context: The run.
        estimates: Exact answers of what is drawn first; None where they waited for the key.
        key: The release key.
        kept: The bitmap of the records that count; None for all.
    """
    plan = context.plan
    if estimates is None:
        estimates = compute_intermediates(context, plan.estimated, key, kept)
    waiting = iter(estimates)
    variables: list[Variable] = []
    arrays: CardArrays = {}
    for position, variable in enumerate(plan.variables, 1):
        drawn = variable.estimated
        if drawn is not None:
            work = TileWork(plan, drawn, next(waiting), context.publisher)
            noisy = execution.noisy_estimate(context.executor, work, key, context.on_progress)
            variable, own = _settled(context, variable, noisy, position)
            arrays |= own
        variables.append(variable)
    return tuple(variables), arrays


def _settled(
    context: Context, variable: Variable, noisy: Floats, position: int
) -> tuple[Variable, CardArrays]:
    """Return a variable with what follows from its noisy answer, and the arrays of that.

    Args:
        context: The run.
        variable: The variable as it was planned.
        noisy: The noisy answer that was drawn first.
        position: Which variable of the release it is, from 1 on.
    """
    estimate = variable.estimate
    assert estimate is not None
    which = "" if position == 1 else f" {position}"
    ledger, fingerprint = context.ledger, context.fingerprint
    choice = estimate.choose(noisy)
    chosen = ledger.put_once(fingerprint, f"{estimate.kind}{which}", choice)
    if estimate.exact and chosen != choice:
        raise ReleaseError(f"the release began elsewhere: {OTHER_MACHINE}")
    settled = estimate.settle(context.plan, variable, chosen)
    # Two versions of a tile, with the same noise or with other noise, would show more than was
    # charged: the recipe must be that of earlier runs, bit by bit.
    digest = recipe_digest(fingerprint, settled.component)
    if ledger.put_once(fingerprint, f"{_RECIPE}{which}", digest) != digest:
        raise ReleaseError(f"the release began elsewhere: {OTHER_MACHINE}")
    arrays = estimate.arrays(noisy, chosen)
    return settled, {f"{variable.card_prefix}{name}": own for name, own in arrays.items()}
