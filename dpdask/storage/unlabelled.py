"""What a source says of arrays of one entry per record beside it, where it has none."""

from __future__ import annotations

from dpdask.errors import StoreError
from dpdask.types import Floats, Integers, Mask

__all__ = ["Unlabelled"]


class Unlabelled:
    """A source alone: no labels, and all records are there."""

    def codes(self, name: str, records: slice, groups: tuple[int | str, ...]) -> Integers:
        """Refuse: a source alone has no labels."""
        raise StoreError(f"array {name!r} of labels was not opened with the source; plan again")

    def numbers(self, name: str, records: slice) -> Floats:
        """Refuse: a source alone has nothing beside it."""
        raise StoreError(f"array {name!r} was not opened with the source; plan again")

    def left_out(self, records: slice) -> Mask | None:
        """Return None: all records are there."""
        return None

    def check_labels(self, records: slice) -> None:
        """Do nothing: there are no labels to read."""

    @property
    def label_digests(self) -> tuple[str, ...]:
        """Digests of where labels of the records are; a source alone has none."""
        return ()

    @property
    def label_entry_bytes(self) -> int:
        """The bytes of one record's labels; a source alone has none."""
        return 0

    def label_bytes(self, records: int) -> int:
        """Return what reading the labels of so many records takes at most."""
        return 0
