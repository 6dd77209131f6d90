"""Commands of a release: run, resume, abort, show, verify, registry, demo."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING

import click

from dpdask.cli.interrupts import interruptible
from dpdask.cli.printing import (
    console,
    json_option,
    numbers,
    options_option,
    parsed_options,
    print_json,
)
from dpdask.errors import InvalidSpec

if TYPE_CHECKING:
    from dpdask.execution import OnProgress, Progress
    from dpdask.releases.closing import Receipt

__all__ = ["abort", "demo", "flow_module", "registry", "resume", "run", "serve", "show", "verify"]


@click.command()
@click.argument("spec_path", metavar="SPEC.yaml")
@json_option
def run(spec_path: str, as_json: bool) -> None:
    """Publish the release that SPEC.yaml describes."""
    with interruptible() as interruption:
        from dpdask.releases.api import release
        from dpdask.spec import load_release_spec

        spec = load_release_spec(spec_path)
        interruption.begin(spec_path, spec)
        with _progress(as_json) as watch:
            receipt = release(spec, on_progress=watch)
        _print_receipt(receipt, as_json)


@click.command()
@click.argument("spec_path", metavar="SPEC.yaml")
@json_option
def resume(spec_path: str, as_json: bool) -> None:
    """Finish an interrupted release: the same noise, no further charge."""
    with interruptible() as interruption:
        from dpdask.releases.api import resume as resume_release
        from dpdask.spec import load_release_spec

        spec = load_release_spec(spec_path)
        interruption.begin(spec_path, spec)
        with _progress(as_json) as watch:
            receipt = resume_release(spec, on_progress=watch)
        _print_receipt(receipt, as_json)


@click.command()
@click.argument("spec_path", metavar="[SPEC.yaml]", required=False)
@click.option(
    "--release",
    "name",
    help="Instead of a spec: the name of an open release, or its beginning, as in the ledger.",
)
@click.option(
    "--ledger", "ledger_url", help="The ledger of --release; by default from DPDASK_LEDGER."
)
@click.option(
    "--never-published",
    is_flag=True,
    help="You declare that nobody can see the release, now or later.",
)
@options_option
def abort(
    spec_path: str | None,
    name: str | None,
    ledger_url: str | None,
    never_published: bool,
    options: tuple[str, ...],
) -> None:
    """Abort an interrupted release; what was charged stays charged."""
    from dpdask.releases.api import abort as abort_release
    from dpdask.releases.api import abort_named

    if (spec_path is None) == (name is None):
        raise InvalidSpec("say which release: SPEC.yaml or --release NAME, one of them")
    if spec_path is not None:
        aborted = abort_release(spec_path)
    else:
        aborted = abort_named(
            str(name), ledger_url, parsed_options(options), never_published=never_published
        )
    if aborted is None:
        click.echo(
            "the damaged output lock was removed; `dpdask run` continues with what was charged, if"
            " anything was"
        )
        return
    click.echo(
        f"release {aborted[:12]} is aborted: its key is destroyed, nothing was published, what"
        " was charged stays"
    )


@click.command()
@click.argument("url")
@click.option(
    "--html",
    "page_path",
    metavar="PAGE.html",
    help="Write the numbers and the card as one page for a browser, after verifying the files.",
)
@options_option
@json_option
def show(url: str, page_path: str | None, options: tuple[str, ...], as_json: bool) -> None:
    """The release card of a published array."""
    from dpdask.releases.read import read_card
    from dpdask.views.terminal import card_table

    if page_path is not None:
        from dpdask.cli.page import write_page

        write_page(url, page_path, parsed_options(options))
        return
    card = read_card(url, parsed_options(options))
    if as_json:
        print_json(card.model_dump(mode="json"))
    else:
        console().print(card_table(card))


@click.command()
@click.argument("url")
@click.option("--ledger", "ledger_url", help="Also check that this ledger committed the release.")
@click.option(
    "--trust",
    "trust_path",
    metavar="CURATOR.pub",
    help="Also check that the owner of this public key signed it.",
)
@options_option
@json_option
def verify(
    url: str,
    ledger_url: str | None,
    trust_path: str | None,
    options: tuple[str, ...],
    as_json: bool,
) -> None:
    """Recompute a release's digests, schema and guarantee, and check its signature."""
    from dpdask.ledger import Ledger
    from dpdask.releases.verify import verify_release
    from dpdask.signing import read_public_key

    ledger = None if ledger_url is None else Ledger(ledger_url, create=False)
    trust = None if trust_path is None else read_public_key(trust_path)
    card = verify_release(url, parsed_options(options), ledger=ledger, trust=trust)
    objects = 0 if card.manifest is None else card.manifest.objects
    if as_json:
        print_json(
            {
                "release_id": card.release_id,
                "intact": True,
                "objects": objects,
                "ledger": ledger is not None,
                "signed_by": card.signed_by,
                "trusted": trust is not None,
            }
        )
        return
    checked = "" if ledger is None else "; the ledger committed this card and manifest"
    click.echo(
        f"release {card.release_id[:12]}: {objects} objects, card and guarantee hold{checked}"
    )
    if card.signed_by is None:
        click.echo("unsigned: no signature shows who published it")
    elif trust is None:
        click.echo(
            f"signed by {card.signed_by}, a key that anybody may have created: check it with"
            " --trust CURATOR.pub"
        )
    else:
        click.echo(f"signed by {card.signed_by}, the trusted key")


@click.command()
@click.argument("url")
@options_option
def registry(url: str, options: tuple[str, ...]) -> None:
    """The release as an entry of the OpenDP deployments registry, in YAML."""
    import yaml

    from dpdask.releases.read import read_card
    from dpdask.releases.registry import registry_entry

    click.echo(
        yaml.safe_dump(
            registry_entry(read_card(url, parsed_options(options))),
            sort_keys=False,
            allow_unicode=True,
        ),
        nl=False,
    )


@click.command()
@click.option(
    "--flow",
    "as_flow",
    is_flag=True,
    help="Run the release as a Prefect flow, with no server configured.",
)
@click.option(
    "--folder", default=None, help="A new folder for the demo; by default dpdask-demo, -2, -3, ..."
)
def demo(as_flow: bool, folder: str | None) -> None:
    """Generate a tensor, release it, show its card, with embedded defaults."""
    with interruptible() as interruption:
        from dpdask.cli.demo import prepare_demo
        from dpdask.releases.api import release
        from dpdask.releases.read import read_card
        from dpdask.spec import load_release_spec
        from dpdask.views.terminal import card_table

        prepared = prepare_demo(folder)
        click.echo(f"a generated tensor, a ledger and a spec are in {prepared.folder}")
        interruption.begin(str(prepared.spec), load_release_spec(prepared.spec))
        with _progress(False) as watch:
            if as_flow:
                flow_module("privatize").run_watched(prepared.spec, watch)
            else:
                release(prepared.spec, on_progress=watch)
    output = f"{prepared.folder}/released.zarr"
    console().print(card_table(read_card(output)))
    click.echo(f"published: {output} (array readings)")
    click.echo("Read it:")
    here = f"{os.path.dirname(sys.executable)}/" if sys.prefix != sys.base_prefix else ""
    here = os.path.relpath(here) + "/" if here else ""
    click.echo(
        f"    {here}python -c \"import xarray; print(xarray.open_zarr('{output}')['readings'])\""
    )
    click.echo(f"    {here}dpdask show {output}")
    click.echo(f"    {here}dpdask verify {output} --ledger {prepared.ledger}")
    click.echo(f"    {here}dpdask ledger show demo --ledger {prepared.ledger}")


@click.command()
@click.argument("spec_path", metavar="SPEC.yaml")
@click.option("--every", type=float, help="Seconds between runs.")
@click.option("--cron", help="A cron expression, such as '0 6 * * *'.")
@click.option("--series", help="Release what is new since the last run, under this name.")
@click.option("--axis", type=int, help="The axis along which a series grows.")
@click.option("--max-window", type=int, help="At most so many new indices per run of a series.")
@click.option(
    "--align-to-chunks",
    is_flag=True,
    help="End windows of a series where a chunk of the source ends.",
)
@click.option(
    "--start-index",
    type=click.IntRange(min=0),
    default=0,
    help="Where a series without releases begins.",
)
@click.option(
    "--grace",
    type=click.IntRange(min=0),
    default=0,
    help="So many of the newest indices wait for data that arrive late.",
)
@click.option(
    "--max-burns",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="A series stops after so many burned releases in a row.",
)
@click.option(
    "--backfill",
    metavar="START,STOP",
    help="Release old indices that no window of the series has, instead of new ones.",
)
@click.option(
    "--rate-limit",
    metavar="EPSILON,DELTA,DAYS",
    help="What the dataset may spend in any stretch of days.",
)
def serve(
    spec_path: str,
    every: float | None,
    cron: str | None,
    series: str | None,
    axis: int | None,
    max_window: int | None,
    align_to_chunks: bool,
    start_index: int,
    grace: int,
    max_burns: int,
    backfill: str | None,
    rate_limit: str | None,
) -> None:
    """Run SPEC.yaml on a schedule, in a process that stays (Prefect)."""
    flow_module("serve").serve(
        spec_path,
        every=every,
        cron=cron,
        series=series,
        axis=axis,
        rate_limit=_parsed_rate_limit(rate_limit),
        max_window=max_window,
        align_to_chunks=align_to_chunks,
        start_index=start_index,
        grace=grace,
        max_burns=max_burns,
        backfill=_parsed_backfill(backfill),
    )


def _parsed_backfill(text: str | None) -> tuple[int, int] | None:
    """Return START,STOP as two indices."""
    if text is None:
        return None
    try:
        start, stop = map(int, text.split(","))
    except ValueError:
        start, stop = 0, 0
    if not 0 <= start < stop:
        raise click.BadParameter(
            f"{text!r} is not START,STOP; give two indices, such as 0,365", param_hint="--backfill"
        )
    return start, stop


def _parsed_rate_limit(text: str | None) -> dict[str, float] | None:
    """Return EPSILON,DELTA,DAYS by name."""
    if text is None:
        return None
    values = numbers("--rate-limit", text)
    if len(values) != 3:
        raise InvalidSpec(f"--rate-limit {text!r} is not EPSILON,DELTA,DAYS; give three numbers")
    return dict(zip(("epsilon", "delta", "days"), values, strict=True))


def flow_module(name: str) -> ModuleType:
    """Return a module of the flows, which import Prefect; nothing else here does."""
    try:
        return importlib.import_module(f"dpdask.flows.{name}")
    except ModuleNotFoundError:
        raise InvalidSpec(
            "flows need Prefect, which is not installed; pip install 'dpdask[flows]'"
        ) from None


def _print_receipt(receipt: Receipt, as_json: bool) -> None:
    from dpdask.views.terminal import card_table

    if as_json:
        print_json(
            {"release_id": receipt.release_id, "output": receipt.output, "array": receipt.array}
        )
        return
    console().print(card_table(receipt.card))
    click.echo(f"published: {receipt.output} (array {receipt.array})")


@contextlib.contextmanager
def _progress(silent: bool) -> Iterator[OnProgress | None]:
    """Show a bar for each stage on standard error."""
    if silent or os.environ.get("DPDASK_NO_PROGRESS"):
        yield None
        return
    from rich import progress as rich_progress
    from rich.console import Console

    columns = (
        rich_progress.TextColumn("{task.description:>14}"),
        rich_progress.BarColumn(),
        rich_progress.MofNCompleteColumn(),
        rich_progress.TimeElapsedColumn(),
    )
    with rich_progress.Progress(*columns, console=Console(stderr=True)) as bars:
        known: dict[str, rich_progress.TaskID] = {}

        def watch(progress: Progress) -> None:
            if progress.stage not in known:
                known[progress.stage] = bars.add_task(progress.stage, total=progress.total)
            bars.update(known[progress.stage], completed=progress.done, total=progress.total)

        yield watch
