"""Keys that cannot leak by accident, subkeys that never collide, keystreams that replay."""

from __future__ import annotations

import copy
import json
import logging
import pickle

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from dpdask.keystream import ReleaseKey, SelectionStream, TileStream

SECRET = bytes(range(200, 232))
PRINT = bytes(32)


def tile(
    *index: int, component: str = "noise", fingerprint: bytes = PRINT, secret: bytes = SECRET
) -> TileStream:
    return ReleaseKey(secret).tile(fingerprint=fingerprint, component=component, index=index)


def words(stream: TileStream, start: int, count: int) -> np.ndarray:
    buffer = np.empty(count, np.uint64)
    stream.filler(start, buffer)()
    return buffer


def test_a_key_shows_nothing_of_itself(caplog: pytest.LogCaptureFixture) -> None:
    key = ReleaseKey(SECRET)
    logging.getLogger("test").warning("%s %r", key, [key])
    shown = (
        f"{key} {key!r} {key:>40} {[key]} {key.to_transferable()!r}"
        f" {key.tile(fingerprint=PRINT, component='n', index=())!r}"
    )
    for form in (shown, caplog.text):
        assert "redacted" in form
        assert SECRET.hex() not in form
        assert repr(SECRET)[2:-1] not in form
    with pytest.raises(TypeError):
        json.dumps(key)  # type: ignore[arg-type]
    assert not hasattr(key, "__dict__")


def test_a_key_is_not_compared_hashed_copied_or_pickled_by_accident() -> None:
    key = ReleaseKey(SECRET)
    with pytest.raises(TypeError, match="not compared"):
        assert key == ReleaseKey(SECRET)
    with pytest.raises(TypeError):
        hash(key)
    for accident in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="to_transferable"):
            accident(key)
    with pytest.raises(TypeError, match="derive it again"):
        pickle.dumps(tile(0))


def test_a_key_travels_on_purpose() -> None:
    arrived = pickle.loads(pickle.dumps(ReleaseKey(SECRET).to_transferable())).from_transferable()
    assert arrived.reveal() == SECRET


def test_keys_come_from_the_operating_system_and_differ() -> None:
    assert ReleaseKey.generate().reveal() != ReleaseKey.generate().reveal()


@pytest.mark.parametrize("secret", [b"short", bytearray(32), "x" * 32])
def test_a_key_is_32_bytes(secret: bytes) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        ReleaseKey(secret)


def test_the_keystream_is_plain_aes_256_ctr() -> None:
    subkey = bytes(range(32))
    expected = (
        Cipher(algorithms.AES256(subkey), modes.CTR(bytes(16))).encryptor().update(bytes(8000))
    )
    assert words(TileStream(subkey), 0, 1000).tobytes() == expected


def test_any_even_element_can_be_reached_directly() -> None:
    whole = words(tile(3), 0, 5000)
    for start in (0, 2, 1024, 4096):
        assert np.array_equal(words(tile(3), start, 500), whole[start : start + 500])
    far = words(tile(3), 1 << 40, 4)
    assert not np.any(np.isin(far, whole))


def test_extra_bits_share_no_counter_with_the_main_stream_or_other_pairs() -> None:
    stream = tile(3)
    main = {int(word) for word in words(stream, 0, 32768)}
    extra = [stream.more_bits(pair, lane, 128) for pair in range(1000) for lane in (0, 1)]
    assert len(set(extra)) == 2000
    assert not {bits & (2**64 - 1) for bits in extra} & main
    longer = stream.more_bits(3, 1, 512)
    assert longer >> 384 == extra[7]


def test_every_name_of_a_tile_changes_its_stream() -> None:
    first = words(tile(1, 2), 0, 64)
    others = [
        tile(2, 1),
        tile(1, 2, 0),
        tile(12),
        tile(1, 2, component="noise2"),
        tile(1, 2, fingerprint=bytes(31) + b"\x01"),
        tile(1, 2, secret=bytes(32)),
    ]
    for other in others:
        assert not np.any(words(other, 0, 64) == first)
    assert np.array_equal(words(tile(1, 2), 0, 64), first)


def test_a_hundred_thousand_subkeys_do_not_collide() -> None:
    seen = {
        words(tile(i // 317, i % 317, component=f"c{i % 3}"), 0, 2).tobytes()
        for i in range(100_000)
    }
    assert len(seen) == 100_000


@pytest.mark.parametrize(("start", "count"), [(1, 2), (2, 3)])
def test_half_a_cipher_block_is_refused(start: int, count: int) -> None:
    with pytest.raises(ValueError, match="cipher block"):
        words(tile(0), start, count)


def _selection() -> SelectionStream:
    return ReleaseKey(bytes(range(32))).selection(fingerprint=bytes(32))


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (1, 2), (3, 3), (7, 70_001), (32_767, 32_770)])
def test_a_record_has_the_same_priority_in_any_part(start: int, stop: int) -> None:
    whole = _selection().priorities(0, 70_001)
    assert np.array_equal(_selection().priorities(start, stop), whole[start:stop])
    assert np.unique(whole).size == whole.size


def test_priorities_and_digests_are_others_for_another_release() -> None:
    other = ReleaseKey(bytes(range(32))).selection(fingerprint=b"\1" * 32)
    numbers = np.arange(5, dtype=np.uint64)
    for one, two in [
        (_selection().priorities(0, 5), other.priorities(0, 5)),
        (_selection().number_digests(numbers), other.number_digests(numbers)),
    ]:
        assert not np.any(one == two)


def test_digests_tell_numbers_kinds_and_texts_apart() -> None:
    stream, numbers = _selection(), np.arange(1000, dtype=np.uint64)
    blocks = np.zeros((3, 4), np.uint64)
    blocks[1, 0] = blocks[2, 0] = 7
    texts = stream.text_digests(blocks, np.array([1, 1, 2], np.uint64))
    rows = [
        stream.number_digests(numbers),
        stream.number_digests(numbers, 2),
        texts,
        stream.long_text_digest(b"a" * 99)[None],
    ]
    every = np.concatenate(rows)
    assert np.unique(every, axis=0).shape == every.shape
    again = stream.text_digests(blocks[1:2, :2], np.array([1], np.uint64))
    assert np.array_equal(again[0], texts[1])  # padding does not count


def test_a_selection_stream_shows_and_pickles_nothing() -> None:
    stream = _selection()
    assert repr(stream) == "<SelectionStream redacted>"
    with pytest.raises(TypeError, match="holds keys"):
        pickle.dumps(stream)
