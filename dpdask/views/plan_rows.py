"""Plans as rows: all of them for the curator, fewer for whoever is outside the trust boundary."""

from __future__ import annotations

from dpdask.figures import number_text
from dpdask.types import Json
from dpdask.views.accuracy_rows import accuracy_rows
from dpdask.views.card_rows import clamping_rows
from dpdask.views.rows import Row, shape_text, size_text, verdict

__all__ = ["plan_rows", "public_plan_rows"]


def plan_rows(plan: Json) -> list[Row]:
    """Return what will be released, its privacy cost and its work, for people who may see the
    source.

    ``plan`` is what :meth:`dpdask.planning.ReleasePlan.to_dict` returns.
    """
    return [
        Row("source", _array(plan["source"])),
        Row("decodes", plan["decodes"]),
        Row("protects", plan["protects"]),
        *_optional("missing", plan["missing"]),
        *public_plan_rows(plan),
        Row(
            "reads, writes",
            f"{size_text(plan['bytes_to_read'])}, {size_text(plan['bytes_to_write'])}",
        ),
        Row("memory", f"{size_text(plan['peak_bytes_per_worker'])} per worker at most"),
    ]


def public_plan_rows(plan: Json) -> list[Row]:
    """Return the rows of a plan that may leave the trust boundary.

    Guarantee: nothing here says how many records the source has, which may be private; the release
    itself will show the rest.
    """
    return [
        Row("query", plan["query"]["name"]),
        *_optional("groups", plan["groups"]),
        *_optional("centre", plan["center"]),
        Row("output", _array(plan["output"])),
        Row("sensitivity", f"{number_text(plan['sensitivity'])} (l2, of the answer)"),
        *clamping_rows(plan["bound"]),
        *_choice_rows(plan["mechanism"]),
        *accuracy_rows(plan["expected_error"], plan["bound"]),
        *_guarantee_rows(plan["guarantee"]),
        *_ledger_rows(plan["ledger"]),
        Row("work", _work(plan["tiles"], plan["tile_shape"])),
    ]


def _optional(label: str, value: str | None) -> list[Row]:
    return [] if value is None else [Row(label, value)]


def _choice_rows(mechanism: Json) -> list[Row]:
    """Return why a mechanism was chosen; nothing where the spec names one."""
    if mechanism["reason"] is None:
        return []
    return [Row("mechanism", f"chosen by auto: {mechanism['reason']}")]


def _array(array: Json) -> str:
    chunks = shape_text(array["chunks"])
    return f"{shape_text(array['shape'])} {array['dtype']}, chunks {chunks}"


def _work(tiles: int, tile_shape: list[int]) -> str:
    return f"{tiles} {'tile' if tiles == 1 else 'tiles'} of {shape_text(tile_shape)}"


def _guarantee_rows(guarantee: Json) -> list[Row]:
    claimed, verified = guarantee["claimed"], guarantee["verified"]
    budget = f"epsilon {claimed['epsilon']:g}, delta {claimed['delta']:g}"
    return [
        Row("claimed", f"{budget}: {claimed['theorem']}"),
        Row(
            "verified", f"epsilon {verified['epsilon_at_delta']:.6g} at delta {claimed['delta']:g}"
        ),
        verdict(guarantee["certified"]),
    ]


def _ledger_rows(ledger: Json | None) -> list[Row]:
    """Return what the dataset has spent before and after; a plan without a ledger says nothing."""
    if ledger is None:
        return []
    total = ledger["total"]
    spent = f"epsilon {ledger['spent_before']:.6g} -> {ledger['spent_after']:.6g}"
    return [
        Row(
            f"dataset {ledger['dataset']}",
            f"{spent} of {total['epsilon']:g} at delta {total['delta']:g}",
        )
    ]
