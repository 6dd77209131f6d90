"""Intervals around released numbers: how far the noise may have moved each of them."""

from __future__ import annotations

from typing import Any

from dpdask.errors import InvalidInput
from dpdask.noise import Tail
from dpdask.queries.base import NOISE_STD
from dpdask.releases.card import ReleaseCard
from dpdask.releases.read import chosen_array, open_release_dataset
from dpdask.types import Json

__all__ = ["interval"]


def interval(
    released: Any,
    level: float = 0.95,
    *,
    array: str | None = None,
    options: Json | None = None,
) -> Any:
    """Return the ends of an interval around every released number.

    Over the noise, an entry of the exact answer to the bounded data lies between the two with
    probability ``level``: what clipping and missing values change is not in it. Each interval
    holds for its own entry, not for all of them at once.

    Guarantee: exact for Gaussian and Laplace noise. For means that are divided by a noisy count
    it is that of the first order, which is close where the count is many times its noise.

    Args:
        released: The URL of a release; its dataset (:func:`dpdask.open_release_dataset`); or its
            array (:func:`dpdask.open_release`), if all entries have the same noise.
        level: The probability, between 0 and 1.
        array: Which array, where several were released.
        options: Storage options of a URL.

    Returns:
        An xarray.Dataset of ``lower`` and ``upper`` with the coordinates of the array.

    Raises:
        InvalidInput: There is no such level, or the noise of single entries is not known.

    Example:
        >>> bounds = dpdask.interval("released.zarr", 0.95)   # doctest: +SKIP
        >>> bounds.lower.sel(month=7), bounds.upper.sel(month=7)   # doctest: +SKIP
    """
    if not 0 < level < 1:
        raise InvalidInput(f"level={level:g} is not a probability; choose 0 < level < 1")
    dataset = open_release_dataset(released, options) if isinstance(released, str) else released
    if isinstance(dataset.attrs.get("dp_card"), str):
        card = ReleaseCard.model_validate_json(dataset.attrs["dp_card"])
        name = chosen_array(card, array)
        main, std = dataset[name], dataset[f"{name}_{NOISE_STD}"]
    else:
        main, std = dataset, _same_for_all(dataset)
    reach = std * half_width(str(main.attrs.get("dp:noise")), level)
    values = main.astype("float64")
    ends = {"lower": values - reach, "upper": values + reach}
    names = {"lower": f"lower end, {level:g}", "upper": f"upper end, {level:g}"}
    units = {"units": main.attrs["units"]} if "units" in main.attrs else {}
    described = {
        end: array.transpose(*main.dims)
        .drop_attrs(deep=False)
        .assign_attrs({**units, "long_name": names[end]})
        for end, array in ends.items()
    }
    return described["lower"].to_dataset(name="lower").assign(upper=described["upper"])


def _same_for_all(array: Any) -> float:
    """Return the noise of every entry of an array alone, where all have the same."""
    std = getattr(array, "attrs", {}).get("dp:noise_std")
    if std is None or "dp:noise_std_min" in array.attrs:
        raise InvalidInput(
            "the noise of single entries is not in the array alone; give the URL of the release,"
            " or what dpdask.open_release_dataset returns"
        )
    return float(std)


def half_width(noise: str, level: float) -> float:
    """Return how many standard deviations lie between the middle of an interval and its ends.

    Args:
        noise: The name of the noise on a release card.
        level: The probability.

    Raises:
        InvalidInput: The noise of one entry does not say how it is distributed.
    """
    if noise not in _TAILS:
        raise InvalidInput(
            f"noise {noise!r} has no interval for single entries: they share one random radius, so"
            " that one release covers nearly all of them or few; release with mechanism: auto"
        )
    return _TAILS[noise].ratio(level)


_TAILS = {"iid": Tail.GAUSSIAN, "kronecker": Tail.GAUSSIAN, "laplace": Tail.LAPLACE}
