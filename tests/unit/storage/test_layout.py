"""A result that is a single number is stored as one chunk without indices."""

from __future__ import annotations

import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore

from dpdask.storage import Layout


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("value", [0.0, 2.5])
def test_a_single_number_is_one_chunk(codec: str, value: float) -> None:
    layout = Layout(
        name="data",
        shape=(),
        chunks=(),
        shards=None,
        dtype="float64",
        codec=codec,
        dimension_names=(),
    )
    assert list(layout.indices()) == [()]
    assert layout.region(()) == ()
    assert layout.write_chunk_bytes == 8
    assert layout.key(()) == "data/c"
    stored = b"".join(bytes(part) for part in layout.encode((), np.array(value)))
    assert layout.check((), np.frombuffer(stored, np.uint8))
    damaged = bytes([stored[0] ^ 1]) + stored[1:]
    assert not layout.check((), np.frombuffer(damaged, np.uint8))

    store = MemoryStore()
    layout.create(store, layout.name)
    _put(store, layout.key(()), stored)
    array = zarr.open_array(store, path="data", mode="r")
    assert array.shape == ()
    assert float(np.asarray(array[()])) == value


def _put(store: MemoryStore, key: str, content: bytes) -> None:
    from zarr.core.buffer import default_buffer_prototype
    from zarr.core.sync import sync

    sync(store.set(key, default_buffer_prototype().buffer.from_bytes(content)))
