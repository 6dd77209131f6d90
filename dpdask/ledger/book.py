"""Reserve, key, publish and commit, or burn: the only way to spend a dataset's budget.

A release is charged when it is *reserved*, before any key exists. Its charge never goes away: a crash leaves it, commit and
burn only close it. From its *publish* step on it may become visible at any moment, so it can no longer be burned. Reserving the
same release again is free and gives the same key, so a retry replays. Rows are chained by SHA-256 per dataset; changing,
removing or reordering one is found by :meth:`Ledger.verify`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sqlalchemy import Connection, delete, insert, select
from sqlalchemy.exc import SQLAlchemyError

from dpdask.errors import BudgetExceeded, LedgerCorrupt, LedgerError
from dpdask.ledger.tables import connect, create_tables, datasets, entries, forget_deleted, release_keys
from dpdask.noise.stream import ReleaseKey, random_bytes
from dpdask.privacy import Adjacency, PrivacyBudget, PrivacyProfile
from dpdask.profiles import compose, profile_from_description

__all__ = ["DatasetState", "Forecast", "Ledger", "ReleaseRecord", "Reservation", "SeriesWindow"]

_GENESIS = "0" * 64
_CLOSING = ("commit", "burn")


@dataclass(frozen=True, slots=True)
class Reservation:
    """A charged release: ``new`` when this call charged it, else it was charged before."""

    dataset: str
    release: str
    new: bool


@dataclass(frozen=True, slots=True)
class DatasetState:
    """A dataset's total, what has been spent of it, and its releases with their last step."""

    name: str
    total: PrivacyBudget
    spent: PrivacyProfile | None
    releases: dict[str, str]
    details: dict[str, dict[str, Any]]

    @property
    def spent_epsilon(self) -> float:
        """The epsilon spent so far, at the total's delta."""
        return 0.0 if self.spent is None else self.spent.epsilon(self.total.delta)

    def describe(self) -> dict[str, Any]:
        """The state as JSON-ready facts."""
        return {
            "dataset": self.name,
            "total": {"epsilon": self.total.epsilon, "delta": self.total.delta},
            "spent_epsilon": self.spent_epsilon,
            "spent": None if self.spent is None else self.spent.describe(),
            "releases": [{**self.details[release], "last_step": step} for release, step in self.releases.items()],
        }


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a dataset has spent, and would have spent after one more release, at its total's delta."""

    total: PrivacyBudget
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class SeriesWindow:
    """A window of a series that was charged: where it is, where its result goes, and whether it is still under way."""

    window: dict[str, Any]
    output: str
    open: bool


@dataclass(frozen=True, slots=True)
class ReleaseRecord:
    """One release as the ledger knows it.

    ``release`` is its fingerprint, which depends on the data and stays inside; ``name`` is the random one that is published.
    ``cumulative`` composes everything charged up to and with it; ``place`` is where its output is; ``card`` the JSON text of
    its card, once it is about to be published.
    """

    dataset: str
    release: str
    name: str
    source: str
    total: PrivacyBudget
    last: str
    reserved_at: str
    cumulative: PrivacyProfile
    place: str | None
    card: str | None

    @property
    def open(self) -> bool:
        """Whether it is neither committed nor burned."""
        return self.last not in _CLOSING


class Ledger:
    """A budget book at a database URL; opening it creates its tables.

    ``master_key`` (32 bytes) wraps the release keys it stores; without one they are kept as they are, readable by whoever
    reads the database. Without ``create``, a SQLite file that is not there is an error.
    """

    def __init__(self, url: str, *, master_key: bytes | None = None, create: bool = True) -> None:
        if master_key is not None and len(master_key) != 32:
            raise LedgerError(f"the master key has {len(master_key)} bytes; give exactly 32")
        self._engine = connect(url, create=create)
        self._cipher = None if master_key is None else AESGCM(master_key)
        with _plain_errors():
            create_tables(self._engine)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def open_dataset(self, name: str, total: PrivacyBudget) -> None:
        """Give a dataset its total budget, once and for all; the same total again is fine."""
        if not name or len(name) > 200 or not name.isprintable():
            raise LedgerError(f"dataset name {name!r} is empty, too long or unprintable; use up to 200 printable characters")
        with _plain_errors(), self._engine.begin() as connection:
            existing = _total(connection, name, lock=True)
            if existing is None:
                connection.execute(insert(datasets).values(name=name, epsilon=repr(total.epsilon), delta=repr(total.delta)))
                facts = {"epsilon": total.epsilon, "delta": total.delta}
                _append(connection, name, None, "open", facts)
            elif existing != total:
                raise LedgerError(
                    f"dataset {name!r} has epsilon {existing.epsilon:g}, delta {existing.delta:g}; a total never changes"
                )

    def datasets(self) -> list[str]:
        """The names of all datasets."""
        with _plain_errors(), self._engine.begin() as connection:
            return list(connection.scalars(select(datasets.c.name).order_by(datasets.c.name)))

    def state(self, dataset: str) -> DatasetState:
        """What has been spent of a dataset and on which releases."""
        with _plain_errors(), self._engine.begin() as connection:
            total = _known_total(connection, dataset, lock=False)
            rows = _rows(connection, dataset)
        charged = _charged(rows)
        return DatasetState(
            name=dataset,
            total=total,
            spent=compose([(profile, 1) for profile in charged.values()]) if charged else None,
            releases={row.release: row.kind for row in rows if row.release},
            details={
                row.release: {name: facts.get(name) for name in ("name", "at", "output")}
                | {"epsilon": charged[row.release].epsilon(total.delta)}
                for row in rows
                if row.kind == "reserve" and (facts := json.loads(row.body))
            },
        )

    def forecast(
        self,
        dataset: str,
        profile: PrivacyProfile,
        adjacency: Adjacency = Adjacency.REPLACE_ONE,
        contributions: int = 1,
    ) -> Forecast:
        """What one more release would make of a dataset's budget; raises as :meth:`reserve` would, charges nothing."""
        with _plain_errors(), self._engine.begin() as connection:
            total = _known_total(connection, dataset, lock=False)
            rows = _rows(connection, dataset)
        return _admit(dataset, total, rows, profile, adjacency, contributions)

    def reserve(
        self,
        dataset: str,
        release: str,
        profile: PrivacyProfile,
        adjacency: Adjacency = Adjacency.REPLACE_ONE,
        contributions: int = 1,
        facts: dict[str, Any] | None = None,
    ) -> Reservation:
        """Charge ``profile`` to ``dataset`` for the release with this fingerprint, or refuse before anything is written.

        Guarantee: the composition of everything ever reserved stays within the total, however many processes race.
        """
        _check_release(release)
        with _plain_errors(), self._engine.begin() as connection:
            total = _known_total(connection, dataset, lock=True)
            rows = _rows(connection, dataset)
            if release in _charged(rows):
                _check_same(rows, release, profile)
                return Reservation(dataset, release, new=False)
            if connection.scalar(select(entries.c.dataset).where(entries.c.release == release).limit(1)) is not None:
                raise LedgerError("the release belongs to another dataset; a fingerprint stands for one release")
            named = (facts or {}).get("name")
            if named is not None and any(_name(row) == named for row in _reservations(connection)):
                raise LedgerError("another release took over this one's claim on the output; start it again")
            _admit(dataset, total, rows, profile, adjacency, contributions)
            unit = {"adjacency": str(adjacency), "contributions": contributions}
            noted = {**(facts or {}), "profile": profile.describe(), **unit}
            _append(connection, dataset, release, "reserve", noted)
            return Reservation(dataset, release, new=True)

    def record(self, release: str) -> ReleaseRecord | None:
        """A release's history, None when it was never reserved."""
        _check_release(release)
        with _plain_errors(), self._engine.begin() as connection:
            dataset = connection.scalar(select(entries.c.dataset).where(entries.c.release == release).limit(1))
            if dataset is None:
                return None
            total = _known_total(connection, dataset, lock=False)
            rows = _rows(connection, dataset)
        mine = [row for row in rows if row.release == release]
        until = [row for row in rows if row.sequence <= mine[0].sequence]
        noted = json.loads(mine[0].body)
        published: dict[str, Any] = next((json.loads(row.body) for row in mine if row.kind == "publish"), {})
        return ReleaseRecord(
            dataset=dataset,
            release=release,
            name=noted.get("name", release),
            source=noted.get("source", ""),
            total=total,
            last=mine[-1].kind,
            reserved_at=noted["at"],
            cumulative=compose([(profile, 1) for profile in _charged(until).values()]),
            place=noted.get("place"),
            card=published.get("card"),
        )

    def named(self, name: str) -> ReleaseRecord | None:
        """The release that is published under ``name``, None when there is none."""
        with _plain_errors(), self._engine.begin() as connection:
            rows = _reservations(connection)
        found = [row.release for row in rows if _name(row) == name]
        return self.record(found[0]) if found else None

    def open_releases(self, beginning: str) -> list[ReleaseRecord]:
        """The releases that are neither committed nor burned and whose names begin so."""
        with _plain_errors(), self._engine.begin() as connection:
            rows = _reservations(connection)
        named = [row.release for row in rows if str(_name(row)).startswith(beginning)]
        return [record for record in map(self.record, named) if record is not None and record.open]

    def windows(self, dataset: str, series: str) -> list[SeriesWindow]:
        """The windows of a series that were charged and not burned, oldest first."""
        with _plain_errors(), self._engine.begin() as connection:
            _known_total(connection, dataset, lock=False)
            rows = _rows(connection, dataset)
        last = {row.release: row.kind for row in rows}
        noted = [(row.release, json.loads(row.body)) for row in rows if row.kind == "reserve"]
        return [
            SeriesWindow(facts["window"], facts["output"], last[release] not in _CLOSING)
            for release, facts in noted
            if facts.get("window") is not None and facts["window"].get("series") == series and last[release] != "burn"
        ]

    def spent_since(self, dataset: str, since: datetime) -> PrivacyProfile | None:
        """What was charged at or after a moment, composed; None when nothing was."""
        with _plain_errors(), self._engine.begin() as connection:
            _known_total(connection, dataset, lock=False)
            rows = _rows(connection, dataset)
        recent = [row for row in rows if datetime.fromisoformat(json.loads(row.body)["at"]) >= since - timedelta(seconds=1)]
        charged = _charged(recent)
        return compose([(profile, 1) for profile in charged.values()]) if charged else None

    def release_key(self, release: str) -> ReleaseKey:
        """The key of a reserved release: made at the first call, the same at every later one until it is closed."""
        with _plain_errors(), self._engine.begin() as connection:
            dataset, _ = self._open_release(connection, release)
            stored = connection.execute(select(release_keys).where(release_keys.c.release == release)).one_or_none()
            if stored is not None:
                return ReleaseKey(self._unwrap(release, stored.wrapped, stored.content))
            key = ReleaseKey.generate()
            wrapped, content = self._wrap(release, key.reveal())
            connection.execute(insert(release_keys).values(release=release, wrapped=wrapped, content=content))
            _append(connection, dataset, release, "key", {"wrapped": bool(wrapped)})
            return key

    def publish(self, release: str, card: str) -> str:
        """Note the card of a release that is complete, verified and about to become visible; the card that was noted first.

        From here on :meth:`burn` refuses; if it came first, this does.
        """
        with _plain_errors(), self._engine.begin() as connection:
            dataset, last = self._open_release(connection, release)
            if last.kind == "publish":
                return str(json.loads(last.body)["card"])
            _append(connection, dataset, release, "publish", {"card": card})
            return card

    def commit(self, release: str) -> None:
        """Close a published release and destroy its key. Again is fine."""
        self._close_release(release, "commit", {}, after="publish")

    def burn(self, release: str, reason: str, *, invisible: bool = False) -> None:
        """Close a release that will never be published and destroy its key; its charge stays. Again is fine.

        After :meth:`publish` only with ``invisible``: the caller's word that nothing is left that could still be published.
        """
        self._close_release(release, "burn", {"reason": reason}, before=None if invisible else "publish")

    def _close_release(
        self, release: str, kind: str, facts: dict[str, Any], after: str | None = None, before: str | None = None
    ) -> None:
        with _plain_errors():
            with self._engine.begin() as connection:
                _known_total(connection, _last(connection, release).dataset, lock=True)
                if _last(connection, release).kind == kind:
                    return
                dataset, last = self._open_release(connection, release)
                if after is not None and last.kind != after:
                    raise LedgerError(f"the release is not published: its last step is {last.kind}")
                if before is not None and last.kind == before:
                    raise LedgerError(
                        "the release is complete and may be visible at any moment; `dpdask resume` concludes it. If it is lost"
                        " for good, `dpdask abort --release NAME --never-published`"
                    )
                connection.execute(delete(release_keys).where(release_keys.c.release == release))
                _append(connection, dataset, release, kind, facts)
            forget_deleted(self._engine)

    def _open_release(self, connection: Connection, release: str) -> tuple[str, Any]:
        """The dataset and the last step of a release that is not closed; its dataset is locked until the transaction ends."""
        dataset = str(_last(connection, release).dataset)
        _known_total(connection, dataset, lock=True)
        last = _last(connection, release)
        if last.kind in _CLOSING:
            raise LedgerError(f"the release is closed by {last.kind}; a new release is a new charge")
        return dataset, last

    def _wrap(self, release: str, secret: bytes) -> tuple[int, bytes]:
        if self._cipher is None:
            return 0, secret
        nonce = random_bytes(12)
        return 1, nonce + self._cipher.encrypt(nonce, secret, release.encode())

    def _unwrap(self, release: str, wrapped: int, content: bytes) -> bytes:
        if not wrapped:
            return bytes(content)
        if self._cipher is None:
            raise LedgerError("the release key is wrapped by a master key; set DPDASK_MASTER_KEY to the one it was made with")
        try:
            return self._cipher.decrypt(content[:12], content[12:], release.encode())
        except InvalidTag:
            raise LedgerError("the master key does not fit this release key; set DPDASK_MASTER_KEY to the right one") from None

    def verify(self) -> int:
        """Recompute every chain; the number of rows. Raises :class:`LedgerCorrupt` at the first broken link."""
        count = 0
        with _plain_errors(), self._engine.begin() as connection:
            for name in connection.scalars(select(datasets.c.name).order_by(datasets.c.name)).all():
                total = _known_total(connection, name, lock=False)
                previous = _GENESIS
                for row in _rows(connection, name):
                    expected = _digest(previous, row.dataset, row.release or "", row.kind, row.body)
                    if row.previous != previous or row.hash != expected:
                        raise LedgerCorrupt(f"entry {row.sequence} of dataset {name!r} does not follow from the one before it")
                    facts = json.loads(row.body)
                    if row.kind == "open" and (facts["epsilon"], facts["delta"]) != (total.epsilon, total.delta):
                        raise LedgerCorrupt(f"the total of dataset {name!r} is not the one it was opened with")
                    previous, count = row.hash, count + 1
                if previous == _GENESIS:
                    raise LedgerCorrupt(f"dataset {name!r} has no opening entry")
        return count


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Database errors as one line without statements, parameters or addresses."""
    try:
        yield
    except SQLAlchemyError as error:
        kind = type(getattr(error, "orig", None) or error).__name__
        raise LedgerError(
            f"the ledger's database refused ({kind}); check that it can be reached, written and is not full"
        ) from None


def _check_release(release: str) -> None:
    if len(release) != 64 or any(c not in "0123456789abcdef" for c in release):
        raise LedgerError("this is no fingerprint of a release; give 64 lower-case hexadecimal digits")


def _total(connection: Connection, name: str, *, lock: bool) -> PrivacyBudget | None:
    query = select(datasets).where(datasets.c.name == name)
    row = connection.execute(query.with_for_update() if lock else query).one_or_none()
    return None if row is None else PrivacyBudget(epsilon=float(row.epsilon), delta=float(row.delta))


def _known_total(connection: Connection, name: str, *, lock: bool) -> PrivacyBudget:
    total = _total(connection, name, lock=lock)
    if total is None:
        raise LedgerError(
            f"dataset {name!r} is not in the ledger; open it with its total: `dpdask ledger init {name} --epsilon E --delta D`"
        )
    return total


def _rows(connection: Connection, dataset: str) -> list[Any]:
    return list(connection.execute(select(entries).where(entries.c.dataset == dataset).order_by(entries.c.sequence)))


def _last(connection: Connection, release: str) -> Any:
    _check_release(release)
    query = select(entries).where(entries.c.release == release).order_by(entries.c.sequence.desc()).limit(1)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise LedgerError("the release is not reserved; reserve it before asking for its key")
    return row


def _charged(rows: list[Any]) -> dict[str, PrivacyProfile]:
    """Every profile ever reserved, whatever became of it."""
    return {row.release: profile_from_description(json.loads(row.body)["profile"]) for row in rows if row.kind == "reserve"}


def _reservations(connection: Connection) -> list[Any]:
    """The reservations of all datasets."""
    return list(connection.execute(select(entries.c.release, entries.c.body).where(entries.c.kind == "reserve")))


def _name(row: Any) -> str | None:
    name: str | None = json.loads(row.body).get("name")
    return name


def _admit(
    dataset: str,
    total: PrivacyBudget,
    rows: list[Any],
    profile: PrivacyProfile,
    adjacency: Adjacency,
    contributions: int,
) -> Forecast:
    """Refuse a profile that does not fit, or that speaks of other neighbours than the dataset's releases so far."""
    for row in rows:
        noted = json.loads(row.body) if row.kind == "reserve" else {}
        spoken, held = noted.get("adjacency", str(adjacency)), noted.get("contributions", contributions)
        if spoken != str(adjacency):
            raise LedgerError(
                f"dataset {dataset!r} is accounted under {spoken}; a release under {adjacency} cannot be added to it:"
                f" use unit.adjacency: {spoken}"
            )
        if held != contributions:
            raise LedgerError(
                f"dataset {dataset!r} is accounted for units of up to {held} records; one of up to {contributions} cannot be"
                f" added to it: use unit.max_contributions: {held}"
            )
    charged = list(_charged(rows).values())
    before = compose([(part, 1) for part in charged]).epsilon(total.delta) if charged else 0.0
    after = compose([(part, 1) for part in (*charged, profile)])
    if not after.delta(total.epsilon) <= total.delta:
        raise BudgetExceeded(
            f"dataset {dataset!r} has spent epsilon {before:.4g} of {total.epsilon:g} at delta {total.delta:g};"
            f" this release would make it {after.epsilon(total.delta):.4g}: give it a smaller epsilon, or release less"
        )
    return Forecast(total, before, after.epsilon(total.delta))


def _check_same(rows: list[Any], release: str, profile: PrivacyProfile) -> None:
    """A reservation may be repeated only as it was, and only while the release is open."""
    mine = [row for row in rows if row.release == release]
    if json.loads(mine[0].body)["profile"] != json.loads(json.dumps(profile.describe())):
        raise LedgerError("the release was reserved with another guarantee; a fingerprint stands for one release")
    if mine[-1].kind in _CLOSING:
        raise LedgerError(f"the release is closed by {mine[-1].kind}; a new release is a new charge")


def _append(connection: Connection, dataset: str, release: str | None, kind: str, facts: dict[str, Any]) -> None:
    """Add the next link of a dataset's chain; the caller holds the dataset's lock."""
    query = select(entries.c.hash).where(entries.c.dataset == dataset).order_by(entries.c.sequence.desc()).limit(1)
    previous = connection.scalar(query) or _GENESIS
    stamped = {**facts, "at": datetime.now(UTC).isoformat(timespec="seconds")}
    body = json.dumps(stamped, sort_keys=True, separators=(",", ":"), allow_nan=False)
    connection.execute(
        insert(entries).values(
            dataset=dataset,
            release=release,
            kind=kind,
            body=body,
            previous=previous,
            hash=_digest(previous, dataset, release or "", kind, body),
        )
    )


def _digest(*parts: str) -> str:
    """SHA-256 over an injective encoding of the parts."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
