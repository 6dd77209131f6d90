"""The only place where the rooms meet: plan, reserve, execute, verify, publish, commit.

    plan -> prepare -> reserve (charged) -> key -> tiles -> verify -> publish -> commit

Nothing is charged before the source was read through once where it can fail; no noisy byte exists before the charge. A crash
leaves the charge, the key in the ledger and the finished tiles in staging; :func:`resume` goes on from there and replays.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpdask import execute
from dpdask.cards import make_card
from dpdask.errors import ReleaseError, SourceChanged, StoreError, VerificationFailed
from dpdask.execute import Progress
from dpdask.ledger import Ledger, ReleaseRecord
from dpdask.metadata import ReleaseCard, array_attributes, group_attributes
from dpdask.noise.stream import random_bytes
from dpdask.planning import Component, ReleasePlan, component_with_directions, make_plan, open_ledger
from dpdask.published import published_card
from dpdask.spec import load_release_spec, parse_release_spec
from dpdask.spec.release import ReleaseSpec
from dpdask.store import (
    ChunkRecord,
    Coordinate,
    Staging,
    place_at,
    release_documents,
)

__all__ = [
    "Receipt",
    "ReleaseRun",
    "abort",
    "plan",
    "release",
    "release_run",
    "resume",
]

_SEGMENT_SECONDS = 2.0
_UNFINISHED = "a release to this output is unfinished; `dpdask resume` finishes it, `dpdask abort` gives it up"

OnProgress = Callable[[Progress], None]
SpecLike = ReleaseSpec | dict[str, Any] | str | Path


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a release leaves in the hands of its caller: facts only."""

    release: str
    output: str
    array: str
    card: ReleaseCard


def _spec(spec: SpecLike) -> ReleaseSpec:
    if isinstance(spec, ReleaseSpec):
        return spec
    return parse_release_spec(spec) if isinstance(spec, dict) else load_release_spec(spec)


def plan(spec: SpecLike, *, resuming: bool = False) -> ReleasePlan:
    """Everything about a release but the release: checks, noise, guarantee, cost. Reads no value, spends nothing.

    With ``resuming``, a release to the same output that is under way is no mistake.
    """
    parsed = _spec(spec)
    ledger = open_ledger(parsed)
    try:
        output = place_at(parsed.output.url, parsed.output.options)
        begun = Staging.of(output).under_way() is not None
        if begun and not resuming:
            raise ReleaseError(_UNFINISHED)
        return make_plan(parsed, ledger=None if begun else ledger, resuming=begun)
    finally:
        ledger.close()


def release(spec: SpecLike, client: Any = None, on_progress: OnProgress | None = None) -> Receipt:
    """Publish one release: ``client`` is a distributed.Client of your own, else the spec's ``compute`` section decides.

    Guarantee: the dataset is charged at most once, before any noisy byte exists; readers see all of the output or nothing.
    """
    with release_run(spec, client, on_progress, unfinished="refuse") as run:
        return run.all_steps()


def resume(spec: SpecLike, client: Any = None, on_progress: OnProgress | None = None) -> Receipt:
    """Finish a release that was interrupted, with the same noise and no further charge.

    Guarantee: if the source is not the one planned for, nothing is published, the key is destroyed and the charge stays.
    """
    with release_run(spec, client, on_progress, unfinished="require") as run:
        return run.all_steps()


@contextlib.contextmanager
def release_run(
    spec: SpecLike, client: Any = None, on_progress: OnProgress | None = None, unfinished: str = "resume"
) -> Iterator[ReleaseRun]:
    """A release to be carried out step by step; what was begun before is gone on with, required, or refused.

    Leaving the context before the charge leaves nothing behind; after it, a release to resume.
    """
    parsed = _spec(spec)
    ledger = open_ledger(parsed)
    try:
        output = place_at(parsed.output.url, parsed.output.options)
        name = Staging.of(output).under_way()
        if name is not None and unfinished == "refuse":
            raise ReleaseError(
                "a release to this output is unfinished; `dpdask resume` finishes it, `dpdask abort` gives it up"
            )
        if name is None and unfinished == "require":
            raise ReleaseError("no release to this output is under way; start one with `dpdask run`")
        run = _begin(parsed, ledger) if name is None else _take_up(parsed, ledger, name)
        run.on_progress = on_progress or _silent
        try:
            with contextlib.ExitStack() as stack:
                if run.receipt is None:
                    run.cluster = stack.enter_context(execute.connect(parsed.compute, client))
                yield run
        except BaseException:
            run.leave()
            raise
    finally:
        ledger.close()


def _begin(spec: ReleaseSpec, ledger: Ledger) -> ReleaseRun:
    made = make_plan(spec, ledger=ledger)
    known = ledger.record(made.fingerprint)
    if known is not None and not known.open:
        raise ReleaseError(
            f"this very release was closed by {known.last}; a new one is a new charge: raise publish.edition to ask for it"
        )
    name = known.name if known is not None else random_bytes(16).hex()
    return ReleaseRun(made, ledger, Staging.of(made.output), name)


def _take_up(spec: ReleaseSpec, ledger: Ledger, name: str) -> ReleaseRun:
    """The run that goes on where another stopped, concluded already if only the last step was missing."""
    output = place_at(spec.output.url, spec.output.options)
    staging = Staging.of(output)
    record = ledger.named(name)
    published = published_card(output, name)
    if record is not None and not record.open and published is None:
        staging.discard()
        raise ReleaseError(f"the release was closed by {record.last} and left nothing to finish; start a new one")
    made = make_plan(spec, resuming=True)
    run = ReleaseRun(made, ledger, staging, name)
    if published is not None and record is not None:
        run.receipt = _conclude(spec, ledger, staging, record.release, published)
        return run
    if record is not None and made.identity != record.source:
        _burn(ledger, staging, record, "the source changed")
        raise SourceChanged(
            "the source changed since the release began, and the same noise on other data would show the difference:"
            " the release was aborted and its charge stays; start a new one"
        )
    if record is not None and made.fingerprint != record.release:
        raise ReleaseError(
            "the spec or the version of dpdask is not the one the release began with; restore it, or `dpdask abort`"
        )
    return run


def abort(spec: SpecLike) -> str:
    """Give up a release under way: its key is destroyed, its staging removed; a charge that was made stays. Its name."""
    parsed = _spec(spec)
    ledger = open_ledger(parsed)
    try:
        output = place_at(parsed.output.url, parsed.output.options)
        staging = Staging.of(output)
        name = staging.under_way()
        if name is None:
            raise ReleaseError("no release to this output is under way; there is nothing to abort")
        if published_card(output, name) is not None:
            raise ReleaseError("the release is published already; `dpdask resume` concludes it")
        _burn(ledger, staging, ledger.named(name), "aborted by the curator")
        return name
    finally:
        ledger.close()


def _silent(_progress: Progress) -> None:
    """Nobody watches."""


def _burn(ledger: Ledger, staging: Staging, record: ReleaseRecord | None, reason: str) -> None:
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
        if self._directions is not None:
            self._data = _turned(self.cluster, made, self._directions, self._key, self._staging, self.on_progress)
        self._records = _write(self.cluster, made, self._data, self._prepared, self._key, self._staging, self.on_progress)

    def verify(self) -> None:
        """Every staged unit is there, decodes and is the one recorded; the source is still the same."""
        if self.receipt is not None:
            return
        made = self.plan
        shared = (self._data, self._prepared, self._key, self._staging, self._records, self.on_progress)
        try:
            _verify(self.cluster, made, self._ledger, *shared)
        except VerificationFailed:
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
        if not self._staging.publish(documents):
            if self._overtaken() and self.receipt is not None:
                return self.receipt
            raise StoreError(f"output {made.spec.output.url!r} appeared meanwhile; move it away and `dpdask resume`")
        self.on_progress(Progress("published", 1, 1))
        self.receipt = _conclude(made.spec, self._ledger, self._staging, made.fingerprint, card)
        return self.receipt

    def _overtaken(self) -> bool:
        """Whether another run of this very release, drawing the same noise, published it first: then that is our receipt."""
        if self.receipt is not None:
            return True
        published = published_card(self.plan.output, self.name)
        if published is None:
            return False
        self.receipt = _conclude(self.plan.spec, self._ledger, self._staging, self.plan.fingerprint, published)
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
        _burn(ledger, staging, record, "the source changed")
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
    from dpdask.store.layout import digest_of_bytes

    documents = release_documents(made.layout, group_attributes={}, array_attributes={}, coordinates=coordinates)
    others = [(n, len(c), digest_of_bytes([c])) for n, c in documents.items() if not n.endswith("zarr.json")]
    return [*records.values(), *others]


def _conclude(spec: ReleaseSpec, ledger: Ledger, staging: Staging, fingerprint: str, card: ReleaseCard) -> Receipt:
    ledger.commit(fingerprint, card.manifest.digest)
    staging.discard()
    return Receipt(card.release, spec.output.url, spec.output.array, card)
