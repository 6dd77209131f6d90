"""The arrays of a source as rows, for people who may see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dpdask.views.rows import Emphasis, Record, Row, shape_text

if TYPE_CHECKING:
    from dpdask.storage.inspection import ArraySchema

__all__ = ["schema_records"]


def schema_records(schemas: Sequence[ArraySchema]) -> list[Record]:
    """Return one record per array: what it is, and whether it can be released."""
    return [_record(schema) for schema in schemas]


def _record(schema: ArraySchema) -> Record:
    names = schema.dimension_names or tuple(f"axis {i}" for i in range(len(schema.shape)))
    sizes = zip(names, schema.shape, strict=True)
    if schema.is_coordinate:
        use = Row("use", "a coordinate: publish.coordinates")
    elif schema.refusal is None:
        use = Row("use", f"can be released: {schema.decoding}", Emphasis.GOOD)
    else:
        use = Row("use", "labels, ids or a coordinate")
    return [
        Row("array", schema.path or "(the root)"),
        Row("dimensions", ", ".join(f"{name}: {size:,}" for name, size in sizes)),
        Row("type", schema.dtype),
        Row("chunks", shape_text(schema.chunks)),
        Row("units", schema.units or ""),
        use,
    ]
