"""How a release ends: committed with a receipt, burned, or its leftovers removed.

What to do is read from the table of :mod:`dpdask.releases.recovery`; this module does it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from dpdask.errors import ReleaseError, StoreError, VerificationFailed
from dpdask.ledger import Ledger, LedgerEntry
from dpdask.ledger.witness import remember, sight_of
from dpdask.planning import spec_digest
from dpdask.releases.card import ReleaseCard, card_from_attributes, card_text
from dpdask.releases.read import published_card
from dpdask.releases.recovery import Action, Command, Refusal, Target, decide, observe
from dpdask.releases.verify import check_objects, check_signature
from dpdask.spec.release import ReleaseSpec
from dpdask.storage import ROOT, Publisher, Storage

__all__ = [
    "Receipt",
    "abandon",
    "adopt",
    "check_spec",
    "clean_up",
    "commit",
    "finalize",
    "publish_staged",
]


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a release leaves in the hands of its caller: public facts only.

    Args:
        release_id: The public random name of the release.
        output: Where it is published.
        array: The name of the released array; of several, their names with commas between them.
        card: The release card.
    """

    release_id: str
    output: str
    array: str
    card: ReleaseCard


def check_spec(spec: ReleaseSpec, entry: LedgerEntry) -> None:
    """Refuse to finish a release with another spec than its own; that harms nothing."""
    if entry.spec_digest is not None and spec_digest(spec) != entry.spec_digest:
        raise ReleaseError(
            "the release to this output began with another spec; restore that one, `dpdask abort`"
            " it if it is unfinished, or choose another output.url"
        )


def commit(
    spec: ReleaseSpec, ledger: Ledger, publisher: Publisher, fingerprint: str, card: ReleaseCard
) -> Receipt:
    """Commit what this run published, and remove its staging.

    Args:
        spec: The spec of the release.
        ledger: Where it was charged.
        publisher: Where it was staged.
        fingerprint: The secret name under which it was charged.
        card: The card at the output.

    Raises:
        VerificationFailed: The card is not the one that was to be published.
    """
    _check_card(ledger.entry(fingerprint), card)
    ledger.commit(fingerprint)
    remember(sight_of(ledger, card.composition.dataset))
    publisher.discard()
    names = ", ".join(own.released.array for own in card.each_variable())
    return Receipt(card.release_id, spec.output.url, names, card)


def adopt(
    spec: ReleaseSpec, ledger: Ledger, publisher: Publisher, fingerprint: str, card: ReleaseCard
) -> Receipt:
    """Commit what is visible at the output but was published by another run, or put there.

    Guarantee: every object is checked first. A commit destroys the key, and without the key nothing
    is ever written again.
    """
    _check_card(ledger.entry(fingerprint), card)
    check_objects(publisher.output, card, publisher.output.read(ROOT) or b"")
    return commit(spec, ledger, publisher, fingerprint, card)


def _check_card(entry: LedgerEntry | None, card: ReleaseCard) -> None:
    if entry is None or entry.card != card_text(card):
        raise VerificationFailed(
            "the card at the output is not the one that was to be published; move the output away"
        )


def finalize(spec: ReleaseSpec, ledger: Ledger, target: Target) -> Receipt:
    """Commit a release that is visible at the output (:attr:`Action.FINALIZE`).

    What is visible is committed whatever the spec says; only then another spec is refused.
    """
    card, entry, publisher = _visible(target)
    receipt = adopt(spec, ledger, publisher, entry.fingerprint, card)
    check_spec(spec, entry)
    return receipt


def _visible(target: Target) -> tuple[ReleaseCard, LedgerEntry, Publisher]:
    card = published_card(target.output, target.release_id)
    if card is None or target.entry is None:
        raise StoreError("the output changed while the release was looked up; try again")
    return card, target.entry, Publisher.of(target.output, card.release_id)


def publish_staged(spec: ReleaseSpec, ledger: Ledger, target: Target) -> Receipt | None:
    """Publish and commit what is staged (:attr:`Action.PUBLISH`); None if it is not intact.

    Needs neither the source nor a cluster. What is missing is written again, with the same noise,
    by the run that continues.
    """
    entry = target.entry
    if entry is None or target.release_id is None:
        return None
    publisher = Publisher.of(target.output, target.release_id)
    root = _intact_root(publisher, entry.card)
    if root is None:
        return None
    check_spec(spec, entry)
    if not publisher.publish(root):
        raise StoreError(
            f"output {spec.output.url!r} is taken by something else; move it away and"
            " `dpdask resume`"
        )
    return finalize(spec, ledger, target)


def _intact_root(publisher: Publisher, noted_card: str | None) -> bytes | None:
    """Return the staged root document if every staged object is the one in the ledger's card."""
    root = publisher.ready_root()
    if root is None:
        return None
    try:
        card = card_from_attributes(json.loads(root)["attributes"])
        if card_text(card) != noted_card:
            return None
        check_objects(publisher.data, card, root)
        check_signature(card, root)
    except (VerificationFailed, ValueError, KeyError, TypeError):
        return None
    return root


def abandon(
    ledger: Ledger, target: Target, reason: str, command: Command = Command.ABANDON
) -> None:
    """Close a release without a result and remove its staging; its charge stays.

    A release whose card is noted may be published at any moment. On a filesystem its staging is
    removed before the output is looked at again: what is not visible by then cannot be renamed into
    place any more. Elsewhere only the caller can know (``--never-published``).

    Args:
        ledger: Where it was charged.
        target: The release.
        reason: Why, for the ledger.
        command: Which line of the recovery table applies.

    Raises:
        ReleaseError: The release is published.
        LedgerError: It may become visible at any moment.
    """
    outcome = decide(observe(target), command)
    if isinstance(outcome, Refusal):
        raise outcome.error(target.last_step)
    if target.release_id is None:
        raise Refusal.NOTHING_TO_ABORT.error()
    publisher = Publisher.of(target.output, target.release_id)
    invisible = command is Command.ABANDON_INVISIBLE
    if outcome is Action.WITHDRAW:
        invisible = publisher.withdraw()
        if published_card(target.output, target.release_id) is not None:
            raise Refusal.PUBLISHED.error()
    if target.entry is not None and outcome in (Action.BURN, Action.WITHDRAW):
        ledger.burn(target.entry.fingerprint, reason, invisible=invisible)
    publisher.discard(charged=target.entry is not None)


def clean_up(
    ledger: Ledger, output: Storage, release_id: str, fingerprint: str, *, own_lock: bool
) -> None:
    """Remove what a failed run leaves for nobody: staging of a closed release, an uncharged lock.

    Args:
        ledger: Where the release may have been charged.
        output: Where it was to be published.
        release_id: Its public name.
        fingerprint: The secret name under which it is charged.
        own_lock: Whether the failed run itself took the output lock.
    """
    entry = ledger.entry(fingerprint)
    if entry is None or (entry.open and entry.release_id != release_id):
        entry = ledger.entry_named(release_id)
    target = Target(output, release_id, entry)
    command = Command.CLEAN_UP_OWN_LOCK if own_lock else Command.CLEAN_UP
    if decide(observe(target), command) is Action.DISCARD:
        Publisher.of(output, release_id).discard(charged=entry is not None)
