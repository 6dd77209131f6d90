"""Charts of studies in one style that is readable in print and without colour."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpdask.errors import InvalidSpec
from dpdask_studies.study import Chart, Maps

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

__all__ = ["SUFFIXES", "check_path", "save"]

SUFFIXES = (".svg", ".png", ".pdf")

_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "0.9",
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.5,
    "svg.hashsalt": "dpdask",  # the same chart gives the same file
}
# Okabe & Ito's colours, told apart by all readers; markers and dashes tell them apart in grey.
_COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#808000")
_MARKERS = "osD^vP*X"
_DASHES = ("-", "--", "-.", ":")
_WIDTH, _HEIGHT, _MAP = 4.8, 3.9, 2.1


def check_path(path: Path) -> None:
    """Refuse a plot that could not be drawn, before anything is computed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InvalidSpec("--plot needs matplotlib; install it by: pip install 'dpdask[studies]'")
    if path.suffix not in SUFFIXES or not path.absolute().parent.is_dir():
        raise InvalidSpec(
            f"{str(path)!r} is not a valid name of a plot; end it in {', '.join(SUFFIXES)}, in a"
            " folder that exists"
        )


def save(charts: Sequence[Chart | Maps], path: Path) -> None:
    """Draw charts side by side into one file: SVG, PNG or PDF, by its suffix."""
    check_path(path)
    import matplotlib as mpl
    from matplotlib.figure import Figure

    if not charts:
        raise InvalidSpec("this study has no chart; leave out --plot")
    with mpl.rc_context(_STYLE):
        widths = [_width(chart) for chart in charts]
        figure = Figure(figsize=(sum(widths), _HEIGHT), layout="constrained")
        parts = figure.subfigures(1, len(charts), squeeze=False, width_ratios=widths)
        for part, chart in zip(parts[0], charts, strict=True):
            _draw(part, chart)
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=160, metadata=metadata)


def _width(chart: Chart | Maps) -> float:
    if isinstance(chart, Maps):
        return _MAP * _map_columns(chart) + 0.8
    return _WIDTH


def _map_columns(maps: Maps) -> int:
    return -(-len(maps.images) // 2)


def _draw(figure: Figure | SubFigure, chart: Chart | Maps) -> None:
    if isinstance(chart, Maps):
        _draw_maps(figure, chart)
    else:
        _draw_curves(figure.subplots(), chart)
        if len(chart.series) > 1:
            figure.legend(loc="outside lower center", ncols=2)


def _draw_maps(figure: Figure | SubFigure, maps: Maps) -> None:
    axes = figure.subplots(2, _map_columns(maps), squeeze=False)
    for each in axes.flat:
        each.set_axis_off()
    for each, (label, image) in zip(axes.flat, maps.images, strict=False):
        drawn = each.imshow(
            image, origin="lower", cmap="cividis", vmin=0, vmax=maps.highest, interpolation="none"
        )
        each.set_title(label)
    figure.colorbar(drawn, ax=list(axes.flat), label=maps.scale_label, shrink=0.75)
    figure.suptitle(maps.title, fontsize=9)


def _draw_curves(axes: Axes, chart: Chart) -> None:
    from matplotlib.ticker import MaxNLocator

    for index, series in enumerate(chart.series):
        colour = _COLOURS[index % len(_COLOURS)]
        marker = _MARKERS[index % len(_MARKERS)]
        line = _DASHES[index % len(_DASHES)] if chart.x_names is None else "none"
        y, x = np.asarray(series.y, float), np.asarray(series.x, float)
        shown = marker if len(x) <= 30 else None
        axes.plot(x, y, color=colour, marker=shown, linestyle=line, label=series.label)
        if series.band is not None:
            band = np.nan_to_num(np.asarray(series.band, float))
            below = np.minimum(band, 0.9 * np.abs(y)) if chart.log_y else band
            axes.errorbar(x, y, [below, band], color=colour, linestyle="none", capsize=2)
    if chart.log_y:
        axes.set_yscale("log")
    if chart.log_x:
        axes.set_xscale("log")
    elif all(float(x).is_integer() for series in chart.series for x in series.x):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if chart.x_names is not None:
        axes.set_xticks(range(len(chart.x_names)), chart.x_names, rotation=30, ha="right")
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    axes.set_title(chart.title)
