"""Open a published release, and read its card."""

from __future__ import annotations

import json
from typing import Any

from dpdask.errors import StoreError, VerificationFailed
from dpdask.releases.card import ReleaseCard, card_from_attributes, card_text
from dpdask.storage import ROOT, Storage, open_group, open_storage
from dpdask.types import Json

__all__ = [
    "chosen_array",
    "open_release",
    "open_release_dataset",
    "published_card",
    "read_card",
]


def published_card(output: Storage, release_id: str | None = None) -> ReleaseCard | None:
    """Return the card at an output, None if there is none, or it is not of this release."""
    if output.read(ROOT) is None:
        return None
    try:
        card = card_from_attributes(dict(open_group(output).attrs))
    except (VerificationFailed, StoreError):
        return None
    return card if release_id in (None, card.release_id) else None


def read_card(url: str, options: Json | None = None) -> ReleaseCard:
    """Return the release card of a published group."""
    return card_from_attributes(dict(open_group(open_storage(url, options)).attrs))


def open_release(
    url: str, options: Json | None = None, *, array: str | None = None
) -> Any:  # by what is installed
    """Return a published release as an xarray.DataArray; without xarray, (array, release card).

    It has the coordinates and attributes of the release, all of which NetCDF can hold.

    Args:
        url: The published group.
        options: Storage options.
        array: Which array to open, where several were released.

    Raises:
        StoreError: There is no release, or it does not have the array, or several.
    """
    storage = open_storage(url, options)
    card = card_from_attributes(dict(open_group(storage).attrs))
    name = chosen_array(card, array)
    try:
        return _dataset(storage, card)[name]
    except ModuleNotFoundError as error:
        if error.name != "xarray":
            raise
    return open_group(storage)[name], card


def chosen_array(card: ReleaseCard, array: str | None) -> str:
    """Return the name of the array that is meant: the named one, or the only one.

    Raises:
        StoreError: The release does not have it, or has several.
    """
    names = [own.released.array for own in card.each_variable()]
    listed = ", ".join(names)
    if array is None and len(names) > 1:
        raise StoreError(
            f"the release holds {len(names)} variables ({listed}); name one by array, or open all"
            " of them with open_release_dataset"
        )
    if array is not None and array not in names:
        raise StoreError(f"array={array!r} is not in the release; choose from {listed}")
    return names[0] if array is None else array


def open_release_dataset(url: str, options: Json | None = None) -> Any:  # an xarray.Dataset
    """Return a published release with everything beside it as an xarray.Dataset.

    Its attributes are the release card and the signature, if there is one, as JSON text
    (``dp_card``, ``dp_signature``), which NetCDF can hold.

    Raises:
        StoreError: There is no release, or xarray is not installed.
    """
    storage = open_storage(url, options)
    attributes = dict(open_group(storage).attrs)
    card = card_from_attributes(attributes)
    try:
        dataset = _dataset(storage, card)
    except ModuleNotFoundError as error:
        if error.name != "xarray":
            raise
        dataset = None
    if dataset is None:
        raise StoreError("a Dataset needs xarray; install dpdask[xarray], or use open_release")
    texts = {"dp_card": card_text(card)}
    if "dp_signature" in attributes:
        texts["dp_signature"] = json.dumps(attributes["dp_signature"], sort_keys=True)
    return dataset.assign_attrs(texts)


def _dataset(storage: Storage, card: ReleaseCard) -> Any:
    """Return the group by xarray, with attributes that NetCDF can hold."""
    import xarray

    # A result in minutes is a number of minutes, not a time, and so is its noise.
    as_numbers: dict[str, bool] = {}
    for own in card.each_variable():
        names = [own.released.array, *(array.array for array in own.released.beside)]
        as_numbers |= dict.fromkeys(names, False)
    dataset = xarray.open_zarr(
        storage.zarr_store(),
        consolidated=True,
        decode_times=as_numbers,
        decode_timedelta=as_numbers,
    )
    dataset.attrs = {}
    for variable in dataset.variables.values():
        variable.attrs = {name: _for_netcdf(value) for name, value in variable.attrs.items()}
    return dataset


def _for_netcdf(value: object) -> object:
    """Return an attribute as NetCDF holds it: numbers and text, or lists of either.

    Booleans are 1 and 0, everything else is JSON text.
    """
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, list) and value:
        plain = [int(item) if isinstance(item, bool) else item for item in value]
        if all(isinstance(item, int | float) for item in plain):
            return plain
        if all(isinstance(item, str) for item in plain):
            return plain
    if value is None or isinstance(value, list | dict):
        return json.dumps(value, sort_keys=True)
    return value
