"""What an entry says, as JSON, and the one place where keys of 0.1.0 are translated.

An entry's text is covered by its hash, so entries of 0.1.0 keep their text; only what is read from
it gets today's keys.
"""

from __future__ import annotations

import json

from dpdask.accounting import Dominated, PureProfile
from dpdask.errors import LedgerCorrupt
from dpdask.ledger.charges import NOTHING, Charge, Spent
from dpdask.types import Json

__all__ = [
    "added_by",
    "charge_in",
    "charge_to_dict",
    "decode_payload",
    "encode_payload",
    "index_columns",
    "is_version_1",
]

# Keys of reservations in 0.1.0, and today's keys.
_RENAMED_KEYS = {
    "name": "release_id",
    "source": "source_identity",
    "asked": "spec_digest",
    "output": "output_url",
    "place": "output_address",
}


def encode_payload(payload: Json) -> str:
    """Return the text of a payload: canonical JSON."""
    return json.dumps(payload, sort_keys=True, separators=(",", ":"), allow_nan=False)


def decode_payload(text: str) -> Json:
    """Return the payload of an entry's text, with today's keys."""
    payload: Json = json.loads(text)
    if not is_version_1(payload):
        return payload
    return {_RENAMED_KEYS.get(key, key): value for key, value in payload.items()}


def is_version_1(payload: Json) -> bool:
    """Return whether 0.1.0 wrote the entry: it recorded no position in the chain."""
    return "sequence" not in payload


def charge_to_dict(charge: Charge) -> Json:
    """Return what an entry says of its charge."""
    if isinstance(charge, PureProfile):
        return {"epsilon": charge.largest_loss}
    return {"mu": charge.mu, "delta0": charge.delta0}


def charge_in(payload: Json) -> Charge | None:
    """Return what an entry charges, None if it charges nothing."""
    charge = payload.get("charge")
    if charge is None:
        return None
    if "epsilon" in charge:
        return PureProfile(charge["epsilon"])
    return Dominated(charge["mu"], charge["delta0"])


def added_by(payload: Json) -> Spent:
    """Return what an entry adds to the sums of its dataset.

    That is its charge, or by how much a release of a block lets the largest charge grow: nothing
    to all of its charge.
    """
    charge = charge_in(payload)
    if charge is None:
        return NOTHING
    amount = Spent.on(charge)
    if "parallel" not in payload:
        return amount
    grown = Spent.read(*payload["parallel"]["grown"])
    if not (0 <= grown.amount <= amount.amount and 0 <= grown.delta0 <= amount.delta0):
        raise LedgerCorrupt(
            f"entry {payload['sequence']} lets the largest charge grow by more than its own"
        )
    return grown


def index_columns(kind: str, payload: Json) -> Json:
    """Return the parts of a payload that the database indexes, by column."""
    columns: Json = {
        "once_name": payload["once_name"] if kind == "put_once" else "",
        "release_id": None,
        "array": None,
        "record_axis": None,
        "series": None,
    }
    if kind == "reserve":
        for name in ("release_id", "array", "record_axis"):
            columns[name] = payload.get(name)
        columns["series"] = (payload.get("window") or {}).get("series")
    elif kind == "put_once":  # a further array of a release is noted so
        for name in ("array", "record_axis"):
            columns[name] = payload.get(name)
    return columns
