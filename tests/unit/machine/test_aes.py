"""The cipher's kernel gives AES-256-CTR for any key and counter, with every kind of vector unit."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from dpdask.keystream import ReleaseKey
from dpdask.machine import aes
from dpdask.machine.features import instruction_sets

PROCESSORS = {
    "all": None,
    "AVX2, VAES": "+sse2,+ssse3,+sse4.1,+sse4.2,+avx,+avx2,+fma,+aes,+vaes,+pclmul,+crc32",
    "AVX2": "+sse2,+ssse3,+sse4.1,+sse4.2,+avx,+avx2,+fma,+aes,+pclmul,+crc32",
    "SSE4": "+sse2,+ssse3,+sse4.1,+sse4.2,+aes,+pclmul,+crc32",
    "no cipher": "+sse2",
}

SCRIPT = """
import hashlib
import numpy as np
from dpdask.keystream import ReleaseKey
from dpdask.machine import aes, crc32c
from dpdask.noise import LowRankFactor
from dpdask.privatizers.blocks import gaussian_integers, drawn_integers
from dpdask.privatizers.clipping import clip_factors, record_norms
from dpdask.privatizers.grid import Grid
from dpdask.privatizers.iid import add_iid_clipped
from dpdask.privatizers.kronecker import add_kronecker
from dpdask.privatizers.samplers import LAPLACE
from dpdask.privatizers.spherical import add_spherical

key, digest = ReleaseKey(bytes(range(32))), hashlib.sha256()
stream = lambda *index: key.tile(fingerprint=bytes(32), component="cpu", index=index)
numbers = np.empty(50_001)
for power in (6, 18, 28):
    gaussian_integers(stream(power), 2.0**power, numbers, start=3)
    digest.update(numbers)
drawn_integers(LAPLACE, stream(1), 2.0**14, numbers)
digest.update(numbers)
x = np.random.default_rng(1).standard_normal((67, 301))
grid = Grid.for_clip(sigma=2.0, norm=15.0)
factors = clip_factors(record_norms(x, record_axis=0, step=grid.step), grid=grid)
bounds = {"steps_per_sigma": 2.0**14, "low": [-4.0, -4.0], "high": [4.0, 4.0]}
directions = np.zeros((67, 5))
directions[np.arange(5) * 3, np.arange(5)] = 1
low_rank = LowRankFactor(1.0, directions, np.linspace(0.5, 3, 5))
for dtype in ("f4", "f8"):
    y, out = x.astype(dtype), np.empty(x.shape, dtype)
    add_iid_clipped(y, out, stream=stream(2), grid=grid, factors=factors, record_axis=0)
    digest.update(out)
    add_kronecker(y, out, stream=stream(3), factors=[low_rank, 1.0], **bounds)
    digest.update(out)
    add_kronecker(y, out, stream=stream(4), factors=[np.linspace(1, 2, 67), 1.0], **bounds)
    digest.update(out)
    add_spherical(y, out, stream=stream(5), step=0.01, low=-4.0, high=4.0, radius=40.0)
    digest.update(out)
content = np.arange(100_003, dtype=np.int64).view(np.uint8)
digest.update(str(crc32c.crc32c(content)).encode())
print(aes._WIDTH, aes.aes_available(), crc32c.kernel_available(), digest.hexdigest())
"""


def words(key: bytes, first: int, count: int) -> np.ndarray:
    found = np.empty(count, np.uint64)
    aes._filled(aes.expand_key(key), first, found)
    return found


@pytest.mark.parametrize("first", [0, 1, 255, 2**32 - 1, 2**63 - 600])
def test_words_are_those_of_the_library(first: int) -> None:
    assert aes.aes_available() == ("aes" in instruction_sets())
    if not aes.aes_available():
        return
    for seed in range(20):
        key = np.random.default_rng(seed).bytes(32)
        mode = modes.CTR(first.to_bytes(16, "big"))
        expected = Cipher(algorithms.AES256(key), mode).encryptor().update(bytes(8 * 1024))
        assert words(key, first, 1024).tobytes() == expected


def test_a_kernel_that_gives_other_words_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aes, "expand_key", lambda key: np.zeros(60, np.uint32))
    assert not aes.aes_available.__wrapped__()


def test_round_keys_show_in_no_printed_form() -> None:
    stream = ReleaseKey(bytes(32)).tile(fingerprint=bytes(32), component="x", index=(0,))
    stream.filler(0, np.empty(2, np.uint64))
    if stream.has_round_keys:
        stream.round_keys()
    assert repr(stream) == "<TileStream redacted>"


def run_on(features: str | None) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    if features is not None:
        environment |= {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": features}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@pytest.mark.slow
def test_every_kind_of_processor_gives_the_same_bytes() -> None:
    """With and without VAES, AVX-512, AVX2 and AES: noise, clipping and checksums."""
    found = {name: run_on(features) for name, features in PROCESSORS.items()}
    assert len({line[-1] for line in found.values()}) == 1, found
    assert found["no cipher"][:3] == ["0", "False", "False"]
    if {"vaes", "avx512f"} <= instruction_sets():
        assert [line[0] for line in found.values()] == ["512", "256", "128", "128", "0"]
