"""One release under way, step by step: the only place where the rooms meet.

    prepare -> reserve (charged) -> key -> tiles -> verify -> publish -> commit

Nothing is charged before the source was read through once where it can fail; no noisy byte exists before the charge. A crash
leaves the charge, the key in the ledger and the finished tiles in staging, from where another run goes on and replays.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dpdask import execute
from dpdask.cards import make_card
from dpdask.errors import ReleaseError, SourceChanged, StoreError, VerificationFailed
from dpdask.execute import Progress
from dpdask.ledger import Ledger, ReleaseRecord
from dpdask.metadata import ReleaseCard, array_attributes, group_attributes
from dpdask.planning import Component, ReleasePlan, component_with_directions
from dpdask.published import published_card
from dpdask.spec.release import ReleaseSpec
from dpdask.store import ChunkRecord, Coordinate, Staging, digest_of_bytes, release_documents

__all__ = ["OnProgress", "Receipt", "ReleaseRun", "burn", "conclude"]

_SEGMENT_SECONDS = 2.0

OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a release leaves in the hands of its caller: facts only."""

    release: str
    output: str
    array: str
    card: ReleaseCard


def _silent(_progress: Progress) -> None:
    """Nobody watches."""


def burn(ledger: Ledger, staging: Staging, record: ReleaseRecord | None, reason: str) -> None:
    """Close a charged release without a result, and remove its staging."""
    if record is not None and record.open:
        ledger.burn(record.release, reason)
    staging.discard()


class ReleaseRun:
    """One release under way: steps to be taken in order, each of which may be tried again."""

    def __init__(self, made: ReleasePlan, ledger: Ledger, staging: Staging, name: str) -> None:
        self.plan = made
        self.name = name
        self.cluster: Any = None
        self.on_progress: OnProgress = _silent
        self.receipt: Receipt | None = None
        self._ledger = ledger
        self._staging = staging
        self._claimed = False
        self._data = made.data
        self._directions: execute.Prepared | None = None
        self._prepared = execute.Prepared()
        self._coordinates: list[Coordinate] = []
        self._public: dict[str, Any] = {}
        self._key: Any = None
        self._records: dict[str, ChunkRecord] = {}

    def __repr__(self) -> str:
        return "<ReleaseRun>"

    def all_steps(self) -> Receipt:
        """Everything, in order."""
        if self.receipt is None:
            self.prepare()
            self.reserve()
            self.write()
            self.verify()
            self.publish()
        assert self.receipt is not None
        return self.receipt

    def prepare(self) -> None:
        """Check the cluster and the source, compute norms and sums: nothing is charged yet."""
        made = self.plan
        _check_reach(made, self.cluster)
        if made.directions is not None:
            self._directions = execute.prepare(self.cluster, made, made.directions, self.on_progress)
        self._prepared = execute.prepare(self.cluster, made, made.data, self.on_progress)
        self._coordinates = _coordinates(made)
        self._public = made.source.attributes(made.spec.publish.attributes)
        if self._prepared.clips or self._prepared.answers or not made.source.plain:  # that took its time
            _check_unchanged(made, self._ledger, self._staging)

    def reserve(self) -> None:
        """Claim the output, charge the dataset, get the key."""
        if self._overtaken():
            return
        made, query = self.plan, self.plan.data.query
        self._claimed = self._staging.begin(self.name) or self._claimed
        facts = {
            "name": self.name,
            "source": made.identity,
            "output": made.spec.output.url,
            "curator": made.spec.budget.curator,
            **({} if made.spec.source.window is None else {"window": made.spec.source.window.model_dump()}),
        }
        self._ledger.reserve(
            made.spec.budget.dataset,
            made.fingerprint,
            made.guarantee.verified,
            query.body.adjacency,
            query.max_contributions,
            facts,
        )
        self.on_progress(Progress("reserved", 1, 1))
        self._key = self._ledger.release_key(made.fingerprint)
        self.on_progress(Progress("key", 1, 1))

    def write(self) -> None:
        """Every tile that is not staged yet."""
        if self.receipt is not None:
            return
        made = self.plan
        try:
            if self._directions is not None:
                self._data = _turned(self.cluster, made, self._directions, self._key, self._staging, self.on_progress)
            self._records = _write(self.cluster, made, self._data, self._prepared, self._key, self._staging, self.on_progress)
        except StoreError:
            if not self._overtaken():
                raise

    def verify(self) -> None:
        """Every staged unit is there, decodes and is the one recorded; the source is still the same."""
        if self.receipt is not None:
            return
        made = self.plan
        shared = (self._data, self._prepared, self._key, self._staging, self._records, self.on_progress)
        try:
            _verify(self.cluster, made, self._ledger, *shared)
        except (StoreError, VerificationFailed):
            if not self._overtaken():
                raise
            return
        self._key = None
        _check_unchanged(made, self._ledger, self._staging)

    def publish(self) -> Receipt:
        """Make the release visible at once, and commit it."""
        if self._overtaken() and self.receipt is not None:
            return self.receipt
        made = self.plan
        record = self._ledger.record(made.fingerprint)
        if record is None or not record.open:
            raise ReleaseError("the release was closed while it was being written; start a new one")
        card = make_card(made, self._data, record, _everything(made, self._records, self._coordinates))
        documents = release_documents(
            made.layout,
            group_attributes=group_attributes(card),
            array_attributes=array_attributes(card, self._public),
            coordinates=self._coordinates,
        )
        try:
            if not self._staging.publish(documents):
                raise StoreError(f"output {made.spec.output.url!r} appeared meanwhile; move it away and `dpdask resume`")
        except StoreError:
            if self._overtaken() and self.receipt is not None:
                return self.receipt
            raise
        self.on_progress(Progress("published", 1, 1))
        self.receipt = conclude(made.spec, self._ledger, self._staging, made.fingerprint, card)
        return self.receipt

    def _overtaken(self) -> bool:
        """Whether another run of this very release, drawing the same noise, published it first: then that is our receipt."""
        if self.receipt is not None:
            return True
        published = published_card(self.plan.output, self.name)
        if published is None:
            return False
        self.receipt = conclude(self.plan.spec, self._ledger, self._staging, self.plan.fingerprint, published)
        return True

    def leave(self) -> None:
        """After a failure: what was claimed and not charged is given back, and what is closed needs no staging."""
        record = self._ledger.record(self.plan.fingerprint)
        if (self._claimed and record is None) or (record is not None and not record.open):
            self._staging.discard()


def _check_reach(made: ReleasePlan, cluster: Any) -> None:
    inside = cluster.scheduler.address.startswith("inproc://")
    if not inside and not (made.source.place.shared and made.output.shared):
        raise StoreError("memory:// is this process' own, which other workers cannot reach; use compute.workers: 1")


def _check_unchanged(made: ReleasePlan, ledger: Ledger, staging: Staging) -> None:
    """The source is still the one that was planned for; else a charged release is burned, before anyone sees two answers."""
    if made.source.identity() == made.identity:
        return
    record = ledger.record(made.fingerprint)
    if record is not None:
        burn(ledger, staging, record, "the source changed")
        raise SourceChanged("the source changed during the release: it was aborted and its charge stays; start a new one")
    raise SourceChanged("the source changed while the release was planned; nothing was charged: start again")


def _turned(
    cluster: Any,
    made: ReleasePlan,
    prepared: execute.Prepared,
    key: Any,
    staging: Staging,
    on_progress: OnProgress,
) -> Component:
    """The data component along DP directions, found once and kept, so that a retry turns the same way."""
    kept = staging.noted("directions.json")
    if kept is None:
        kept = {"directions": execute.compute_directions(cluster, made, prepared, key, on_progress)}
        staging.note("directions.json", kept)
    return component_with_directions(made, kept["directions"])


def _write(
    cluster: Any,
    made: ReleasePlan,
    data: Component,
    prepared: execute.Prepared,
    key: Any,
    staging: Staging,
    on_progress: OnProgress,
) -> dict[str, ChunkRecord]:
    """All tiles into staging; finished ones are recorded every two seconds."""
    segment, found = staging.recorded()
    records = {record[0]: record for record in found}
    fresh: list[ChunkRecord] = []
    noted = time.monotonic()
    for made_records in execute.write(cluster, made, data, prepared, key, staging, set(records), on_progress):
        fresh += made_records
        if time.monotonic() - noted > _SEGMENT_SECONDS:
            staging.record(segment, fresh)
            records.update((record[0], record) for record in fresh)
            segment, fresh, noted = segment + 1, [], time.monotonic()
    if fresh:
        staging.record(segment, fresh)
        records.update((record[0], record) for record in fresh)
    return records


def _verify(
    cluster: Any,
    made: ReleasePlan,
    ledger: Ledger,
    data: Component,
    prepared: execute.Prepared,
    key: Any,
    staging: Staging,
    records: dict[str, ChunkRecord],
    on_progress: OnProgress,
) -> None:
    """Every unit is there, decodes and has its checksum; damaged ones are written again, once."""
    bad = execute.verify(cluster, made, staging, records, on_progress)
    if bad:
        _check_unchanged(made, ledger, staging)
        done = set(records) - set(bad)
        for again in execute.write(cluster, made, data, prepared, key, staging, done, on_progress):
            records.update((record[0], record) for record in again)
        segment, _ = staging.recorded()
        staging.record(segment, records.values())
        bad = execute.verify(cluster, made, staging, records, on_progress)
    if bad:
        raise VerificationFailed(f"{len(bad)} staged chunks cannot be read back; check the output's disk and `dpdask resume`")


def _coordinates(made: ReleasePlan) -> list[Coordinate]:
    found = []
    for name in made.spec.publish.coordinates:
        values, dimensions, attributes = made.source.coordinate(name)
        found.append((name, values, dimensions or (name,), attributes))
    return found


def _everything(made: ReleasePlan, records: dict[str, ChunkRecord], coordinates: list[Coordinate]) -> list[ChunkRecord]:
    """The records of all stored chunks, those of coordinates included."""
    documents = release_documents(made.layout, group_attributes={}, array_attributes={}, coordinates=coordinates)
    others = [(n, len(c), digest_of_bytes([c])) for n, c in documents.items() if not n.endswith("zarr.json")]
    return [*records.values(), *others]


def conclude(spec: ReleaseSpec, ledger: Ledger, staging: Staging, fingerprint: str, card: ReleaseCard) -> Receipt:
    """Commit what is published and remove its staging."""
    ledger.commit(fingerprint, card.manifest.digest)
    staging.discard()
    return Receipt(card.release, spec.output.url, spec.output.array, card)
