"""Row 10: chunk digests could be forged.

0.1.0 hashed chunks by XXH3, which is designed for speed: below, values of a published chunk are
replaced by others with the same XXH3 and the same crc32c, so that its manifest still fitted and
`verify --ledger` detected nothing. BLAKE3 has no such shortcut.
"""

from __future__ import annotations

import numpy as np
import pytest
import xxhash
import zarr
from google_crc32c import value as crc32c

from dpdask.errors import VerificationFailed
from dpdask.releases.verify import verify_release
from dpdask.storage import digest_of
from tests.support.forging import reseal
from tests.support.workspace import Workspace

_SECRET = np.frombuffer(  # XXH3's public constant
    bytes.fromhex(
        "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
        "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
        "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
    ),
    np.uint64,
)
_WORD, _HALF = 2**64, 2**32
_STRIPES, _LANES = 16, 8  # of 64-bit words, in a block of XXH3


def _product(word: int, secret: int) -> int:
    """What a word multiplies into its accumulator; the word itself is added to the neighbouring
    one.
    """
    keyed = word ^ secret
    return keyed % _HALF * (keyed // _HALF)


def _forged_lane(words: list[int], secrets: list[int]) -> tuple[list[int], list[tuple[int, int]]]:
    """Other words whose sum and whose products' sum are the same, and pairs that can still be moved
    without changing either.
    """

    def word(stripe: int, *, high: int, low: int) -> int:
        return (high * _HALF + low) ^ secrets[stripe]

    forged = list(words)
    pairs = [(first, first + 1) for first in range(5, 15, 2)]
    for stripe in (
        4,
        *(stripe for pair in pairs for stripe in pair),
    ):  # a low half of 0: no product, a free high half
        forged[stripe] = word(stripe, high=_HALF // 2 ^ (secrets[stripe] // _HALF), low=0)
    needed = sum(map(_product, words, secrets)) - sum(
        _product(forged[s], secrets[s]) for s in range(4, 16)
    )
    needed = (needed - 2**63) % _WORD + 2**63 if needed % _WORD >= 2**63 else needed % _WORD
    first = needed % 2**31
    others = (needed - first) // 2**31  # two high halves above a low half of 2^31
    forged[0] = word(0, high=first, low=1)
    forged[1] = word(1, high=min(others, _HALF - 1), low=2**31)
    forged[2] = word(2, high=others - min(others, _HALF - 1), low=2**31)
    forged[3] = word(3, high=0, low=0)
    rest = (sum(words) - sum(forged) + forged[3]) % _WORD
    low = rest % _HALF  # of word 3, whose high half is the secret's
    forged[3] = word(3, high=0, low=low ^ (secrets[3] % _HALF))
    above = (sum(words) - sum(forged)) % _WORD  # a multiple of 2^32, for word 4
    forged[4] = (forged[4] + above) % _WORD
    return forged, pairs


def _second_preimage(stored: bytes) -> bytes:
    """Other values with the same XXH3, and with the crc32c that the chunk ends in."""
    words = np.frombuffer(stored[:-4], np.uint64).copy()
    moves = []
    for block in range(2):
        for lane in range(4):
            at = [block * _STRIPES * _LANES + stripe * _LANES + lane for stripe in range(_STRIPES)]
            secrets = [int(_SECRET[stripe + lane]) for stripe in range(_STRIPES)]
            forged, pairs = _forged_lane([int(words[i]) for i in at], secrets)
            words[at] = np.array(forged, np.uint64)
            moves += [(at[one], at[other]) for one, other in pairs]
    target = int.from_bytes(stored[-4:], "little")

    def moved(chosen: list[int]) -> bytes:
        changed = words.copy()
        for move in chosen:
            one, other = moves[move]
            changed[one] += np.uint64(_HALF)
            changed[other] -= np.uint64(_HALF)
        return changed.tobytes()

    # crc32c is linear: each move flips fixed bits of it, so which moves to make is a system of 32
    # equations over two elements.
    start = crc32c(moved([]))
    basis: dict[int, tuple[int, int]] = {}
    for move in range(len(moves)):
        effect, moves_used = crc32c(moved([move])) ^ start, 1 << move
        while effect and effect.bit_length() in basis:
            other, others = basis[effect.bit_length()]
            effect, moves_used = effect ^ other, moves_used ^ others
        if effect:
            basis[effect.bit_length()] = effect, moves_used
    wanted, chosen = start ^ target, 0
    while wanted:
        effect, moves_used = basis[wanted.bit_length()]
        wanted, chosen = wanted ^ effect, chosen ^ moves_used
    return moved([move for move in range(len(moves)) if chosen >> move & 1]) + stored[-4:]


def test_a_second_preimage_of_the_old_digest_is_found(space: Workspace) -> None:
    space.source(np.random.default_rng(2).standard_normal((16, 64)) / 10, chunks=(8, 64))
    space.release()
    group = space.folder / "out.zarr"
    path = group / "data" / "c.0.0"
    before = np.asarray(zarr.open_array(group / "data", mode="r")[...])
    stored = path.read_bytes()
    forged = _second_preimage(stored)
    assert xxhash.xxh3_128_digest(forged) == xxhash.xxh3_128_digest(
        stored
    )  # all that 0.1.0 compared
    path.write_bytes(forged)
    after = np.asarray(zarr.open_array(group / "data", mode="r")[...])  # its own checksum fits too
    assert np.sum(before != after) > 100
    assert digest_of([forged]) != digest_of([stored])
    with pytest.raises(
        VerificationFailed, match=r"'data/c\.0\.0' was changed after publication: its BLAKE3 digest"
    ):
        verify_release(str(group), ledger=space.ledger)
    reseal(group)
    with pytest.raises(VerificationFailed, match="the ledger committed another card"):
        verify_release(str(group), ledger=space.ledger)


def test_digests_are_blake3() -> None:
    """Two of the algorithm's published test vectors."""
    assert digest_of([b""]) == "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
    assert (
        digest_of([b"a", b"bc"])
        == "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"
    )
