"""The steps of a release in the ledger, each within the caller's transaction.

    reserve (charged) -> key -> publish -> commit, or burn before publish

Each step locks its dataset first, so that steps of one dataset happen one after the other.
"""

from __future__ import annotations

import json

from sqlalchemy import Connection, insert, select

from dpdask.errors import LedgerCorrupt, LedgerError
from dpdask.keystream import ReleaseKey
from dpdask.ledger.admission import admit, lock_arrays
from dpdask.ledger.blocks import write_block
from dpdask.ledger.charges import Charge
from dpdask.ledger.hash_chain import (
    Standing,
    append,
    check_fingerprint,
    check_link,
    last_step,
    payload_of,
    standing_of,
    steps_of,
)
from dpdask.ledger.key_store import KeyStore
from dpdask.ledger.models import CLOSING, PrivacyUnit, Reservation
from dpdask.ledger.payloads import charge_in, is_version_1
from dpdask.ledger.policies import ADAPTIVE, Policy
from dpdask.ledger.rates import Allowance, check_allowance
from dpdask.ledger.schema import EntryRow, datasets, entries, fetch_entry
from dpdask.privacy import PrivacyBudget, PrivacyProfile
from dpdask.types import Json

__all__ = [
    "burn",
    "commit",
    "entry_with_id",
    "known_dataset",
    "note_arrays",
    "note_publication",
    "open_dataset",
    "put_once",
    "read_once",
    "release_key",
    "reserve",
]

_LONGEST_DATASET_NAME = 200
_LONGEST_ONCE_NAME = 100


def known_dataset(connection: Connection, dataset: str, *, lock: bool = False) -> Standing:
    """Return the standing of a dataset that must be open."""
    standing = standing_of(connection, dataset, lock=lock)
    if standing is None:
        raise LedgerError(
            f"dataset {dataset!r} is not in the ledger; open it with its total:"
            f" `dpdask ledger init {dataset} --epsilon E --delta D`"
        )
    return standing


def open_dataset(connection: Connection, name: str, total: PrivacyBudget, policy: Policy) -> None:
    """Open a dataset with its total budget and policy. Idempotent for the same ones."""
    if not name or len(name) > _LONGEST_DATASET_NAME or not name.isprintable():
        raise LedgerError(
            f"dataset name {name!r} is empty, too long or unprintable; use up to"
            f" {_LONGEST_DATASET_NAME} printable characters"
        )
    if (policy is ADAPTIVE) != (total.delta > 0):
        raise LedgerError(
            f"a total with delta {total.delta:g} does not go with the policy {policy.name}:"
            " adaptive needs a delta above 0, pure has none"
        )
    existing = standing_of(connection, name, lock=True)
    if existing is None:
        connection.execute(insert(datasets).values(name=name))
        chosen: Json = {} if policy is ADAPTIVE else {"policy": policy.name}
        opening = {"epsilon": total.epsilon, "delta": total.delta, **chosen}
        append(connection, name, None, "open", opening)
    elif existing.policy is not policy:
        raise LedgerError(
            f"dataset {name!r} is accounted by the policy {existing.policy.name}, which never"
            " changes; open another dataset"
        )
    elif existing.total != total:
        raise LedgerError(
            f"dataset {name!r} has epsilon {existing.total.epsilon:g}, delta"
            f" {existing.total.delta:g}; a total never changes"
        )


def reserve(
    connection: Connection,
    dataset: str,
    fingerprint: str,
    profile: PrivacyProfile,
    privacy_unit: PrivacyUnit,
    payload: Json,
    allowance: Allowance | None = None,
) -> Reservation:
    """Charge a release to a dataset, or refuse before anything is written.

    Args:
        connection: the caller's transaction.
        dataset: the dataset's name.
        fingerprint: the release's fingerprint.
        profile: what the release is verified to cost.
        privacy_unit: whom it protects.
        payload: what else the ledger records of it.
        allowance: what the dataset may spend within some days; None for no such limit.
    """
    check_fingerprint(fingerprint)
    standing = known_dataset(connection, dataset, lock=True)
    steps = steps_of(connection, fingerprint)
    if steps:
        _check_same_reservation(connection, steps, standing, profile)
        return Reservation(dataset, fingerprint, new=False)
    release_id = payload.get("release_id")
    if release_id is not None and entry_with_id(connection, release_id) is not None:
        raise LedgerError("another release took over this one's lock on the output; start it again")
    lock_arrays(connection, privacy_unit)
    [admission] = admit(connection, standing, [(profile, privacy_unit)])
    if allowance is not None:
        check_allowance(connection, standing, allowance, (profile, privacy_unit))
    complete = {**payload, "profile": profile.to_dict(), **privacy_unit.to_dict()}
    block = admission.block
    if block is not None:
        complete["parallel"] = block.to_dict()
    head = append(connection, dataset, standing, "reserve", complete, fingerprint, admission.charge)
    if block is not None:
        write_block(connection, dataset, head.sequence, block)
    note_arrays(connection, dataset, fingerprint, privacy_unit)
    return Reservation(dataset, fingerprint, new=True)


def note_arrays(
    connection: Connection, dataset: str, fingerprint: str, privacy_unit: PrivacyUnit
) -> None:
    """Note all arrays of a release but the first, which its reservation names.

    Args:
        connection: the caller's transaction.
        dataset: the dataset that it is charged to.
        fingerprint: the release's fingerprint.
        privacy_unit: whom it protects, with its arrays.
    """
    for number, (array, record_axis) in enumerate(privacy_unit.further_arrays, start=2):
        standing = known_dataset(connection, dataset, lock=True)
        noted = {"once_name": f"array {number}", "array": array, "record_axis": record_axis}
        append(connection, dataset, standing, "put_once", {**noted, "text": array}, fingerprint)


def _check_same_reservation(
    connection: Connection, steps: list[EntryRow], standing: Standing, profile: PrivacyProfile
) -> None:
    """A reservation may be repeated only as it was, and only while the release is open."""
    if steps[0].dataset != standing.dataset:
        raise LedgerError(
            "the release belongs to another dataset; a fingerprint stands for one release"
        )
    charge = _recorded_charge(connection, steps[0], profile)
    _check_open(steps[-1])
    if charge is not None and not standing.policy.covers(charge, profile):
        raise LedgerCorrupt(
            "the release was charged less than its guarantee costs; the ledger was changed"
        )


def _recorded_charge(
    connection: Connection, reserved: EntryRow, profile: PrivacyProfile
) -> Charge | None:
    """Return what a reservation charged; None for one of 0.1.0, charged by the upgrade's entry."""
    payload = payload_of(reserved)
    if not is_version_1(payload):
        position = entries.c.sequence == reserved.sequence - 1
        query = select(entries).where(entries.c.dataset == reserved.dataset, position)
        check_link(reserved, fetch_entry(connection, query))
    if payload["profile"] != json.loads(json.dumps(profile.to_dict())):
        raise LedgerError(
            "the release was reserved with another guarantee; a fingerprint stands for one release"
        )
    return charge_in(payload)


def entry_with_id(connection: Connection, release_id: str) -> EntryRow | None:
    """Return the reservation of the release with this public name, None if there is none."""
    return fetch_entry(connection, select(entries).where(entries.c.release_id == release_id))


def put_once(connection: Connection, fingerprint: str, name: str, text: str) -> str:
    """Record a value of an open release under a name; return the one that was recorded first.

    Args:
        connection: the caller's transaction.
        fingerprint: the release's fingerprint.
        name: what the value is.
        text: the value.
    """
    if not name or len(name) > _LONGEST_ONCE_NAME:
        raise LedgerError(
            f"{name!r} is not a valid name of a value; use 1 to {_LONGEST_ONCE_NAME} characters"
        )
    standing, last = _open_release(connection, fingerprint)
    first = read_once(connection, fingerprint, name)
    if first is not None:
        return first
    if last.kind == "publish":  # what is published must stay the last thing before it is committed
        raise LedgerError(
            "the release is complete, and nothing is added to it any more; `dpdask resume` commits"
            " it"
        )
    payload = {"once_name": name, "text": text}
    append(connection, standing.dataset, standing, "put_once", payload, fingerprint)
    return text


def read_once(connection: Connection, fingerprint: str, name: str) -> str | None:
    """Return the value that was recorded under a name, None if there is none."""
    query = select(entries).where(
        entries.c.fingerprint == fingerprint,
        entries.c.kind == "put_once",
        entries.c.once_name == name,
    )
    row = fetch_entry(connection, query)
    return None if row is None else str(payload_of(row)["text"])


def release_key(connection: Connection, fingerprint: str, keys: KeyStore) -> ReleaseKey:
    """Return the key of an open release; the first call creates it."""
    standing, _ = _open_release(connection, fingerprint)
    stored = keys.read(connection, standing.dataset, fingerprint)
    recorded = any(step.kind == "key" for step in steps_of(connection, fingerprint))
    if recorded != (stored is not None):
        raise LedgerCorrupt(
            "the stored key of the release is not the one its chain records; `dpdask abort` the"
            " release"
        )
    if stored is not None:
        return stored
    key = ReleaseKey.generate()
    keys.write(connection, standing.dataset, fingerprint, key.reveal())
    payload = {"wrapped": not keys.bare}
    append(connection, standing.dataset, standing, "key", payload, fingerprint)
    return key


def note_publication(connection: Connection, fingerprint: str, card: str) -> str:
    """Record the card of a release that is about to become visible; return the first one."""
    standing, last = _open_release(connection, fingerprint)
    if last.kind == "publish":
        return str(payload_of(last)["card"])
    append(connection, standing.dataset, standing, "publish", {"card": card}, fingerprint)
    return card


def commit(connection: Connection, fingerprint: str) -> None:
    """Close a published release and destroy its key. Idempotent."""
    if _is_closed_by("commit", connection, fingerprint):
        return
    standing, last = _open_release(connection, fingerprint)
    if last.kind != "publish":
        raise LedgerError(f"the release is not published: its last step is {last.kind}")
    _close(connection, standing, "commit", {}, fingerprint)


def burn(connection: Connection, fingerprint: str, reason: str, *, invisible: bool) -> None:
    """Close a release without a result and destroy its key; its charge stays. Idempotent.

    Args:
        connection: the caller's transaction.
        fingerprint: the release's fingerprint.
        reason: why, for the record.
        invisible: whether the caller declares that nothing is left that could become visible.
    """
    if _is_closed_by("burn", connection, fingerprint):
        return
    standing, last = _open_release(connection, fingerprint)
    if last.kind == "publish" and not invisible:
        raise LedgerError(
            "the release is complete and may be visible at any moment; `dpdask resume` finishes"
            " it. If it is lost for good, `dpdask abort --release NAME --never-published`"
        )
    _close(connection, standing, "burn", {"reason": reason}, fingerprint)


def _is_closed_by(kind: str, connection: Connection, fingerprint: str) -> bool:
    """Return whether a release is closed by this kind of step; its dataset is locked."""
    known_dataset(connection, last_step(connection, fingerprint).dataset, lock=True)
    return last_step(connection, fingerprint).kind == kind


def _close(
    connection: Connection, standing: Standing, kind: str, payload: Json, fingerprint: str
) -> None:
    KeyStore.destroy(connection, fingerprint)
    append(connection, standing.dataset, standing, kind, payload, fingerprint)


def _open_release(connection: Connection, fingerprint: str) -> tuple[Standing, EntryRow]:
    """Return the dataset and the last step of an open release; the dataset stays locked."""
    dataset = last_step(connection, fingerprint).dataset
    standing = known_dataset(connection, dataset, lock=True)
    last = last_step(connection, fingerprint)  # again, now that nobody else writes
    _check_open(last)
    return standing, last


def _check_open(last: EntryRow) -> None:
    if last.kind in CLOSING:
        raise LedgerError(f"the release is closed by {last.kind}; a new release is a new charge")
