"""Reserve, key, publish and commit, or burn: the only way to spend a dataset's budget.

A release is charged when it is *reserved*, before any key exists. Its charge is never removed: a
crash leaves it, commit and burn only close it. From its *publish* step on it may become visible at
any moment, so it can no longer be burned. Reserving the same release again is free and returns the
same key, so a retry replays. Charges add up by the dataset's policy, as sums of mu^2 or of epsilon,
which is also valid for releases that are chosen after earlier ones were seen. Entries are chained
by SHA-256 per dataset and carry the sums; every charge checks the newest link,
:meth:`Ledger.verify` checks all of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from datetime import datetime

from sqlalchemy import Connection, select

from dpdask.errors import DpdaskError
from dpdask.keystream import ReleaseKey
from dpdask.ledger import steps
from dpdask.ledger.admission import admit
from dpdask.ledger.auditing import audit
from dpdask.ledger.charges import NOTHING, Spent
from dpdask.ledger.connections import (
    TimeOuts,
    connect,
    database_file,
    forget_deleted,
    parse_url,
    reading,
)
from dpdask.ledger.faults import plain_errors
from dpdask.ledger.forecasts import forecast_of
from dpdask.ledger.hash_chain import payload_of
from dpdask.ledger.history import dataset_state, ledger_entry, series_windows
from dpdask.ledger.key_store import KeyStore
from dpdask.ledger.keys import KeyWrapper, find_master_key
from dpdask.ledger.models import (
    DatasetState,
    Forecast,
    LedgerEntry,
    LedgerHead,
    PrivacyUnit,
    Reservation,
    SeriesWindow,
)
from dpdask.ledger.policies import policy_named
from dpdask.ledger.rates import Allowance, check_allowance, recent_charges
from dpdask.ledger.schema import (
    datasets,
    entries,
    fetch_entry,
)
from dpdask.ledger.versions import prepare_schema
from dpdask.patience import NO_PATIENCE, Patience, asked_again
from dpdask.privacy import PrivacyBudget, PrivacyProfile
from dpdask.types import Json

__all__ = ["Ledger"]

_LAST_CHARACTER = "\U0010ffff"


class Ledger:
    """The budgets of datasets, in a database; opening a new ledger creates its tables.

    Args:
        url: the database's URL.
        master_key: 32 bytes that wrap stored release keys. By default it is looked up as
            :func:`~dpdask.ledger.keys.find_master_key` says, and a new ledger creates one in the
            user's configuration folder.
        create: whether a ledger that does not exist is created; otherwise that is an error.
        bare_keys: whether a new ledger stores release keys as they are, readable by whoever reads
            the database; it then warns at every use.
        time_outs: for how long the database is waited for.
        patience: for how long a database that does not answer is asked again.
    """

    def __init__(
        self,
        url: str,
        *,
        master_key: bytes | None = None,
        create: bool = True,
        bare_keys: bool | None = None,
        time_outs: TimeOuts = TimeOuts(),  # a frozen value
        patience: Patience = NO_PATIENCE,
    ) -> None:
        parsed = parse_url(url)
        file = database_file(parsed)
        configured_key = find_master_key(file) if master_key is None else master_key
        wrapper = None if configured_key is None else KeyWrapper(configured_key)
        self._engine = connect(parsed, create=create, time_outs=time_outs)
        self.patience = patience

        def prepare() -> KeyStore:
            with plain_errors():
                return prepare_schema(
                    self._engine, wrapper, file, create=create, bare_keys=bare_keys
                )

        self._keys = patience.keep_asking(prepare)

    @property
    def bare_keys(self) -> bool:
        """Whether release keys are stored as they are."""
        return self._keys.bare

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Begin a transaction that may write, for modules of the ledger."""
        with plain_errors(), self._engine.begin() as connection:
            yield connection

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """Begin a transaction that only reads, and waits for nobody who writes."""
        with plain_errors(), reading(self._engine).begin() as connection:
            yield connection

    @asked_again
    def open_dataset(self, name: str, total: PrivacyBudget, policy: str = "adaptive") -> None:
        """Open a dataset with its total budget and its policy, which never change. Idempotent.

        Args:
            name: the dataset's name.
            total: all that it may ever spend; a :class:`~dpdask.privacy.PureBudget` for ``pure``.
            policy: how charges add up: ``adaptive``, or ``pure`` for releases with delta 0.
        """
        chosen = policy_named(policy)
        with self.transaction() as connection:
            steps.open_dataset(connection, name, total, chosen)

    @asked_again
    def datasets(self) -> list[str]:
        """Return the names of all datasets."""
        with self.reading() as connection:
            return list(connection.scalars(select(datasets.c.name).order_by(datasets.c.name)))

    @asked_again
    def state(self, dataset: str) -> DatasetState:
        """Return what has been spent of a dataset and on which releases."""
        with self.reading() as connection:
            return dataset_state(connection, steps.known_dataset(connection, dataset))

    @asked_again
    def spent_epsilon(self, dataset: str) -> float:
        """Return what has been spent of a dataset, at its total's delta."""
        with self.reading() as connection:
            standing = steps.known_dataset(connection, dataset)
        return standing.policy.profile(standing.spent).epsilon(standing.total.delta)

    @asked_again
    def head(self, dataset: str) -> LedgerHead:
        """Return the newest entry of a dataset; its hash covers everything before it."""
        with self.reading() as connection:
            return steps.known_dataset(connection, dataset).head

    @asked_again
    def contains(self, dataset: str, head: LedgerHead) -> bool:
        """Return whether the dataset's chain has this entry.

        It does not if the ledger was rolled back behind it, or rewritten.
        """
        query = select(entries).where(
            entries.c.dataset == dataset, entries.c.sequence == head.sequence
        )
        with self.reading() as connection:
            row = fetch_entry(connection, query)
            if row is None or head.dataset != dataset:
                return False
            payload_of(row)
            return row.hash == head.hash

    @asked_again
    def could_hold(self, dataset: str, profile: PrivacyProfile) -> bool:
        """Return whether a release fits a dataset's total and policy, had nothing been spent.

        The answer never changes, since totals and policies do not.
        """
        with self.reading() as connection:
            standing = steps.known_dataset(connection, dataset)
        try:
            charge = standing.policy.charge_of(profile, NOTHING, standing.total)
        except DpdaskError:
            return False
        return standing.policy.fits(Spent.on(charge), standing.total)

    def forecast(
        self,
        dataset: str,
        profile: PrivacyProfile,
        privacy_unit: PrivacyUnit = PrivacyUnit(),  # a frozen value
    ) -> Forecast:
        """Forecast a dataset's budget after one more release; nothing is charged.

        Args:
            dataset: the dataset's name.
            profile: what the release is verified to cost.
            privacy_unit: whom it protects.

        Raises:
            LedgerError: :meth:`reserve` would refuse the release.
        """
        return self.forecast_all(dataset, [(profile, privacy_unit)])

    @asked_again
    def forecast_all(
        self, dataset: str, parts: Sequence[tuple[PrivacyProfile, PrivacyUnit]]
    ) -> Forecast:
        """Forecast a dataset's budget after several more releases, charged one after the other."""
        self._keys.check_master_key()
        with self.reading() as connection:
            standing = steps.known_dataset(connection, dataset)
            admissions = admit(connection, standing, parts)
        return forecast_of(standing, admissions)

    @asked_again
    def reserve(
        self,
        dataset: str,
        fingerprint: str,
        profile: PrivacyProfile,
        privacy_unit: PrivacyUnit = PrivacyUnit(),
        payload: Json | None = None,
        allowance: Allowance | None = None,
    ) -> Reservation:
        """Charge a release to a dataset, or refuse before anything is written.

        Guarantee: everything ever reserved stays within the total together, however many processes
        race and whatever was seen of earlier releases before later ones were chosen.

        Args:
            dataset: the dataset's name.
            fingerprint: the release's fingerprint.
            profile: what the release is verified to cost.
            privacy_unit: whom it protects.
            payload: what else the ledger records of it: ``release_id``, ``source_identity``,
                ``spec_digest``, ``output_url``, ``output_address``, ``curator``, ``window``.
            allowance: what the dataset may spend within some days, if that is limited, too.
        """
        self._keys.check_master_key()
        with self.transaction() as connection:
            return steps.reserve(
                connection, dataset, fingerprint, profile, privacy_unit, payload or {}, allowance
            )

    @asked_again
    def entry(self, fingerprint: str) -> LedgerEntry | None:
        """Return a release's history, None if it was never reserved."""
        with self.reading() as connection:
            return ledger_entry(connection, fingerprint)

    @asked_again
    def entry_named(self, release_id: str) -> LedgerEntry | None:
        """Return the history of the release with this public name, None if there is none."""
        with self.reading() as connection:
            row = steps.entry_with_id(connection, release_id)
            if row is None or row.fingerprint is None:
                return None
            return ledger_entry(connection, row.fingerprint)

    @asked_again
    def open_releases(self, beginning: str) -> list[LedgerEntry]:
        """Return releases neither committed nor burned whose ids begin with ``beginning``."""
        query = (
            select(entries.c.fingerprint)
            .where(entries.c.release_id >= beginning)
            .where(entries.c.release_id < beginning + _LAST_CHARACTER)
            .order_by(entries.c.release_id)
        )
        with self.reading() as connection:
            fingerprints = connection.scalars(query).all()
            histories = [ledger_entry(connection, fingerprint) for fingerprint in fingerprints]
        return [entry for entry in histories if entry is not None and entry.open]

    @asked_again
    def windows(self, dataset: str, series: str) -> list[SeriesWindow]:
        """Return the windows of a series that were charged, oldest first."""
        with self.reading() as connection:
            steps.known_dataset(connection, dataset)
            return series_windows(connection, dataset, series)

    @asked_again
    def spent_since(self, dataset: str, since: datetime) -> PrivacyProfile | None:
        """Return what was charged at or after a moment, together; None if nothing was."""
        with self.reading() as connection:
            standing = steps.known_dataset(connection, dataset)
            recent, _ = recent_charges(connection, standing, since)
        return None if recent == NOTHING else standing.policy.profile(recent)

    @asked_again
    def check_allowance(
        self,
        dataset: str,
        allowance: Allowance,
        profile: PrivacyProfile,
        privacy_unit: PrivacyUnit = PrivacyUnit(),
    ) -> None:
        """Check that one more release would stay within what the last days allow; charge nothing.

        Args:
            dataset: the dataset's name.
            allowance: what it may spend.
            profile: what the release is verified to cost.
            privacy_unit: whom it protects.

        Raises:
            RateLimited: it would spend more.
        """
        with self.reading() as connection:
            standing = steps.known_dataset(connection, dataset)
            check_allowance(connection, standing, allowance, (profile, privacy_unit))

    @asked_again
    def put_once(self, fingerprint: str, name: str, text: str) -> str:
        """Record a value of an open release, such as noise directions, under a name.

        Guarantee: whatever a later call passes, all calls return the value recorded first.

        Args:
            fingerprint: the release's fingerprint.
            name: what the value is.
            text: the value.
        """
        with self.transaction() as connection:
            return steps.put_once(connection, fingerprint, name, text)

    @asked_again
    def get_once(self, fingerprint: str, name: str) -> str | None:
        """Return the value that :meth:`put_once` recorded, None if there is none."""
        with self.reading() as connection:
            return steps.read_once(connection, fingerprint, name)

    @asked_again
    def release_key(self, fingerprint: str) -> ReleaseKey:
        """Return the key of a reserved release.

        The first call creates it; later ones return the same key until the release is closed.
        """
        self._keys.check_master_key()
        with self.transaction() as connection:
            return steps.release_key(connection, fingerprint, self._keys)

    @asked_again
    def publish(self, fingerprint: str, card: str) -> str:
        """Record the card of a release that is complete, verified and about to become visible.

        After it :meth:`burn` refuses; after a burn, this does. Returns the card recorded first.
        """
        with self.transaction() as connection:
            return steps.note_publication(connection, fingerprint, card)

    @asked_again
    def commit(self, fingerprint: str) -> None:
        """Close a published release and destroy its key. Idempotent."""
        with self.transaction() as connection:
            steps.commit(connection, fingerprint)
        self._forget_deleted_keys()

    @asked_again
    def burn(self, fingerprint: str, reason: str, *, invisible: bool = False) -> None:
        """Close a release that will never be published and destroy its key. Idempotent.

        Its charge stays.

        Args:
            fingerprint: the release's fingerprint.
            reason: why, for the record.
            invisible: needed after :meth:`publish`: the caller declares that nothing is left that
                could still be published.
        """
        with self.transaction() as connection:
            steps.burn(connection, fingerprint, reason, invisible=invisible)
        self._forget_deleted_keys()

    def _forget_deleted_keys(self) -> None:
        with plain_errors():
            forget_deleted(self._engine)

    @asked_again
    def verify(self) -> int:
        """Recompute every chain, every charge and every sum, and return the number of entries.

        Raises:
            LedgerCorrupt: something is not as it must be; the text names the first such entry.
        """
        with self.reading() as connection:
            return audit(connection)
