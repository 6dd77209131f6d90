"""The command that runs the experiments of the papers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpdask.cli.printing import console, json_option, print_json
from dpdask.errors import InvalidSpec

if TYPE_CHECKING:
    from dpdask.views.rows import Record
    from dpdask_studies.study import Outcome, Study

__all__ = ["study"]


@click.command()
@click.argument("name", required=False)
@click.option("--list", "show_list", is_flag=True, help="List all studies.")
@click.option("--data", type=click.Path(path_type=Path), help="A file of yours; see --list.")
@click.option("--quick", is_flag=True, help="Fewer trials and smaller matrices: seconds.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw into FILE.svg, .png or .pdf.")
@json_option
def study(
    name: str | None,
    show_list: bool,
    data: Path | None,
    quick: bool,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Run an experiment of a paper: what is printed, what formulas give, what releases give."""
    from dpdask_studies import registry, render

    if show_list:
        records = render.list_records(registry.studies())
        _print_list(records, as_json)
        return
    if name is None:
        raise InvalidSpec(f"name a study: {', '.join(registry.NAMES)}; --list describes them")
    chosen = registry.study(name)
    _check_files(chosen, data, plot)
    start = time.monotonic()
    outcome = chosen.run(quick, data)
    seconds = time.monotonic() - start
    if plot is not None:
        from dpdask_studies.plots import save

        save(outcome.charts, plot)
    if as_json:
        print_json(render.outcome_dict(chosen, outcome, quick=quick))
        return
    _print_outcome(chosen, outcome, seconds)


def _check_files(chosen: Study, data: Path | None, plot: Path | None) -> None:
    """Refuse what can be refused before a study runs for minutes."""
    if data is not None and chosen.file is None:
        raise InvalidSpec(f"study {chosen.name} takes no data; leave out --data")
    if data is not None and not data.is_file():
        raise InvalidSpec(f"{str(data)!r} is not a file; --data takes {chosen.file}")
    if plot is not None:
        from dpdask_studies.plots import check_path

        check_path(plot)


def _print_list(records: list[Record], as_json: bool) -> None:
    if as_json:
        from dpdask.views.markdown import records_to_objects

        print_json({"studies": records_to_objects(records)})
        return
    from dpdask.views.terminal import records_table

    console().print(records_table(records))


def _print_outcome(chosen: Study, outcome: Outcome, seconds: float) -> None:
    from dpdask.views.terminal import records_table
    from dpdask_studies.render import outcome_records

    screen = console()
    screen.print(f"{chosen.title} ({chosen.paper})", markup=False, highlight=False)
    screen.print(f"data: {outcome.data}", markup=False, highlight=False)
    screen.print(records_table(outcome_records(outcome)))
    for note in outcome.notes:
        screen.print(f"- {note}", markup=False, highlight=False)
    screen.print(f"{seconds:.1f} s", markup=False, highlight=False)
