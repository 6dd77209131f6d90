"""What a restored backup has forgotten, recorded again: charges of published releases, and sums.

An entry that was restored says so in its payload, with the head that the release's card names. Its
charge may pass the total: what was spent is spent, and the dataset takes no further release.
"""

from __future__ import annotations

from sqlalchemy import Connection, select

from dpdask.accounting import Dominated, GaussianProfile, PureProfile
from dpdask.keystream import random_bytes
from dpdask.ledger.blocks import load_axes, write_block
from dpdask.ledger.charges import Charge, Spent
from dpdask.ledger.hash_chain import append, check_fingerprint, payload_of, steps_of
from dpdask.ledger.models import PrivacyUnit
from dpdask.ledger.schema import entries, fetch_entry
from dpdask.ledger.steps import entry_with_id, known_dataset, note_arrays
from dpdask.privacy import PrivacyProfile
from dpdask.types import Json

__all__ = ["restore_release", "restore_sums"]

_UNIT_KEYS = ("adjacency", "contributions", "per", "privacy_unit")
_LEAST_MU = 2.0**-60


def restore_release(
    connection: Connection,
    dataset: str,
    fingerprint: str,
    profile: PrivacyProfile,
    privacy_unit: PrivacyUnit,
    payload: Json,
    card: str,
) -> bool:
    """Record a published release that the ledger does not know: charged, published, committed.

    Idempotent: one that is known by its id is left as it is. Returns whether this call did it.

    Args:
        connection: the caller's transaction.
        dataset: the dataset that it was charged to.
        fingerprint: its fingerprint; another one stands for it where that is taken.
        profile: what it is verified to cost.
        privacy_unit: whom it protects.
        payload: what else the ledger records of it, with ``release_id`` and ``restored``.
        card: the text of its card.
    """
    check_fingerprint(fingerprint)
    standing = known_dataset(connection, dataset, lock=True)
    if entry_with_id(connection, payload["release_id"]) is not None:
        return False
    if steps_of(connection, fingerprint):
        fingerprint = random_bytes(32).hex()
    charge = standing.policy.charge_of(profile, standing.spent, standing.total)
    complete = {**payload, "profile": profile.to_dict(), **privacy_unit.to_dict()}
    block = None
    if privacy_unit.block is not None:
        key = (privacy_unit.block_arrays, privacy_unit.block.axis)
        axes = load_axes(connection, dataset, [privacy_unit])
        block = axes[key].add(key, privacy_unit.block, Spent.on(charge))
        complete["parallel"] = block.to_dict()
    head = append(connection, dataset, standing, "reserve", complete, fingerprint, charge)
    if block is not None:
        write_block(connection, dataset, head.sequence, block)
    note_arrays(connection, dataset, fingerprint, privacy_unit)
    for kind, said in (("publish", {"card": card, "restored": True}), ("commit", {})):
        standing = known_dataset(connection, dataset, lock=True)
        append(connection, dataset, standing, kind, said, fingerprint)
    return True


def restore_sums(connection: Connection, dataset: str, seen: Spent) -> bool:
    """Charge by how much less is recorded than was seen before; return whether anything was.

    That is what releases left that were aborted, or whose outputs are not at hand.

    Args:
        connection: the caller's transaction.
        dataset: the dataset.
        seen: the sums that were seen.
    """
    standing = known_dataset(connection, dataset, lock=True)
    missing = seen.maximum(standing.spent) - standing.spent
    if missing == Spent(0, 0):
        return False
    rounded = standing.policy.profile(missing)
    charge: Charge
    profile: PrivacyProfile
    if isinstance(rounded, PureProfile):
        charge = profile = rounded
    else:
        assert isinstance(rounded, Dominated)
        mu = max(rounded.mu, _LEAST_MU)
        charge, profile = Dominated(mu, rounded.delta0), GaussianProfile(mu)
    fingerprint = random_bytes(32).hex()
    payload = {
        **_recorded_unit(connection, dataset),
        "profile": profile.to_dict(),
        "restored": {"sums": True},
    }
    append(connection, dataset, standing, "reserve", payload, fingerprint, charge)
    standing = known_dataset(connection, dataset, lock=True)
    reason = {"reason": "charges that were seen before the ledger was restored"}
    append(connection, dataset, standing, "burn", reason, fingerprint)
    return True


def _recorded_unit(connection: Connection, dataset: str) -> Json:
    """Return how the first release of a dataset says whom it protects; all others say the same."""
    reservations = select(entries).where(entries.c.dataset == dataset, entries.c.kind == "reserve")
    first = fetch_entry(connection, reservations.order_by(entries.c.sequence).limit(1))
    recorded = {} if first is None else payload_of(first)
    kept = {name: recorded[name] for name in _UNIT_KEYS if name in recorded}
    return {**PrivacyUnit().to_dict(), **kept}
