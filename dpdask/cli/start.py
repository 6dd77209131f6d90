"""Commands to start with: look at a source, write a first spec, list what there is to choose."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from dpdask.cli.printing import console, json_option, numbers, print_json
from dpdask.errors import InvalidSpec

if TYPE_CHECKING:
    from dpdask.storage.inspection import ArraySchema

__all__ = ["init", "inspect", "list_choices"]

_QUERIES = ("mean", "sum", "identity", "histogram")


@click.command()
@click.argument("source")
@json_option
def inspect(source: str, as_json: bool) -> None:
    """Show the arrays of SOURCE, a Zarr group: schemas only, no value is read."""
    from dpdask.views.source_rows import schema_records
    from dpdask.views.terminal import records_table

    schemas = _schemas(source)
    if as_json:
        print_json({"arrays": [_to_dict(schema) for schema in schemas]})
        return
    console().print(records_table(schema_records(schemas)))


def _schemas(source: str) -> list[ArraySchema]:
    from dpdask.storage import open_storage
    from dpdask.storage.inspection import array_schemas

    return array_schemas(open_storage(source, None))


def _to_dict(schema: ArraySchema) -> dict[str, object]:
    return {
        "path": schema.path,
        "shape": list(schema.shape),
        "chunks": list(schema.chunks),
        "dtype": schema.dtype,
        "dimension_names": None if schema.dimension_names is None else list(schema.dimension_names),
        "units": schema.units,
        "decoding": schema.decoding,
        "refusal": schema.refusal,
    }


@click.command()
@click.argument("source")
@click.option("--array", help="The array to release.")
@click.option("--record-dim", help="The dimension along which records lie, by name or index.")
@click.option("--ids", help="The array that says whose every record is.")
@click.option(
    "--max-contributions",
    type=click.IntRange(min=1),
    default=1,
    help="With --ids, how many records of one of them count.",
)
@click.option("--query", type=click.Choice(_QUERIES), help="What is released.")
@click.option("--range", "bounds", metavar="LOW,HIGH", help="The public range of an entry.")
@click.option("--clip-norm", type=float, help="Instead of a range: a public norm of a record.")
@click.option("--epsilon", type=float, help="What the release spends; 1 where left out.")
@click.option("--delta", type=float, help="Likewise; 1e-6 where left out.")
@click.option("--output", help="Where the release is published.")
@click.option("--dataset", help="The dataset of the ledger that is charged.")
@click.option(
    "--ledger", envvar="DPDASK_LEDGER", default="sqlite:///dpdask-ledger.db", show_default=True
)
@click.option("--spec", "path", default="release.yaml", show_default=True, help="The new file.")
def init(
    source: str,
    array: str | None,
    record_dim: str | None,
    ids: str | None,
    max_contributions: int,
    query: str | None,
    bounds: str | None,
    clip_norm: float | None,
    epsilon: float | None,
    delta: float | None,
    output: str | None,
    dataset: str | None,
    ledger: str,
    path: str,
) -> None:
    """Write a first spec for SOURCE, from its schema; asks for what no option gives."""
    from dpdask.spec.template import FirstSpec, spec_text

    if os.path.exists(path):
        raise InvalidSpec(f"{path!r} exists, and init replaces nothing; name another --spec")
    schemas = _schemas(source)
    schema = _chosen_schema(schemas, array)
    query = _answer("--query", "what to release", query, _QUERIES, "mean")
    dimension = _record_dim(schema, record_dim)
    limits, norm = _bound(bounds, clip_norm, query)
    first = FirstSpec(
        source_url=source,
        array=schema.path,
        dimensions=_dimensions(schema),
        output_url=output or f"released-{schema.path.rpartition('/')[2] or 'data'}.zarr",
        record_dim=dimension,
        ids=ids,
        max_contributions=max_contributions,
        query=query,
        bounds=limits,
        clip_norm=norm,
        may_miss_values=schema.may_miss_values,
        epsilon=1.0 if epsilon is None else epsilon,
        delta=1e-6 if delta is None else delta,
        ledger=ledger,
        dataset=dataset or "people",
        coordinates=_coordinates(schemas, schema, dimension, query),
        attributes=("units",) if schema.units is not None else (),
    )
    _write(path, spec_text(first))
    click.echo(f"wrote {path}. Next:")
    click.echo(f"    dpdask ledger init {first.dataset} --epsilon 3 --delta 1e-5 --ledger {ledger}")
    click.echo(f"    dpdask plan {path}")
    click.echo(f"    dpdask run {path}")


def _write(path: str, text: str) -> None:
    """Write a file that must not exist, if what it says is a valid spec."""
    import yaml

    from dpdask.spec import parse_release_spec

    parse_release_spec(yaml.safe_load(text)).privacy.budget()
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InvalidSpec(f"{path!r} cannot be written ({error.strerror}); name another") from None


def _answer(
    option: str, what: str, value: str | None, choices: tuple[str, ...], default: str | None
) -> str:
    """Return an option, or what a person at a terminal answers.

    Args:
        option: What the option is called.
        what: What is asked for.
        value: The option, None where it was left out.
        choices: What may be answered; empty for anything.
        default: What an empty answer means; without a terminal, too. None where there is none.
    """
    if value is not None:
        return value
    if sys.stdin.isatty():
        kind = click.Choice(choices) if choices else None
        return str(click.prompt(what, type=kind, default=default))
    if default is not None:
        return default
    listed = f" ({', '.join(choices)})" if choices else ""
    raise InvalidSpec(f"{option} is missing: {what}{listed}; give it, or run init in a terminal")


def _chosen_schema(schemas: list[ArraySchema], array: str | None) -> ArraySchema:
    by_path = {schema.path: schema for schema in schemas if schema.refusal is None}
    candidates = tuple(path for path, schema in by_path.items() if not schema.is_coordinate)
    if array is not None and array not in by_path:
        refused = [schema.refusal for schema in schemas if schema.path == array]
        why = refused[0] if refused else "there is no such array"
        raise InvalidSpec(f"--array {array!r}: {why}; choose from {', '.join(candidates)}")
    only = candidates[0] if len(candidates) == 1 else None
    return by_path[_answer("--array", "which array to release", array, candidates, only)]


def _record_dim(schema: ArraySchema, option: str | None) -> str | int:
    """Return the dimension of the records, as the spec names it."""
    names = schema.dimension_names
    known = tuple(map(str, range(len(schema.shape)))) if names is None else names
    only = known[0] if len(known) == 1 else None
    chosen = _answer("--record-dim", "along which dimension records lie", option, known, only)
    if chosen in known:
        return int(chosen) if names is None else chosen
    if chosen.isdecimal() and int(chosen) < len(schema.shape):
        return int(chosen)
    raise InvalidSpec(f"--record-dim {chosen!r} is not a dimension; choose from {', '.join(known)}")


def _bound(
    bounds: str | None, clip_norm: float | None, query: str
) -> tuple[tuple[float, float] | None, float | None]:
    """Return the range, or the clip norm; they are public, so nothing is read to find them."""
    if bounds is not None and clip_norm is not None:
        raise InvalidSpec("--range and --clip-norm are both given; give one of them")
    if clip_norm is not None and query != "histogram":
        return None, clip_norm
    what = "the range of an entry, LOW,HIGH, that you know without looking at the data"
    text = _answer("--range", what, bounds, (), None)
    limits = numbers("--range", text)
    if len(limits) != 2 or not limits[0] < limits[1]:
        raise InvalidSpec(f"--range {text!r} is not LOW,HIGH with LOW < HIGH; give two numbers")
    return (limits[0], limits[1]), None


def _dimensions(schema: ArraySchema) -> str:
    names = schema.dimension_names
    return f"{len(schema.shape)} axes" if names is None else "dimensions " + ", ".join(names)


def _coordinates(
    schemas: list[ArraySchema], schema: ArraySchema, record_dim: str | int, query: str
) -> tuple[str, ...]:
    """Return the coordinates of the dimensions that remain: those of records are private."""
    names = schema.dimension_names
    if names is None or query == "histogram":
        return ()
    records = names[record_dim] if isinstance(record_dim, int) else record_dim
    folder = schema.path.rpartition("/")[0]
    beside = {own.path for own in schemas if own.is_coordinate}
    paths = ((f"{folder}/{name}" if folder else name, name) for name in names if name != records)
    return tuple(name for path, name in paths if path in beside)


@click.group("list")
def list_choices() -> None:
    """List what a spec may name."""


@list_choices.command()
def queries() -> None:
    """List the queries."""
    from dpdask.spec.query import QUERIES

    for name in QUERIES:
        click.echo(_described(name, QUERIES[name].__doc__))


@list_choices.command()
def mechanisms() -> None:
    """List the mechanisms; docs/mechanisms has a page for each."""
    from dpdask.spec.mechanism import MECHANISMS

    for name in MECHANISMS:
        others = ", ".join(MECHANISMS.aliases_of(name))
        also = f" (also {others})" if others else ""
        click.echo(_described(name, MECHANISMS[name].__doc__) + also)


@list_choices.command()
def flows() -> None:
    """List the Prefect flows; docs/flows.md tells how to deploy them."""
    from dpdask.cli.release import flow_module

    for module in ("privatize", "series", "batch", "gradients"):
        name = "privatize" if module == "privatize" else f"privatize_{module}"
        click.echo(_described(name, getattr(flow_module(module), name).__doc__))


def _described(name: str, docstring: str | None) -> str:
    """Return a name with the first sentence of its description, without the name in it."""
    first = (docstring or "").strip().split("\n\n")[0].replace("\n    ", " ")
    text = first.replace("``", "").removeprefix(name).lstrip(":, ").rstrip(".")
    return f"{name:<20} {text}"
