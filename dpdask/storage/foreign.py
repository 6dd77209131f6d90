"""Files that are not Zarr: say what they are, and how to make a Zarr of them."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from dpdask.errors import StoreError
from dpdask.storage.base import Storage
from dpdask.storage.local import LocalStorage

__all__ = ["check_is_zarr"]

_XARRAY = 'xarray.open_dataset("{name}").to_zarr("{stem}.zarr")'
_RASTER = 'rioxarray.open_rasterio("{name}").to_dataset(name="values").to_zarr("{stem}.zarr")'
_TABLE = 'pandas.{reader}("{name}").to_xarray().to_zarr("{stem}.zarr")'
_CSV = _TABLE.replace("{reader}", "read_csv")
_WAYS = {
    "a NetCDF file": _XARRAY,
    "an HDF5 file": _XARRAY,
    "a GeoTIFF file": _RASTER,
    "a CSV file": _CSV,
    "a TSV file": _CSV.replace('("{name}")', '("{name}", sep="\\t")', 1),
    "a Parquet file": _TABLE.replace("{reader}", "read_parquet"),
    "an Excel file": _TABLE.replace("{reader}", "read_excel"),
}
_SUFFIXES = {
    ".nc": "a NetCDF file", ".nc4": "a NetCDF file", ".cdf": "a NetCDF file",
    ".h5": "an HDF5 file", ".hdf5": "an HDF5 file",
    ".tif": "a GeoTIFF file", ".tiff": "a GeoTIFF file",
    ".csv": "a CSV file", ".tsv": "a TSV file",
    ".parquet": "a Parquet file", ".pq": "a Parquet file",
    ".xls": "an Excel file", ".xlsx": "an Excel file",
}  # fmt: skip
_FIRST_BYTES = {
    b"\x89HDF\r\n\x1a\n": "an HDF5 file",
    b"CDF": "a NetCDF file",
    b"II*\0": "a GeoTIFF file",
    b"II+\0": "a GeoTIFF file",
    b"MM\0*": "a GeoTIFF file",
    b"MM\0+": "a GeoTIFF file",
    b"PAR1": "a Parquet file",
    b"\xd0\xcf\x11\xe0": "an Excel file",
}


def check_is_zarr(storage: Storage) -> None:
    """Refuse a source that is a file of another format; a folder may have any name.

    Raises:
        StoreError: it is such a file, or its URL names one where nothing else is.
    """
    if storage.is_archive:
        return
    if isinstance(storage, LocalStorage) and storage.path.exists():
        if storage.path.is_file():
            raise _refusal(_format_of(storage.path), storage.path.name)
        return
    # A name that lies within such a file, or an object, which is not a prefix of others.
    for part in reversed(PurePosixPath(storage.address().partition("?")[0]).parts):
        kind = _SUFFIXES.get(PurePosixPath(part).suffix.lower())
        if kind is not None and not storage.occupied():
            raise _refusal(kind, part)


def _format_of(file: Path) -> str | None:
    """Return what a file is, by its name, else by its first bytes; None if that is unknown."""
    by_name = _SUFFIXES.get(file.suffix.lower())
    if by_name is not None:
        return by_name
    try:
        with open(file, "rb") as opened:
            first_bytes = opened.read(8)
    except OSError:
        return None
    for known, kind in _FIRST_BYTES.items():
        if first_bytes.startswith(known):
            return kind
    return None


def _refusal(kind: str | None, name: str) -> StoreError:
    if kind is None:
        return StoreError(
            "source.url is a file, and not a Zarr; give the folder of a Zarr hierarchy, or a .zip"
            " of one"
        )
    way = _WAYS[kind].format(name=name, stem=PurePosixPath(name).stem)
    return StoreError(f"source.url is {kind}, and not a Zarr; make one first: {way}")
