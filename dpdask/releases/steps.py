"""One release under way, step by step: the only place where the rooms meet.

    prepare -> reserve (charged) -> key -> tiles -> verify -> publish -> commit

Nothing is charged before the source was read through once where it can fail, and before every
document of the release was built once; no noisy byte exists before the charge. A crash leaves the
charge, the key in the ledger and the finished tiles in staging, from where another run goes on and
replays. Publisher lies outside the trust boundary: what is read back from it is sealed under the
release's key or checked against the ledger, and counts as missing otherwise.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpdask import execution
from dpdask.errors import LedgerError, ReleaseError, SourceChanged, StoreError, VerificationFailed
from dpdask.execution import Progress
from dpdask.ledger import Ledger, LedgerEntry
from dpdask.planning import ReleasePlan, component_with_directions, recipe_digest, spec_digest
from dpdask.releases.assembly import Assembly
from dpdask.releases.build_card import Charge
from dpdask.releases.card import ReleaseCard, card_text
from dpdask.releases.verify import check_objects, published_card
from dpdask.signing import load_signing_key
from dpdask.spec.release import ReleaseSpec
from dpdask.storage import ROOT, Coordinate, ManifestEntry, Publisher

__all__ = ["OTHER_MACHINE", "OnProgress", "Receipt", "ReleaseRun", "burn", "finalize"]

_SEGMENT_SECONDS = 2.0
_STAGING = "staging"  # what the seal of staged documents is for
_DIRECTIONS = "directions"
_RECIPE = "recipe"

OTHER_MACHINE = (
    "dpdask, its libraries or the kind of processor are not those it began with, and round"
    " differently; restore them, or"
    " `dpdask abort`"
)

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


def burn(
    ledger: Ledger,
    staging: Publisher,
    record: LedgerEntry | None,
    reason: str,
    *,
    invisible: bool = False,
) -> None:
    """Close a release without a result, and remove its staging; what is or may become visible is
    refused.

    Once a release is about to be published, it is closed only if nothing is left of it that could
    be: by the curator's word (``invisible``), or because its claim is here, on a filesystem, where
    its staging is taken away before we look whether it is at the output. What is not there by then
    cannot be renamed into place any more.
    """
    if published_card(staging.output, staging.release_id) is not None:
        raise ReleaseError("the release is published already; `dpdask resume` concludes it")
    if record is not None and record.open:
        if record.last == "publish" and staging.withdraw():
            if published_card(staging.output, staging.release_id) is not None:
                raise ReleaseError("the release is published already; `dpdask resume` concludes it")
            invisible = True
        ledger.burn(record.fingerprint, reason, invisible=invisible)
    staging.discard(charged=record is not None)


class ReleaseRun:
    """One release under way: steps to be taken in order, each of which may be tried again."""

    def __init__(self, made: ReleasePlan, ledger: Ledger, staging: Publisher, name: str) -> None:
        self.plan = made
        self.name = name
        self.cluster: Any = None
        self.on_progress: OnProgress = _silent
        self.receipt: Receipt | None = None
        self._ledger = ledger
        self._staging = staging
        self._claimed = False
        self._data = made.data
        self._directions: execution.Prepared | None = None
        self._prepared = execution.Prepared()
        self._assembly: Assembly | None = None
        self._key: Any = None
        self._entries: dict[str, ManifestEntry] = {}
        self._earlier: set[str] = set()

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
            self._directions = execution.prepare(
                self.cluster, made, made.directions, self.on_progress
            )
        self._prepared = execution.prepare(self.cluster, made, made.data, self.on_progress)
        self._assembly = Assembly(
            plan=made,
            name=self.name,
            data=made.data,
            coordinates=_coordinates(made),
            attributes=made.source.attributes(made.spec.publish.attributes),
            signing_key=load_signing_key(),
        )
        self._assembly.check_publishable()
        if (
            self._prepared.clips or self._prepared.answers or not made.source.plain
        ):  # that took its time
            _check_unchanged(made, self._ledger, self._staging)

    def reserve(self) -> None:
        """Claim the output, charge the dataset, get the key."""
        if self._adopt_if_published():
            return
        made = self.plan
        self._claimed = self._staging.lock_output() or self._claimed
        if (
            made.output.occupied() and self._ledger.entry(made.fingerprint) is None
        ):  # since it was planned
            raise StoreError(
                f"output {made.spec.output.url!r} appeared meanwhile; publish elsewhere"
            )
        facts = {
            "release_id": self.name,
            "source_identity": made.identity,
            "spec_digest": spec_digest(made.spec),
            "output_url": made.spec.output.url,
            "output_address": made.output.address(),
            "curator": made.spec.budget.curator,
            **(
                {}
                if made.spec.source.window is None
                else {"window": made.spec.source.window.model_dump()}
            ),
        }
        self._ledger.reserve(
            made.spec.budget.dataset,
            made.fingerprint,
            made.guarantee.verified,
            made.privacy_unit,
            facts,
        )
        self._check_claim()
        self.on_progress(Progress("reserved", 1, 1))
        self._key = self._ledger.release_key(made.fingerprint)
        self.on_progress(Progress("key", 1, 1))

    def _check_claim(self) -> None:
        """The charged release is the one that the output is claimed for: nobody gave it up, or
        began it twice, meanwhile.
        """
        record = _check_open(self.plan, self._ledger)
        if record.release_id != self.name:
            raise ReleaseError(
                "the same release was begun twice at once; run it again, and it goes on with"
                " what was charged"
            )
        if not self._staging.holds_lock():
            burn(self._ledger, self._staging, record, "aborted while it was being charged")
            raise ReleaseError(
                "the release was aborted while it was being charged: its charge stays; start a"
                " new one"
            )

    def write(self) -> None:
        """Every tile that is not staged yet."""
        if self.receipt is not None:
            return
        try:
            if self._directions is not None:
                self._rotate_noise(self._directions)
                self._check_recipe()
            self._write_all()
        except ReleaseError:
            if not self._adopt_if_published():
                raise

    def _rotate_noise(self, prepared: execution.Prepared) -> None:
        """Turn the noise along DP directions, settled once in the ledger, so that a retry turns the
        same way.
        """
        release = self.plan.fingerprint
        kept = self._ledger.get_once(release, _DIRECTIONS)
        if kept is None:
            found = execution.compute_directions(
                self.cluster, self.plan, prepared, self._key, self._staging, self.on_progress
            )
            kept = self._ledger.put_once(
                release, _DIRECTIONS, json.dumps(found)
            )  # another run's may differ in the last bits
        directions = json.loads(kept)
        self._data = component_with_directions(self.plan, directions)
        arrays = {_DIRECTIONS: np.asarray(directions, dtype=np.float64)}
        self._assembly = dataclasses.replace(self._assembled(), data=self._data, arrays=arrays)

    def _check_recipe(self) -> None:
        """The noise that directions turned is the one that an earlier run drew: other bits of an
        inverse are another recipe.

        Two versions of a tile, with the same noise or with other noise, would show more than was
        charged.
        """
        digest = recipe_digest(self.plan.fingerprint, self._data)
        if self._ledger.put_once(self.plan.fingerprint, _RECIPE, digest) != digest:
            raise ReleaseError(f"the release began elsewhere: {OTHER_MACHINE}")

    def _write_all(self) -> None:
        """All tiles into staging; finished ones are recorded every two seconds, if the release was
        not closed meanwhile.
        """
        seal = self._key.seal(_STAGING)
        self._entries = {entry.key: entry for entry in self._staging.read_manifest(seal)}
        self._earlier = set(self._entries)
        fresh: list[ManifestEntry] = []
        noted = time.monotonic()
        for entries in self._tiles(self._earlier):
            fresh += entries
            if time.monotonic() - noted > _SEGMENT_SECONDS:
                _check_open(self.plan, self._ledger)
                self._staging.append_manifest(fresh, seal)
                fresh, noted = [], time.monotonic()
        if fresh:
            self._staging.append_manifest(fresh, seal)

    def _tiles(self, done: set[str]) -> Iterator[list[ManifestEntry]]:
        """Write every tile that is not done, and remember its entries; what lies in the way of one
        is removed, once.
        """
        conflicts: list[str] = []
        for written in self._written(done):
            conflicts += written.conflicts
            yield written.entries
        if not conflicts:
            return
        _check_unchanged(self.plan, self._ledger, self._staging)
        self._staging.remove(conflicts)
        for written in self._written(set(self._entries) - set(conflicts)):
            if written.conflicts:
                raise StoreError(
                    "something else writes to the staging beside the output; stop that and"
                    " `dpdask resume`"
                )
            yield written.entries

    def _written(self, done: set[str]) -> Iterator[execution.Written]:
        work = (
            self.cluster,
            self.plan,
            self._data,
            self._prepared,
            self._key,
            self._staging,
            done,
            self.on_progress,
        )
        for written in execution.write(*work):
            self._entries.update((entry.key, entry) for entry in written.entries)
            yield written

    def verify(self) -> None:
        """Every staged unit is there, decodes and is the one recorded; the source is still the
        same.
        """
        if self.receipt is not None:
            return
        try:
            self._verify_all()
        except ReleaseError:
            if not self._adopt_if_published():
                raise
            return
        self._key = None
        _check_unchanged(self.plan, self._ledger, self._staging)

    def _verify_all(self) -> None:
        """Every unit is there and decodes; those of earlier runs are the recorded ones. Bad ones
        are written again, once.
        """
        bad = self._bad_chunks()
        if bad:
            _check_unchanged(self.plan, self._ledger, self._staging)
            self._staging.remove(bad)
            self._earlier -= set(bad)
            fresh = [
                entry for entries in self._tiles(set(self._entries) - set(bad)) for entry in entries
            ]
            self._staging.append_manifest(fresh, self._key.seal(_STAGING))
            bad = self._bad_chunks()
        if bad:
            raise VerificationFailed(
                f"{len(bad)} staged chunks cannot be read back; check the output's disk and"
                " `dpdask resume`"
            )

    def _bad_chunks(self) -> list[str]:
        return execution.verify(
            self.cluster, self.plan, self._staging, self._entries, self._earlier, self.on_progress
        )

    def publish(self) -> Receipt:
        """Make the release visible at once, and commit it."""
        if self._adopt_if_published() and self.receipt is not None:
            return self.receipt
        try:
            card = self._make_visible()
        except (ReleaseError, LedgerError):
            if self._adopt_if_published() and self.receipt is not None:
                return self.receipt
            raise
        self.on_progress(Progress("published", 1, 1))
        self.receipt = finalize(
            self.plan.spec, self._ledger, self._staging, self.plan.fingerprint, card
        )
        return self.receipt

    def _make_visible(self) -> ReleaseCard:
        plan = self.plan
        record = _check_open(plan, self._ledger)
        assembly = self._assembled()
        card = (
            _noted_card(record.card)
            if record.card is not None
            else assembly.card(_charge(record, self._ledger))
        )
        card, documents = assembly.complete(card, self._entries.values())
        self._staging.check_no_foreign_objects(set(documents) | set(self._entries))
        noted = _noted_card(self._ledger.publish(plan.fingerprint, card_text(card)))
        if card_text(noted) != card_text(card):  # another run of this release was first
            card, documents = assembly.complete(noted, self._entries.values())
        if card_text(noted) != card_text(card):
            raise ReleaseError(
                "an earlier run staged other bytes, by other versions of a codec; restore them,"
                " or `dpdask abort`"
            )
        self._staging.ready(documents, set(documents) | set(self._entries))
        self.on_progress(Progress("ready", 1, 1))
        if not self._staging.publish(documents[ROOT]):
            raise StoreError(
                f"output {plan.spec.output.url!r} appeared meanwhile; move it away and `dpdask"
                " resume`"
            )
        return card

    def _assembled(self) -> Assembly:
        if self._assembly is None:
            raise ReleaseError("the release was not prepared; take its steps in order")
        return self._assembly

    def _adopt_if_published(self) -> bool:
        """Whether another run of this very release, drawing the same noise, published it first:
        then that is our receipt.
        """
        if self.receipt is not None:
            return True
        published = published_card(self.plan.output, self.name)
        if published is None:
            return False
        self.receipt = finalize(
            self.plan.spec, self._ledger, self._staging, self.plan.fingerprint, published, seen=True
        )
        return True

    def clean_up_after_failure(self) -> None:
        """After a failure: what was claimed and not charged is given back, and what is closed needs
        no staging.
        """
        record = self._ledger.entry(self.plan.fingerprint)
        if record is not None and not record.open:
            self._staging.discard()
        elif self._claimed and self._ledger.entry_named(self.name) is None:
            self._staging.discard(charged=False)


def _check_open(made: ReleasePlan, ledger: Ledger) -> LedgerEntry:
    record = ledger.entry(made.fingerprint)
    if record is None or not record.open:
        raise ReleaseError("the release was closed while it was being written; start a new one")
    return record


def _check_reach(made: ReleasePlan, cluster: Any) -> None:
    inside = cluster.scheduler.address.startswith("inproc://")
    if not inside and not (made.source.storage.shared and made.output.shared):
        raise StoreError(
            "memory:// is this process' own, which other workers cannot reach; use"
            " compute.workers: 1"
        )


def _check_unchanged(made: ReleasePlan, ledger: Ledger, staging: Publisher) -> None:
    """The source is still the one that was planned for; else a charged release is burned, before
    anyone sees two answers.
    """
    if made.source.identity() == made.identity:
        return
    record = ledger.entry(made.fingerprint)
    if record is not None:
        burn(ledger, staging, record, "the source changed")
        raise SourceChanged(
            "the source changed during the release: it was aborted and its charge stays; start a"
            " new one"
        )
    raise SourceChanged(
        "the source changed while the release was planned; nothing was charged: start again"
    )


def _coordinates(made: ReleasePlan) -> list[Coordinate]:
    found = []
    for name in made.spec.publish.coordinates:
        values, dimensions, attributes = made.source.coordinate(name)
        found.append((name, values, dimensions, attributes))
    return found


def _charge(record: LedgerEntry, ledger: Ledger) -> Charge:
    """What the ledger says of a charged release, for its card."""
    spent = record.cumulative.epsilon(record.total.delta)
    head = ledger.head(record.dataset)
    return Charge(
        reserved_at=record.reserved_at, total=record.total, cumulative_epsilon=spent, head=head
    )


def _noted_card(text: str) -> ReleaseCard:
    """A card as the ledger keeps it."""
    try:
        return ReleaseCard.model_validate_json(text)
    except ValueError:
        raise ReleaseError(
            "the release was completed by another version of dpdask; restore that, or `dpdask"
            " abort`"
        ) from None


def finalize(
    spec: ReleaseSpec,
    ledger: Ledger,
    staging: Publisher,
    fingerprint: str,
    card: ReleaseCard,
    *,
    seen: bool = False,
) -> Receipt:
    """Commit what is published, if it is what was to be published, and remove its staging.

    What was only ``seen`` at the output, since another run published it, or somebody put it there,
    is checked as a whole first: a commit destroys the key, and without it nothing is ever written
    again.
    """
    record = ledger.entry(fingerprint)
    if record is None or record.card != card_text(card):
        raise VerificationFailed(
            "the card at the output is not the one that was to be published; move the output away"
        )
    if seen:
        check_objects(staging.output, card, staging.output.read(ROOT) or b"")
    ledger.commit(fingerprint)
    staging.discard()
    return Receipt(card.release, spec.output.url, spec.output.array, card)
