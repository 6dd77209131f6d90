"""What tile tasks are given, and what they return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from dpdask.keystream import TransferableKey
from dpdask.planning.tiling import Index, Tiling
from dpdask.privatizers.base import Privatizer
from dpdask.queries import ExactSum, Layer, Query
from dpdask.queries.base import DATA
from dpdask.storage import Layout, ManifestEntry, Publisher, SourceArray, StagedChunk

__all__ = ["BesideJob", "PartJob", "StepJob", "TileJob", "Written"]


class Written(NamedTuple):
    """What a task wrote: the entries of its write chunks, the keys where other bytes lay, and the
    stamps of those that it read back.
    """

    entries: list[ManifestEntry]
    conflicts: list[str]
    stamps: dict[str, str]

    def add(self, key: str, staged: StagedChunk | None) -> None:
        """Note a write chunk, or that other bytes are in its place."""
        if staged is None:
            self.conflicts.append(key)
            return
        self.entries.append(staged.entry)
        if staged.stamp:
            self.stamps[key] = staged.stamp


class PartJob(NamedTuple):
    """A further noisy sum: how its noise is added, under which name it is drawn, and its tiles."""

    name: str
    privatizer: Privatizer
    exact_sum: ExactSum
    component: str
    tiling: Tiling
    aligned: bool


class BesideJob(NamedTuple):
    """An array that is published beside the main one: what of the answer it is, and its layout."""

    suffix: str
    layout: Layout
    aligned: bool


class StepJob(NamedTuple):
    """One step of a session: its number, and keyed digests of what its noise may be added to."""

    number: int
    digests: Mapping[Index, str]


@dataclass(frozen=True, kw_only=True, repr=False)
class TileJob:
    """What all tile tasks of a component share.

    Args:
        source: The array to read.
        staging: Where write chunks go.
        layout: How they are encoded, and their keys.
        tiling: The tiles of the answer.
        query: The query that is answered.
        privatizer: How a tile is bounded, discretized and given noise.
        exact_sum: How records are summed exactly, None for a query that is not a sum.
        key: The release key, in its transferable form.
        binding: The digest of the recipe that the noise is drawn for.
        component: The name of the component, which its noise depends on too.
        parts: Further noisy sums of the answer.
        beside: The arrays that are published beside the main one.
        layers: What is computed from published numbers.
        step: Which of the steps of a session it is; None for other releases.
    """

    source: SourceArray
    staging: Publisher
    layout: Layout
    tiling: Tiling
    query: Query
    privatizer: Privatizer
    exact_sum: ExactSum | None
    key: TransferableKey
    binding: str
    component: str
    parts: tuple[PartJob, ...] = ()
    beside: tuple[BesideJob, ...] = ()
    layers: tuple[Layer, ...] = ()
    step: StepJob | None = None

    def __repr__(self) -> str:
        return "<TileJob>"

    def stds(self) -> dict[str, float]:
        """Return the standard deviation of the noise of every part."""
        return {DATA: self.privatizer.noise.entry_std} | {
            part.name: part.privatizer.noise.entry_std for part in self.parts
        }
