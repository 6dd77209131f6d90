"""A first spec for a source: every choice in it explained by a comment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import yaml

from dpdask.spec.schema import SCHEMA_URL

__all__ = ["FirstSpec", "spec_text"]


@dataclass(frozen=True, kw_only=True)
class FirstSpec:
    """What a first spec is made of.

    Args:
        source_url: The source.
        array: The array that is released.
        dimensions: Its dimensions in words, without their lengths, which may be private.
        output_url: Where the release is published.
        record_dim: The dimension along which records lie, by name or index.
        ids: The array that says whose every record is, if people have several.
        max_contributions: How many records of one of them count.
        query: ``mean``, ``sum`` or ``identity``, or ``histogram``.
        bounds: The public range of an entry.
        clip_norm: The norm to which records are clipped, instead of a range.
        may_miss_values: Whether an entry may be missing.
        epsilon: The epsilon of the release.
        delta: Its delta.
        ledger: The URL of the ledger.
        dataset: The dataset that is charged.
        coordinates: Coordinates of dimensions that remain, which may be public.
        attributes: Attributes of the array that may be public.
    """

    source_url: str
    array: str
    dimensions: str
    output_url: str
    record_dim: str | int
    ids: str | None
    max_contributions: int
    query: str
    bounds: tuple[float, float] | None
    clip_norm: float | None
    may_miss_values: bool
    epsilon: float
    delta: float
    ledger: str
    dataset: str
    coordinates: tuple[str, ...]
    attributes: tuple[str, ...]


def spec_text(first: FirstSpec) -> str:
    """Return a first spec as commented YAML."""
    lines = [
        f"# yaml-language-server: $schema={SCHEMA_URL}",
        "# A release of dpdask. `dpdask plan` shows what it does and costs, `dpdask run` publishes"
        " it.",
        "",
        f"source:  # {first.dimensions}",
        *_entries(("url", first.source_url), ("array", first.array)),
        "output:  # a new group; nothing is ever replaced",
        *_entries(("url", first.output_url), ("array", first.array.rpartition("/")[2] or "data")),
        *_unit_lines(first),
        *_query_lines(first),
        "privacy:  # what this release spends; smaller is more private, with more noise",
        *_entries(("epsilon", first.epsilon), ("delta", first.delta)),
        "budget:  # the dataset that is charged, opened by `dpdask ledger init`",
        *_entries(("ledger", first.ledger), ("dataset", first.dataset)),
        *_publish_lines(first),
    ]
    return "\n".join(lines) + "\n"


def _unit_lines(first: FirstSpec) -> list[str]:
    """Return whom the release protects, and the bound."""
    lines = [
        "privacy_unit:  # whom the release protects",
        *_entries(("record_dim", first.record_dim)),
    ]
    if first.ids is None:
        lines.append("  # one record is one person; if people have several, name the array of ids:")
        lines.append("  # ids: person_id")
    else:
        lines += _entries(("ids", first.ids), ("max_contributions", first.max_contributions))
    if first.query == "histogram":
        return lines
    if first.bounds is not None:
        lines.append("  # public, never read off the data: entries outside are moved to its ends")
        lines += _entries(("ranges", list(first.bounds)))
    else:
        lines.append("  # public, never read off the data: longer records are scaled down to it")
        lines += _entries(("l2_clip_norm", first.clip_norm))
    if first.may_miss_values:
        lines.append("  # a missing value counts as the middle of the bound; count: as absent")
        lines += _entries(("missing", "center"))
    return lines


def _query_lines(first: FirstSpec) -> list[str]:
    if first.query != "histogram" or first.bounds is None:
        return [f"query: {first.query}  # or another of `dpdask list queries`"]
    low, high = first.bounds
    edges = {first.array.rpartition("/")[2]: {"low": low, "high": high, "bins": 20}}
    return ["query:", *_entries(("name", "histogram"), ("edges", edges))]


def _publish_lines(first: FirstSpec) -> list[str]:
    if not first.coordinates and not first.attributes:
        return []
    lines = ["publish:  # what is copied from beside the source: only what is public"]
    if first.coordinates:
        lines += _entries(("coordinates", list(first.coordinates)))
    if first.attributes:
        lines += _entries(("attributes", list(first.attributes)))
    return lines


def _entries(*entries: tuple[str, object]) -> Sequence[str]:
    """Return keys and values, quoted where YAML needs it."""
    return [f"  {name}: {_scalar(value)}" for name, value in entries]


def _scalar(value: object) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")
