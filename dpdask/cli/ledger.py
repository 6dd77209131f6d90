"""Commands of the ledger: open datasets, look at budgets, recompute chains."""

from __future__ import annotations

from collections.abc import Callable

import click

from dpdask.cli.printing import console, print_json

__all__ = ["ledger"]


@click.group()
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
        print_json({"dataset": dataset, "epsilon": total.epsilon, "delta": total.delta})
    else:
        click.echo(f"dataset {dataset}: epsilon {total.epsilon:g}, delta {total.delta:g} in total")


@ledger.command("list")
@_ledger_options
def ledger_list(url: str, as_json: bool) -> None:
    """All datasets with what they have spent."""
    from dpdask.ledger import Ledger
    from dpdask.tables import ledger_table

    book = Ledger(url, create=False)
    states = [book.state(name) for name in book.datasets()]
    if as_json:
        print_json({"datasets": [state.describe() for state in states]})
    else:
        console().print(ledger_table(states))


@ledger.command("show")
@click.argument("dataset")
@_ledger_options
def ledger_show(dataset: str, url: str, as_json: bool) -> None:
    """One dataset and its releases."""
    from dpdask.ledger import Ledger
    from dpdask.tables import ledger_table, release_table

    state = Ledger(url, create=False).state(dataset)
    if as_json:
        print_json(state.describe())
    else:
        console().print(ledger_table([state]))
        console().print(release_table(state))


@ledger.command("verify")
@_ledger_options
def ledger_verify(url: str, as_json: bool) -> None:
    """Recompute the chain of hashes of every dataset."""
    from dpdask.ledger import Ledger

    rows = Ledger(url, create=False).verify()
    if as_json:
        print_json({"entries": rows, "intact": True})
    else:
        click.echo(f"{rows} entries, every chain intact")
