"""One entry along the first axis of an array of many: a step of a stack that grows."""

from __future__ import annotations

from dataclasses import dataclass, fields

from dpdask.errors import StoreError
from dpdask.storage.base import Storage
from dpdask.storage.decoding import Scratch
from dpdask.storage.opening import open_or_explain
from dpdask.storage.source import SourceArray
from dpdask.types import Array, Region, Shape

__all__ = ["STEPS_WRITTEN", "one_of_stack", "steps_written"]

STEPS_WRITTEN = "steps_written"  # the attribute that says how many entries are complete


@dataclass(frozen=True, repr=False, kw_only=True)
class StackEntry(SourceArray):
    """An entry of a stack, without the axis of the stack.

    Args:
        stack: the array of all entries.
        entry: which one.
    """

    stack: SourceArray
    entry: int

    @property
    def stored_chunks(self) -> Shape:
        """What the stored array is read in at once, of one entry."""
        return self.stack.stored_chunks[1:]

    def read(self, region: Region, scratch: Scratch | None = None) -> Array:
        """Return a region of the entry."""
        block = self.stack.read(self._in_stack(region), scratch)
        return block.reshape(block.shape[1:])

    def read_codes(self, region: Region, scratch: Scratch | None = None) -> Array:
        """Return a region of the entry as it is stored."""
        block = self.stack.read_codes(self._in_stack(region), scratch)
        return block.reshape(block.shape[1:])

    def _in_stack(self, region: Region) -> Region:
        return (slice(self.entry, self.entry + 1), *region)


def one_of_stack(stack: SourceArray, entry: int) -> SourceArray:
    """Return one entry along the first axis of an array.

    Args:
        stack: the array.
        entry: which entry.

    Raises:
        StoreError: the array has no such entry, or entries have no axis.
    """
    if len(stack.shape) < 2 or not 0 <= entry < stack.shape[0]:
        raise StoreError(f"the array of steps has no entry {entry}; write it first")
    own = {field.name: getattr(stack, field.name) for field in fields(SourceArray)}
    names = stack.dimension_names
    return StackEntry(
        **{
            **own,
            "shape": stack.shape[1:],
            "chunks": stack.chunks[1:],
            "dimension_names": None if names is None else names[1:],
            "plain": False,
        },
        stack=stack,
        entry=entry,
    )


def steps_written(storage: Storage, path: str) -> int:
    """Return how many entries of an array its attribute says are complete, 0 where it is not there.

    An array that is being written at this moment may not be readable yet.
    """
    try:
        number = dict(open_or_explain(storage, path.strip("/")).attrs).get(STEPS_WRITTEN, 0)
    except StoreError:
        return 0
    return number if isinstance(number, int) else 0
