"""Reserve, key, publish and commit, or burn: the only way to spend a dataset's budget.

A release is charged when it is *reserved*, before any key exists. Its charge never goes away: a
crash leaves it, commit and burn only close it. From its *publish* step on it may become visible at
any moment, so it can no longer be burned. Reserving the same release again is free and gives the
same key, so a retry replays. Charges add up as sums of mu^2, which is valid also for releases that
are chosen after earlier ones were seen. Entries are chained by SHA-256 per dataset and carry the
sums; every charge checks the newest link, :meth:`Ledger.verify` all of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from dpdask.accounting import Dominated
from dpdask.errors import BareKeysWarning, LedgerCorrupt, LedgerError, MasterKeyError
from dpdask.keystream import ReleaseKey
from dpdask.ledger.admission import admit, hold_array
from dpdask.ledger.auditing import audit
from dpdask.ledger.charges import covers
from dpdask.ledger.hash_chain import (
    Standing,
    append,
    body_of,
    check_release,
    check_same,
    last_step,
    spent_after,
    standing_of,
    steps_of,
)
from dpdask.ledger.history import dataset_state, ledger_entry, series_windows
from dpdask.ledger.keys import KeyWrapper, find_master_key
from dpdask.ledger.models import (
    CLOSING,
    DatasetState,
    Forecast,
    LedgerEntry,
    LedgerHead,
    PrivacyUnit,
    Reservation,
    SeriesWindow,
)
from dpdask.ledger.schema import (
    connect,
    database_file,
    datasets,
    entries,
    forget_deleted,
    parse_url,
    plain_errors,
    release_keys,
)
from dpdask.ledger.versions import prepare_schema
from dpdask.privacy import PrivacyBudget, PrivacyProfile
from dpdask.types import Json

__all__ = ["Ledger"]


class Ledger:
    """A budget book at a database URL; opening a new one creates its tables.

    ``master_key`` (32 bytes) wraps the release keys that are stored. Without one it is looked for
    where :func:`~dpdask.ledger.keys.find_master_key` says, and a new ledger makes one in the user's
    configuration folder. A new ledger with ``bare_keys`` stores them as they are, readable by
    whoever reads the database, and warns at every use. Without ``create``, a ledger that is not
    there is an error.
    """

    def __init__(
        self,
        url: str,
        *,
        master_key: bytes | None = None,
        create: bool = True,
        bare_keys: bool | None = None,
    ) -> None:
        parsed = parse_url(url)
        found = find_master_key(database_file(parsed)) if master_key is None else master_key
        wrapper = None if found is None else KeyWrapper(found)
        self._engine = connect(parsed, create=create)
        with plain_errors():
            self._wrapper, self._key_check = prepare_schema(
                self._engine, wrapper, database_file(parsed), create=create, bare_keys=bare_keys
            )

    @property
    def bare_keys(self) -> bool:
        """Whether release keys are stored as they are."""
        return self._key_check is None

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def open_dataset(self, name: str, total: PrivacyBudget) -> None:
        """Give a dataset its total budget, once and for all; the same total again is fine."""
        if not name or len(name) > 200 or not name.isprintable():
            raise LedgerError(
                f"dataset name {name!r} is empty, too long or unprintable; use up to 200"
                " printable characters"
            )
        with plain_errors(), self._engine.begin() as connection:
            existing = standing_of(connection, name, lock=True)
            if existing is None:
                connection.execute(insert(datasets).values(name=name))
                append(
                    connection, name, None, "open", {"epsilon": total.epsilon, "delta": total.delta}
                )
            elif existing.total != total:
                raise LedgerError(
                    f"dataset {name!r} has epsilon {existing.total.epsilon:g}, delta"
                    f" {existing.total.delta:g};"
                    " a total never changes"
                )

    def datasets(self) -> list[str]:
        """The names of all datasets."""
        with plain_errors(), self._engine.begin() as connection:
            return list(connection.scalars(select(datasets.c.name).order_by(datasets.c.name)))

    def state(self, dataset: str) -> DatasetState:
        """What has been spent of a dataset and on which releases."""
        with plain_errors(), self._engine.begin() as connection:
            return dataset_state(connection, _known(connection, dataset))

    def spent_epsilon(self, dataset: str) -> float:
        """What has been spent of a dataset, at its total's delta."""
        with plain_errors(), self._engine.begin() as connection:
            standing = _known(connection, dataset)
        return standing.spent.profile.epsilon(standing.total.delta)

    def head(self, dataset: str) -> LedgerHead:
        """The newest entry of a dataset; everything before it went into its hash."""
        with plain_errors(), self._engine.begin() as connection:
            return _known(connection, dataset).head

    def contains(self, dataset: str, head: LedgerHead) -> bool:
        """Whether the dataset's chain has this very entry: False for a ledger that was rolled back
        behind it, or rewritten.
        """
        with plain_errors(), self._engine.begin() as connection:
            query = select(entries).where(
                entries.c.dataset == dataset, entries.c.sequence == head.sequence
            )
            row = connection.execute(query).one_or_none()
            if row is None or head.dataset != dataset:
                return False
            body_of(row)
            return bool(row.hash == head.hash)

    def forecast(
        self,
        dataset: str,
        profile: PrivacyProfile,
        privacy_unit: PrivacyUnit = PrivacyUnit(),  # a frozen value
    ) -> Forecast:
        """What one more release would make of a dataset's budget; raises as :meth:`reserve` would,
        charges nothing.
        """
        return self.forecast_all(dataset, [(profile, privacy_unit)])

    def forecast_all(
        self, dataset: str, parts: Sequence[tuple[PrivacyProfile, PrivacyUnit]]
    ) -> Forecast:
        """Forecast a dataset's budget after several more releases, charged one after the other."""
        self._check_master_key()
        with plain_errors(), self._engine.begin() as connection:
            standing = _known(connection, dataset)
            _, after = admit(connection, standing, parts)
        delta = standing.total.delta
        return Forecast(
            standing.total, standing.spent.profile.epsilon(delta), after.profile.epsilon(delta)
        )

    def reserve(
        self,
        dataset: str,
        release: str,
        profile: PrivacyProfile,
        privacy_unit: PrivacyUnit = PrivacyUnit(),
        facts: Json | None = None,
    ) -> Reservation:
        """Charge ``profile`` to ``dataset`` for the release with this fingerprint, or refuse before
        anything is written.

        Guarantee: everything ever reserved stays within the total together, however many processes
        race and whatever was seen of earlier releases before later ones were chosen.
        """
        check_release(release)
        self._check_master_key()
        noted = dict(facts or {})
        with plain_errors(), self._engine.begin() as connection:
            standing = _known(connection, dataset, lock=True)
            steps = steps_of(connection, release)
            if steps and steps[0].dataset != dataset:
                raise LedgerError(
                    "the release belongs to another dataset; a fingerprint stands for one release"
                )
            if steps:
                charged = check_same(connection, steps, profile.to_dict())
                if charged is not None and not covers(charged, profile):
                    raise LedgerCorrupt(
                        "the release was charged less than its guarantee costs; the ledger was"
                        " changed"
                    )
                return Reservation(dataset, release, new=False)
            if (
                noted.get("name") is not None
                and _entry_named(connection, noted["name"]) is not None
            ):
                raise LedgerError(
                    "another release took over this one's claim on the output; start it again"
                )
            hold_array(connection, privacy_unit)
            [charge], _ = admit(connection, standing, [(profile, privacy_unit)])
            noted |= {"profile": profile.to_dict(), **privacy_unit.to_dict()}
            append(connection, dataset, standing, "reserve", noted, release, charge)
            return Reservation(dataset, release, new=True)

    def entry(self, release: str) -> LedgerEntry | None:
        """A release's history, None when it was never reserved."""
        with plain_errors(), self._engine.begin() as connection:
            return ledger_entry(connection, release)

    def entry_named(self, name: str) -> LedgerEntry | None:
        """The release that is published under ``name``, None when there is none."""
        with plain_errors(), self._engine.begin() as connection:
            row = _entry_named(connection, name)
            return None if row is None else ledger_entry(connection, row.release)

    def open_releases(self, beginning: str) -> list[LedgerEntry]:
        """The releases that are neither committed nor burned and whose names begin so."""
        until = beginning + "\U0010ffff"
        query = (
            select(entries.c.release)
            .where(entries.c.name >= beginning, entries.c.name < until)
            .order_by(entries.c.name)
        )
        with plain_errors(), self._engine.begin() as connection:
            found = [
                ledger_entry(connection, release) for release in connection.scalars(query).all()
            ]
        return [record for record in found if record is not None and record.open]

    def windows(self, dataset: str, series: str) -> list[SeriesWindow]:
        """The windows of a series that were charged, oldest first."""
        with plain_errors(), self._engine.begin() as connection:
            _known(connection, dataset)
            return series_windows(connection, dataset, series)

    def spent_since(self, dataset: str, since: datetime) -> Dominated | None:
        """What was charged at or after a moment, together; None when nothing was."""
        moment = (since - timedelta(seconds=1)).astimezone(UTC).isoformat(timespec="seconds")
        newest_first = entries.c.clock.desc(), entries.c.sequence.desc()
        earlier = (
            select(entries)
            .where(entries.c.dataset == dataset, entries.c.clock < moment)
            .order_by(*newest_first)
            .limit(1)
        )
        with plain_errors(), self._engine.begin() as connection:
            spent = _known(connection, dataset).spent
            row = connection.execute(earlier).one_or_none()
        recent = spent if row is None else spent - spent_after(row)
        return recent.profile if recent.mu_squared or recent.delta0 else None

    def put_once(self, release: str, name: str, text: str) -> str:
        """Note a value that a release settled on, such as noise directions; the one that was noted
        first, which is used.
        """
        if not name or len(name) > 100:
            raise LedgerError(
                f"{name!r} is not a valid name of a settled value; use 1 to 100 characters"
            )
        with plain_errors(), self._engine.begin() as connection:
            standing, _ = self._open_release(connection, release)
            first = _settled(connection, release, name)
            if first is None:
                append(
                    connection,
                    standing.dataset,
                    standing,
                    "settle",
                    {"settled": name, "text": text},
                    release,
                )
            return text if first is None else first

    def get_once(self, release: str, name: str) -> str | None:
        """The value that a release settled on, None before."""
        with plain_errors(), self._engine.begin() as connection:
            return _settled(connection, release, name)

    def release_key(self, release: str) -> ReleaseKey:
        """The key of a reserved release: made at the first call, the same at every later one until
        it is closed.
        """
        self._check_master_key()
        with plain_errors(), self._engine.begin() as connection:
            standing, _ = self._open_release(connection, release)
            stored = connection.execute(
                select(release_keys).where(release_keys.c.release == release)
            ).one_or_none()
            made = any(row.kind == "key" for row in steps_of(connection, release))
            if made != (stored is not None):
                raise LedgerCorrupt(
                    "the stored key of the release is not the one its chain tells of; `dpdask"
                    " abort` the release"
                )
            if stored is not None:
                return ReleaseKey(self._unwrap(standing.dataset, stored))
            key = ReleaseKey.generate()
            secret = key.reveal()
            content = (
                secret
                if self._wrapper is None
                else self._wrapper.wrap(standing.dataset, release, secret)
            )
            wrapped = 0 if self._wrapper is None else 1
            connection.execute(
                insert(release_keys).values(release=release, wrapped=wrapped, content=content)
            )
            append(
                connection, standing.dataset, standing, "key", {"wrapped": bool(wrapped)}, release
            )
            return key

    def publish(self, release: str, card: str) -> str:
        """Note the card of a release that is complete, verified and about to become visible; the
        card that was noted first.

        From here on :meth:`burn` refuses; if it came first, this does.
        """
        with plain_errors(), self._engine.begin() as connection:
            standing, last = self._open_release(connection, release)
            if last.kind == "publish":
                return str(body_of(last)["card"])
            append(connection, standing.dataset, standing, "publish", {"card": card}, release)
            return card

    def commit(self, release: str) -> None:
        """Close a published release and destroy its key. Again is fine."""
        self._close_release(release, "commit", {}, after="publish")

    def burn(self, release: str, reason: str, *, invisible: bool = False) -> None:
        """Close a release that will never be published and destroy its key; its charge stays. Again
        is fine.

        After :meth:`publish` only with ``invisible``: the caller's word that nothing is left that
        could still be published.
        """
        self._close_release(
            release, "burn", {"reason": reason}, before=None if invisible else "publish"
        )

    def verify(self) -> int:
        """Recompute every chain, every charge and every sum; the number of entries. Raises
        :class:`LedgerCorrupt`.
        """
        with plain_errors(), self._engine.begin() as connection:
            return audit(connection)

    def _close_release(
        self,
        release: str,
        kind: str,
        facts: Json,
        after: str | None = None,
        before: str | None = None,
    ) -> None:
        with plain_errors():
            with self._engine.begin() as connection:
                _known(connection, last_step(connection, release).dataset, lock=True)
                if last_step(connection, release).kind == kind:
                    return
                standing, last = self._open_release(connection, release)
                if after is not None and last.kind != after:
                    raise LedgerError(f"the release is not published: its last step is {last.kind}")
                if before is not None and last.kind == before:
                    raise LedgerError(
                        "the release is complete and may be visible at any moment; `dpdask"
                        " resume` concludes it. If it is lost"
                        " for good, `dpdask abort --release NAME --never-published`"
                    )
                connection.execute(delete(release_keys).where(release_keys.c.release == release))
                append(connection, standing.dataset, standing, kind, facts, release)
            forget_deleted(self._engine)

    def _open_release(self, connection: Connection, release: str) -> tuple[Standing, Any]:
        """The dataset and the last step of a release that is not closed; its dataset is locked
        until the transaction ends.
        """
        standing = _known(connection, last_step(connection, release).dataset, lock=True)
        last = last_step(connection, release)
        if last.kind in CLOSING:
            raise LedgerError(
                f"the release is closed by {last.kind}; a new release is a new charge"
            )
        return standing, last

    def _check_master_key(self) -> None:
        """Refuse to charge what could not be given a wrapped key."""
        if self._key_check is None:
            warnings.warn(_BARE, BareKeysWarning, stacklevel=3)
        elif self._wrapper is None:
            raise MasterKeyError(
                "this ledger wraps its release keys, and no master key was found; set"
                " DPDASK_MASTER_KEY or"
                " DPDASK_MASTER_KEY_FILE, or restore master.key in the configuration folder"
            )
        elif not self._wrapper.fits(self._key_check):
            raise MasterKeyError(
                "the master key is not the one this ledger was made with, and nothing was"
                " charged; set DPDASK_MASTER_KEY or"
                " DPDASK_MASTER_KEY_FILE to that one"
            )

    def _unwrap(self, dataset: str, stored: Any) -> bytes:
        if bool(stored.wrapped) is self.bare_keys:
            raise LedgerCorrupt(
                "the stored key of the release was changed in the database; `dpdask abort` the"
                " release"
            )
        return (
            bytes(stored.content)
            if self._wrapper is None
            else self._wrapper.unwrap(dataset, stored.release, stored.content)
        )


_BARE = (
    "this ledger stores release keys bare (ledger init --bare-keys): whoever reads the database"
    " while a release is under way"
    " can take its noise away"
)


def _known(connection: Connection, dataset: str, *, lock: bool = False) -> Standing:
    """The standing of a dataset that must be there."""
    standing = standing_of(connection, dataset, lock=lock)
    if standing is None:
        raise LedgerError(
            f"dataset {dataset!r} is not in the ledger; open it with its total:"
            f" `dpdask ledger init {dataset} --epsilon E --delta D`"
        )
    return standing


def _entry_named(connection: Connection, name: str) -> Any:
    return connection.execute(select(entries).where(entries.c.name == name)).one_or_none()


def _settled(connection: Connection, release: str, name: str) -> str | None:
    query = select(entries).where(
        entries.c.release == release, entries.c.kind == "settle", entries.c.settled == name
    )
    row = connection.execute(query).one_or_none()
    return None if row is None else str(body_of(row)["text"])
