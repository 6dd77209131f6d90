"""Memory of a thread, kept between tiles."""

from __future__ import annotations

import math
import threading

import numpy as np

from dpdask.types import Array

__all__ = ["scratch"]

_local = threading.local()


def scratch(name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
    """Return this thread's buffer, kept between tiles: fresh memory costs more than the noise."""
    size = math.prod(shape) * dtype.itemsize
    kept = getattr(_local, name, None)
    if kept is None or kept.size < size:
        kept = np.empty(size, np.uint8)
        setattr(_local, name, kept)
    return kept[:size].view(dtype).reshape(shape)
