"""Checks before anything is spent: public attributes and coordinates, output type, memory, disk."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence

import numpy as np

from dpdask.errors import InvalidSpec, StorageFault, StoreError
from dpdask.planning.attributes import check_attributes
from dpdask.planning.coordinates import check_coordinates
from dpdask.planning.memory import worker_bytes
from dpdask.planning.plan import Component, ReleasePlan, Variable
from dpdask.planning.tiling import Tiling
from dpdask.privacy import Adjacency
from dpdask.queries import CountedSum, Query
from dpdask.spec.release import AUTO, LOCAL, ComputeSection, ReleaseSpec
from dpdask.storage import CARD_ARRAYS, Layout, SourceArray

__all__ = [
    "check_memory",
    "check_missing",
    "check_no_placeholders",
    "check_output",
    "check_public",
    "check_records",
    "check_space",
]

_PLACEHOLDER = re.compile(r"\{[^{}/]*\}")


def check_no_placeholders(url: str) -> None:
    """Refuse an output.url with a placeholder that nothing fills in."""
    left = _PLACEHOLDER.findall(url)
    if left:
        raise InvalidSpec(
            f"output.url {url!r} holds {', '.join(left)}, which only a series ({{start}},"
            f" {{stop}}) or a batch over a group ({{array}}) fills in; run it as one, or write the"
            " whole name"
        )


def check_records(query: Query) -> None:
    """Refuse a source without entries, unless it may be empty because it has no records.

    Where the number of records is private, no records must be as good as one: a release of one
    record does not fail, so a failure would tell the two apart.
    """
    empty = [axis for axis, length in enumerate(query.source_shape) if length == 0]
    private = query.sensitivity.adjacency is Adjacency.ADD_REMOVE_ONE
    if not empty or (private and query.summed and empty == [query.units_axis]):
        return
    raise StoreError(
        f"the source has no entries along axis {empty[0]}, so query {query.spec_name} under"
        f" {query.sensitivity.adjacency} has no answer; wait for records, or count or sum them"
        " under add-remove-one"
    )


def check_missing(spec: ReleaseSpec, source: SourceArray, query: Query) -> None:
    """Refuse a sum over a source that may miss values, where the spec does not say what they do."""
    missing = spec.privacy_unit.missing
    if missing == "count" and not isinstance(query, CountedSum):
        raise InvalidSpec(
            f"privacy_unit.missing: count counts present entries beside sums and means; query"
            f" {query.spec_name} takes missing: center"
        )
    bounded = query.summed and query.bound is not None
    if missing is None and bounded and source.may_miss_values:
        choices = "write missing: center (they count as the centre)"
        if not query.symmetric:
            choices += (
                ", or missing: count (they count as absent, and the number of present entries is"
                " released, too)"
            )
        raise InvalidSpec(
            "the source may miss values (NaN), and privacy_unit.missing does not say what they do;"
            f" {choices}"
        )


def check_public(variables: Sequence[Variable]) -> None:
    """Check that attributes and coordinates exist, fit the result, and can be published with it.

    Raises:
        DpdaskError: Something cannot be published.
    """
    coordinates = variables[0].spec.publish.coordinates
    check_attributes(variables)
    for variable in variables:
        layout = variable.layout
        if len(layout.shape) > 1 and layout.name in layout.dimension_names:
            raise InvalidSpec(
                f"output.array {layout.name!r} is also the name of a dimension, so readers take it"
                " for the coordinate; rename one of them, by output.array or"
                " publish.dimension_names"
            )
        _check_beside(variable, coordinates)
        if CARD_ARRAYS in (layout.name, *coordinates):
            raise InvalidSpec(
                f"{CARD_ARRAYS!r} is where a release keeps its manifest; choose another"
                " output.array or coordinate"
            )
    _check_apart(variables)
    check_coordinates(variables)


def _check_beside(variable: Variable, coordinates: list[str]) -> None:
    """Refuse a coordinate or a dimension that is called as an array beside the main one."""
    for other in variable.beside:
        if other.name in (*coordinates, *variable.layout.dimension_names):
            raise InvalidSpec(
                f"{other.name!r} is published beside the result, and also the name of a dimension"
                " or a coordinate; rename the result by output.array, or the dimension by"
                " publish.dimension_names"
            )


def _check_apart(variables: Sequence[Variable]) -> None:
    """Refuse variables of which one is called as an array or a dimension of another."""
    if len(variables) == 1:
        return
    names = [layout.name for variable in variables for layout in variable.layouts]
    dimensions = {name for variable in variables for name in variable.layout.dimension_names}
    twice = [name for name in names if names.count(name) > 1 or name in dimensions]
    if twice:
        raise InvalidSpec(
            f"source.arrays: {twice[0]!r} would be the name of two arrays or of a dimension, too;"
            " rename one of them in the source, or release them apart"
        )


def check_output(layout: Layout, data: Component) -> None:
    """Check that the output's type holds every value that the noise can produce."""
    dtype = np.dtype(layout.dtype)
    if dtype.kind == "f":
        spread = data.query.released_std(data.noise)
        if dtype == np.float32 and not 1e-30 < spread < 1e30:
            raise InvalidSpec(
                f"noise of {spread:.3g} per entry is out of reach of float32; set"
                " noise.output_dtype: float64"
            )
        return
    if data.parts or not _starts_at_zero(data.query):
        raise InvalidSpec(
            f"noise.output_dtype: {dtype} holds steps of a grid, and this result is computed from"
            " them with a centre or counts; use float64"
        )
    if data.privatizer.step is None:
        raise InvalidSpec(
            f"noise.output_dtype: {dtype} needs one grid for all entries, which this noise does"
            " not have; use float64"
        )
    if data.query.symmetric:
        raise InvalidSpec(
            f"noise.output_dtype: {dtype} cannot hold the halves of a symmetrised result; use"
            " float64"
        )
    limit = data.privatizer.largest_output
    if limit > np.iinfo(dtype).max:
        raise InvalidSpec(
            f"noise.output_dtype: {dtype} cannot hold {limit:.3g} grid steps; use int64, float64"
            " or a smaller noise.steps_per_sigma"
        )


def _starts_at_zero(query: Query) -> bool:
    """Return whether nothing is added to the noisy answer."""
    return (
        not query.arrays_beside
        and query.offset(tuple(slice(0, 1) for _ in query.source_shape)) is None
    )


def check_memory(plan: ReleasePlan) -> None:
    """Check that a worker holds its tiles within the memory it is allowed."""
    allowed = _allowed_memory(plan.spec.compute)
    needed = worker_bytes(plan)
    if allowed is None or needed <= allowed:
        return
    tiling = max((variable.component.tiling for variable in plan.variables), key=_tile_entries)
    mixed = ""
    if tiling.spanned:
        mixed = f" (the noise mixes axes {list(tiling.spanned)}, which tiles hold whole)"
    # Where the number of records is private, no published number may depend on it.
    private_count = plan.privacy_unit.adjacency is Adjacency.ADD_REMOVE_ONE
    size = "" if private_count else f" {needed / 1e9:.3g} GB,"
    raise InvalidSpec(
        f"for tiles of shape {tiling.extent}{mixed} and the chunks of its source a worker would"
        f" hold{size} more than the {allowed / 1e9:.3g} GB allowed; use smaller chunks,"
        " publish.chunks or compute.task_size, fewer compute.threads or more memory"
    )


def _tile_entries(tiling: Tiling) -> int:
    return math.prod(tiling.extent)


def _allowed_memory(compute: ComputeSection) -> int | None:
    """Return the bytes that one worker may hold, None where they are not known."""
    if compute.memory is not None:
        return compute.memory
    if compute.cluster not in (AUTO, LOCAL):
        return None
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(0.8 * machine / compute.workers)


def check_space(plan: ReleasePlan) -> None:
    """Check that the output can be written and that its disk has enough space."""
    plan.output.check_writable()
    free = plan.output.free_bytes()
    needed = sum(layout.total_bytes for layout in plan.layouts)
    if plan.spec.publish.codec != "none":
        needed //= 8
    if free is not None and free < needed + 2**20:
        raise StorageFault(
            f"the output needs {needed / 1e6:.4g} MB but its disk has {free / 1e6:.4g} MB left;"
            " free some space or choose another output.url"
        )
