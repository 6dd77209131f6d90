"""Decode stored numbers by their attributes (CF 2.5.1 and 8.1), as ``xarray.open_zarr`` does.

Missing first, then ``code * scale_factor + add_offset``. Whatever xarray shows as NaN is missing
here. Three things that attributes declare missing, and xarray shows as numbers, are missing here:

- values outside ``valid_min``, ``valid_max`` or ``valid_range``;
- values equal to a fill value once that is rounded to the stored type (a ``missing_value`` of 1e20
  beside float32) or read as unsigned like the values (``_Unsigned``);
- values equal to the attribute ``_FillValue`` of a Zarr v2 array whose ``fill_value`` is another.

Zarr's own ``fill_value`` is missing only in Zarr v2 arrays with ``_ARRAY_DIMENSIONS``, where xarray
stores ``_FillValue`` in it; booleans, which have no value to spare, are excepted. Attributes are
JSON and know no float32, so packed values are float64, as in xarray (which keeps float16 and
float32 where their only fill value is NaN, and differs there in the last digits). No error quotes
an attribute's value, which may be computed from the data.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from dpdask.errors import StoreError
from dpdask.storage.decoding import Scratch, working_dtype
from dpdask.storage.zarr_types import ZarrArray
from dpdask.types import Array, Json, Shape

__all__ = ["DECODING_ATTRIBUTES", "Decoding", "holds_times", "read_decoding"]

DECODING_ATTRIBUTES = (
    "_FillValue", "missing_value", "valid_min", "valid_max", "valid_range", "scale_factor",
    "add_offset", "_Unsigned",
)  # fmt: skip
"""Attributes by which readers decode values."""

_SPECIAL = {"nan": math.nan, "infinity": math.inf, "-infinity": -math.inf}
_EVERYTHING = (-math.inf, math.inf)
_TIME_UNITS = re.compile(r"\s*\S+\s+since\s+\S", re.IGNORECASE)


@dataclass(frozen=True, repr=False)
class Decoding:
    """How stored numbers become values.

    Args:
        codes: the type of the stored numbers, in native order, after ``_Unsigned``.
        dtype: the type of decoded values.
        fills: codes that are missing.
        valid: the least and the largest code that is not missing.
        scale: what codes are multiplied by, None for nothing.
        offset: what is added then, None for nothing.
        decoded_valid: the least and the largest decoded value that is not missing.
        boolean: whether any code but zero counts as one.
    """

    codes: str
    dtype: str
    fills: tuple[float, ...] = ()
    valid: tuple[float, float] = _EVERYTHING
    scale: float | None = None
    offset: float | None = None
    decoded_valid: tuple[float, float] = _EVERYTHING
    boolean: bool = False

    def __repr__(self) -> str:
        return "<Decoding>"

    @property
    def declares_missing(self) -> bool:
        """Whether some values are declared missing."""
        limited = self.valid != _EVERYTHING or self.decoded_valid != _EVERYTHING
        return bool(self.fills) or limited

    @property
    def packed(self) -> bool:
        """Whether codes are scaled or shifted."""
        return self.scale is not None or self.offset is not None

    @property
    def to_floats(self) -> bool:
        """Whether values are computed, as floating point numbers, and not only converted."""
        return self.declares_missing or self.packed

    @property
    def converted_itemsize(self) -> int:
        """The bytes of an entry's copies beside the decoded value; codes lie in its memory."""
        codes = np.dtype(self.codes)
        if self.to_floats:
            return np.dtype(np.float32).itemsize if codes == np.float16 else 0
        return codes.itemsize + 1

    def memory(self, extent: Shape, scratch: Scratch | None) -> tuple[Array, Array]:
        """Return memory for decoded values, and for codes at the end of it.

        Args:
            extent: the shape of the region.
            scratch: returns memory to read into; None for new memory.
        """
        dtype, codes = np.dtype(self.dtype), np.dtype(self.codes)
        out = np.empty(extent, dtype) if scratch is None else scratch(extent, dtype)
        first = out.size * (dtype.itemsize - codes.itemsize)
        stored = out.reshape(-1).view(np.uint8)[first:].view(codes).reshape(extent)
        return out, stored

    def apply(self, codes: Array, out: Array) -> Array:
        """Write decoded values into ``out``, NaN where missing; total on codes.

        ``codes`` may be those of :meth:`memory`.
        """
        from dpdask.storage.cf_kernel import BUFFER_ENTRIES, decode_codes

        flat = codes.reshape(-1)
        if flat.dtype == np.float16:  # the compiler does not know it
            flat = flat.astype(np.float32)
        decode_codes(
            flat,
            out.reshape(-1),
            np.empty(BUFFER_ENTRIES),
            np.array(self.fills or (math.nan,)),
            *self.valid,
            1.0 if self.scale is None else self.scale,
            0.0 if self.offset is None else self.offset,
            *self.decoded_valid,
        )
        return out

    def converted(self, stored: Array) -> Array:
        """Return stored numbers as the type that their attributes say, where nothing is computed.

        That is an unsigned type, or booleans.
        """
        native = np.asarray(stored, stored.dtype.newbyteorder("="))
        codes = native.view(np.dtype(self.codes))
        return np.not_equal(codes, 0) if self.boolean else codes

    def to_dict(self) -> Json:
        """Return the fields, for a digest."""
        return dataclasses.asdict(self)

    def describe(self) -> str:
        """Return what is decoded, for a plan; never for what is published."""
        text = np.dtype(self.codes).name
        if self.boolean:
            text += " as 0 and 1"
        if self.scale is not None:
            text += f" x {_shown(self.scale)}"
        if self.offset is not None:
            sign = "-" if self.offset < 0 else "+"
            text += f" {sign} {_shown(abs(self.offset))}"
        parts = [text]
        if self.fills:
            verb = "is" if len(self.fills) == 1 else "are"
            parts.append(f"{' and '.join(_shown(fill) for fill in self.fills)} {verb} missing")
        for limits, unit in ((self.valid, "codes"), (self.decoded_valid, "values")):
            if limits != _EVERYTHING:
                low, high = (_shown(limit) for limit in limits)
                parts.append(f"{unit} outside {low} to {high} are missing")
        return "; ".join(parts)


def holds_times(attributes: Mapping[str, object]) -> bool:
    """Return whether attributes say that numbers are times (CF 4.4), which xarray reads as such."""
    units, dtype = attributes.get("units"), attributes.get("dtype")
    is_date = isinstance(units, str) and _TIME_UNITS.match(units) is not None
    return is_date or (isinstance(dtype, str) and dtype.startswith("timedelta64"))


def read_decoding(array: ZarrArray, subject: str = "the source") -> Decoding | None:
    """Return how an array of numbers is decoded, None if its values are what is stored.

    Raises:
        StoreError: an attribute is malformed.
    """
    stored = np.dtype(array.dtype).newbyteorder("=")
    attributes = dict(array.attrs)
    codes = _codes_dtype(stored, attributes)
    packing = _Attributes(attributes, stored, codes, subject)
    scale, offset = packing.number("scale_factor"), packing.number("add_offset")
    if scale == 0:
        packing.refuse("scale_factor", "zero, so that every value would be the same")
    packed = scale is not None or offset is not None
    if packed and stored.kind == "b":
        packing.refuse("scale_factor or add_offset", "beside booleans")
    valid, decoded_valid = packing.limits(packed=packed)
    decoding = Decoding(
        codes=codes.str,
        dtype=_float_dtype(codes, packed=packed).str,
        fills=packing.fills(array),
        valid=valid,
        scale=scale,
        offset=offset,
        decoded_valid=decoded_valid,
    )
    if decoding.to_floats:
        return decoding
    boolean = attributes.get("dtype") == "bool" and codes.kind in "iu"
    if codes == stored and not boolean:
        return None
    shown = np.dtype(np.bool_) if boolean else codes
    return Decoding(codes=codes.str, dtype=working_dtype(shown).str, boolean=boolean)


def _codes_dtype(
    stored: np.dtype[np.generic], attributes: Mapping[str, object]
) -> np.dtype[np.generic]:
    """Return the type of codes: the stored one, or the one that ``_Unsigned`` says."""
    wanted = {("i", "true"): "u", ("u", "false"): "i"}
    kind = wanted.get((stored.kind, str(attributes.get("_Unsigned"))))
    return np.dtype(f"{kind}{stored.itemsize}") if kind else stored


def _float_dtype(codes: np.dtype[np.generic], *, packed: bool) -> np.dtype[np.generic]:
    """Return the type of decoded values, as xarray chooses it (float16 is read as float32)."""
    exact_in_single = codes.itemsize <= (4 if codes.kind == "f" else 2)
    return np.dtype(np.float32 if exact_in_single and not packed else np.float64)


@dataclass(frozen=True, repr=False)
class _Attributes:
    """The attributes of an array, read as numbers.

    Args:
        values: the attributes.
        stored: the type of stored values.
        codes: their type after ``_Unsigned``.
        subject: what an error text calls the array.
    """

    values: Mapping[str, object]
    stored: np.dtype[np.generic]
    codes: np.dtype[np.generic]
    subject: str

    def refuse(self, name: str, problem: str) -> NoReturn:
        """Raise an error that names the attribute, and not its value."""
        way_out = "correct it"
        if self.subject == "the source":
            way_out += ", or set source.decode: false to release the numbers as they are stored"
        raise StoreError(f"{self.subject} has an attribute {name} that is {problem}; {way_out}")

    def number(self, name: str) -> float | None:
        """Return a finite number, None if there is no such attribute."""
        value = self.values.get(name)
        if value is None:
            return None
        number = _as_number(value)
        if number is None or not math.isfinite(number):
            self.refuse(name, "not a valid number")
        return float(number)

    def fills(self, array: ZarrArray) -> tuple[float, ...]:
        """Return the codes that are missing."""
        is_v3 = array.metadata.zarr_format == 3
        numbers = self._listed("missing_value")
        fill_value = self.values.get("_FillValue")
        if is_v3 and isinstance(fill_value, str) and self.stored.kind == "f":
            numbers.append(self._from_base64(fill_value))
        elif is_v3 and self.stored.kind in "iu":
            numbers += [math.trunc(n) for n in self._listed("_FillValue") if math.isfinite(n)]
        else:
            numbers += self._listed("_FillValue")
        by_xarray = not is_v3 and "_ARRAY_DIMENSIONS" in self.values and self.stored.kind != "b"
        fill = _as_number(getattr(array.metadata, "fill_value", None)) if by_xarray else None
        if fill is not None:
            numbers.append(fill)
        return tuple(sorted({code for number in numbers for code in self._as_codes(number)}))

    def limits(self, *, packed: bool) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return the valid range of codes and that of decoded values.

        Integers are packed, but a fraction beside packed integers is a decoded value (NetCDF User
        Guide, appendix A).
        """
        codes, values = _EVERYTHING, _EVERYTHING
        for low, high in self._ranges():
            for limit, is_low in ((low, True), (high, False)):
                if packed and isinstance(limit, float) and self.stored.kind != "f":
                    values = _narrowed(values, limit, is_low=is_low)
                elif limit is not None:
                    codes = _narrowed(codes, self._limit_code(limit), is_low=is_low)
        if codes[0] > codes[1] or values[0] > values[1]:
            self.refuse("valid_min, valid_max or valid_range", "not a valid range: none lies in it")
        return codes, values

    def _ranges(self) -> list[tuple[float | None, float | None]]:
        ends = []
        for name in ("valid_min", "valid_max"):
            value = self.values.get(name)
            number = None if value is None else _as_number(value)
            if value is not None and (number is None or math.isnan(number)):
                self.refuse(name, "not a valid number")
            ends.append(number)
        ranges = [(ends[0], ends[1])]
        if self.values.get("valid_range") is not None:
            pair = self._listed("valid_range")
            if len(pair) != 2 or any(math.isnan(number) for number in pair):
                self.refuse("valid_range", "not a valid range of two numbers")
            ranges.append((pair[0], pair[1]))
        return ranges

    def _listed(self, name: str) -> list[float]:
        """Return a number, or a list of numbers, as a list."""
        value = self.values.get(name)
        if value is None:
            return []
        values = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        numbers = []
        for entry in values:
            number = _as_number(entry, yes_no=self.stored.kind == "b")
            if number is None:
                self.refuse(name, "not a valid number or list of numbers")
            numbers.append(number)
        return numbers

    def _from_base64(self, text: str) -> float:
        """Return the ``_FillValue`` of floating point values, as xarray writes it in Zarr v3."""
        number = _as_number(text)
        if number is not None:
            return number
        try:
            return float(struct.unpack("<d", base64.b64decode(text, validate=True))[0])
        except (binascii.Error, struct.error, ValueError):
            self.refuse("_FillValue", "neither a valid number nor one in base64")

    def _as_codes(self, number: float) -> set[float]:
        """Return the codes that a fill value stands for."""
        if math.isnan(number):
            return set()
        try:
            fills = {float(number)}
        except OverflowError:  # a whole number beyond any code
            return set()
        if self.codes != self.stored:
            return {self._reinterpreted(number)}
        if self.stored.kind == "f" and math.isfinite(rounded := self._rounded(number)):
            fills.add(rounded)
        return fills

    def _limit_code(self, limit: float) -> float:
        if self.codes != self.stored:
            return self._reinterpreted(limit)
        return self._rounded(limit) if self.stored.kind == "f" else _as_float(limit)

    def _rounded(self, number: float) -> float:
        """Return the nearest number of the stored type."""
        with np.errstate(over="ignore"):
            return float(np.asarray(_as_float(number)).astype(self.stored))

    def _reinterpreted(self, number: float) -> float:
        """Return the code that has the bits of a stored number, if it is one."""
        limits = np.iinfo(self.stored.str)
        if not (math.isfinite(number) and limits.min <= number <= limits.max):
            return _as_float(number)
        if number != int(number):
            return float(number)
        return float(np.array(int(number), self.stored).view(self.codes))


def _as_number(value: object, *, yes_no: bool = False) -> float | None:
    """Return a number of JSON or NumPy, an int as an int; None for anything else."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return int(value) if yes_no else None
    if isinstance(value, int | float):
        return value
    return _SPECIAL.get(value.lower()) if isinstance(value, str) else None


def _as_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:  # a whole number beyond any double
        return math.copysign(math.inf, number)


def _narrowed(limits: tuple[float, float], limit: float, *, is_low: bool) -> tuple[float, float]:
    low, high = limits
    return (max(low, limit), high) if is_low else (low, min(high, limit))


def _shown(number: float) -> str:
    return f"{number:.15g}"
