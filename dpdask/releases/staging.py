"""Write and verify the tiles of a charged release.

Staging lies outside the trust boundary: what is read back from it is sealed under the release's key
or checked against the ledger, and counts as missing otherwise. A step that fails because another
run published the same release returns the receipt of that.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from dpdask import execution
from dpdask.errors import LedgerError, ReleaseError, StoreError, VerificationFailed
from dpdask.execution import TileWork
from dpdask.keystream import ReleaseKey
from dpdask.releases.closing import Receipt
from dpdask.releases.context import Context, adopt_if_published, check_open, check_unchanged
from dpdask.releases.settling import compute_intermediates, settle_variables
from dpdask.releases.steps import Reserved, Staged
from dpdask.storage import ManifestEntry

__all__ = ["STAGING", "stage_tiles", "verify", "write"]

S = TypeVar("S")

_SEGMENT_SECONDS = 2.0  # between two segments of the staged manifest
STAGING = "staging"  # what the seal of staged documents is for


def write(context: Context, reserved: Reserved) -> Staged | Receipt:
    """Stage every tile that is not staged yet; return the receipt if another run published."""
    return _unless_published(context, lambda: _write(context, reserved))


def _write(context: Context, reserved: Reserved) -> Staged:
    key = context.key()
    prepared = reserved.prepared
    kept = execution.select_records(context.executor, context.plan, key, context.on_progress)
    variables, arrays = settle_variables(context, prepared.estimates, key, kept)
    assembly = dataclasses.replace(prepared.assembly, variables=variables, arrays=arrays)
    data = prepared.data
    if data is None:
        data = compute_intermediates(context, variables, key, kept)
    works = tuple(
        TileWork(context.plan, variable, intermediates, context.publisher)
        for variable, intermediates in zip(variables, data, strict=True)
    )
    seal = key.seal(STAGING)
    entries = {entry.key: entry for entry in context.publisher.read_manifest(seal)}
    earlier = frozenset(entries)
    fresh: list[ManifestEntry] = []
    appended_at = time.monotonic()
    stamps: dict[str, str] = {}
    for written in stage_tiles(context, works, key, entries, stamps, set(earlier)):
        fresh += written
        if time.monotonic() - appended_at > _SEGMENT_SECONDS:
            check_open(context)
            context.publisher.append_manifest(fresh, seal)
            fresh, appended_at = [], time.monotonic()
    if fresh:
        context.publisher.append_manifest(fresh, seal)
    return Staged(works, assembly, entries, stamps, earlier)


def stage_tiles(
    context: Context,
    works: tuple[TileWork, ...],
    key: ReleaseKey,
    entries: dict[str, ManifestEntry],
    stamps: dict[str, str],
    done: set[str],
) -> Iterator[list[ManifestEntry]]:
    """Write every tile that is not done, and add to ``entries``; remove what is in the way, once.

    Args:
        context: The run.
        works: The variables as they are released.
        key: The release key.
        entries: The manifest entries by key, which grow.
        stamps: The stamps of the chunks that were read back, which grow.
        done: The keys that are not written again.
    """
    conflicts: list[str] = []
    for written in execution.write(context.executor, works, key, done, context.on_progress):
        entries.update((entry.key, entry) for entry in written.entries)
        stamps.update(written.stamps)
        conflicts += written.conflicts
        yield written.entries
    if not conflicts:
        return
    check_unchanged(context)
    context.publisher.remove(conflicts)
    done = set(entries) - set(conflicts)
    for written in execution.write(context.executor, works, key, done, context.on_progress):
        entries.update((entry.key, entry) for entry in written.entries)
        stamps.update(written.stamps)
        if written.conflicts:
            raise StoreError(
                "something else writes to the staging beside the output; stop that and"
                " `dpdask resume`"
            )
        yield written.entries


def verify(context: Context, staged: Staged) -> Staged | Receipt:
    """Check that every staged write chunk is there and intact, and the source still the same.

    Those of earlier runs must have the recorded digests. Bad ones are written again, once.
    """
    verified = _unless_published(context, lambda: _verify(context, staged))
    if isinstance(verified, Staged):
        check_unchanged(context)
    return verified


def _verify(context: Context, staged: Staged) -> Staged:
    bad = _bad_chunks(context, staged)
    if bad:
        check_unchanged(context)
        context.publisher.remove(bad)
        key = context.key()
        entries, stamps = dict(staged.entries), dict(staged.stamps)
        done = set(entries) - set(bad)
        written = stage_tiles(context, staged.works, key, entries, stamps, done)
        fresh = [entry for part in written for entry in part]
        context.publisher.append_manifest(fresh, key.seal(STAGING))
        earlier = staged.earlier - set(bad)
        staged = dataclasses.replace(staged, entries=entries, stamps=stamps, earlier=earlier)
        bad = _bad_chunks(context, staged)
    if bad:
        raise VerificationFailed(
            f"{len(bad)} staged chunks cannot be read back; check the output's disk and"
            " `dpdask resume`"
        )
    return staged


def _bad_chunks(context: Context, staged: Staged) -> list[str]:
    earlier = set(staged.earlier)
    return execution.verify(
        context.executor,
        staged.works,
        staged.entries,
        staged.stamps,
        earlier,
        context.on_progress,
    )


def _unless_published(context: Context, step: Callable[[], S]) -> S | Receipt:
    """Take a step; if it fails because another run published the release, return that receipt."""
    try:
        return step()
    except (ReleaseError, LedgerError):  # its staging, or its key, is gone
        receipt = adopt_if_published(context)
        if receipt is None:
            raise
        return receipt
