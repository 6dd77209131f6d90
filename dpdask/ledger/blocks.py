"""Releases of disjoint blocks of an axis protect disjoint privacy units: the largest is charged.

For every dataset, array and axis the ledger keeps what each index was charged so far, as segments
(:mod:`dpdask.ledger.interval_map`). A release of a block adds its charge there, and the dataset is
charged what the largest sum grows by. Releases without a block, and the largest sums of different
arrays and axes, add up. Proof: docs/ledger.md, "Disjoint blocks".

``dpdask_blocks`` holds the segments. A segment that changes is marked as replaced, and its entry
in the chain says which segments it wrote, so every charge checks those that it reads, and
:meth:`Ledger.verify` computes all of them anew. A charge reads the segments that its block overlaps
or touches, however many there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from sqlalchemy import ColumnElement, Connection, Row, and_, func, insert, select, update

from dpdask.errors import LedgerCorrupt
from dpdask.ledger.charges import NOTHING, Spent
from dpdask.ledger.hash_chain import Standing, payload_of
from dpdask.ledger.interval_map import Change, IntervalMap, Segment
from dpdask.ledger.models import Block, ChargedAxis, PrivacyUnit
from dpdask.ledger.payloads import charge_in
from dpdask.ledger.schema import blocks, entries, fetch_entries, fetch_entry
from dpdask.types import Json

__all__ = [
    "AxisCharges",
    "AxisKey",
    "BlockCharge",
    "blocks_since",
    "charged_axes",
    "charged_since",
    "load_axes",
    "segments_in_tables",
    "write_block",
]

AxisKey = tuple[str, int]
"""The digest of an array, or of those that are read together, and an axis."""


class _SegmentRow(Protocol):
    """One row of ``dpdask_blocks``."""

    written: int
    start: int
    stop: int
    mu_squared: str
    delta: str


@dataclass(frozen=True, slots=True)
class BlockCharge:
    """What a release of a block does to the charges along its axis.

    Args:
        key: the array and the axis.
        block: what the release reads.
        grown: by how much the largest sums grow, which is what the dataset is charged.
        largest: the largest sums afterwards.
        change: what happens to the segments.
    """

    key: AxisKey
    block: Block
    grown: Spent
    largest: Spent
    change: Change

    def to_dict(self) -> Json:
        """Return what the reservation records."""
        return {
            "arrays": self.key[0],
            **self.block.to_dict(),
            "grown": list(self.grown.digits()),
            "largest": list(self.largest.digits()),
            "segments": [_to_list(segment) for segment in self.change.added],
        }


class AxisCharges:
    """What the indices of an axis, or of a part of it, were charged, and the largest sums."""

    def __init__(self, segments: Iterable[Segment] = (), largest: Spent = NOTHING) -> None:
        self._map = IntervalMap(segments)
        self.largest = largest

    @property
    def segments(self) -> list[Segment]:
        """The segments, in order."""
        return self._map.segments

    def add(self, key: AxisKey, block: Block, amount: Spent) -> BlockCharge:
        """Charge a release of a block."""
        change = self._map.add(block.start, block.stop, amount)
        before, self.largest = self.largest, self.largest.maximum(change.largest)
        return BlockCharge(key, block, self.largest - before, self.largest, change)


def load_axes(
    connection: Connection, dataset: str, units: Sequence[PrivacyUnit]
) -> dict[AxisKey, AxisCharges]:
    """Return the charges along every axis that some release has a block of, where they matter.

    Args:
        connection: the caller's transaction.
        dataset: the dataset that the releases would be charged to.
        units: whom they protect, with their blocks.

    Raises:
        LedgerCorrupt: a segment is not the one that the chain records.
    """
    spans: dict[AxisKey, Block] = {}
    for unit in units:
        if unit.block is not None:
            key, block = (unit.block_arrays, unit.block.axis), unit.block
            span = spans.get(key, block)
            start, stop = min(span.start, block.start), max(span.stop, block.stop)
            spans[key] = Block(block.axis, start, stop)
    return {key: _load(connection, dataset, key, span) for key, span in spans.items()}


def _load(connection: Connection, dataset: str, key: AxisKey, span: Block) -> AxisCharges:
    largest = _largest(connection, dataset, key)
    if largest is None:
        return AxisCharges()
    held = select(blocks).where(_of(dataset, key), blocks.c.replaced.is_(None))
    # Segments are disjoint, so of those that begin before the block only the last can reach it.
    before = held.where(blocks.c.start < span.start).order_by(blocks.c.start.desc()).limit(1)
    within = held.where(blocks.c.start >= span.start, blocks.c.start <= span.stop)
    rows = [*connection.execute(before), *connection.execute(within)]
    return AxisCharges([_checked(connection, dataset, row) for row in rows], largest)


def _of(dataset: str, key: AxisKey) -> ColumnElement[bool]:
    array, axis = key
    return and_(blocks.c.dataset == dataset, blocks.c.array == array, blocks.c.axis == axis)


def _largest(connection: Connection, dataset: str, key: AxisKey) -> Spent | None:
    """Return the largest sums along an axis, None if it has no charge: its newest entry says."""
    newest = connection.scalar(select(func.max(blocks.c.written)).where(_of(dataset, key)))
    if newest is None:
        return None
    return Spent.read(*_recorded(connection, dataset, int(newest))["largest"])


def _recorded(connection: Connection, dataset: str, sequence: int) -> Json:
    """Return what a reservation says of its block."""
    query = select(entries).where(entries.c.dataset == dataset, entries.c.sequence == sequence)
    row = fetch_entry(connection, query)
    recorded = None if row is None else payload_of(row).get("parallel")
    if recorded is None:
        raise _changed(dataset)
    return cast("Json", recorded)


def _checked(connection: Connection, dataset: str, row: Row[tuple[object, ...]]) -> Segment:
    """Return the segment of a row if the entry that wrote it says so."""
    stored = cast("_SegmentRow", row)
    segment = _segment(stored)
    if _to_list(segment) not in _recorded(connection, dataset, stored.written)["segments"]:
        raise _changed(dataset)
    return segment


def _segment(row: _SegmentRow) -> Segment:
    return Segment(row.start, row.stop, Spent.read(row.mu_squared, row.delta))


def _to_list(segment: Segment) -> list[int | str]:
    return [segment.start, segment.stop, *segment.spent.digits()]


def _changed(dataset: str) -> LedgerCorrupt:
    return LedgerCorrupt(
        f"the charges of blocks of dataset {dataset!r} are not those of its entries: the ledger"
        " was changed; restore a backup"
    )


def write_block(connection: Connection, dataset: str, sequence: int, charge: BlockCharge) -> None:
    """Record what the newest reservation of a dataset, at ``sequence``, does to the segments."""
    held = update(blocks).where(_of(dataset, charge.key), blocks.c.replaced.is_(None))
    for segment in charge.change.removed:
        marked = connection.execute(
            held.where(blocks.c.start == segment.start).values(replaced=sequence)
        )
        if marked.rowcount != 1:
            raise _changed(dataset)
    array, axis = charge.key
    for segment in charge.change.added:
        mu_squared, delta = segment.spent.digits()
        row = {
            "dataset": dataset,
            "array": array,
            "axis": axis,
            "written": sequence,
            "start": segment.start,
            "stop": segment.stop,
            "mu_squared": mu_squared,
            "delta": delta,
        }
        connection.execute(insert(blocks), row)


def segments_in_tables(connection: Connection, dataset: str) -> dict[AxisKey, list[Segment]]:
    """Return all segments of a dataset that hold, in order, by array and axis."""
    query = select(blocks).where(blocks.c.dataset == dataset, blocks.c.replaced.is_(None))
    segments: dict[AxisKey, list[Segment]] = {}
    for row in connection.execute(query.order_by(blocks.c.start)):
        segments.setdefault((row.array, row.axis), []).append(_segment(cast("_SegmentRow", row)))
    return segments


def charged_axes(connection: Connection, standing: Standing) -> list[ChargedAxis]:
    """Return the axes of a dataset along which blocks were charged, with their largest charge."""
    charged, dataset = [], standing.dataset
    for (array, axis), segments in sorted(segments_in_tables(connection, dataset).items()):
        largest = _largest(connection, dataset, (array, axis))
        assert largest is not None
        charged.append(
            ChargedAxis(
                array=array,
                axis=axis,
                start=segments[0].start,
                stop=segments[-1].stop,
                segments=len(segments),
                largest_epsilon=standing.policy.profile(largest).epsilon(standing.total.delta),
            )
        )
    return charged


def blocks_since(connection: Connection, dataset: str, sequence: int) -> bool:
    """Return whether a release of a block was charged after an entry of the dataset."""
    later = select(blocks.c.written).where(blocks.c.dataset == dataset, blocks.c.written > sequence)
    return connection.scalar(later.limit(1)) is not None


def charged_since(
    connection: Connection, dataset: str, sequence: int
) -> tuple[Spent, dict[AxisKey, AxisCharges]]:
    """Return what the releases after an entry were charged, as if there were no others.

    What the largest charge has grown by since then may be less: new units were charged meanwhile.
    """
    later = select(entries).where(
        entries.c.dataset == dataset, entries.c.kind == "reserve", entries.c.sequence > sequence
    )
    spent, axes = NOTHING, dict[AxisKey, AxisCharges]()
    for row in fetch_entries(connection, later.order_by(entries.c.sequence)):
        payload = payload_of(row)
        charge, recorded = charge_in(payload), payload.get("parallel")
        amount = NOTHING if charge is None else Spent.on(charge)
        if recorded is not None:
            key = (recorded["arrays"], recorded["axis"])
            block = Block(recorded["axis"], recorded["start"], recorded["stop"])
            amount = axes.setdefault(key, AxisCharges()).add(key, block, amount).grown
        spent += amount
    return spent, axes
