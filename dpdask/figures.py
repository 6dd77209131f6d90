"""Numbers as people read them."""

from __future__ import annotations

import math

__all__ = ["number_text"]


def number_text(number: float) -> str:
    """Return a number with three significant digits; powers of ten only where it is far from 1."""
    if number == 0 or not math.isfinite(number):
        return f"{number:g}"
    if not 1e-4 <= abs(number) < 1e7:
        return f"{number:.3g}"
    decimals = 2 - math.floor(math.log10(abs(number)))
    text = f"{round(number, decimals):.{max(decimals, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
