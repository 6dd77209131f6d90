"""Tables for people: what the commands print when nobody asked for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from dpdask.mechanisms import Calibration
from dpdask.mechanisms.compare import Comparison
from dpdask.types import Json

if TYPE_CHECKING:  # the other tables do not need a database
    from dpdask.ledger import DatasetState
    from dpdask.releases.card import ReleaseCard

__all__ = [
    "calibration_table",
    "card_table",
    "comparison_table",
    "ledger_table",
    "notes",
    "plan_table",
    "release_table",
]


def calibration_table(name: str, calibrated: Calibration) -> Table:
    """One mechanism's noise and guarantee."""
    table = Table(title=f"{name}", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    noise, guarantee = calibrated.noise, calibrated.guarantee
    claimed, verified = guarantee.claimed, guarantee.verified
    table.add_row(
        "noise", f"{noise.to_dict()['name']} on {' x '.join(map(str, noise.tensor_shape))}"
    )
    table.add_row("std of an entry", f"{noise.entry_std:.6g}")
    table.add_row("expected squared loss", f"{noise.expected_squared_loss:.6g}")
    table.add_row("loss kurtosis, skewness", f"{noise.kurtosis:.6g}, {noise.skewness:.6g}")
    for key, value in calibrated.calibration.items():
        table.add_row(key, f"{value:.12g}")
    table.add_row(
        "claimed", f"epsilon {claimed.epsilon:.6g}, delta {claimed.delta:.6g}: {guarantee.theorem}"
    )
    table.add_row(
        "verified",
        f"epsilon {verified.epsilon(claimed.delta):.6g} at delta {claimed.delta:.6g};"
        f" delta {verified.delta(claimed.epsilon):.6g} at epsilon {claimed.epsilon:.6g}",
    )
    table.add_row("certified", _verdict(guarantee.certified))
    table.add_row("reason", guarantee.reason)
    return table


def _verdict(certified: bool) -> Text:
    return Text("yes", style="green") if certified else Text("NO", style="bold red")


def comparison_table(comparison: Comparison) -> Table:
    """All mechanisms, best certified one first."""
    budget = comparison.budget
    weighted = "" if comparison.weights is None else "weighted "
    table = Table(title=f"epsilon {budget.epsilon:g}, delta {budget.delta:g}", title_justify="left")
    for heading in ("mechanism", "std of an entry", f"{weighted}squared loss", "relative"):
        table.add_column(heading, justify="left" if heading == "mechanism" else "right")
    table.add_column("claimed by")
    table.add_column(f"verified epsilon at {budget.delta:g}", justify="right")
    table.add_column(f"verified delta at {budget.epsilon:g}", justify="right")
    table.add_column("certified")
    best = comparison.best()
    for row in comparison.rows:
        if row.calibrated is None:
            continue
        guarantee = row.calibrated.guarantee
        table.add_row(
            row.mechanism,
            f"{row.calibrated.noise.entry_std:.4g}",
            f"{comparison.loss(row):.4g}",
            f"{comparison.loss(row) / best:.4g}",
            guarantee.theorem,
            f"{guarantee.verified.epsilon(budget.delta):.4g}",
            f"{guarantee.verified.delta(budget.epsilon):.4g}",
            _verdict(guarantee.certified),
        )
    return table


def notes(comparison: Comparison) -> Text:
    """Why a mechanism is missing or not certified, one line each."""
    lines = Text()
    for row in comparison.rows:
        if row.calibrated is None:
            lines.append(f"{row.mechanism}: not shown: {row.unavailable}\n")
            continue
        if not row.calibrated.guarantee.certified:
            lines.append(
                f"{row.mechanism}: not certified: {row.calibrated.guarantee.reason}\n", style="red"
            )
        if row.note:
            lines.append(f"{row.mechanism}: {row.note}\n")
    lines.rstrip()
    return lines


def ledger_table(states: Sequence[DatasetState]) -> Table:
    """Datasets with their totals and what is spent of them."""
    table = Table()
    for heading in ("dataset", "total epsilon", "delta", "spent epsilon", "releases"):
        table.add_column(heading, justify="left" if heading == "dataset" else "right")
    for state in states:
        table.add_row(
            state.name,
            f"{state.total.epsilon:g}",
            f"{state.total.delta:g}",
            f"{state.spent_epsilon:.6g}",
            str(len(state.releases)),
        )
    return table


def release_table(state: DatasetState) -> Table:
    """The releases of one dataset: public name, when charged, what it cost alone, where it went,
    its last step.
    """
    table = Table(
        "release", "charged at", f"epsilon at {state.total.delta:g}", "output", "last step"
    )
    for release, step in state.releases.items():
        facts = state.details[release]
        name, output = facts["name"] or release, facts["output"] or ""
        table.add_row(name, facts["at"], f"{facts['epsilon']:.4g}", output, step)
    return table


def _facts(title: str, rows: Sequence[tuple[str, Any]]) -> Table:
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    for name, value in rows:
        table.add_row(name, value if isinstance(value, Text) else str(value))
    return table


def _size(count: float) -> str:
    for privacy_unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.4g} {privacy_unit}"
        count /= 1000
    return f"{count:.4g} TB"


def _shape(sizes: Sequence[int]) -> str:
    return " x ".join(map(str, sizes))


def plan_table(facts: Json) -> Table:
    """A plan: what will be released, at what price, with how much work."""
    claimed, verified = facts["guarantee"]["claimed"], facts["guarantee"]["verified"]
    source, output, ledger = facts["source"], facts["output"], facts["ledger"]
    rows: list[tuple[str, Any]] = [
        (
            "source",
            f"{_shape(source['shape'])} {source['dtype']}, chunks {_shape(source['chunks'])}",
        ),
        ("query", facts["query"]["name"]),
        ("protects", facts["protects"]),
        (
            "output",
            f"{_shape(output['shape'])} {output['dtype']}, chunks {_shape(output['chunks'])}",
        ),
        ("sensitivity", f"{facts['sensitivity']:.6g} (l2, of the answer)"),
        *_cut(facts["bound"]),
        (
            "noise",
            f"{facts['expected_error']['noise']}, standard deviation"
            f" {facts['expected_error']['entry_std']:.6g} per entry",
        ),
        (
            "claimed",
            f"epsilon {claimed['epsilon']:g}, delta {claimed['delta']:g}: {claimed['theorem']}",
        ),
        ("verified", f"epsilon {verified['epsilon_at_delta']:.6g} at delta {claimed['delta']:g}"),
        ("certified", _verdict(facts["guarantee"]["certified"])),
    ]
    if ledger is not None:
        total = ledger["total"]
        spent = (
            f"epsilon {ledger['spent_before']:.6g} -> {ledger['spent_after']:.6g} of"
            f" {total['epsilon']:g}"
        )
        rows.append((f"dataset {ledger['dataset']}", f"{spent} at delta {total['delta']:g}"))
    rows += [
        ("work", f"{facts['tiles']} tiles of {_shape(facts['tile_shape'])}"),
        ("reads, writes", f"{_size(facts['bytes_to_read'])}, {_size(facts['bytes_to_write'])}"),
        ("memory", f"{_size(facts['peak_bytes_per_worker'])} per worker at most"),
    ]
    return _facts("plan", rows)


def _cut(bound: Json) -> list[tuple[str, str]]:
    """Where the entries of a finished result are cut, which has no bound of its own."""
    return [("entries", f"cut at +-{bound['clamped_at']:.6g}")] if "clamped_at" in bound else []


def _composed(card: ReleaseCard) -> list[tuple[str, str]]:
    """The steps of a stack and who was sampled for them."""
    composition, sampling = card.composition, card.composition.sampling
    rows = (
        []
        if composition.steps == 1
        else [("steps", f"{composition.steps}, declared independent of each other")]
    )
    if sampling is not None:
        text = (
            f"{sampling.of} at rate {sampling.rate:g}; a unit takes part with"
            f" {sampling.amplified_rate:.6g}"
        )
        rows.append(("sampled", text))
    return rows


def card_table(card: ReleaseCard) -> Table:
    """A release card for people."""
    claimed, verified = card.guarantee.claimed, card.guarantee.verified
    bound = {**card.privacy_unit.bound}
    kind = bound.pop("kind")
    privacy_unit = f"{card.privacy_unit.adjacency}, {kind}" + (
        f" {bound['norm']:g}" if "norm" in bound else ""
    )
    if card.privacy_unit.max_contributions > 1:
        privacy_unit += (
            f", at most {card.privacy_unit.max_contributions} records each"
            f" ({card.privacy_unit.contributions})"
        )
    return _facts(
        "release card",
        [
            ("release", card.release_id),
            *([("what", card.description)] if card.description else []),
            (
                "array",
                f"{card.released.array}: {_shape(card.released.shape)} {card.released.dtype}",
            ),
            ("query", card.query["name"]),
            ("protects", privacy_unit),
            *_cut(card.privacy_unit.bound),
            *_composed(card),
            ("mechanism", card.mechanism["name"]),
            (
                "noise",
                f"{card.noise['name']}, standard deviation {card.released.noise_std:.6g} per entry",
            ),
            ("exact", "yes" if card.grid["exact"] else "no: drawn in floating point"),
            ("claimed", f"epsilon {claimed.epsilon:g}, delta {claimed.delta:g}: {claimed.theorem}"),
            ("verified", f"epsilon {verified.epsilon_at_delta:.6g} at delta {claimed.delta:g}"),
            ("certified", _verdict(card.guarantee.certified)),
            (
                f"dataset {card.composition.dataset}",
                f"epsilon {card.composition.cumulative_epsilon:.6g} of"
                f" {card.composition.total.epsilon:g} spent"
                f" at delta {card.composition.total.delta:g}",
            ),
            ("not protected", "; ".join(card.unprotected)),
            *(
                [("manifest", f"{card.manifest.objects} objects, {card.manifest.root}")]
                if card.manifest
                else []
            ),
            ("ledger", f"entry {card.ledger.sequence}, {card.ledger.hash}"),
            ("signed by", card.signed_by or "nobody: it is unsigned"),
        ],
    )
