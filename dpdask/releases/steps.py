"""The steps of a release as functions from value to value.

    prepare -> Prepared -> reserve (charged) -> Reserved -> write -> Staged -> verify -> publish

Nothing is charged before the source was read through once where it can fail, and before every
document of the release was built once; no noisy byte exists before the charge. A crash leaves the
charge, the key in the ledger and the finished tiles in staging, from where another run resumes and
replays. Writing and verifying tiles is in :mod:`dpdask.releases.staging`.

Keys are never fields of these values: a step reads the release key from the ledger, and the signing
key from its file, when it needs one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpdask import execution
from dpdask.errors import LedgerError, ReleaseError, StoreError
from dpdask.execution import Executor, Intermediates, TileWork
from dpdask.ledger import LedgerEntry
from dpdask.ledger.witness import check_not_restored, remember, sight_of
from dpdask.planning import ReleasePlan, Variable, spec_digest
from dpdask.planning.attributes import published_attributes
from dpdask.planning.coordinates import published_coordinates
from dpdask.planning.masks import read_public_arrays
from dpdask.releases.assembly import Assembly
from dpdask.releases.build_card import Charge
from dpdask.releases.card import ReleaseCard, card_text
from dpdask.releases.closing import Receipt, abandon, commit
from dpdask.releases.context import Context, adopt_if_published, check_open, check_unchanged
from dpdask.releases.recovery import Target
from dpdask.signing import fingerprint as key_fingerprint
from dpdask.signing import load_signing_key
from dpdask.storage import ROOT, ManifestEntry, Storage
from dpdask.types import Json

__all__ = [
    "Prepared",
    "Receipt",
    "Reserved",
    "Staged",
    "assemble",
    "check_reach",
    "check_size",
    "lock_output",
    "prepare",
    "publish",
    "reserve",
]


@dataclass(frozen=True, slots=True, repr=False)
class Prepared:
    """A release that can be charged.

    Args:
        data: Clip factors and exact answers of every variable; None where they depend on the key,
            or on bounds that are chosen by it.
        estimates: Exact answers of what is drawn before the data; None where they depend on the
            key.
        assembly: What its documents are built from.
    """

    data: tuple[Intermediates, ...] | None
    estimates: tuple[Intermediates, ...] | None
    assembly: Assembly


@dataclass(frozen=True, slots=True, repr=False)
class Reserved:
    """A charged release: no tile is written yet by this run."""

    prepared: Prepared
    entry: LedgerEntry


@dataclass(frozen=True, slots=True, repr=False)
class Staged:
    """A charged release with every tile staged.

    Args:
        works: The variables as they are released.
        assembly: What its documents are built from.
        entries: The manifest entries of all write chunks by key.
        stamps: The stamps of those that the task that wrote them has read back.
        earlier: The keys of those that an earlier run wrote.
    """

    works: tuple[TileWork, ...]
    assembly: Assembly
    entries: dict[str, ManifestEntry]
    stamps: dict[str, str]
    earlier: frozenset[str]


def prepare(context: Context) -> Prepared:
    """Check the cluster and the source, compute norms and sums, build every document once.

    Guarantee: nothing is charged yet, and whatever can be refused is refused here.
    """
    plan = context.plan
    storages = [plan.output, *(variable.source.storage for variable in plan.variables)]
    check_reach(storages, context.executor)
    check_size(plan, context.executor)
    estimates, data = _before_the_charge(context)
    assembly = assemble(context)
    source_was_read = data is None or any(
        not intermediates.empty or not variable.source.plain
        for variable, intermediates in zip(plan.variables, data, strict=True)
    )
    if source_was_read:  # which took its time
        check_unchanged(context)
    return Prepared(data, estimates, assembly)


def assemble(context: Context) -> Assembly:
    """Build every document of a release once.

    Guarantee: what could not be published, or would not verify, is refused here.
    """
    plan = context.plan
    read_public_arrays(plan)
    signing_key = load_signing_key()
    assembly = Assembly(
        plan=plan,
        release_id=context.release_id,
        variables=plan.variables,
        coordinates=published_coordinates(plan),
        attributes=tuple(
            published_attributes(variable, several=len(plan.variables) > 1)
            for variable in plan.variables
        ),
        signed_by=None if signing_key is None else key_fingerprint(signing_key.public),
    )
    assembly.check_publishable(signing_key)
    return assembly


def _before_the_charge(
    context: Context,
) -> tuple[tuple[Intermediates, ...] | None, tuple[Intermediates, ...] | None]:
    """Compute what does not wait for the key, of estimates and of data; read all else through.

    Which records count follows from the key, and so do bounds that are chosen privately.
    """
    plan = context.plan
    if plan.ids is not None:
        execution.check_ids(context.executor, plan)
        for variable in plan.variables:
            execution.check(context.executor, plan, variable, context.on_progress)
        return None, None
    estimates = tuple(_intermediates(context, variable) for variable in plan.estimated)
    decides = [
        variable.estimate is not None and variable.estimate.decides_on_sums
        for variable in plan.variables
    ]
    if not any(decides):
        return estimates, tuple(_intermediates(context, variable) for variable in plan.variables)
    for variable, read in zip(plan.variables, decides, strict=True):
        if read:  # its values were read, but not its labels
            execution.check_labels(context.executor, plan, variable)
        else:
            execution.check(context.executor, plan, variable, context.on_progress)
    return estimates, None


def _intermediates(context: Context, variable: Variable) -> Intermediates:
    return execution.prepare(context.executor, context.plan, variable, context.on_progress)


def lock_output(context: Context) -> bool:
    """Lock the output for the release; return whether this call did."""
    return context.publisher.lock_output()


def reserve(context: Context, prepared: Prepared) -> Reserved:
    """Charge the dataset for the release to a locked output, and create its key.

    Guarantee: charged at most once, however many runs of the same release race.
    """
    plan = context.plan
    appeared = plan.output.occupied() and context.entry() is None
    if appeared:  # since it was planned
        raise StoreError(f"output {plan.spec.output.url!r} appeared meanwhile; publish elsewhere")
    check_unchanged(context)
    check_not_restored(context.ledger, plan.spec.budget.dataset)
    context.ledger.reserve(
        plan.spec.budget.dataset,
        plan.fingerprint,
        plan.guarantee.verified,
        plan.privacy_unit,
        _charge_payload(context),
        context.allowance,
    )
    remember(sight_of(context.ledger, plan.spec.budget.dataset))
    entry = _check_still_ours(context)
    context.report("reserved")
    context.key()
    context.report("key")
    return Reserved(prepared, entry)


def _charge_payload(context: Context) -> Json:
    """Return what the ledger notes of the release besides its privacy cost."""
    plan = context.plan
    payload: Json = {
        "release_id": context.release_id,
        "source_identity": plan.identity,
        "spec_digest": spec_digest(plan.spec),
        "output_url": plan.spec.output.url,
        "output_address": plan.output.address(),
        "curator": plan.spec.budget.curator,
    }
    window = plan.variables[0].source.window
    if plan.spec.source.window is not None and window is not None:
        # by index, however the spec names the axis: a series compares it
        payload["window"] = {**plan.spec.source.window.model_dump(), "axis": window[0]}
    return payload


def _check_still_ours(context: Context) -> LedgerEntry:
    """Check that the charged release is the one that the output is locked for.

    Another process may have aborted it meanwhile, or begun the same release at the same time.
    """
    entry = check_open(context)
    if entry.release_id != context.release_id:
        raise ReleaseError(
            "the same release was begun twice at once; run it again to continue with what was"
            " charged"
        )
    if not context.publisher.holds_lock():
        target = Target(context.plan.output, context.release_id, entry)
        abandon(context.ledger, target, "aborted while it was being charged")
        raise ReleaseError(
            "the release was aborted while it was being charged: its charge stays; start a new one"
        )
    return entry


def publish(context: Context, staged: Staged) -> Receipt:
    """Make the release visible at once, and commit it."""
    receipt = adopt_if_published(context)
    if receipt is not None:
        return receipt
    try:
        card = _make_visible(context, staged)
    except (ReleaseError, LedgerError):
        receipt = adopt_if_published(context)
        if receipt is None:
            raise
        return receipt
    context.report("published")
    spec = context.plan.spec
    return commit(spec, context.ledger, context.publisher, context.fingerprint, card)


def _make_visible(context: Context, staged: Staged) -> ReleaseCard:
    """Note the card in the ledger, put every document in place, publish.

    The card that was noted first counts: another run of this release may have been faster.
    """
    assembly, chunks, publisher = staged.assembly, staged.entries.values(), context.publisher
    signing_key = load_signing_key()
    card = _draft_card(context, assembly)
    card, documents = assembly.complete(card, chunks, signing_key)
    publisher.check_no_foreign_objects(set(documents) | set(staged.entries))
    noted = _parse_card(context.ledger.publish(context.fingerprint, card_text(card)))
    if card_text(noted) != card_text(card):
        card, documents = assembly.complete(noted, chunks, signing_key)
    if card_text(noted) != card_text(card):
        raise ReleaseError(
            "an earlier run staged other bytes, by other versions of a codec; restore them, or"
            " `dpdask abort`"
        )
    publisher.ready(documents, set(documents) | set(staged.entries))
    context.report("ready")
    if not publisher.publish(documents[ROOT]):
        url = context.plan.spec.output.url
        raise StoreError(f"output {url!r} appeared meanwhile; move it away and `dpdask resume`")
    return card


def _draft_card(context: Context, assembly: Assembly) -> ReleaseCard:
    """Return the card that an earlier run noted, or a new one."""
    entry = check_open(context)
    if entry.card is not None:
        return _parse_card(entry.card)
    charge = Charge(
        reserved_at=entry.reserved_at,
        total=entry.total,
        cumulative_epsilon=entry.cumulative.epsilon(entry.total.delta),
        head=context.ledger.head(entry.dataset),
    )
    return assembly.card(charge)


def _parse_card(text: str) -> ReleaseCard:
    """Return a card that the ledger keeps."""
    try:
        return ReleaseCard.model_validate_json(text)
    except ValueError:
        raise ReleaseError(
            "the release was completed by another version of dpdask; restore that, or"
            " `dpdask abort`"
        ) from None


def check_reach(storages: Sequence[Storage], executor: Executor) -> None:
    """Check that tasks reach every storage."""
    if not executor.shares_memory and not all(storage.shared for storage in storages):
        raise StoreError(
            "memory:// belongs to this process, which other workers cannot reach; use"
            " compute.workers: 1"
        )


def check_size(plan: ReleasePlan, executor: Executor) -> None:
    """Check that the source is not too large for the executor."""
    most = executor.most_source_bytes
    if most is not None and plan.source_bytes > most:
        raise ReleaseError(
            f"the source has {plan.source_bytes} bytes, and compute.cluster: inline holds"
            f" everything in one process, {most} at most; use compute.cluster: local"
        )
