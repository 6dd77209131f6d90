"""Plans as rows: all of them for the curator, fewer for whoever is outside the trust boundary."""

from __future__ import annotations

from collections.abc import Callable

from dpdask.figures import number_text
from dpdask.types import Json
from dpdask.views.accuracy_rows import accuracy_rows
from dpdask.views.bound_rows import planned_bound_rows
from dpdask.views.card_rows import clamping_rows
from dpdask.views.rows import Row, query_text, shape_text, size_text, verdict

__all__ = ["plan_rows", "public_plan_rows", "unit_rows"]

_MANY = 10**6


def plan_rows(plan: Json) -> list[Row]:
    """Return what will be released, its privacy cost and its work, for people who may see the
    source.

    ``plan`` is what :meth:`dpdask.planning.ReleasePlan.to_dict` returns.
    """
    return [
        *_of_variables(plan, _source_rows),
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
        *_of_variables(plan, _answer_rows),
        *_guarantee_rows(plan["guarantee"]),
        *_ledger_rows(plan["ledger"]),
        *_of_variables(plan, _work_rows),
    ]


def unit_rows(plan: Json) -> list[Row]:
    """Return what one privacy unit is, without their number: it may leave the trust boundary."""
    return _of_variables(plan, lambda variable: [Row("protects", variable["unit"])])


def _of_variables(plan: Json, rows_of: Callable[[Json], list[Row]]) -> list[Row]:
    """Return rows of the only variable; of several, what all have in common, then those of each,
    their labels beginning with its name.
    """
    if "variables" not in plan:
        return rows_of(plan)
    rows = {name: rows_of(variable) for name, variable in plan["variables"].items()}
    first, *others = rows.values()
    common = [row for row in first if all(row in other for other in others)]
    own = [
        Row(f"{name} {row.label}", row.value, row.emphasis)
        for name, each in rows.items()
        for row in each
        if row not in common
    ]
    return common + own


def _source_rows(variable: Json) -> list[Row]:
    if "steps" in variable:
        return [
            Row("source", f"{variable['steps']['given']}, handed over step by step"),
            Row("protects", variable["protects"]),
            *_optional("missing", variable["missing"]),
        ]
    return [
        Row("source", _array(variable["source"])),
        *_optional("window", variable["window"]),
        Row("decodes", variable["decodes"]),
        Row("protects", variable["protects"]),
        *_optional("missing", variable["missing"]),
    ]


def _answer_rows(variable: Json) -> list[Row]:
    return [
        Row("query", query_text(variable["query"])),
        *_optional("groups", variable["groups"]),
        *_optional("centre", variable["center"]),
        Row("output", _array(variable["output"])),
        *_steps_rows(variable.get("steps")),
        Row("sensitivity", _sensitivity(variable)),
        *clamping_rows(variable["bound"]),
        *_choice_rows(variable["mechanism"]),
        *accuracy_rows(variable["expected_error"], variable["bound"]),
        *planned_bound_rows(variable["bound_chosen"]),
    ]


def _steps_rows(steps: Json | None) -> list[Row]:
    """Return how many steps there are, who is sampled, and the noise multiplier of each."""
    if steps is None:
        return []
    text = f"{steps['count']:,}"
    sampling, multiplier = steps["sampling"], steps["noise_multiplier"]
    if sampling is not None:
        text += f", each on a Poisson sample of {sampling['of']} at rate {sampling['rate']:g}"
    rows = [Row("steps", text)]
    if multiplier is not None:
        rows.append(Row("noise multiplier", f"{multiplier:.6g} in every step"))
    return rows


def _sensitivity(variable: Json) -> str:
    """Return the sensitivity, of what is released or of the parts that it is computed from."""
    return f"{number_text(variable['sensitivity'])} (l2, of {variable['sensitivity_of']})"


def _work_rows(variable: Json) -> list[Row]:
    tiles, shape = variable["tiles"], shape_text(variable["tile_shape"])
    each = " for each step" if "steps" in variable else ""
    return [Row("work", f"{tiles} {'tile' if tiles == 1 else 'tiles'} of {shape}{each}")]


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
        ),
        *_window_rows(ledger["window"]),
        *_more_rows(ledger["more"], again=ledger["window"] is not None),
    ]


def _window_rows(window: Json | None) -> list[Row]:
    """Return what a window is charged whose units are in no other one."""
    if window is None:
        return []
    return [
        Row(
            "window",
            f"its units lose epsilon {window['spent']:.6g}, and the largest window is charged; a"
            f" further window may spend up to {window['left']:.4g}",
        )
    ]


def _more_rows(more: int | None, *, again: bool) -> list[Row]:
    """Return how many more releases like this one fit; nothing where it is charged already."""
    if more is None:
        return []
    count = "a million or more" if more >= _MANY else f"{more:,}"
    return [Row("left for", f"{count} more like this one{' of this window' if again else ''}")]
