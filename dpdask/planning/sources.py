"""What a release reads: one array, or the arrays of a group; and what lies beside it."""

from __future__ import annotations

from dpdask.errors import InvalidSpec
from dpdask.patience import Patience
from dpdask.planning.naming import axis_of
from dpdask.queries import Query
from dpdask.spec.release import ReleaseSpec
from dpdask.storage import (
    SourceArray,
    Storage,
    coarsened_by,
    grouped_by,
    open_source,
    open_storage,
    open_table,
    plain_name,
    with_labels,
)

__all__ = [
    "coarsened",
    "open_whole_source",
    "output_storage",
    "source_storage",
    "with_arrays_beside",
]


def source_storage(spec: ReleaseSpec) -> Storage:
    """Return where the source of a spec is; it is asked again as ``compute.patience`` says."""
    return open_storage(spec.source.url, spec.source.options, Patience(spec.compute.patience))


def output_storage(spec: ReleaseSpec) -> Storage:
    """Return where a spec publishes; it is asked again as ``compute.patience`` says."""
    return open_storage(spec.output.url, spec.output.options, Patience(spec.compute.patience))


def open_whole_source(spec: ReleaseSpec, storage: Storage) -> SourceArray:
    """Open the array that the spec names, or a group whose arrays the query names.

    Raises:
        DpdaskError: It does not exist, or cannot be released.
    """
    path, names = spec.source.array.strip("/"), spec.query.arrays
    if not names:
        return open_source(storage, path, decode=spec.source.decode)
    _check_names("query.edges", names)
    if path and path.rpartition("/")[2] not in names:
        raise InvalidSpec(
            f"source.array {path!r} is not among the arrays of query.edges"
            f" ({', '.join(names)}); leave it out, or name one of them"
        )
    return open_table(storage, path or names[0], key="query.edges", decode=spec.source.decode)


def coarsened(spec: ReleaseSpec, source: SourceArray) -> SourceArray:
    """Return the source with its entries added up as ``source.coarsen`` says.

    Raises:
        DpdaskError: The dimension is that of the records, or its entries cannot be grouped so.
    """
    section = spec.source.coarsen
    if section is None:
        return source
    if spec.query.arrays:
        raise InvalidSpec(
            "source.coarsen adds up entries of one array, and a histogram over several arrays has"
            " one entry per record; drop it"
        )
    key, names = "source.coarsen.dim", source.dimension_names
    axis = axis_of(key, section.dim, shape=source.shape, names=names)
    record = spec.privacy_unit.record_dim
    if record is not None and axis == axis_of(
        "privacy_unit.record_dim", record, shape=source.shape, names=names
    ):
        raise InvalidSpec(
            f"{key}={section.dim!r} is the dimension of the records; use query: sum or mean with by"
        )
    if section.array is not None:
        return grouped_by(source, axis, section.array)
    return coarsened_by(source, axis, section.by or 1)


def with_arrays_beside(spec: ReleaseSpec, source: SourceArray, query: Query) -> SourceArray:
    """Return the source with the arrays that the query reads beside it, one entry per record."""
    ids = None if query.people is None else query.people.ids
    if (not query.labels and ids is None) or query.units_axis is None:
        return source
    _check_names("query.by", tuple(query.labels))
    if ids is not None:
        _check_names("privacy_unit.ids", (ids,))
    public = spec.source.coarsen.array if spec.source.coarsen is not None else None
    if public is not None and public in (*query.labels, ids):
        raise InvalidSpec(
            f"source.coarsen.array: {public!r} holds private labels of records, and would be"
            " published; name another array"
        )
    counted = spec.query.arrays
    keys = {name: "query.edges" if name in counted else "query.by" for name in query.labels}
    decode = spec.source.decode
    return with_labels(
        source, query.labels, axis=query.units_axis, keys=keys, decode=decode, ids=ids
    )


def _check_names(key: str, names: tuple[str, ...]) -> None:
    for name in names:
        if not plain_name(name):
            raise InvalidSpec(
                f"{key}: {name!r} is not a valid name of an array in the source's group; name one"
                " without a path"
            )
