"""The command line: parse, call, print."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import click

from dpdask.errors import DpdaskError, InvalidSpec

__all__ = ["main"]


class _Group(click.Group):
    """Turns our errors into one line on standard error and exit code 2."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except DpdaskError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(2)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dpdask")
def main() -> None:
    """Calibrate, compare and (soon) release: differential privacy for large tensors."""


@main.command()
@click.argument("spec_path", metavar="SPEC.yaml")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def calibrate(spec_path: str, as_json: bool) -> None:
    """The noise and the guarantee that SPEC.yaml asks for."""
    from dpdask.mechanisms import calibrate as calibrate_spec
    from dpdask.spec import load_calibration_spec

    spec = load_calibration_spec(spec_path)
    calibrated = calibrate_spec(spec)
    _warn(calibrated.warnings)
    if as_json:
        _print_json(calibrated.describe())
        return
    from dpdask.tables import calibration_table

    _console().print(calibration_table(spec.mechanism.name, calibrated))


@main.command()
@click.option("--epsilon", type=float, required=True)
@click.option("--delta", type=float, required=True)
@click.option("--shape", required=True, help="Lengths of the axes, such as 1000x100.")
@click.option("--l2-sensitivity", type=float, help="How far one privacy unit can move the tensor, in l2 norm.")
@click.option("--range", "ranges", multiple=True, metavar="LOW,HIGH", help="Public range; once for all or once per feature.")
@click.option("--record-axis", type=int, help="The axis along which records lie.")
@click.option("--feature-axis", type=int, help="The axis along which ranges and weights lie.")
@click.option("--weights", metavar="W1,W2,...", help="Importance of each feature's error.")
@click.option("--gamma", type=float, help="Public bound on ||f||, for MVG.")
@click.option("--adjacency", default="replace-one", help="replace-one or add-remove-one.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def compare(
    epsilon: float,
    delta: float,
    shape: str,
    l2_sensitivity: float | None,
    ranges: tuple[str, ...],
    record_axis: int | None,
    feature_axis: int | None,
    weights: str | None,
    gamma: float | None,
    adjacency: str,
    as_json: bool,
) -> None:
    """Every mechanism side by side at the same budget."""
    from dpdask.compare import compare_mechanisms
    from dpdask.spec import parse_calibration_spec

    sensitivity = {
        "l2": l2_sensitivity,
        "ranges": [_numbers("--range", pair) for pair in ranges] or None,
        "record_axis": record_axis,
        "feature_axis": feature_axis,
        "adjacency": adjacency,
    }
    spec = parse_calibration_spec(
        {
            "shape": [_whole("--shape", part) for part in shape.lower().split("x")],
            "privacy": {"epsilon": epsilon, "delta": delta},
            "sensitivity": {key: value for key, value in sensitivity.items() if value is not None},
            "mechanism": {"name": "analytic-gaussian"},
        }
    )
    tensor_shape = tuple(spec.shape)
    comparison = compare_mechanisms(
        budget=spec.privacy.budget(),
        body=spec.sensitivity.body(tensor_shape),
        shape=tensor_shape,
        gamma=gamma if gamma is not None else spec.sensitivity.norm_bound(tensor_shape),
        weights=None if weights is None else _numbers("--weights", weights),
    )
    if as_json:
        _print_json(comparison.describe())
        return
    from dpdask.tables import comparison_table, notes

    console = _console()
    console.print(comparison_table(comparison))
    console.print(notes(comparison))


@main.group()
def ledger() -> None:
    """What datasets may spend and have spent."""


def _ledger_options(command: Callable[..., None]) -> Callable[..., None]:
    command = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")(command)
    return click.option(
        "--ledger",
        "url",
        envvar="DPDASK_LEDGER",
        default="sqlite:///dpdask-ledger.db",
        show_default=True,
        help="Database URL; also from DPDASK_LEDGER.",
    )(command)


@ledger.command("init")
@click.argument("dataset")
@click.option("--epsilon", type=float, required=True, help="All that the dataset may ever spend.")
@click.option("--delta", type=float, required=True)
@_ledger_options
def ledger_init(dataset: str, epsilon: float, delta: float, url: str, as_json: bool) -> None:
    """Open DATASET with its total budget; a total never changes."""
    from dpdask.ledger import Ledger
    from dpdask.privacy import PrivacyBudget

    total = PrivacyBudget(epsilon=epsilon, delta=delta)
    Ledger(url).open_dataset(dataset, total)
    if as_json:
        _print_json({"dataset": dataset, "epsilon": total.epsilon, "delta": total.delta})
    else:
        click.echo(f"dataset {dataset}: epsilon {total.epsilon:g}, delta {total.delta:g} in total")


@ledger.command("list")
@_ledger_options
def ledger_list(url: str, as_json: bool) -> None:
    """All datasets with what they have spent."""
    from dpdask.ledger import Ledger
    from dpdask.tables import ledger_table

    book = Ledger(url)
    states = [book.state(name) for name in book.datasets()]
    if as_json:
        _print_json({"datasets": [state.describe() for state in states]})
    else:
        _console().print(ledger_table(states))


@ledger.command("show")
@click.argument("dataset")
@_ledger_options
def ledger_show(dataset: str, url: str, as_json: bool) -> None:
    """One dataset and its releases."""
    from dpdask.ledger import Ledger
    from dpdask.tables import ledger_table, release_table

    state = Ledger(url).state(dataset)
    if as_json:
        _print_json(state.describe())
    else:
        _console().print(ledger_table([state]))
        _console().print(release_table(state))


@ledger.command("verify")
@_ledger_options
def ledger_verify(url: str, as_json: bool) -> None:
    """Recompute the chain of hashes of every dataset."""
    from dpdask.ledger import Ledger

    rows = Ledger(url).verify()
    if as_json:
        _print_json({"entries": rows, "intact": True})
    else:
        click.echo(f"{rows} entries, every chain intact")


def _numbers(option: str, text: str) -> list[float]:
    return [_parsed(option, part, float, "a number") for part in text.split(",")]


def _whole(option: str, text: str) -> int:
    return int(_parsed(option, text, int, "a whole number"))


def _parsed(option: str, text: str, kind: Callable[[str], float], what: str) -> float:
    try:
        return kind(text)
    except ValueError:
        raise InvalidSpec(f"{option}: {text!r} is not {what}; separate shapes by x and numbers by commas") from None


def _warn(warnings: tuple[str, ...]) -> None:
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)


def _print_json(facts: dict[str, Any]) -> None:
    click.echo(json.dumps(_finite(facts), indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    """The value with infinities and NaN spelled as null, which JSON can carry."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    return value


def _console() -> Any:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 150)
