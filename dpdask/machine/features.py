"""The instruction sets of the processor that compiled code may use."""

from __future__ import annotations

import functools

import llvmlite.binding
from numba.core.registry import cpu_target

__all__ = ["compiled_for", "instruction_sets"]


def compiled_for() -> tuple[str, str, str]:
    """Return the triple, the processor and its features that numba compiles for."""
    triple, processor, features = cpu_target.target_context.codegen().magic_tuple()
    return str(triple), str(processor), str(features)


@functools.cache
def instruction_sets() -> frozenset[str]:
    """Return those of an x86-64 processor that numba compiles for and the machine has.

    The environment may take some away (``NUMBA_CPU_FEATURES``). Other processors have none of the
    names here.
    """
    triple, _, features = compiled_for()
    if not triple.startswith("x86_64"):
        return frozenset()
    named = {name[1:] for name in features.split(",") if name.startswith("+")}
    present = llvmlite.binding.get_host_cpu_features()
    return frozenset(name for name in named if present.get(name, False))
