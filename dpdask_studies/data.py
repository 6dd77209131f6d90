"""Data sets of the studies: from packages, generated, or from a file of the user's."""

from __future__ import annotations

import csv
import importlib.resources
from pathlib import Path

import numpy as np

from dpdask.errors import InvalidSpec
from dpdask.types import Floats

__all__ = ["cities", "named_columns", "table"]


def cities(*, low: tuple[float, float], high: tuple[float, float]) -> Floats:
    """Return latitude and longitude of the cities between two corners (bokeh_sampledata)."""
    path = importlib.resources.files("bokeh_sampledata") / "_data" / "world_cities.csv"
    with importlib.resources.as_file(path) as file:
        points = named_columns(file, ("lat", "lng"))
    inside = np.all((points >= low) & (points <= high), axis=1)
    return points[inside]


def named_columns(path: Path, names: tuple[str, ...]) -> Floats:
    """Return columns of a CSV file with headings, found without regard to case."""
    with path.open(newline="") as file:
        rows = csv.DictReader(file)
        headings = {heading.strip().lower(): heading for heading in rows.fieldnames or ()}
        missing = [name for name in names if name not in headings]
        if missing:
            raise InvalidSpec(
                f"{str(path)!r} has no column {missing[0]!r}; its headings must hold"
                f" {', '.join(names)}"
            )
        try:
            return np.array([[float(row[headings[name]]) for name in names] for row in rows])
        except ValueError:
            raise InvalidSpec(
                f"{str(path)!r} has a value that is not a number in {', '.join(names)}; leave"
                " such rows out"
            ) from None


def table(path: Path, columns: int) -> Floats:
    """Return a CSV file of numbers with so many columns, with or without a line of headings."""
    try:
        with path.open() as file:
            first = file.readline()
        headings = any(character.isalpha() for character in first.replace("e", ""))
        values = np.loadtxt(path, delimiter=",", skiprows=int(headings), ndmin=2)
    except ValueError:
        raise InvalidSpec(
            f"{str(path)!r} is not a CSV file of numbers; give {columns} columns of numbers"
        ) from None
    if values.shape[1] != columns:
        raise InvalidSpec(
            f"{str(path)!r} has {values.shape[1]} columns; this study needs {columns}"
        )
    return np.asarray(values, float)
