"""What must fit before anything is spent: public parts, output numbers, memory, disk."""

from __future__ import annotations

import os
import re

import numpy as np

from dpdask.errors import InvalidSpec, StoreError
from dpdask.planning.memory import worker_bytes
from dpdask.planning.plan import Component, ReleasePlan
from dpdask.privacy import Adjacency
from dpdask.queries import Query
from dpdask.spec.release import ReleaseSpec
from dpdask.storage import CARD_ARRAYS, Layout, SourceArray

__all__ = [
    "check_memory",
    "check_no_placeholders",
    "check_output",
    "check_public",
    "check_records",
    "check_room",
]

_LARGEST_COORDINATES = 2**30  # bytes
_PLACEHOLDER = re.compile(r"\{[^{}/]*\}")


def check_no_placeholders(url: str) -> None:
    """Refuse an output.url with a ``{...}`` that nothing fills in, which would become part of a
    folder's name.
    """
    left = _PLACEHOLDER.findall(url)
    if left:
        raise InvalidSpec(
            f"output.url {url!r} holds {', '.join(left)}, which only a series ({{start}},"
            f" {{stop}}) or a batch over a group"
            " ({array}) fills in; run it as one, or write the whole name"
        )


def check_records(query: Query) -> None:
    """A source without entries is one without records, and an answer only where their number is
    private.

    There it must be one: a release of a single record does not fail, so failing on none would tell
    them apart.
    """
    empty = [axis for axis, length in enumerate(query.source_shape) if length == 0]
    private = query.sensitivity.adjacency is Adjacency.ADD_REMOVE_ONE
    if not empty or (private and query.summed and empty == [query.units_axis]):
        return
    raise StoreError(
        f"the source has no entries along axis {empty[0]}, so query {query.name} under"
        f" {query.sensitivity.adjacency} has no answer;"
        " wait for records, or count or sum them under add-remove-one"
    )


def check_public(spec: ReleaseSpec, source: SourceArray, layout: Layout) -> None:
    """Attributes and coordinates that are to be copied exist, fit the result, and can be published
    beside it.
    """
    source.attributes(spec.publish.attributes)
    if len(layout.shape) > 1 and layout.name in layout.dimension_names:
        raise InvalidSpec(
            f"output.array {layout.name!r} is also the name of a dimension, which readers take"
            " for its coordinate; rename one"
            " of them, by output.array or publish.dimension_names"
        )
    names = spec.publish.coordinates
    if CARD_ARRAYS in (layout.name, *names):
        raise InvalidSpec(
            f"{CARD_ARRAYS!r} is where a release keeps its manifest; choose another output.array"
            " or coordinate"
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidSpec(f"publish.coordinates: {twice[0]!r} is there twice; name it once")
    if layout.name in names:
        raise StoreError(
            f"publish.coordinates: {layout.name!r} is the name of the released array; rename"
            " that by output.array, or drop it"
        )
    room = _LARGEST_COORDINATES
    for name in names:
        shape, dimensions, size = source.coordinate_schema(name)
        _check_coordinate(name, shape, dimensions, layout)
        room -= size
    if room < 0:
        raise StoreError(
            f"publish.coordinates hold {(_LARGEST_COORDINATES - room) / 1e9:.3g} GB, and are"
            " copied whole: at most"
            f" {_LARGEST_COORDINATES / 1e9:.3g} GB; drop the largest"
        )


def _check_coordinate(
    name: str, shape: tuple[int, ...], dimensions: tuple[str, ...], layout: Layout
) -> None:
    """A coordinate lies along dimensions of the result; one that is named after a dimension lies
    along that alone.
    """
    sizes = dict(zip(layout.dimension_names, layout.shape, strict=True))
    fits = len(dimensions) == len(shape) and all(
        sizes.get(d) == n for d, n in zip(dimensions, shape, strict=True)
    )
    if name in sizes and dimensions != (name,):
        fits = False
    if not fits:
        raise StoreError(
            f"publish.coordinates: {name!r} does not lie along the result's dimensions"
            f" {list(layout.dimension_names)};"
            " name them by publish.dimension_names or drop it"
        )


def check_output(layout: Layout, data: Component) -> None:
    """The output's type holds every value that the noise can make."""
    dtype = np.dtype(layout.dtype)
    if dtype.kind == "f":
        spread = data.query.released_std(data.noise)
        if dtype == np.float32 and not 1e-30 < spread < 1e30:
            raise InvalidSpec(
                f"noise of {spread:.3g} per entry is out of reach of float32; set"
                " noise.output_dtype: float64"
            )
        return
    if data.privatizer.step is None:
        raise InvalidSpec(
            f"noise.output_dtype: {dtype} needs one grid for all entries, which this noise has"
            " not; use float64"
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
            " or a smaller"
            " noise.steps_per_sigma"
        )


def check_memory(plan: ReleasePlan) -> None:
    """A worker holds its tiles within what it is allowed."""
    allowed = plan.spec.compute.memory
    if allowed is None:
        total = _machine_memory() if plan.spec.compute.cluster == "local" else None
        allowed = None if total is None else int(0.8 * total / plan.spec.compute.workers)
    wanted = worker_bytes(plan)
    if allowed is not None and wanted > allowed:
        wide = (
            f" (the noise mixes axes {list(plan.data.tiling.spanned)}, which tiles hold whole)"
            if plan.data.tiling.spanned
            else ""
        )
        private = (
            plan.data.query.sensitivity.adjacency is Adjacency.ADD_REMOVE_ONE
        )  # then no figure may depend on the number of records
        figure = "" if private else f" {wanted / 1e9:.3g} GB,"
        raise InvalidSpec(
            f"for tiles of shape {plan.data.tiling.extent}{wide} and the chunks of its source a"
            f" worker would hold{figure} more"
            f" than the {allowed / 1e9:.3g} GB allowed; use smaller chunks, publish.chunks or"
            " compute.task_size, fewer"
            " compute.threads or more memory"
        )


def _machine_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_room(plan: ReleasePlan) -> None:
    """The output can be written and its disk has the room."""
    plan.output.check_writable()
    free = plan.output.free_bytes()
    wanted = (
        plan.layout.total_bytes if plan.layout.codec == "none" else plan.layout.total_bytes // 8
    )
    if free is not None and free < wanted + 2**20:
        raise StoreError(
            f"the output needs {wanted / 1e6:.4g} MB but its disk has {free / 1e6:.4g} MB left;"
            " free some space or choose"
            " another output.url"
        )
