"""Plan, release, resume, abort: what users call."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpdask import execution
from dpdask.errors import (
    OutputLockDamaged,
    ReleaseError,
    SourceChanged,
    StoreError,
    VerificationFailed,
)
from dpdask.keystream import random_bytes
from dpdask.ledger import Ledger, LedgerEntry, open_ledger
from dpdask.planning import ReleasePlan, make_plan, spec_digest
from dpdask.releases.card import card_from_attributes, card_text
from dpdask.releases.steps import OTHER_MACHINE, OnProgress, Receipt, ReleaseRun, burn, finalize
from dpdask.releases.verify import check_objects, check_signature, published_card
from dpdask.spec import load_release_spec, parse_release_spec
from dpdask.spec.release import ReleaseSpec
from dpdask.storage import Publisher, Storage, open_storage, read_output_lock, remove_output_lock
from dpdask.types import Json

__all__ = ["abort", "abort_named", "finish_published", "plan", "release", "release_run", "resume"]

_UNFINISHED = (
    "a release to this output is unfinished; `dpdask resume` finishes it, `dpdask"
    " abort` gives it up"
)

_SHORTEST_NAME = 8

SpecLike = ReleaseSpec | Json | str | Path


def _spec(spec: SpecLike) -> ReleaseSpec:
    if isinstance(spec, ReleaseSpec):
        return spec
    return parse_release_spec(spec) if isinstance(spec, dict) else load_release_spec(spec)


def plan(spec: SpecLike, *, resuming: bool = False) -> ReleasePlan:
    """Everything about a release but the release: checks, noise, guarantee, cost. Reads no value,
    spends nothing.

    With ``resuming``, a release to the same output that is under way is no mistake.
    """
    parsed = _spec(spec)
    ledger = open_ledger(parsed.budget.ledger)
    try:
        output = open_storage(parsed.output.url, parsed.output.options)
        begun = read_output_lock(output) is not None
        if begun and not resuming:
            raise ReleaseError(_UNFINISHED)
        return make_plan(parsed, ledger=None if begun else ledger, resuming=begun)
    finally:
        ledger.close()


def release(spec: SpecLike, client: Any = None, on_progress: OnProgress | None = None) -> Receipt:
    """Publish one release: ``client`` is a distributed.Client of your own, else the spec's
    ``compute`` section decides.

    Guarantee: the dataset is charged at most once, before any noisy byte exists; readers see all of
    the output or nothing.
    """
    with release_run(spec, client, on_progress, unfinished="refuse") as run:
        return run.all_steps()


def resume(spec: SpecLike, client: Any = None, on_progress: OnProgress | None = None) -> Receipt:
    """Finish a release that was interrupted, with the same noise and no further charge.

    Guarantee: if the source is not the one planned for, nothing is published, the key is destroyed
    and the charge stays.
    """
    receipt = finish_published(spec)
    if receipt is not None:
        return receipt
    with release_run(spec, client, on_progress, unfinished="require") as run:
        return run.all_steps()


def finish_published(spec: SpecLike) -> Receipt | None:
    """Conclude a release that was cut off when it was complete; None where there is none. Needs no
    source and no cluster.
    """
    parsed = _spec(spec)
    ledger = open_ledger(parsed.budget.ledger)
    try:
        output = open_storage(parsed.output.url, parsed.output.options)
        card = published_card(output)
        name = read_output_lock(output) if card is None else card.release
        record = None if name is None else ledger.entry_named(name)
        if name is None or record is None or record.last not in ("publish", "commit"):
            return None
        if not _belongs(record, output):
            return None
        staging = Publisher.of(output, name)
        if card is None and record.open:
            root = _ready_root(staging, record.card)
            if root is None:
                return None  # what is missing is written again, with the same noise
            _check_asked(parsed, record)
            if not staging.publish(root):
                raise StoreError(
                    f"output {parsed.output.url!r} is taken by something else; move it away and"
                    " `dpdask resume`"
                )
            card = published_card(output, name)
        if card is None or (not record.open and not staging.holds_lock()):
            return None
        receipt = finalize(parsed, ledger, staging, record.fingerprint, card, seen=True)
        _check_asked(parsed, record)  # only now: what is visible is closed, whatever is asked for
        return receipt
    finally:
        ledger.close()


def _belongs(record: LedgerEntry, output: Storage) -> bool:
    """Whether a release that a file at or beside an output names is one to this output: files can
    be copied and planted.
    """
    return record.output_address in (None, output.address())


def _release_here(ledger: Ledger, output: Storage, name: str) -> LedgerEntry | None:
    """The release that the claim on an output names."""
    record = ledger.entry_named(name)
    if record is not None and not _belongs(record, output):
        raise OutputLockDamaged(
            "the note beside the output names a release to another output: it was copied or"
            " planted; `dpdask abort` removes it,"
            " which harms no release"
        )
    return record


def _ready_root(staging: Publisher, card: str | None) -> bytes | None:
    """The root document of a staged release that is complete: every object the one in the card that
    the ledger keeps.
    """
    root = staging.ready_root()
    if root is None:
        return None
    try:
        found = card_from_attributes(json.loads(root)["attributes"])
        if card_text(found) != card:
            return None
        check_objects(staging.data, found, root)
        check_signature(found, root)
    except (VerificationFailed, ValueError, KeyError, TypeError):
        return None
    return root


@contextlib.contextmanager
def release_run(
    spec: SpecLike,
    client: Any = None,
    on_progress: OnProgress | None = None,
    unfinished: str = "resume",
) -> Iterator[ReleaseRun]:
    """A release to be carried out step by step; what was begun before is gone on with, required, or
    refused.

    Leaving the context before the charge leaves nothing behind; after it, a release to resume.
    """
    parsed = _spec(spec)
    ledger = open_ledger(parsed.budget.ledger)
    try:
        output = open_storage(parsed.output.url, parsed.output.options)
        name = read_output_lock(output)
        if name is not None and unfinished == "refuse":
            raise ReleaseError(_UNFINISHED)
        if name is None and unfinished == "require":
            raise ReleaseError(
                "no release to this output is under way; start one with `dpdask run`"
            )
        run = _begin(parsed, ledger) if name is None else _take_up(parsed, ledger, name)
        if on_progress is not None:
            run.on_progress = on_progress
        try:
            with execution.connect(parsed.compute, client) as run.cluster:
                yield run
        except BaseException:
            run.clean_up_after_failure()
            raise
    finally:
        ledger.close()


def _begin(spec: ReleaseSpec, ledger: Ledger) -> ReleaseRun:
    made = make_plan(spec, ledger=ledger)
    known = ledger.entry(made.fingerprint)
    if known is not None and not known.open:
        raise ReleaseError(
            f"this very release was closed by {known.last}; a new one is a new charge: raise"
            " publish.edition to ask for it"
        )
    name = known.release_id if known is not None else random_bytes(16).hex()
    return ReleaseRun(made, ledger, Publisher.of(made.output, name), name)


def _take_up(spec: ReleaseSpec, ledger: Ledger, name: str) -> ReleaseRun:
    """The run that goes on where another stopped."""
    output = open_storage(spec.output.url, spec.output.options)
    staging = Publisher.of(output, name)
    record = _release_here(ledger, output, name)
    if record is not None and not record.open and published_card(output, name) is None:
        staging.discard()
        raise ReleaseError(
            f"the release was closed by {record.last} and left nothing to finish; start a new one"
        )
    if record is not None:
        _check_asked(spec, record)
    made = make_plan(spec, resuming=True)
    run = ReleaseRun(made, ledger, staging, name)
    if record is not None and record.array not in (None, made.source.address_digest):
        raise ReleaseError(
            "source.url leads to another array than when the release began; restore it, or"
            " `dpdask abort`"
        )
    if record is not None and made.identity != record.source_identity:
        burn(ledger, staging, record, "the source changed")
        raise SourceChanged(
            "the source changed since the release began, and the same noise on other data would"
            " show the difference:"
            " the release was aborted and its charge stays; start a new one"
        )
    if record is not None and made.fingerprint != record.fingerprint:
        raise ReleaseError(f"the release cannot go on here: {OTHER_MACHINE}")
    return run


def _check_asked(spec: ReleaseSpec, record: LedgerEntry) -> None:
    """A release is finished by its own spec alone; another one harms nothing."""
    if record.spec_digest is not None and spec_digest(spec) != record.spec_digest:
        raise ReleaseError(
            "the release to this output began with another spec; restore that one, `dpdask"
            " abort` it if it is unfinished, or"
            " choose another output.url"
        )


def abort(spec: SpecLike) -> str | None:
    """Give up a release under way: its key is destroyed, its staging removed; a charge that was
    made stays. Its name.

    None where nobody can tell any more which release it was: then only the damaged claim is
    removed.
    """
    parsed = _spec(spec)
    ledger = open_ledger(parsed.budget.ledger)
    try:
        output = open_storage(parsed.output.url, parsed.output.options)
        try:
            name = read_output_lock(output)
            record = None if name is None else _release_here(ledger, output, name)
        except OutputLockDamaged:
            remove_output_lock(output)
            return None
        if name is None:
            raise ReleaseError(
                "no release to this output is under way; there is nothing to abort here. If the"
                " ledger shows one as open, abort"
                " it by its name: `dpdask abort --release NAME`"
            )
        burn(ledger, Publisher.of(output, name), record, "aborted by the curator")
        return name
    finally:
        ledger.close()


def abort_named(
    name: str,
    ledger_url: str | None = None,
    options: Json | None = None,
    *,
    never_published: bool = False,
) -> str:
    """Give up a release that the ledger knows as open, by the beginning of its name, wherever its
    output is. Its whole name.

    ``options`` are the storage options of its output. One that was about to be published, and whose
    staging cannot be found from here, is given up only with ``never_published``: the caller's word
    that nobody can see it, now or later.
    """
    if len(name) < _SHORTEST_NAME:
        raise ReleaseError(
            f"{name!r} is too short to name a release; give {_SHORTEST_NAME} letters of its name"
            " at least"
        )
    ledger = open_ledger(ledger_url)
    try:
        found = ledger.open_releases(name)
        if len(found) != 1:
            raise ReleaseError(
                f"{len(found)} open releases have a name that begins with {name!r}; `dpdask"
                " ledger show` lists them"
            )
        record = found[0]
        if record.output_address is None:
            raise ReleaseError(
                "the ledger does not know where the release was to be published; abort it with"
                " its spec"
            )
        staging = Publisher.of(open_storage(record.output_address, options), record.release_id)
        burn(ledger, staging, record, "aborted by the curator", invisible=never_published)
        return record.release_id
    finally:
        ledger.close()
