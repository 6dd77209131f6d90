"""The checksum's kernel gives crc32c of any bytes, in one piece or in several."""

from __future__ import annotations

import google_crc32c
import numpy as np
import pytest

from dpdask.machine import crc32c as kernel
from dpdask.machine.crc32c import crc32c
from dpdask.machine.features import instruction_sets

CONTENT = np.random.default_rng(0).integers(0, 256, 1 << 17, dtype=np.uint8)


def test_the_kernel_is_in_use_where_the_processor_has_it() -> None:
    assert kernel.kernel_available() == ({"crc32", "pclmul", "sse4.2"} <= instruction_sets())


def test_known_answers() -> None:
    assert crc32c(np.frombuffer(b"123456789", np.uint8)) == 0xE3069283
    assert crc32c(np.zeros(32, np.uint8)) == 0x8A9136AA


@pytest.mark.parametrize("begin", [0, 1, 5])
def test_any_length_and_alignment_gives_the_checksum_of_the_library(begin: int) -> None:
    sizes = [*range(40), *range(200, 2200, 37), 65536, 65537, 100_000]
    for size in sizes:
        part = CONTENT[begin : begin + size]
        assert crc32c(part) == google_crc32c.value(part.tobytes()), size


def test_pieces_give_the_checksum_of_the_whole() -> None:
    crc = 0
    for begin, end in ((0, 1), (1, 600), (600, 70_000), (70_000, 70_000), (70_000, 1 << 17)):
        crc = crc32c(CONTENT[begin:end], crc)
    assert crc == crc32c(CONTENT) == google_crc32c.value(CONTENT.tobytes())


def test_a_single_changed_bit_changes_it() -> None:
    changed = CONTENT.copy()
    for at in (0, 255, 256, 5000, changed.size - 1):
        changed[at] ^= 16
        assert crc32c(changed) != crc32c(CONTENT)
        changed[at] ^= 16


def test_a_kernel_that_gives_another_checksum_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "_extended", lambda crc, content: crc)
    assert not kernel.kernel_available.__wrapped__()


def test_read_only_memory_is_fine() -> None:
    frozen = CONTENT.copy()
    frozen.flags.writeable = False
    assert crc32c(frozen) == crc32c(CONTENT)
