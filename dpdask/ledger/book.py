"""Reserve, key, publish and commit, or burn: the only way to spend a dataset's budget.

A release is charged when it is *reserved*, before any key exists. Its charge never goes away: a crash leaves it, commit and
burn only close it. From its *publish* step on it may become visible at any moment, so it can no longer be burned. Reserving the
same release again is free and gives the same key, so a retry replays. Rows are chained by SHA-256 per dataset; changing,
removing or reordering one is found by :meth:`Ledger.verify`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sqlalchemy import Connection, delete, insert, select
from sqlalchemy.exc import SQLAlchemyError

from dpdask.errors import LedgerCorrupt, LedgerError
from dpdask.ledger.chain import (
    GENESIS,
    admit,
    append,
    chain_hash,
    charges,
    check_release,
    check_same,
    known_total,
    last_row,
    name_of,
    reservations,
    rows_of,
    total_of,
)
from dpdask.ledger.records import (
    CLOSING,
    DatasetState,
    Forecast,
    LedgerHead,
    ProtectedUnit,
    ReleaseRecord,
    Reservation,
    SeriesWindow,
)
from dpdask.ledger.tables import connect, create_tables, datasets, entries, forget_deleted, release_keys
from dpdask.noise.stream import ReleaseKey, random_bytes
from dpdask.privacy import PrivacyBudget, PrivacyProfile
from dpdask.profiles import compose
from dpdask.signals import signals_deferred

__all__ = ["Ledger"]


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
            existing = total_of(connection, name, lock=True)
            if existing is None:
                connection.execute(insert(datasets).values(name=name, epsilon=repr(total.epsilon), delta=repr(total.delta)))
                facts = {"epsilon": total.epsilon, "delta": total.delta}
                append(connection, name, None, "open", facts)
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
            total = known_total(connection, dataset, lock=False)
            rows = rows_of(connection, dataset)
        charged = charges(rows)
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

    def head(self, dataset: str) -> LedgerHead:
        """The newest entry of a dataset's chain."""
        with _plain_errors(), self._engine.begin() as connection:
            known_total(connection, dataset, lock=False)
            rows = rows_of(connection, dataset)
        return LedgerHead(dataset, len(rows), rows[-1].hash)

    def forecast(
        self,
        dataset: str,
        profile: PrivacyProfile,
        unit: ProtectedUnit = ProtectedUnit(),  # a frozen value
    ) -> Forecast:
        """What one more release would make of a dataset's budget; raises as :meth:`reserve` would, charges nothing."""
        with _plain_errors(), self._engine.begin() as connection:
            total = known_total(connection, dataset, lock=False)
            rows = rows_of(connection, dataset)
        return admit(dataset, total, rows, profile, unit)

    def reserve(
        self,
        dataset: str,
        release: str,
        profile: PrivacyProfile,
        unit: ProtectedUnit = ProtectedUnit(),
        facts: dict[str, Any] | None = None,
    ) -> Reservation:
        """Charge ``profile`` to ``dataset`` for the release with this fingerprint, or refuse before anything is written.

        Guarantee: the composition of everything ever reserved stays within the total, however many processes race.
        """
        check_release(release)
        with _plain_errors(), self._engine.begin() as connection:
            total = known_total(connection, dataset, lock=True)
            rows = rows_of(connection, dataset)
            if release in charges(rows):
                check_same(rows, release, profile)
                return Reservation(dataset, release, new=False)
            if connection.scalar(select(entries.c.dataset).where(entries.c.release == release).limit(1)) is not None:
                raise LedgerError("the release belongs to another dataset; a fingerprint stands for one release")
            named = (facts or {}).get("name")
            if named is not None and any(name_of(row) == named for row in reservations(connection)):
                raise LedgerError("another release took over this one's claim on the output; start it again")
            admit(dataset, total, rows, profile, unit)
            noted = {**(facts or {}), "profile": profile.describe(), **unit.describe()}
            append(connection, dataset, release, "reserve", noted)
            return Reservation(dataset, release, new=True)

    def record(self, release: str) -> ReleaseRecord | None:
        """A release's history, None when it was never reserved."""
        check_release(release)
        with _plain_errors(), self._engine.begin() as connection:
            dataset = connection.scalar(select(entries.c.dataset).where(entries.c.release == release).limit(1))
            if dataset is None:
                return None
            total = known_total(connection, dataset, lock=False)
            rows = rows_of(connection, dataset)
        mine = [row for row in rows if row.release == release]
        until = [row for row in rows if row.sequence <= mine[0].sequence]
        noted = json.loads(mine[0].body)
        published: dict[str, Any] = next((json.loads(row.body) for row in mine if row.kind == "publish"), {})
        return ReleaseRecord(
            dataset=dataset,
            release=release,
            name=noted.get("name", release),
            source=noted.get("source", ""),
            asked=noted.get("asked"),
            array=noted.get("array"),
            total=total,
            last=mine[-1].kind,
            reserved_at=noted["at"],
            cumulative=compose([(profile, 1) for profile in charges(until).values()]),
            place=noted.get("place"),
            card=published.get("card"),
        )

    def named(self, name: str) -> ReleaseRecord | None:
        """The release that is published under ``name``, None when there is none."""
        with _plain_errors(), self._engine.begin() as connection:
            rows = reservations(connection)
        found = [row.release for row in rows if name_of(row) == name]
        return self.record(found[0]) if found else None

    def open_releases(self, beginning: str) -> list[ReleaseRecord]:
        """The releases that are neither committed nor burned and whose names begin so."""
        with _plain_errors(), self._engine.begin() as connection:
            rows = reservations(connection)
        named = [row.release for row in rows if str(name_of(row)).startswith(beginning)]
        return [record for record in map(self.record, named) if record is not None and record.open]

    def windows(self, dataset: str, series: str) -> list[SeriesWindow]:
        """The windows of a series that were charged, oldest first."""
        with _plain_errors(), self._engine.begin() as connection:
            known_total(connection, dataset, lock=False)
            rows = rows_of(connection, dataset)
        last = {row.release: row.kind for row in rows}
        noted = [(row.release, json.loads(row.body)) for row in rows if row.kind == "reserve"]
        return [
            SeriesWindow(facts["window"], facts.get("array"), facts["output"], last[release])
            for release, facts in noted
            if facts.get("window") is not None and facts["window"].get("series") == series
        ]

    def spent_since(self, dataset: str, since: datetime) -> PrivacyProfile | None:
        """What was charged at or after a moment, composed; None when nothing was."""
        with _plain_errors(), self._engine.begin() as connection:
            known_total(connection, dataset, lock=False)
            rows = rows_of(connection, dataset)
        recent = [row for row in rows if datetime.fromisoformat(json.loads(row.body)["at"]) >= since - timedelta(seconds=1)]
        charged = charges(recent)
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
            append(connection, dataset, release, "key", {"wrapped": bool(wrapped)})
            return key

    def publish(self, release: str, card: str) -> str:
        """Note the card of a release that is complete, verified and about to become visible; the card that was noted first.

        From here on :meth:`burn` refuses; if it came first, this does.
        """
        with _plain_errors(), self._engine.begin() as connection:
            dataset, last = self._open_release(connection, release)
            if last.kind == "publish":
                return str(json.loads(last.body)["card"])
            append(connection, dataset, release, "publish", {"card": card})
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
                known_total(connection, last_row(connection, release).dataset, lock=True)
                if last_row(connection, release).kind == kind:
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
                append(connection, dataset, release, kind, facts)
            forget_deleted(self._engine)

    def _open_release(self, connection: Connection, release: str) -> tuple[str, Any]:
        """The dataset and the last step of a release that is not closed; its dataset is locked until the transaction ends."""
        dataset = str(last_row(connection, release).dataset)
        known_total(connection, dataset, lock=True)
        last = last_row(connection, release)
        if last.kind in CLOSING:
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
                total = known_total(connection, name, lock=False)
                previous = GENESIS
                for row in rows_of(connection, name):
                    expected = chain_hash(previous, row.dataset, row.release or "", row.kind, row.body)
                    if row.previous != previous or row.hash != expected:
                        raise LedgerCorrupt(f"entry {row.sequence} of dataset {name!r} does not follow from the one before it")
                    facts = json.loads(row.body)
                    if row.kind == "open" and (facts["epsilon"], facts["delta"]) != (total.epsilon, total.delta):
                        raise LedgerCorrupt(f"the total of dataset {name!r} is not the one it was opened with")
                    previous, count = row.hash, count + 1
                if previous == GENESIS:
                    raise LedgerCorrupt(f"dataset {name!r} has no opening entry")
        return count


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Database errors as one line without statements, parameters or addresses; no transaction is cut off by a signal."""
    try:
        with signals_deferred():
            yield
    except SQLAlchemyError as error:
        kind = type(getattr(error, "orig", None) or error).__name__
        raise LedgerError(
            f"the ledger's database refused ({kind}); check that it can be reached, written and is not full"
        ) from None
