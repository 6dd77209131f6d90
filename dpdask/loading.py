"""Modules that load when they are used first: compiled kernels bring numba with them, which a plan
does not need.
"""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = ["when_used"]


class _Deferred(ModuleType):
    """Stands for a module; taking anything from it loads it.

    Threads may do so at once: the import system lets one of them load, and the others wait.
    """

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # what Python itself looks for in any module
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)


def when_used(name: str) -> ModuleType:
    """Return a stand-in for the module of this name that loads it when it is used first."""
    return _Deferred(name)
