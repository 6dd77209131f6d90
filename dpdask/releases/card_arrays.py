"""Numbers of the noise that are too many for a card: arrays of the group, named on the card."""

from __future__ import annotations

import numpy as np

from dpdask.types import Floats, Json

__all__ = ["LARGE", "CardArrays", "count_numbers", "noise_arrays", "with_arrays"]

LARGE = 100  # numbers in a list that the card repeats in full

CardArrays = dict[str, Floats]


def count_numbers(value: object) -> int:
    """Return how many numbers a JSON value holds."""
    if isinstance(value, dict):
        return sum(count_numbers(inner) for inner in value.values())
    return sum(count_numbers(inner) for inner in value) if isinstance(value, list) else 1


def noise_arrays(description: Json, prefix: str = "noise") -> tuple[Json, CardArrays]:
    """Return a description without its long lists of numbers, and these as arrays.

    Each is replaced by ``{"array": name}``, a name that begins with ``prefix``.
    """
    arrays: CardArrays = {}

    def shortened(value: object, path: str) -> object:
        if isinstance(value, dict):
            return {key: shortened(inner, f"{path}_{key}") for key, inner in value.items()}
        if (
            isinstance(value, list)
            and count_numbers(value) > LARGE
            and not any(isinstance(inner, dict) for inner in value)
        ):
            arrays[path] = np.asarray(value, dtype=np.float64)
            return {"array": path}
        if isinstance(value, list):
            return [shortened(inner, f"{path}_{index}") for index, inner in enumerate(value)]
        return value

    short = {key: shortened(value, f"{prefix}_{key}") for key, value in description.items()}
    return short, arrays


def with_arrays(description: Json, arrays: CardArrays) -> Json:
    """Return the description that :func:`noise_arrays` shortened, its arrays put back."""
    return {key: _with_arrays(value, arrays) for key, value in description.items()}


def _with_arrays(value: object, arrays: CardArrays) -> object:
    if isinstance(value, dict):
        return arrays[value["array"]] if set(value) == {"array"} else with_arrays(value, arrays)
    if isinstance(value, list):
        return [_with_arrays(inner, arrays) for inner in value]
    return value
