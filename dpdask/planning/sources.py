"""What a release reads: one array, or the arrays of a group; and what lies beside it."""

from __future__ import annotations

from dpdask.errors import InvalidSpec
from dpdask.queries import Query
from dpdask.spec.release import ReleaseSpec
from dpdask.storage import (
    SourceArray,
    Storage,
    open_source,
    open_table,
    plain_name,
    with_labels,
)

__all__ = ["open_whole_source", "with_arrays_beside"]


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


def with_arrays_beside(spec: ReleaseSpec, source: SourceArray, query: Query) -> SourceArray:
    """Return the source with the arrays that the query reads beside it, one entry per record."""
    if not query.labels or query.units_axis is None:
        return source
    _check_names("query.by", tuple(query.labels))
    counted = spec.query.arrays
    keys = {name: "query.edges" if name in counted else "query.by" for name in query.labels}
    decode = spec.source.decode
    return with_labels(source, query.labels, axis=query.units_axis, keys=keys, decode=decode)


def _check_names(key: str, names: tuple[str, ...]) -> None:
    for name in names:
        if not plain_name(name):
            raise InvalidSpec(
                f"{key}: {name!r} is not a valid name of an array in the source's group; name one"
                " without a path"
            )
