"""Commands of the ledger: open datasets, show budgets, verify chains, upgrade."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from dpdask.cli.printing import console, options_option, parsed_options, print_json

if TYPE_CHECKING:  # most commands need no database
    from dpdask.ledger import Ledger, LedgerHead
    from dpdask.privacy import PrivacyBudget
    from dpdask.types import Json

__all__ = ["ledger"]


@click.group()
def ledger() -> None:
    """Open datasets, show what they have spent, verify the ledger."""


def _ledger_options(command: Callable[..., None]) -> Callable[..., None]:
    json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
    url_option = click.option(
        "--ledger",
        "url",
        envvar="DPDASK_LEDGER",
        default="sqlite:///dpdask-ledger.db",
        show_default=True,
        help="Database URL; also from DPDASK_LEDGER.",
    )
    return url_option(json_option(command))


@ledger.command("init")
@click.argument("dataset")
@click.option("--epsilon", type=float, required=True, help="All that the dataset may ever spend.")
@click.option("--delta", type=float, help="Needed by the policy adaptive; pure spends none.")
@click.option(
    "--policy",
    type=click.Choice(["adaptive", "pure"]),
    default="adaptive",
    show_default=True,
    help="How charges add up: mu^2 of all releases, or epsilon of those with delta 0.",
)
@click.option(
    "--bare-keys",
    is_flag=True,
    help="Store release keys of a new ledger unwrapped, readable in every backup.",
)
@_ledger_options
def ledger_init(
    dataset: str,
    epsilon: float,
    delta: float | None,
    policy: str,
    bare_keys: bool,
    url: str,
    as_json: bool,
) -> None:
    """Open DATASET with its total budget; a total and a policy never change.

    A new ledger wraps its release keys by DPDASK_MASTER_KEY, DPDASK_MASTER_KEY_FILE, or a master
    key that is created in your configuration folder.
    """
    from dpdask.ledger import Ledger

    total = _total(epsilon, delta, policy)
    opened = Ledger(url, bare_keys=True if bare_keys else None)
    opened.open_dataset(dataset, total, policy)
    if as_json:
        print_json(
            {
                "dataset": dataset,
                "epsilon": total.epsilon,
                "delta": total.delta,
                "policy": policy,
                "bare_keys": opened.bare_keys,
            }
        )
    else:
        click.echo(f"dataset {dataset}: epsilon {total.epsilon:g}, delta {total.delta:g} in total")
        click.echo(f"release keys: {_key_storage(opened.bare_keys)}")


def _total(epsilon: float, delta: float | None, policy: str) -> PrivacyBudget:
    """Return the total of a dataset by what was given of it."""
    from dpdask.privacy import PrivacyBudget, PureBudget

    if policy == "pure":
        return PureBudget(epsilon=epsilon, delta=0.0 if delta is None else delta)
    if delta is None:
        raise click.UsageError("Missing option '--delta'.")
    return PrivacyBudget(epsilon=epsilon, delta=delta)


@ledger.command("list")
@_ledger_options
def ledger_list(url: str, as_json: bool) -> None:
    """List all datasets with what they have spent."""
    from dpdask.ledger import Ledger
    from dpdask.views.terminal import ledger_table

    opened = Ledger(url, create=False)
    states = [opened.state(name) for name in opened.datasets()]
    if as_json:
        print_json({"datasets": [state.to_dict() for state in states]})
    else:
        console().print(ledger_table(states))


@ledger.command("show")
@click.argument("dataset")
@click.option("--zcdp", is_flag=True, help="Also print what is spent as rho.")
@_ledger_options
def ledger_show(dataset: str, zcdp: bool, url: str, as_json: bool) -> None:
    """Show one dataset and its releases."""
    from dpdask.ledger import Ledger
    from dpdask.views.terminal import axis_table, ledger_table, release_table

    state = Ledger(url, create=False).state(dataset)
    if as_json:
        print_json(state.to_dict())
    else:
        console().print(ledger_table([state]))
        if state.axes:
            console().print(axis_table(state))
        console().print(release_table(state))
    if zcdp and not as_json:
        rho, delta = state.zcdp
        click.echo(f"zCDP: rho {rho:.6g}{f' beside delta {delta:.3g}' if delta else ''}")


@ledger.command("head")
@click.argument("dataset", required=False)
@click.option(
    "--sign",
    is_flag=True,
    help="Sign each head and the time with the curator's key; print JSON to be kept elsewhere.",
)
@_ledger_options
def ledger_head(dataset: str | None, sign: bool, url: str, as_json: bool) -> None:
    """Show the newest entry of DATASET, or of all datasets: its position and hash.

    Keep it elsewhere: a ledger that was rolled back, or rewritten, does not contain it.
    """
    from dpdask.ledger import Ledger

    opened = Ledger(url, create=False)
    names = _datasets(opened) if dataset is None else [dataset]
    heads = [opened.head(name) for name in names]
    if sign:
        print_json({"heads": [_signed(head) for head in heads]})
    elif as_json:
        print_json({"heads": [head.to_dict() for head in heads]})
    else:
        for head in heads:
            click.echo(f"{head.dataset} {head.sequence} {head.hash}")


def _datasets(opened: Ledger) -> list[str]:
    """Return the names of all datasets; a ledger without any is the wrong one, or lost."""
    from dpdask.errors import LedgerError

    names = opened.datasets()
    if not names:
        raise LedgerError(
            "the ledger holds no dataset, so there is nothing to look at; check its address"
        )
    return names


def _signed(head: LedgerHead) -> Json:
    """Return a head, the time, and the curator's signature over both."""
    from dpdask.errors import InvalidKey
    from dpdask.signing import load_signing_key, sign_head

    key = load_signing_key()
    if key is None:
        raise InvalidKey(
            "no signing key is configured; create one by `dpdask key create`, or set"
            " DPDASK_SIGNING_KEY"
        )
    return sign_head(key, head, at=datetime.now(UTC).isoformat(timespec="seconds"))


@ledger.command("upgrade")
@click.option(
    "--bare-keys", is_flag=True, help="Store release keys unwrapped, readable in every backup."
)
@_ledger_options
def ledger_upgrade(bare_keys: bool, url: str, as_json: bool) -> None:
    """Upgrade a ledger of an earlier dpdask in one transaction; every entry is kept."""
    from dpdask.ledger import Ledger, upgrade_ledger

    upgraded = upgrade_ledger(url, bare_keys=bare_keys)
    if as_json:
        print_json({"datasets": [state.to_dict() for state in upgraded]})
        return
    for state in upgraded:
        click.echo(
            f"dataset {state.name}: epsilon {state.spent_epsilon:.6g} of {state.total.epsilon:g}"
            " spent"
        )
        if state.overspent:
            click.echo(
                f"warning: dataset {state.name!r} has spent more than its total by the sum of"
                " mu^2, which also holds for releases chosen after others were seen; it takes no"
                " further release",
                err=True,
            )
    click.echo(f"release keys: {_key_storage(Ledger(url, create=False).bare_keys)}")


def _key_storage(bare: bool) -> str:
    if bare:
        return "stored bare, readable by whoever reads the database"
    return "wrapped by the master key, which is kept elsewhere"


@ledger.command("verify")
@_ledger_options
def ledger_verify(url: str, as_json: bool) -> None:
    """Recompute every chain, charge and sum, and check that no total was passed.

    Changes nothing. A database without a ledger, or a ledger without a dataset, is an error.
    """
    from dpdask.ledger import Ledger

    opened = Ledger(url, create=False)
    _datasets(opened)
    rows = opened.verify()
    if as_json:
        print_json({"entries": rows, "intact": True})
    else:
        click.echo(f"{rows} entries, every chain, charge and sum intact")


@ledger.command("reconcile")
@click.argument("outputs", nargs=-1, metavar="OUTPUT...")
@click.option("--spec", "spec_path", help="The spec of these releases, or of their series.")
@click.option("--series", help="The name of the series that they are windows of.")
@click.option(
    "--charge-missing",
    is_flag=True,
    help="Then charge what is still missing of what was seen here: aborted releases leave it.",
)
@options_option
@_ledger_options
def ledger_reconcile(
    outputs: tuple[str, ...],
    spec_path: str | None,
    series: str | None,
    charge_missing: bool,
    options: tuple[str, ...],
    url: str,
    as_json: bool,
) -> None:
    """Restore the charges of published OUTPUTs after a backup of the ledger was restored.

    Charges that the ledger has forgotten are recorded again, from the cards of the releases, and
    releases that are published but open are committed. Idempotent.
    """
    from dpdask.ledger import Ledger
    from dpdask.releases.reconcile import missing_sums, reconcile
    from dpdask.spec import load_release_spec

    opened = Ledger(url, create=False)
    spec = None if spec_path is None else load_release_spec(spec_path)
    parsed = parsed_options(options)
    reconciled = [reconcile(opened, output, parsed, spec, series) for output in outputs]
    behind = missing_sums(opened, _datasets(opened), charge=charge_missing)
    if as_json:
        print_json({"releases": [one.to_dict() for one in reconciled], "behind": behind})
    else:
        for one in reconciled:
            click.echo(f"{one.url}: release {one.release_id[:12]} {one.standing}")
        for dataset in behind:
            click.echo(
                f"warning: of dataset {dataset!r} less is charged than was seen here; name further"
                " outputs, or give --charge-missing",
                err=True,
            )
