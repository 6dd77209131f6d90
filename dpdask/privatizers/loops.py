"""The loops over the blocks of a tile's random words, a kernel and a sampler built in.

Blocks with an undecided draw are left out and reported in ``flagged``: the caller settles and
combines them.
"""

# Compiled code is typed by its arguments at run time: these functions carry no annotations.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from dpdask.machine.aes import keystream
from dpdask.machine.compiling import compiled
from dpdask.privatizers.samplers import BLOCK, Sampler

__all__ = ["Combine", "over_keystream", "over_words"]

Combine: TypeAlias = Callable[..., None]
"""A kernel that combines a block of integers with the data."""


@functools.cache
def over_words(combine: Combine, sampler: Sampler) -> Any:
    """Return the loop over words that a library's cipher made."""
    fill_block, find_undecided = sampler.fill_block, sampler.find_undecided

    @compiled(name=_name(combine, sampler))
    def run(words, x, out, first, start, stop, steps_per_sigma, limits, flagged, params):
        _, inner, outer = limits
        z = np.empty(BLOCK)
        draws = np.empty(BLOCK, np.int64)
        count = 0
        for b in range(words.size // BLOCK):
            at = first + b * BLOCK
            part = words[b * BLOCK : (b + 1) * BLOCK]
            if (
                fill_block(part, z, steps_per_sigma, outer) > 0
                and find_undecided(part, steps_per_sigma, inner, outer, draws) > 0
            ):
                flagged[count] = at
                count += 1
                continue
            combine(z, at, max(at, start), min(at + BLOCK, stop), x, out, start, params)
        return count

    return run


@functools.cache
def over_keystream(combine: Combine, sampler: Sampler, quick: bool) -> Any:
    """Return the loop that makes its words itself, block by block, in the first cache.

    Args:
        combine: The kernel that combines integers with data.
        sampler: What draws the integers.
        quick: Whether its quick path is tried first. What that cannot decide is drawn again.
    """
    fill_block, find_undecided = sampler.fill_block, sampler.find_undecided
    fill_first = sampler.fill_quickly if quick else fill_block

    @compiled(name=f"{_name(combine, sampler)}/{quick}")
    def run(keys, x, out, first, start, stop, steps_per_sigma, limits, flagged, params):
        limit, inner, outer = limits
        words = np.empty(BLOCK, np.uint64)
        z = np.empty(BLOCK)
        draws = np.empty(BLOCK, np.int64)
        count = 0
        for at in range(first, stop, BLOCK):
            keystream(keys, at // 2, words)
            if (
                fill_first(words, z, steps_per_sigma, limit) > 0
                and fill_block(words, z, steps_per_sigma, outer) > 0
                and find_undecided(words, steps_per_sigma, inner, outer, draws) > 0
            ):
                flagged[count] = at
                count += 1
                continue
            combine(z, at, max(at, start), min(at + BLOCK, stop), x, out, start, params)
        return count

    return run


def _name(combine: Combine, sampler: Sampler) -> str:
    return f"{combine.__name__}/{sampler.version}"
