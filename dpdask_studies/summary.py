"""Write docs/studies.md and its plots from one run of all studies.

    python -m dpdask_studies.summary docs/studies.md

runs them in full, which takes some ten minutes; ``--quick`` shows whether the page can be written.
"""

from __future__ import annotations

import datetime
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path

import click

import dpdask
from dpdask.views.markdown import records_markdown
from dpdask.views.rows import Record, Row
from dpdask_studies.plots import save
from dpdask_studies.registry import studies
from dpdask_studies.render import list_records, outcome_markdown
from dpdask_studies.study import Outcome, Study, Verdict
from dpdask_studies.unreproduced import unreproduced_records

__all__ = ["write_page"]

_MARK = "<!-- written by python -m dpdask_studies.summary -->"


def write_page(page: Path, chosen: Sequence[Study], *, quick: bool) -> None:
    """Run studies; replace what follows the mark in a page by what they found, and draw.

    Args:
        page: The page, which holds the mark; plots go to a folder beside it, of its name.
        chosen: The studies.
        quick: Whether they are to be quick.
    """
    text = page.read_text()
    if _MARK not in text:
        raise click.UsageError(f"{page} has no line {_MARK}; add one where the results are to be")
    head = text.partition(_MARK)[0]
    plots = page.with_suffix("")
    plots.mkdir(exist_ok=True)
    sections, totals = [], []
    for study in chosen:
        start = time.monotonic()
        outcome = study.run(quick, None)
        seconds = time.monotonic() - start
        click.echo(f"{study.name}: {seconds:.0f} s")
        totals.append(_total(study, outcome, seconds))
        plot = plots / f"{study.name}.svg"
        save(outcome.charts, plot)
        sections += [
            outcome_markdown(study, outcome),
            f"![{study.title}]({plots.name}/{plot.name})",
        ]
    parts = [
        head + _MARK,
        _made_by(quick),
        "## All studies",
        records_markdown([row[:4] for row in list_records(chosen)]),
        records_markdown(totals),
        "## What cannot be reproduced",
        records_markdown(unreproduced_records()),
        *sections,
    ]
    page.write_text("\n\n".join(parts) + "\n")


def _total(study: Study, outcome: Outcome, seconds: float) -> Record:
    verdicts = [line.verdict for line in outcome.lines]
    shown = (Verdict.REPRODUCED, Verdict.DIFFERS, Verdict.NOT_PRIVATE, Verdict.CERTIFIED)
    return [
        Row("study", study.name),
        *(Row(str(verdict), str(verdicts.count(verdict))) for verdict in shown),
        Row("seconds", f"{seconds:.0f}"),
    ]


def _made_by(quick: bool) -> str:
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    kind = "`--quick`" if quick else "in full"
    return (
        f"Run {kind} on {day} with dpdask {dpdask.__version__}, Python"
        f" {platform.python_version()}, {platform.system()} {platform.machine()},"
        f" {os.cpu_count()} processors. Noise is new in every run, so measured numbers differ."
    )


@click.command()
@click.argument("page", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--quick", is_flag=True, help="Fewer trials and smaller matrices.")
def _main(page: Path, quick: bool) -> None:
    """Run all studies and write PAGE."""
    write_page(page, studies(), quick=quick)


if __name__ == "__main__":
    _main()
