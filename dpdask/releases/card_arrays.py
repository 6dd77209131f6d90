"""Numbers of the noise that are too many for a card: arrays of the published group, named on the
card.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpdask.types import Floats, Json

__all__ = ["LARGE", "CardArrays", "count_numbers", "noise_arrays", "with_arrays"]

LARGE = 100  # numbers in a list that the card repeats in full

CardArrays = dict[str, Floats]


def count_numbers(value: Any) -> int:
    """How many numbers a JSON value holds."""
    if isinstance(value, dict):
        return sum(count_numbers(inner) for inner in value.values())
    return sum(count_numbers(inner) for inner in value) if isinstance(value, list) else 1


def noise_arrays(description: Json) -> tuple[Json, CardArrays]:
    """A description with its long lists of numbers taken out, each replaced by ``{"array": name}``,
    and those arrays.
    """
    arrays: CardArrays = {}

    def shortened(value: Any, path: str) -> Any:
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

    return shortened(description, "noise"), arrays


def with_arrays(description: Any, arrays: CardArrays) -> Any:
    """The description that :func:`noise_arrays` shortened, its arrays put back."""
    if isinstance(description, dict):
        if set(description) == {"array"}:
            return arrays[description["array"]]
        return {key: with_arrays(inner, arrays) for key, inner in description.items()}
    return (
        [with_arrays(inner, arrays) for inner in description]
        if isinstance(description, list)
        else description
    )
