"""The command that plans: what a release would do and cost."""

from __future__ import annotations

import click

from dpdask.cli.printing import console, json_option, numbers, print_json, warn

__all__ = ["plan"]


@click.command()
@click.argument("spec_path", metavar="SPEC.yaml")
@click.option(
    "--epsilon",
    "epsilons",
    metavar="E,E,...",
    help="Compare these epsilons instead of showing the plan of the spec's own.",
)
@json_option
def plan(spec_path: str, epsilons: str | None, as_json: bool) -> None:
    """Show what SPEC.yaml would do and cost; reads no value, spends nothing."""
    from dpdask.releases.api import plan as make_plan
    from dpdask.views.terminal import plan_table

    if epsilons is not None:
        _compare_epsilons(spec_path, numbers("--epsilon", epsilons), as_json)
        return
    planned = make_plan(spec_path)
    warn(planned.warnings)
    if as_json:
        print_json(planned.to_dict())
    else:
        console().print(plan_table(planned.to_dict()))


def _compare_epsilons(spec_path: str, epsilons: list[float], as_json: bool) -> None:
    """Print one line per epsilon."""
    from dpdask.releases.choices import plan_epsilons
    from dpdask.views.terminal import epsilon_table

    choices = [choice.to_dict() for choice in plan_epsilons(spec_path, epsilons)]
    if as_json:
        print_json({"choices": choices})
    else:
        console().print(epsilon_table(choices))
