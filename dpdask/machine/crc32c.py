"""crc32c as a compiled kernel that works without the interpreter's lock.

Some vectors are carried over the content: carry-less products move each of them past the next
stripe, modulo the polynomial. What is left of them, and the rest of the content, goes through the
processor's own instruction for crc32c.
"""

# Compiled code is typed by its arguments at run time: these functions carry no annotations.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,call-arg"

from __future__ import annotations

import functools

import google_crc32c
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from dpdask.machine.compiling import compiled
from dpdask.machine.features import instruction_sets
from dpdask.machine.vectors import I64, declared

__all__ = ["crc32c"]

_POLYNOMIAL = 0x1EDC6F41


def _width() -> int:
    """Return the bits of the widest vectors of carry-less products; 0 where there are none."""
    sets = instruction_sets()
    if not {"crc32", "sse4.2", "pclmul"} <= sets:
        return 0
    return 512 if {"vpclmulqdq", "avx512f"} <= sets else 128


_WIDTH = _width()
_VECTORS = 4 if _WIDTH == 512 else 8
_STRIPE = _VECTORS * max(_WIDTH, 128) // 8  # bytes


def _constant(power: int) -> int:
    """Return x^power modulo the polynomial, bits reversed, as the products need it."""
    rest = 1
    for _ in range(power):
        rest <<= 1
        if rest >> 32:
            rest ^= (1 << 32) | _POLYNOMIAL
    return int(f"{rest:032b}"[::-1], 2) << 1


def _products(builder: ir.IRBuilder, state: ir.Value) -> ir.Value:
    """Build the vector ``state`` moved past one stripe."""
    items = _WIDTH // 64
    suffix = ".512" if _WIDTH == 512 else ""
    product = declared(
        builder.module,
        f"llvm.x86.pclmulqdq{suffix}",
        state.type,
        state.type,
        state.type,
        ir.IntType(8),
    )
    powers = _constant(8 * _STRIPE + 32), _constant(8 * _STRIPE - 32)
    constants = ir.Constant(state.type, [powers[i % 2] for i in range(items)])
    halves = [
        builder.call(product, [state, constants, ir.Constant(ir.IntType(8), which)])
        for which in (0x00, 0x11)
    ]
    return builder.xor(*halves)


def _fold(builder: ir.IRBuilder, state: ir.Value, at: ir.Value, stripes: ir.Value) -> ir.Value:
    """Build the loop over stripes; return the crc32c of all of them, not inverted."""
    vector = ir.VectorType(I64, _WIDTH // 64)
    content = builder.inttoptr(at, vector.as_pointer())

    def loaded(number: ir.Value, which: int) -> ir.Value:
        index = builder.add(
            builder.mul(number, ir.Constant(I64, _VECTORS)), ir.Constant(I64, which)
        )
        return builder.load(builder.gep(content, [index]), align=1)

    begin, one = ir.Constant(I64, 0), ir.Constant(I64, 1)
    first = [loaded(begin, which) for which in range(_VECTORS)]
    start = builder.insert_element(ir.Constant(vector, None), builder.zext(state, I64), begin)
    first[0] = builder.xor(first[0], start)
    entry = builder.block
    loop, done = builder.append_basic_block("fold"), builder.append_basic_block("folded")
    more = builder.icmp_unsigned(">", stripes, one)
    builder.cbranch(more, loop, done)
    builder.position_at_end(loop)
    number = builder.phi(I64)
    number.add_incoming(one, entry)
    sums = [builder.phi(vector) for _ in range(_VECTORS)]
    carried = [
        builder.xor(_products(builder, total), loaded(number, which))
        for which, total in enumerate(sums)
    ]
    following = builder.add(number, one)
    number.add_incoming(following, loop)
    for total, initial, new in zip(sums, first, carried, strict=True):
        total.add_incoming(initial, entry)
        total.add_incoming(new, loop)
    builder.cbranch(builder.icmp_unsigned("<", following, stripes), loop, done)
    builder.position_at_end(done)
    step = declared(builder.module, "llvm.x86.sse42.crc32.64.64", I64, I64, I64)
    result: ir.Value = begin
    totals = []
    for initial, new in zip(first, carried, strict=True):
        total = builder.phi(vector)
        total.add_incoming(initial, entry)
        total.add_incoming(new, loop)
        totals.append(total)
    for total in totals:
        for item in range(_WIDTH // 64):
            word = builder.extract_element(total, ir.Constant(I64, item))
            result = builder.call(step, [result, word])
    return builder.trunc(result, ir.IntType(32))


@intrinsic
def _folded(_context, state, at, stripes):
    """The crc32c of whole stripes from the address ``at`` on, one at least."""

    def generate(_ctx, builder, _signature, args):
        return _fold(builder, *args)

    return types.uint32(state, at, stripes), generate


@intrinsic
def _with_word(_context, state, word):
    """The crc32c with one more word of 64 bits."""

    def generate(_ctx, builder, _signature, args):
        step = declared(builder.module, "llvm.x86.sse42.crc32.64.64", I64, I64, I64)
        result = builder.call(step, [builder.zext(args[0], I64), args[1]])
        return builder.trunc(result, ir.IntType(32))

    return types.uint32(state, word), generate


@intrinsic
def _with_byte(_context, state, byte):
    """The crc32c with one more byte."""

    def generate(_ctx, builder, _signature, args):
        i32, i8 = ir.IntType(32), ir.IntType(8)
        step = declared(builder.module, "llvm.x86.sse42.crc32.32.8", i32, i32, i8)
        return builder.call(step, args)

    return types.uint32(state, byte), generate


@compiled()
def _extended(crc, content):
    state = np.uint32(~crc)
    stripes = content.size // _STRIPE
    done = stripes * _STRIPE
    if stripes > 0:
        state = _folded(state, np.uint64(content.ctypes.data), np.uint64(stripes))
    whole = done + (content.size - done) // 8 * 8
    for word in content[done:whole].view(np.uint64):
        state = _with_word(state, word)
    for byte in content[whole:]:
        state = _with_byte(state, byte)
    return np.uint32(~state)


def _by_library(crc: int, content: NDArray[np.uint8]) -> int:
    readonly = content.view()
    readonly.flags.writeable = False
    return int(google_crc32c.extend(crc, readonly))


def crc32c(content: NDArray[np.uint8], crc: int = 0) -> int:
    """Return the crc32c of contiguous bytes, after others whose crc32c is ``crc``."""
    if kernel_available() and content.flags.c_contiguous:
        return int(_extended(np.uint32(crc), content))
    return _by_library(crc, np.ascontiguousarray(content))


@functools.cache
def kernel_available() -> bool:
    """Return whether the kernel can be used: the processor has it, and it gives crc32c."""
    if not _WIDTH:
        return False
    content = (np.arange(5 * _STRIPE + 13, dtype=np.uint32) ** 2 % 251).astype(np.uint8)
    for size in (0, 1, 7, 8, _STRIPE - 1, _STRIPE, 2 * _STRIPE, 3 * _STRIPE + 9, content.size):
        for begin in (0, 3):
            part = content[begin : begin + size]
            for crc in (0, 0x1234ABCD):
                if int(_extended(np.uint32(crc), part)) != _by_library(crc, part):
                    return False
    return True
