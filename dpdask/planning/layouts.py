"""How released arrays are stored: the main one, and those beside it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

import numpy as np

from dpdask.errors import InvalidSpec
from dpdask.planning.naming import released_names
from dpdask.planning.sessions import is_session, session_layout
from dpdask.queries import BesideArray, Query
from dpdask.spec.release import ReleaseSpec
from dpdask.storage import Layout, SourceArray
from dpdask.types import Shape

__all__ = ["layout_of", "layouts_beside"]

_DEFAULT_CHUNK_BYTES = 16 * 2**20


def layouts_beside(layout: Layout, arrays: Iterable[BesideArray]) -> tuple[Layout, ...]:
    """Return the layout of every array beside the main one, in their order.

    An array of the main one's shape has its chunks; a smaller one is a single chunk along its own
    dimensions or the main one's first ones, or a single number.
    """
    layouts = []
    for array in arrays:
        name = f"{layout.name}_{array.suffix}"
        if array.aligned:
            layouts.append(dataclasses.replace(layout, name=name, dtype="float64"))
            continue
        layouts.append(
            Layout(
                name=name,
                shape=array.shape,
                chunks=array.shape,
                shards=None,
                dtype="float64",
                codec=layout.codec,
                dimension_names=array.dimension_names or layout.dimension_names[: len(array.shape)],
            )
        )
    return tuple(layouts)


def layout_of(spec: ReleaseSpec, source: SourceArray, query: Query) -> Layout:
    """Return the form of the released array; the source's, where the query keeps its shape."""
    if is_session(spec):
        return session_layout(spec, query, _default_chunks(query.answer_shape, 8))
    keeps_shape = not query.summed
    single = keeps_shape and source.working_dtype == np.float32
    dtype = spec.noise.output_dtype or ("float32" if single else "float64")
    shards = spec.publish.shards
    chunks = _chunks(spec, source, query, np.dtype(dtype).itemsize)
    if query.symmetric and len(chunks) == 2:
        square = chunks[0] == chunks[1] and len(set(shards or [1])) == 1
        if not square:
            raise InvalidSpec(
                f"publish.chunks: {list(chunks)} of a symmetric result are not square; give two"
                " equal lengths"
            )
    return Layout(
        name=spec.output.array,
        shape=query.answer_shape,
        chunks=chunks,
        shards=None if shards is None else tuple(shards),
        dtype=dtype,
        codec=spec.publish.codec,
        dimension_names=released_names(query, source.dimension_names, spec),
    )


def _chunks(spec: ReleaseSpec, source: SourceArray, query: Query, itemsize: int) -> Shape:
    if spec.publish.chunks is not None:
        return tuple(spec.publish.chunks)
    if not query.summed:
        return source.chunks
    if query.symmetric:
        side = min(query.answer_shape[0], int(math.sqrt(_DEFAULT_CHUNK_BYTES / itemsize)))
        return side, side
    return _default_chunks(query.answer_shape, itemsize)


def _default_chunks(shape: Shape, itemsize: int) -> Shape:
    """Return chunks of about 16 MiB: the last axes whole, the first ones divided."""
    chunks = list(shape)
    for axis in range(len(shape)):
        row_bytes = math.prod(chunks[axis + 1 :]) * itemsize
        chunks[axis] = max(1, min(shape[axis], _DEFAULT_CHUNK_BYTES // row_bytes))
        if chunks[axis] > 1 or row_bytes <= _DEFAULT_CHUNK_BYTES:
            break
    return tuple(chunks)
