"""Lines, bars and maps as SVG, coloured by the style sheet of the page around them."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Iterable, Sequence
from html import escape

import numpy as np

from dpdask.types import Floats
from dpdask.views.page.shown import Panel

__all__ = ["bars", "colour_scale", "image", "line", "map_of", "tick_text", "ticks"]

_WIDTH, _HEIGHT = 900, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 14, 12, 30

_COLOURS = np.array(
    [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]], float
)
"""From the smallest number to the largest: of even lightness, told apart by the colour-blind."""


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Return round numbers between two numbers, at most so many."""
    span = high - low
    if not span > 0 or not math.isfinite(span):
        return [low]
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(power * factor for factor in (1, 2, 5, 10) if span / (power * factor) <= most)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{step * index:.12g}") for index in range(first, last + 1)]


def tick_text(value: float) -> str:
    """Return a number at an axis, with as many digits as it needs."""
    return f"{value:,.6g}" if 1e-3 <= abs(value) < 1e6 or value == 0 else f"{value:.3g}"


class _Frame:
    """The area of a plot: from values to places in the drawing."""

    def __init__(self, low: float, high: float, count: int) -> None:
        margin = (high - low) * 0.04 or max(abs(high), 1.0) * 0.05
        self.low, self.high, self.count = low - margin, high + margin, count

    def y(self, values: Floats) -> Floats:
        share = (np.asarray(values) - self.low) / (self.high - self.low)
        return np.asarray(_HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM))

    def x(self, positions: Floats) -> Floats:
        """Return where entries lie: in the middle of equal parts of the width."""
        part = (_WIDTH - _LEFT - _RIGHT) / self.count
        return np.asarray(_LEFT + (np.asarray(positions) + 0.5) * part)

    def scale(self) -> str:
        marks = []
        for value in ticks(self.low, self.high):
            y = float(self.y(np.asarray(value)))
            marks.append(f'<line class="rule" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" {_ys(y, y)}/>')
            marks.append(
                f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">'
                f"{tick_text(value)}</text>"
            )
        return "".join(marks)

    def labels(self, labels: Sequence[str]) -> str:
        """Return the labels of entries, as many as fit."""
        longest = max(map(len, labels), default=1)
        fit = max(2, int((_WIDTH - _LEFT - _RIGHT) / (8.5 * longest + 14)))
        every = math.ceil(len(labels) / fit)
        places = self.x(np.arange(len(labels), dtype=float))
        return "".join(
            f'<text class="tick" x="{places[i]:.1f}" y="{_HEIGHT - 10}" text-anchor="middle">'
            f"{escape(labels[i])}</text>"
            for i in range(0, len(labels), every)
        )


def _ys(first: float, second: float) -> str:
    return f'y1="{first:.1f}" y2="{second:.1f}"'


def _drawing(title: str, body: Iterable[str]) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{''.join(body)}</svg>"
    )


def line(panel: Panel, reach: Floats | None, title: str) -> str:
    """Return a line with the band that the noise covers around it.

    Args:
        panel: The numbers.
        reach: Half the width of the band at each of them; None for no band.
        title: What is drawn, for those who do not see it.
    """
    values = panel.values
    frame = _frame(values, reach)
    x = frame.x(np.arange(len(values), dtype=float))
    body = [frame.scale(), frame.labels(panel.axes[0].labels)]
    if reach is not None:
        ends = [*zip(x, frame.y(values + reach), strict=True)]
        ends += [*zip(x[::-1], frame.y(values - reach)[::-1], strict=True)]
        body.append(f'<polygon class="band" points="{_points(ends)}"/>')
    places = zip(x, frame.y(values), strict=True)
    body.append(f'<polyline class="line" points="{_points(places)}"/>')
    return _drawing(title, body)


def bars(panel: Panel, reach: Floats | None, title: str) -> str:
    """Return a bar for each number, with a whisker over what the noise covers.

    Args:
        panel: The numbers.
        reach: Half the length of the whisker at each of them; None for none.
        title: What is drawn, for those who do not see it.
    """
    values = panel.values
    frame = _frame(np.append(values, 0.0), None if reach is None else np.append(reach, 0.0))
    frame.count = len(values)
    x, y = frame.x(np.arange(len(values), dtype=float)), frame.y(values)
    zero = float(frame.y(np.asarray(0.0)))
    width = min(60.0, (_WIDTH - _LEFT - _RIGHT) / len(values) * 0.7)
    body = [frame.scale(), frame.labels(panel.axes[0].labels)]
    for place, end in zip(x, y, strict=True):
        top, height = min(float(end), zero), abs(float(end) - zero)
        body.append(
            f'<rect class="bar" x="{place - width / 2:.1f}" y="{top:.1f}" width="{width:.1f}"'
            f' height="{height:.1f}"/>'
        )
    if reach is not None:
        highs, lows = frame.y(values + reach), frame.y(values - reach)
        body += [
            f'<line class="whisker" x1="{place:.1f}" x2="{place:.1f}" {_ys(high, low)}/>'
            for place, high, low in zip(x, highs, lows, strict=True)
        ]
    return _drawing(title, body)


def _frame(values: Floats, reach: Floats | None) -> _Frame:
    spread = np.zeros_like(values) if reach is None else reach
    return _Frame(float(np.min(values - spread)), float(np.max(values + spread)), len(values))


def _points(places: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def map_of(panel: Panel, title: str) -> str:
    """Return a 2-D array as coloured cells, with the scale of its colours below it."""
    low, high = float(panel.values.min()), float(panel.values.max())
    rows, columns = panel.axes
    down = f"{rows.name} {rows.labels[0]} (top) to {rows.labels[-1]}"
    across = f"{columns.name} {columns.labels[0]} (left) to {columns.labels[-1]}"
    return (
        f'<figure class="map">{image(panel.values, low, high, title)}'
        f"<figcaption>{escape(down)}, {escape(across)}</figcaption>{colour_scale(low, high)}"
        "</figure>"
    )


def colour_scale(low: float, high: float) -> str:
    """Return the colours from one number to another."""
    steps = image(np.linspace(0, 1, 256)[np.newaxis], 0.0, 1.0, "scale of colours")
    return f'<div class="scale"><span>{low:.4g}</span>{steps}<span>{high:.4g}</span></div>'


def image(values: Floats, low: float, high: float, title: str) -> str:
    """Return a 2-D array as a picture with one pixel per entry.

    Args:
        values: The numbers.
        low: The number of the first colour.
        high: The number of the last one.
        title: What is drawn, for those who do not see it.
    """
    share = np.clip((values - low) / ((high - low) or 1.0), 0, 1) * (len(_COLOURS) - 1)
    first = np.minimum(share.astype(int), len(_COLOURS) - 2)
    part = (share - first)[..., np.newaxis]
    pixels = _COLOURS[first] * (1 - part) + _COLOURS[first + 1] * part
    data = base64.b64encode(_png(np.rint(pixels).astype(np.uint8))).decode()
    return f'<img class="pixels" alt="{escape(title)}" src="data:image/png;base64,{data}">'


def _png(pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> bytes:
    """Return an RGB picture in the PNG format: three chunks and a checksum each."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + pixels[row].tobytes() for row in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")]
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
