"""The only random bytes: a release key, per-tile subkeys, and a seekable AES-256-CTR keystream.

Tile noise is a function of (release key, fingerprint, component, tile index) alone, so a retry
replays it byte for byte, whatever process, thread or order computes it. Subkeys are keyed BLAKE2b
over an injective encoding of those names.

The 128-bit counter of a tile's keystream is split by its top byte: domain 0 holds 64 bits for every
element, domain 1 more bits for the rare pair of elements whose 64 bits cannot decide.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import os
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from dpdask.loading import when_used

if TYPE_CHECKING:
    from dpdask.machine import aes
else:
    aes = when_used("dpdask.machine.aes")

__all__ = [
    "ReleaseKey",
    "RoundKeys",
    "Seal",
    "SelectionStream",
    "TileStream",
    "TransferableKey",
    "Words",
    "random_bytes",
]

RoundKeys: TypeAlias = np.ndarray[Any, np.dtype[np.uint32]]
Words: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]

_PERSON = b"dpdask-tile-v1"
_SEAL_PERSON = b"dpdask-seal-v1"
_SELECTION_PERSON = b"dpdask-select-v1"
_SAMPLE_PERSON = b"dpdask-sample-v1"
_ZEROS = bytes(1 << 18)
_CODE_SIZE = 32
_REFINE = 1 << 120
_REFINE_BLOCKS = 1 << 32  # per word


def random_bytes(count: int) -> bytes:
    """Return bytes from the operating system, for keys and nonces."""
    return os.urandom(count)


class ReleaseKey:
    """32 secret bytes.

    Guarantee: its printed forms are redacted, it refuses comparison, and it is pickled only through
    :meth:`to_transferable`.
    """

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        if not isinstance(secret, bytes) or len(secret) != 32:
            del secret  # a traceback that shows locals must not show a mistyped key
            raise ValueError("a release key is exactly 32 bytes; use ReleaseKey.generate()")
        self._secret = secret

    @classmethod
    def generate(cls) -> ReleaseKey:
        """Return a new key from the operating system."""
        return cls(random_bytes(32))

    def reveal(self) -> bytes:
        """Return the bytes themselves, for the one module that stores or wraps them."""
        return self._secret

    def to_transferable(self) -> TransferableKey:
        """Return a form that may be pickled to a worker."""
        return TransferableKey(self._secret)

    def tile(self, *, fingerprint: bytes, component: str, index: Sequence[int]) -> TileStream:
        """Return the keystream of one tile of one component of one release.

        Args:
            fingerprint: 32 bytes that name the release, its noise and its grid.
            component: The name of the component.
            index: The index of the tile.
        """
        if len(fingerprint) != 32:
            raise ValueError(
                f"a fingerprint has 32 bytes, not {len(fingerprint)}; use SHA-256 or BLAKE2b-256"
            )
        if any(i < 0 or i >= 1 << 64 for i in index):
            raise ValueError("a tile index is not a sequence of 64-bit non-negative numbers")
        name = component.encode()
        message = fingerprint + struct.pack(
            f"<I{len(name)}sI{len(index)}Q", len(name), name, len(index), *index
        )
        return TileStream(
            hashlib.blake2b(message, key=self._secret, digest_size=32, person=_PERSON).digest()
        )

    def seal(self, purpose: str) -> Seal:
        """Return what marks documents outside the trust boundary as this release's own.

        Its subkey draws no noise.
        """
        return Seal(
            hashlib.blake2b(
                purpose.encode(), key=self._secret, digest_size=32, person=_SEAL_PERSON
            ).digest()
        )

    def selection(self, *, fingerprint: bytes) -> SelectionStream:
        """Return what decides which records of a person are kept in one release.

        Its subkeys draw no noise.
        """
        return SelectionStream(
            hashlib.blake2b(
                fingerprint, key=self._secret, digest_size=64, person=_SELECTION_PERSON
            ).digest()
        )

    def sample(self, *, fingerprint: bytes, step: int) -> TileStream:
        """Return the keystream that decides who is in the sample of one step.

        Its subkey draws no noise.
        """
        message = fingerprint + struct.pack("<Q", step)
        return TileStream(
            hashlib.blake2b(
                message, key=self._secret, digest_size=32, person=_SAMPLE_PERSON
            ).digest()
        )

    def __repr__(self) -> str:
        return "<ReleaseKey redacted>"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return repr(self)

    def __eq__(self, other: object) -> NoReturn:
        raise TypeError("release keys are not compared; compare fingerprints")

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> NoReturn:
        raise TypeError("a release key is not pickled by accident; send key.to_transferable()")

    def __getstate__(self) -> NoReturn:
        raise TypeError("a release key is not copied by accident; send key.to_transferable()")


class Seal:
    """A message authentication code (keyed BLAKE2b) in front of a document, bound to the document's
    name.
    """

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def close(self, name: str, content: bytes) -> bytes:
        """Return ``content`` with its code in front."""
        return self._code(name, content) + content

    def open(self, name: str, sealed: bytes) -> bytes | None:
        """Return the content, None unless it was sealed by this key under this name."""
        code, content = sealed[:_CODE_SIZE], sealed[_CODE_SIZE:]
        return content if hmac.compare_digest(code, self._code(name, content)) else None

    def digest(self, name: str, content: bytes) -> str:
        """Return the code alone: whoever lacks the key cannot tell what it is of."""
        return self._code(name, content).hex()

    def _code(self, name: str, content: bytes) -> bytes:
        named = struct.pack("<I", len(name.encode())) + name.encode()
        return hashlib.blake2b(named + content, key=self._secret, digest_size=_CODE_SIZE).digest()

    def __repr__(self) -> str:
        return "<Seal redacted>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a seal holds a key and is not pickled; derive it again on the other side")


class TransferableKey:
    """A release key on its way to a worker: picklable, still redacted in every printed form."""

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def from_transferable(self) -> ReleaseKey:
        """Return the key, on the other side."""
        return ReleaseKey(self._secret)

    def __repr__(self) -> str:
        return "<TransferableKey redacted>"

    def __reduce__(self) -> tuple[type[TransferableKey], tuple[bytes]]:
        return TransferableKey, (self._secret,)


class TileStream:
    """The keystream of one tile: 64 bits per element, seekable to any even element, with more bits
    on demand.
    """

    __slots__ = ("_algorithm", "_round_keys")

    def __init__(self, subkey: bytes) -> None:
        self._algorithm = algorithms.AES256(subkey)
        self._round_keys: RoundKeys | None = None

    def __repr__(self) -> str:
        return "<TileStream redacted>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a tile stream holds a key and is not pickled; derive it again on the other side"
        )

    def _encryptor(self, counter: int) -> CipherContext:
        return Cipher(self._algorithm, modes.CTR(counter.to_bytes(16, "big"))).encryptor()

    def filler(self, start: int, words: Words) -> Callable[[], object]:
        """Return a function that puts the next ``words.size`` words into ``words`` at each call.

        The first call begins at element ``start``.

        Words are little-endian, at most 32,768 at once; ``start`` must be even (two words share a
        cipher block). The cipher releases the GIL.
        """
        if start % 2 or words.size % 2:
            raise ValueError(
                f"element {start} lies inside a cipher block; start at an even element, read an"
                " even number"
            )
        if words.nbytes > len(_ZEROS) or not 0 <= start < 1 << 64:
            raise ValueError(
                f"{words.size} words from element {start} are out of range; read at most 32,768"
                " at once"
            )
        view = memoryview(words.data).cast("B")
        return functools.partial(
            self._encryptor(start // 2).update_into, memoryview(_ZEROS)[: view.nbytes], view
        )

    @property
    def has_round_keys(self) -> bool:
        """Whether a kernel can make the words of elements itself (:mod:`dpdask.machine.aes`)."""
        return aes.aes_available()

    def round_keys(self) -> RoundKeys:
        """Return what the kernel needs, as secret as the key; counters are those of domain 0."""
        if self._round_keys is None:
            self._round_keys = aes.expand_key(bytes(self._algorithm.key))
        return self._round_keys

    def words(self, start: int, stop: int) -> Words:
        """Return the words of the elements from ``start`` to ``stop``."""
        first = start - start % 2
        words: Words = np.empty(stop - first + (stop - first) % 2, np.uint64)
        most = len(_ZEROS) // 8
        for begin in range(0, words.size, most):
            part = words[begin : begin + most]
            self.filler(first + begin, part)()
        return words[start - first : stop - first]

    def more_bits(self, pair: int, lane: int, count: int) -> int:
        """Return extra bits of a word of a pair, as one number.

        Args:
            pair: The number of the pair within the tile.
            lane: The word of the pair: 0 or 1.
            count: How many bits, a multiple of 128.
        """
        if count % 128 or count // 128 > _REFINE_BLOCKS:
            raise ValueError(f"extra bits come in blocks of 128, not {count}")
        encryptor = self._encryptor(_REFINE + (2 * pair + lane) * _REFINE_BLOCKS)
        return int.from_bytes(encryptor.update(bytes(count // 8)), "big")


class SelectionStream:
    """A random priority for every record, and keyed digests by which ids are compared.

    Guarantee: neither depends on anything but the key and its argument, so whatever process
    computes them, in whatever parts, they are the same.
    """

    __slots__ = ("_cipher", "_secret", "_stream")

    def __init__(self, secret: bytes) -> None:
        self._stream = TileStream(secret[:32])
        self._secret = secret[32:]
        # one block is one message: what is encrypted are the states of message digests
        self._cipher = Cipher(algorithms.AES256(self._secret), modes.ECB())

    def __repr__(self) -> str:
        return "<SelectionStream redacted>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a selection stream holds keys and is not pickled; derive it again on the other side"
        )

    def priorities(self, start: int, stop: int) -> Words:
        """Return 64 random bits for every record from ``start`` to ``stop``."""
        return self._stream.words(start, stop)

    def number_digests(self, values: Words, kind: int = 0) -> Words:
        """Return digests of 128 bits, a row each.

        Guarantee: different numbers, and those of different kinds, have different digests.
        """
        blocks = np.full((values.size, 2), kind, np.uint64)
        blocks[:, 0] = values
        return self._encrypted(blocks)

    def text_digests(self, blocks: Words, counts: Words) -> Words:
        """Return digests of 128 bits of texts, a row each.

        They are CBC-MACs, each over its own number of blocks with that number in front.

        Args:
            blocks: the texts, a row each, padded to whole blocks of two words.
            counts: how many blocks of every row belong to its text.
        """
        lengths = np.ones((counts.size, 2), np.uint64)
        lengths[:, 0] = counts
        states = self._encrypted(lengths)
        for block in range(blocks.shape[1] // 2):
            rows = np.flatnonzero(counts > block)
            states[rows] = self._encrypted(states[rows] ^ blocks[rows, 2 * block : 2 * block + 2])
        return states

    def long_text_digest(self, text: bytes) -> Words:
        """Return the digest of one text of any length."""
        digest = hashlib.blake2b(text, key=self._secret, digest_size=16).digest()
        return np.frombuffer(digest, np.uint64)

    def _encrypted(self, blocks: Words) -> Words:
        out: Words = np.empty((len(blocks) + 1, 2), np.uint64)  # the cipher wants one block more
        if len(blocks):
            plain = memoryview(np.ascontiguousarray(blocks).data).cast("B")
            self._cipher.encryptor().update_into(plain, memoryview(out.data).cast("B"))
        return out[:-1]
