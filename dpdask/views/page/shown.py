"""Which numbers of a release a page draws, and how: by shape and coordinates, never by values."""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpdask.queries.base import NOISE_STD
from dpdask.releases.card import ReleaseCard
from dpdask.types import Floats

__all__ = ["Axis", "Form", "Panel", "Shown", "shown"]

_BARS = 40  # so many entries are drawn as bars; more as a line
_POINTS = 1000  # of a line
_CELLS = 200  # of a map, along each axis
_PANELS = 6
_IMAGES = 24
_READ_WHOLE = 2**25  # entries; of a larger array the first ones are drawn, so that few are read


class Form(enum.StrEnum):
    """How numbers are drawn."""

    NUMBER = "number"
    BARS = "bars"
    LINE = "line"
    MAP = "map"
    IMAGES = "images"


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of what is drawn, with a label for each entry."""

    name: str
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """Numbers in one frame.

    Args:
        title: Which part of the array it is; empty where it is all of it.
        values: The released numbers.
        std: The standard deviation of the noise of each.
        axes: What they lie along.
    """

    title: str
    values: Floats
    std: Floats
    axes: tuple[Axis, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """What is drawn of one variable, and what is left out of the drawing."""

    form: Form
    panels: tuple[Panel, ...]
    notes: tuple[str, ...]


def shown(dataset: Any, card: ReleaseCard) -> Shown:
    """Return what a page draws of one variable.

    Guarantee: which entries are drawn follows from the shape and the kinds of coordinates alone.

    Args:
        dataset: The release as :func:`dpdask.open_release_dataset` opens it.
        card: The card of the variable.
    """
    array = dataset[card.released.array]
    std = dataset[f"{card.released.array}_{NOISE_STD}"]
    array, notes = _thinned(array.squeeze(), _read_all(array))
    form = _form(array)
    std = std.squeeze().isel({dim: index for dim, index in _kept(array).items() if dim in std.dims})
    panels = tuple(_panels(array.drop_attrs(), std, form))
    return Shown(form, panels, tuple(notes))


def _read_all(array: Any) -> bool:
    return int(array.size) <= _READ_WHOLE


def _form(array: Any) -> Form:
    """Return how an array is drawn that was thinned out already."""
    if array.ndim == 0:
        return Form.NUMBER
    if array.ndim == 1 or (array.ndim == 2 and min(array.shape) <= _PANELS):
        along = array.dims[-1] if array.ndim == 1 else array.dims[_long_axis(array)]
        words = along in array.coords and array[along].dtype.kind in "UOT"
        return Form.BARS if words or array.sizes[along] <= _BARS else Form.LINE
    return Form.MAP if array.ndim == 2 else Form.IMAGES


def _long_axis(array: Any) -> int:
    """Return the axis that every panel of a 2-D array is drawn along."""
    return int(array.shape[1] < array.shape[0] and array.shape[1] <= _PANELS) ^ 1


def _thinned(array: Any, whole: bool) -> tuple[Any, list[str]]:
    """Return the entries that are drawn, and sentences about those that are not."""
    notes = []
    while array.ndim > 3:
        notes.append(f"Drawn at {array.dims[0]} {_labels(array, array.dims[0])[0]}.")
        array = array.isel({array.dims[0]: 0})
    limits = _limits(array)
    for dim, most in limits.items():
        length = array.sizes[dim]
        if length <= most:
            continue
        step = math.ceil(length / most) if whole and dim != _images_axis(array) else 1
        index = np.arange(0, length, step)[:most]
        array = array.assign_coords({f"_{dim}": (dim, np.arange(length))}).isel({dim: index})
        which = f"the first {most:,}" if step == 1 else f"every {_ordinal(step)}"
        notes.append(f"Drawn is {which} of {length:,} along {dim}.")
    return array, notes


def _images_axis(array: Any) -> Any:
    return array.dims[0] if array.ndim == 3 else None


def _limits(array: Any) -> dict[Any, int]:
    """Return how many entries are drawn along each dimension at most."""
    if array.ndim == 1:
        return {array.dims[0]: _POINTS}
    if array.ndim == 2 and min(array.shape) <= _PANELS:
        return {array.dims[_long_axis(array)]: _POINTS}
    if array.ndim == 2:
        return dict.fromkeys(array.dims, _CELLS)
    if array.ndim == 3:
        return {array.dims[0]: _IMAGES, array.dims[1]: 64, array.dims[2]: 64}
    return {}


def _kept(array: Any) -> dict[Any, Any]:
    """Return which entries of each dimension were kept, where some were not."""
    return {dim: array[f"_{dim}"].values for dim in array.dims if f"_{dim}" in array.coords}


def _ordinal(number: int) -> str:
    endings = {1: "st", 2: "nd", 3: "rd"}
    ending = "th" if number % 100 in (11, 12, 13) else endings.get(number % 10, "th")
    return f"{number:,}{ending}"


def _panels(array: Any, std: Any, form: Form) -> Iterator[Panel]:
    """Yield the frames: one, or one for each index of the shorter or the first axis."""
    stds = std.broadcast_like(array.drop_vars(list(array.coords))) if std.ndim else std
    split = None
    if form in (Form.BARS, Form.LINE) and array.ndim == 2:
        split = array.dims[1 - _long_axis(array)]
    elif form is Form.IMAGES:
        split = array.dims[0]
    if split is None:
        yield _panel("", array, stds)
        return
    labels = _labels(array, split)
    for index, label in zip(itertools.count(), labels, strict=False):
        own = {split: index}
        part = stds.isel(own) if split in stds.dims else stds
        yield _panel(f"{split} {label}", array.isel(own), part)


def _panel(title: str, array: Any, std: Any) -> Panel:
    values = np.asarray(array.values, np.float64)
    dims = list(array.dims)
    stds = std.transpose(*dims).values if getattr(std, "ndim", 0) else std.values
    axes = tuple(Axis(str(dim), _labels(array, dim)) for dim in dims)
    return Panel(title, values, np.broadcast_to(np.asarray(stds, np.float64), values.shape), axes)


def _labels(array: Any, dim: Any) -> tuple[str, ...]:
    """Return the coordinate along a dimension as text; positions where it has none."""
    if dim in array.coords:
        return tuple(_text(value) for value in array[dim].values)
    if f"_{dim}" in array.coords:
        return tuple(map(str, array[f"_{dim}"].values))
    return tuple(map(str, range(array.sizes[dim])))


def _text(value: Any) -> str:
    if isinstance(value, np.datetime64):
        return str(value.astype("datetime64[s]")).removesuffix("T00:00:00")
    if isinstance(value, float | np.floating):
        return f"{value:.6g}"
    return str(value)
