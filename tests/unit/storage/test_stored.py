"""However a source is stored and cut, its regions and its blocks of records hold what zarr reads,
decoded by the same rule.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ZstdCodec

from dpdask.errors import StoreError
from dpdask.storage import record_blocks, stored
from tests.support.sources import opened, read, write_codes

pytestmark = pytest.mark.filterwarnings("ignore")

PACKING = {"scale_factor": 0.25, "add_offset": -3.0, "_FillValue": 7}
SHAPE = (23, 6, 10)
LAYOUTS: dict[str, dict[str, Any]] = {
    "zstd": {"compressors": ZstdCodec(), "chunks": (5, 6, 10)},
    "zstd with cut chunks": {"compressors": ZstdCodec(checksum=True), "chunks": (5, 4, 3)},
    "blosc": {"compressors": BloscCodec(cname="lz4"), "chunks": (23, 2, 10)},
    "gzip": {"compressors": GzipCodec(), "chunks": (4, 6, 10)},
    "one record a chunk": {"compressors": ZstdCodec(), "chunks": (1, 6, 10)},
    "none": {"compressors": None, "chunks": (5, 6, 10)},
    "shards": {"compressors": ZstdCodec(), "chunks": (5, 3, 5), "shards": (10, 6, 10)},
    "checksums": {"compressors": [ZstdCodec(), Crc32cCodec()], "chunks": (5, 6, 10)},
    "big-endian": {
        "compressors": ZstdCodec(), "serializer": BytesCodec(endian="big"), "chunks": (5, 6, 10),
    },
    "v2 none": {"version": 2, "compressors": None, "chunks": (7, 6, 10)},
    "v2 zstd": {"version": 2, "compressors": numcodecs.Zstd(), "chunks": (5, 6, 4)},
    "v2 blosc": {"version": 2, "compressors": numcodecs.Blosc(), "chunks": (7, 6, 10)},
    "v2 zlib": {"version": 2, "compressors": numcodecs.Zlib(), "chunks": (7, 6, 10)},
    "v2 lz4": {"version": 2, "compressors": numcodecs.LZ4(), "chunks": (7, 6, 10)},
    "v2 fortran": {
        "version": 2, "compressors": numcodecs.Zstd(), "chunks": (7, 6, 10), "order": "F",
    },
    "v2 filter": {
        "version": 2, "compressors": numcodecs.Zstd(), "chunks": (7, 6, 10),
        "filters": [numcodecs.Delta("<i2")],
    },
}  # fmt: skip


def codes(dtype: str = "<i2") -> Any:
    return np.random.default_rng(3).integers(0, 100, SHAPE).astype(dtype)


def expected(values: Any, attributes: dict[str, Any]) -> Any:
    if not attributes:
        return values
    decoded = values * attributes["scale_factor"] + attributes["add_offset"]
    return np.where(values == attributes["_FillValue"], np.nan, decoded)


def joined(source: Any, region: Any, axis: int) -> Any:
    """All blocks of a region, each copied before the next one is asked for."""
    parts, at = [], region[axis].start
    for records, block in source.blocks(region, axis):
        assert records.start == at
        assert block.shape[axis] == records.stop - records.start
        parts.append(block.copy())
        at = records.stop
    assert at == region[axis].stop
    return np.concatenate(parts, axis)


@pytest.mark.parametrize("attributes", [PACKING, {}], ids=["packed", "as it is"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_read_as_zarr_reads_it(
    tmp_path: Path, layout: str, attributes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_codes(tmp_path / "s.zarr", codes(), attributes, **LAYOUTS[layout])
    source = opened(folder)
    whole = np.asarray(zarr.open_array(folder / "x", mode="r")[...])
    np.testing.assert_array_equal(whole, codes())
    wanted = expected(whole, attributes)
    np.testing.assert_array_equal(read(source), wanted)
    for decoded_bytes in (1, 2000, 2**20):
        monkeypatch.setattr(record_blocks, "_DECODED_BYTES", decoded_bytes)
        monkeypatch.setattr(record_blocks, "_ROWS_BYTES", decoded_bytes)
        for read_bytes in (1, 2000):
            monkeypatch.setattr(record_blocks, "_READ_BYTES", read_bytes)
            for axis in range(3):
                for region in ((0, 23, 0, 6, 0, 10), (5, 20, 0, 4, 0, 9), (3, 4, 1, 5, 2, 10)):
                    box = tuple(
                        slice(*pair) for pair in zip(region[::2], region[1::2], strict=True)
                    )
                    np.testing.assert_array_equal(joined(source, box, axis), wanted[box])


@pytest.mark.parametrize("layout", ["zstd", "v2 blosc", "none"])
def test_blocks_of_a_window_begin_within_it(tmp_path: Path, layout: str) -> None:
    folder = write_codes(tmp_path / "s.zarr", codes(), PACKING, **LAYOUTS[layout])
    wanted = expected(codes(), PACKING)[4:19]
    source = opened(folder).windowed(0, 4, 19)
    whole = tuple(slice(0, size) for size in source.shape)
    np.testing.assert_array_equal(joined(source, whole, 0), wanted)
    np.testing.assert_array_equal(joined(source, whole, 2), wanted)
    assert list(source.blocks((slice(3, 3), slice(0, 6), slice(0, 10)), 0)) == []


@pytest.mark.parametrize("dtype", ["<f8", "<i2", ">f4"])
def test_rows_of_plain_chunks_are_read_alone(
    tmp_path: Path, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of chunks come from their files, never more of them than is asked for."""
    layout = {"compressors": None, "chunks": (9, 6, 10), "version": 2}
    folder = write_codes(tmp_path / "s.zarr", codes(dtype), {}, **layout)
    monkeypatch.setattr(record_blocks, "_ROWS_BYTES", 300 * np.dtype(dtype).itemsize)
    source, by_zarr = opened(folder), []
    general = stored._read_by_zarr
    monkeypatch.setattr(
        stored, "_read_by_zarr", lambda *args: by_zarr.append(args) or general(*args)
    )
    box = (slice(2, 18), slice(0, 6), slice(0, 10))
    sizes = [block.shape[0] for _, block in source.blocks(box, 0)]
    assert sizes == [5, 2, 5, 4]  # five rows at once, within chunks of nine
    assert not by_zarr
    np.testing.assert_array_equal(joined(source, box, 0), codes(dtype)[2:18])


@pytest.mark.parametrize("damage", [b"", b"x"])
def test_a_plain_chunk_of_the_wrong_size_is_refused_row_by_row(
    tmp_path: Path, damage: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_codes(tmp_path / "s.zarr", codes(), {}, **LAYOUTS["v2 none"])
    monkeypatch.setattr(record_blocks, "_ROWS_BYTES", 100)
    array = zarr.open_array(folder / "x", mode="r")
    file = folder / "x" / array.metadata.encode_chunk_key((1, 0, 0))
    content = file.read_bytes()
    file.write_bytes(content + damage if damage else content[:-1])
    source = opened(folder)
    assert joined(source, (slice(0, 7), slice(0, 6), slice(0, 10)), 0).shape[0] == 7
    with pytest.raises(StoreError, match="cannot be read or decoded near index"):
        joined(source, (slice(7, 8), slice(0, 6), slice(0, 10)), 0)


DIRECT = ["zstd", "zstd with cut chunks", "blosc", "gzip", "one record a chunk", "none", "v2 zstd",
          "v2 blosc", "v2 zlib", "v2 lz4", "v2 none"]  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_which_layouts_are_read_without_zarr(
    tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_codes(tmp_path / "s.zarr", codes(), PACKING, **LAYOUTS[layout])
    source, by_zarr = opened(folder), []
    general = stored._read_by_zarr
    monkeypatch.setattr(
        stored, "_read_by_zarr", lambda *args: by_zarr.append(args) or general(*args)
    )
    read(source)
    assert bool(by_zarr) == (layout not in DIRECT)


@pytest.mark.parametrize("layout", DIRECT)
def test_a_chunk_that_was_never_written_is_the_fill_value(tmp_path: Path, layout: str) -> None:
    options = {**LAYOUTS[layout], "fill_value": 9}
    folder = write_codes(tmp_path / "s.zarr", codes(), {"scale_factor": 0.5}, **options)
    array = zarr.open_array(folder / "x", mode="r")
    key = array.metadata.encode_chunk_key((0, 0, 0))
    (folder / "x" / key).unlink()
    wanted = np.asarray(array[...])
    assert np.sum(wanted == 9) > np.sum(codes() == 9)
    version = options.get("version", 3)
    wanted = np.where((wanted == 9) & (version == 2), np.nan, wanted * 0.5)
    np.testing.assert_array_equal(read(opened(folder)), wanted)


class AsItIs:
    """What encodes nothing."""

    def encode(self, values: Any) -> bytes:
        return bytes(values.tobytes())

    def decode(self, stored: bytes) -> bytes:
        return stored


CODECS = {
    "none": AsItIs(), "v2 none": AsItIs(),
    "blosc": numcodecs.Blosc(), "gzip": numcodecs.GZip(), "v2 blosc": numcodecs.Blosc(),
    "v2 zlib": numcodecs.Zlib(), "v2 lz4": numcodecs.LZ4(),
}  # fmt: skip


@pytest.mark.parametrize("damage", ["cut", "shorter", "longer", "empty"])
@pytest.mark.parametrize("layout", DIRECT)
def test_a_damaged_chunk_is_one_line_without_a_value(
    tmp_path: Path, layout: str, damage: str
) -> None:
    folder = write_codes(tmp_path / "s.zarr", codes(), PACKING, **LAYOUTS[layout])
    array = zarr.open_array(folder / "x", mode="r")
    file = folder / "x" / array.metadata.encode_chunk_key((0, 0, 0))
    codec = CODECS.get(layout, numcodecs.Zstd())
    values = np.frombuffer(codec.decode(file.read_bytes()), "<i2")
    others = {"shorter": values[:-1], "longer": np.append(values, values[:1])}
    if damage in others:
        file.write_bytes(codec.encode(others[damage]))
    else:
        file.write_bytes(file.read_bytes()[:-3] if damage == "cut" else b"")
    source = opened(folder)
    for attempt in (
        lambda: read(source),
        lambda: joined(source, (slice(0, 23), slice(0, 6), slice(0, 10)), 0),
    ):
        with pytest.raises(StoreError, match="cannot be read or decoded near index") as error:
            attempt()
        assert error.value.__context__ is None
