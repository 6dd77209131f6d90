"""AES-256 in counter mode as a compiled kernel: AES-NI, or VAES in vectors of 256 or 512 bits.

The kernel is LLVM's own instructions built into numba's code, so it holds no address and calls
nothing. No table is looked up by a secret.
"""

# Compiled code is typed by its arguments at run time: these functions carry no annotations.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,call-arg"

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from dpdask.machine.compiling import compiled
from dpdask.machine.features import instruction_sets
from dpdask.machine.vectors import I64, declared, splat

__all__ = ["GROUP", "aes_available", "expand_key", "keystream"]

_ROUNDS = 14
_LANES = 4  # vectors in flight, which hides the latency of a round


def _width() -> int:
    """Return the bits of the widest vectors that AES works on; 0 where there is no such unit."""
    sets = instruction_sets()
    if {"vaes", "avx512f"} <= sets:
        return 512
    if {"vaes", "avx2"} <= sets:
        return 256
    return 128 if {"aes", "sse4.1"} <= sets else 0


_WIDTH = _width()
_BLOCKS = _LANES * max(_WIDTH, 128) // 128  # cipher blocks of a group
GROUP = 2 * _BLOCKS
"""Words that the kernel makes at once; every call is for whole groups."""


def _round(module: ir.Module, width: int, last: bool) -> ir.Function:
    """Declare one round of the cipher."""
    vector = ir.VectorType(I64, width // 64)
    suffix = {128: "", 256: ".256", 512: ".512"}[width]
    name = f"llvm.x86.aesni.aesenc{'last' if last else ''}{suffix}"
    return declared(module, name, vector, vector, vector)


def _group(builder: ir.IRBuilder, keys: ir.Value, counter: ir.Value, out: ir.Value) -> None:
    """Build the encryption of _BLOCKS counters from ``counter`` on."""
    items, per = _WIDTH // 64, _WIDTH // 128
    vector, pair = ir.VectorType(I64, items), ir.VectorType(I64, 2)
    again = ir.Constant(ir.VectorType(ir.IntType(32), items), [i % 2 for i in range(items)])
    first = builder.inttoptr(keys, pair.as_pointer())
    rounds = []
    for number in range(_ROUNDS + 1):
        here = builder.gep(first, [ir.Constant(I64, number)])
        key = builder.load(here, align=1)
        rounds.append(builder.shuffle_vector(key, ir.Constant(pair, ir.Undefined), again))
    # the counter is the low word, big-endian; the high one is zero
    low = ir.Constant(vector, [0 if i % 2 == 0 else 2**64 - 1 for i in range(items)])
    counters = splat(builder, counter, items)
    swap = declared(builder.module, f"llvm.bswap.v{items}i64", vector, vector)
    states = []
    for lane in range(_LANES):
        offsets = ir.Constant(vector, [lane * per + i // 2 for i in range(items)])
        number = builder.call(swap, [builder.add(counters, offsets)])
        states.append(builder.xor(builder.and_(number, low), rounds[0]))
    for number in range(1, _ROUNDS + 1):
        step = _round(builder.module, _WIDTH, number == _ROUNDS)
        states = [builder.call(step, [state, rounds[number]]) for state in states]
    target = builder.inttoptr(out, vector.as_pointer())
    for lane, state in enumerate(states):
        builder.store(state, builder.gep(target, [ir.Constant(I64, lane)]), align=1)


@intrinsic
def _encrypt_group(_context, keys, counter, out):
    """Write a group of keystream words to the address ``out``; ``keys`` is an address too."""

    def generate(_ctx, builder, _signature, args):
        _group(builder, *args)
        return _ctx.get_dummy_value()

    return types.void(keys, counter, out), generate


@intrinsic
def _substituted(_context, word):
    """The S-box of every byte of a 32-bit word: a last round on four equal columns."""

    def generate(_ctx, builder, _signature, args):
        pair, quad = ir.VectorType(I64, 2), ir.VectorType(ir.IntType(32), 4)
        state = builder.bitcast(splat(builder, args[0], 4), pair)
        step = _round(builder.module, 128, True)
        result = builder.call(step, [state, ir.Constant(pair, [0, 0])])
        return builder.extract_element(builder.bitcast(result, quad), ir.Constant(I64, 0))

    return types.uint32(word), generate


@compiled(inline="always")
def keystream(keys, first, words):
    """Fill ``words`` with the keystream from cipher block ``first`` on.

    ``keys`` are the words of :func:`expand_key`; the number of ``words`` is a multiple of GROUP.
    """
    at = np.uint64(words.ctypes.data)
    address = np.uint64(keys.ctypes.data)
    for group in range(words.size // GROUP):
        _encrypt_group(
            address, np.uint64(first + group * _BLOCKS), at + np.uint64(group * 8 * GROUP)
        )


@compiled()
def _schedule(keys):
    """Complete the key schedule whose first eight words are the key."""
    constant = np.uint32(1)
    for i in range(8, 60):
        word = keys[i - 1]
        if i % 8 == 0:
            word = _substituted(np.uint32((word >> np.uint32(8)) | (word << np.uint32(24))))
            word ^= constant
            constant <<= np.uint32(1)
        elif i % 8 == 4:
            word = _substituted(word)
        keys[i] = keys[i - 8] ^ word


def expand_key(key: bytes) -> NDArray[np.uint32]:
    """Return the key schedule of a key of 32 bytes. It is as secret as the key."""
    keys = np.empty(60, np.uint32)
    keys[:8] = np.frombuffer(key, np.uint32)
    _schedule(keys)
    return keys


@compiled()
def _filled(keys, first, words):
    keystream(keys, first, words)


@functools.cache
def aes_available() -> bool:
    """Return whether the kernel can be used: the processor has it, and it gives AES-256-CTR."""
    if not _WIDTH:
        return False
    words: NDArray[np.uint64] = np.empty(4 * GROUP, np.uint64)
    for key, first in _EXAMPLES:
        _filled(expand_key(key), first, words)
        mode: Any = modes.CTR(first.to_bytes(16, "big"))
        expected = Cipher(algorithms.AES256(key), mode).encryptor().update(bytes(words.nbytes))
        if words.tobytes() != expected:
            return False
    return True


_EXAMPLES = [
    (bytes(range(32)), 0),
    (bytes(255 - 7 * i for i in range(32)), 2**32 - 3),
    (bytes((37 * i * i + 11) % 256 for i in range(32)), 2**56 - 5),
]
