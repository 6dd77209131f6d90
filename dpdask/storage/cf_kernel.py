"""The compiled pass from stored codes to decoded values; imported when first used."""

from __future__ import annotations

import numpy as np

from dpdask.machine.compiling import compiled

__all__ = ["BUFFER_ENTRIES", "decode_codes"]

BUFFER_ENTRIES = 2048
"""Entries of the buffer of :func:`decode_codes`, which stays in the first cache."""


@compiled()
def decode_codes(  # type: ignore[no-untyped-def]
    codes, out, buffer, fills, low, high, scale, offset, decoded_low, decoded_high
):
    """Write the decoded value of every code, NaN where it is missing.

    ``codes`` may lie at the end of the memory of ``out``: a piece is copied to ``buffer`` before
    anything is written over it. Product and sum are rounded one after the other, as xarray does.
    """
    for first in range(0, codes.size, buffer.size):
        piece = codes[first : first + buffer.size]
        for j in range(piece.size):
            buffer[j] = np.float64(piece[j])
        for k in range(1, fills.size):
            for j in range(piece.size):
                buffer[j] = np.nan if buffer[j] == fills[k] else buffer[j]
        target = out[first : first + piece.size]
        fill = fills[0]
        for j in range(piece.size):
            code = buffer[j]
            value = code * scale + offset
            present = (code >= low) & (code <= high) & (code != fill)
            present &= (value >= decoded_low) & (value <= decoded_high)
            target[j] = value if present else np.nan
