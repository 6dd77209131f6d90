"""Bring a ledger that was restored from a backup up to what is published.

The card of a published release says what it cost, to which dataset it was charged and which entry
of the ledger was then the newest. A release that the ledger does not know is recorded as charged,
published and committed; one that it knows as open is committed, which destroys its key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from dpdask.accounting import profile_from_dict
from dpdask.errors import LedgerError, ReleaseError
from dpdask.ledger import Ledger, LedgerEntry, LedgerHead, PrivacyUnit
from dpdask.ledger.restoring import restore_release, restore_sums
from dpdask.ledger.witness import forgotten, remember, sight_of
from dpdask.planning import ReleasePlan, make_plan, spec_digest
from dpdask.planning.naming import axis_of
from dpdask.planning.sources import open_whole_source, source_storage
from dpdask.planning.variables import variable_specs
from dpdask.privacy import Adjacency, PrivacyProfile
from dpdask.releases.card import ReleaseCard, card_text
from dpdask.releases.verify import verify_release
from dpdask.spec.release import ReleaseSpec, WindowSection
from dpdask.storage import Publisher, open_storage
from dpdask.types import Json

__all__ = ["Reconciled", "Standing", "missing_sums", "reconcile"]


class Standing(StrEnum):
    """What the ledger said of a published release, and what was done about it."""

    KNOWN = "known and committed"
    CLOSED = "was open: committed, its key is destroyed"
    RESTORED = "was unknown: its charge is restored"
    BURNED = "is burned in this ledger, and visible: its charge stays"


@dataclass(frozen=True, slots=True)
class Reconciled:
    """A published release after reconciliation.

    Args:
        url: Where it is.
        release_id: Its public name.
        dataset: The dataset that it is charged to.
        standing: What was done.
    """

    url: str
    release_id: str
    dataset: str
    standing: Standing

    def to_dict(self) -> Json:
        """Return it for JSON."""
        return {
            "output": self.url,
            "release_id": self.release_id,
            "dataset": self.dataset,
            "was": self.standing.name.lower(),
        }


def reconcile(
    ledger: Ledger,
    url: str,
    options: Json | None = None,
    spec: ReleaseSpec | None = None,
    series: str | None = None,
) -> Reconciled:
    """Record a published release in a ledger that was restored from a backup. Idempotent.

    Guarantee: afterwards the release is charged and closed. Without its spec the ledger does not
    know which array it was of, so a window is charged to everybody, which is never less.

    Args:
        ledger: The restored ledger.
        url: Where the release is published; all of it is verified first.
        options: Storage options of the output.
        spec: The spec of the release, or of its series.
        series: The name of the series that it is a window of.

    Raises:
        VerificationFailed: The release does not hold.
        LedgerError: Its dataset is not open, or is another one.
    """
    card = verify_release(url, options)
    dataset = card.composition.dataset
    _check_dataset(ledger, card)
    entry = ledger.entry_named(card.release_id)
    if entry is None:
        _restore(ledger, card, url, options, spec, series)
        return Reconciled(url, card.release_id, dataset, Standing.RESTORED)
    if entry.last == "commit":
        return Reconciled(url, card.release_id, dataset, Standing.KNOWN)
    if entry.last == "burn":
        return Reconciled(url, card.release_id, dataset, Standing.BURNED)
    _close(ledger, card, entry)
    Publisher.of(open_storage(url, options), card.release_id).discard()
    return Reconciled(url, card.release_id, dataset, Standing.CLOSED)


def _check_dataset(ledger: Ledger, card: ReleaseCard) -> None:
    """Check that the dataset is open, with the total that the card names."""
    dataset, total = card.composition.dataset, card.composition.total
    if dataset not in ledger.datasets():
        raise LedgerError(
            f"dataset {dataset!r} was opened after the backup; open it again:"
            f" `dpdask ledger init {dataset} --epsilon {total.epsilon!r} --delta {total.delta!r}`"
        )
    known = ledger.state(dataset).total
    if (known.epsilon, known.delta) != (total.epsilon, total.delta):
        raise LedgerError(
            f"dataset {dataset!r} has another total here than on the card: this is another"
            " ledger; give the one that the release was charged to"
        )


def _close(ledger: Ledger, card: ReleaseCard, entry: LedgerEntry) -> None:
    """Commit a release that was open when the backup was taken, and is published."""
    if ledger.publish(entry.fingerprint, card_text(card)) != card_text(card):
        raise LedgerError("the ledger noted another card for this release; ask its curator")
    ledger.commit(entry.fingerprint)


def _restore(
    ledger: Ledger,
    card: ReleaseCard,
    url: str,
    options: Json | None,
    spec: ReleaseSpec | None,
    series: str | None,
) -> None:
    dataset, verified = card.composition.dataset, card.guarantee.verified
    profile = profile_from_dict({"name": verified.name, "configuration": verified.configuration})
    head = LedgerHead(dataset, card.ledger.sequence, card.ledger.hash)
    payload: Json = {
        "release_id": card.release_id,
        "output_url": url,
        "output_address": open_storage(url, options).address(),
        "curator": card.curator,
        "restored": {"head": head.to_dict(), "reserved_at": card.reserved_at},
    }
    fingerprint = hashlib.sha256(f"restored {card.release_id}".encode()).hexdigest()
    unit = _unit_on(card)
    if spec is not None:
        windowed = _spec_of(spec, card, url, series)
        plan = make_plan(windowed, resuming=True, forecast=False)
        _check_same(card, plan, profile)
        fingerprint, unit = plan.fingerprint, plan.privacy_unit
        payload |= _planned(plan, windowed)
    with ledger.transaction() as connection:
        restore_release(connection, dataset, fingerprint, profile, unit, payload, card_text(card))


def _unit_on(card: ReleaseCard) -> PrivacyUnit:
    """Return whom a release protects as far as its card tells: no array, no block."""
    unit, people = card.privacy_unit, card.privacy_unit.people
    beside = unit.per is not None and unit.per.axis != unit.record_axis
    return PrivacyUnit(
        adjacency=Adjacency(unit.adjacency),
        contributions=unit.max_contributions,
        per=unit.per.dimension if unit.per is not None and beside else None,
        name=None if people is None else people.name,
    )


def _spec_of(spec: ReleaseSpec, card: ReleaseCard, url: str, series: str | None) -> ReleaseSpec:
    """Return the spec of one release of a series: its window and edition, from the card."""
    changes: dict[str, object] = {
        "output": spec.output.model_copy(update={"url": url}),
        "publish": spec.publish.model_copy(update={"edition": card.edition}),
    }
    window = card.released.window
    if window is not None and spec.source.window is None:
        source = open_whole_source(variable_specs(spec)[0], source_storage(spec))
        # a series names its axis by index, which is part of the fingerprint
        axis = axis_of(
            "source.window.axis",
            window.dimension,
            shape=source.shape,
            names=source.dimension_names,
        )
        section = WindowSection(axis=axis, start=window.start, stop=window.stop, series=series)
        changes["source"] = spec.source.model_copy(update={"window": section})
    return spec.model_copy(update=changes)


def _planned(plan: ReleasePlan, spec: ReleaseSpec) -> Json:
    planned: Json = {"source_identity": plan.identity, "spec_digest": spec_digest(spec)}
    window = plan.variables[0].source.window
    if spec.source.window is not None and window is not None:
        planned["window"] = {**spec.source.window.model_dump(), "axis": window[0]}
    return planned


def _check_same(card: ReleaseCard, plan: ReleasePlan, profile: PrivacyProfile) -> None:
    """Check that the spec is that of the release: the same dataset and the same guarantee."""
    same_dataset = plan.spec.budget.dataset == card.composition.dataset
    if not same_dataset or plan.guarantee.verified.to_dict() != profile.to_dict():
        raise ReleaseError(
            "the spec is not that of this release: its dataset or its guarantee differs; leave"
            " --spec out, or give the right one"
        )


def missing_sums(ledger: Ledger, datasets: Sequence[str], *, charge: bool) -> list[str]:
    """Return the datasets of which less is charged than was seen here before.

    A dataset that is not among them may be charged again from here on.

    Args:
        ledger: The ledger, with all releases reconciled that are at hand.
        datasets: Which datasets.
        charge: Whether to charge what is missing.
    """
    behind = []
    for dataset in datasets:
        seen = forgotten(ledger, dataset)
        if seen is None:
            continue
        if charge:
            with ledger.transaction() as connection:
                restore_sums(connection, dataset, seen.spent)
        now = sight_of(ledger, dataset)
        if now.spent.maximum(seen.spent) != now.spent:
            behind.append(dataset)
        else:
            remember(now)
    return behind
