"""Commands that need no data: calibrate and compare."""

from __future__ import annotations

import click

from dpdask.cli.printing import console, matrix, numbers, print_json, warn, whole

__all__ = ["calibrate", "compare"]


@click.command()
@click.argument("spec_path", metavar="SPEC.yaml")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def calibrate(spec_path: str, as_json: bool) -> None:
    """Print the noise and the guarantee that SPEC.yaml describes."""
    from dpdask.planning.build_mechanism import calibrate as calibrate_spec
    from dpdask.spec import load_calibration_spec

    spec = load_calibration_spec(spec_path)
    calibration = calibrate_spec(spec)
    warn(calibration.warnings)
    if as_json:
        print_json(calibration.to_dict())
        return
    from dpdask.views.terminal import calibration_table

    console().print(calibration_table(spec.mechanism.name, calibration))


@click.command()
@click.option("--epsilon", type=float, required=True)
@click.option("--delta", type=float, required=True)
@click.option("--shape", required=True, help="Lengths of the axes, such as 1000x100.")
@click.option(
    "--l2-sensitivity",
    type=float,
    help="How much one privacy unit can change the tensor, in l2 norm.",
)
@click.option(
    "--range",
    "ranges",
    multiple=True,
    metavar="LOW,HIGH",
    help="Public range; once for all or once per feature.",
)
@click.option("--record-dim", type=int, help="The axis along which records lie.")
@click.option("--feature-dim", type=int, help="The axis along which ranges and weights lie.")
@click.option("--weights", metavar="W1,W2,...", help="Importance of the error along directions.")
@click.option(
    "--directions",
    "directions_path",
    metavar="FILE",
    help="Orthonormal rows, as JSON or as numbers in lines; the standard basis by default.",
)
@click.option(
    "--eigenvalues",
    metavar="K1,K2,...",
    help="Of f f' along the directions: adds the power-to-noise ratio and MVG's max-PNR.",
)
@click.option(
    "--floor",
    type=float,
    default=0.0,
    help="Share of the precision that is spread evenly, so that weights may be 0.",
)
@click.option("--gamma", type=float, help="Public bound on ||f||, for MVG.")
@click.option("--adjacency", default="replace-one", help="replace-one or add-remove-one.")
@click.option("--steps", type=int, default=1, help="How many steps share the budget.")
@click.option("--sampling-rate", type=float, help="Each step works on a Poisson sample.")
@click.option(
    "--sampling-of",
    default="privacy-units",
    show_default=True,
    help="Who is sampled: privacy-units or records.",
)
@click.option("--max-contributions", type=int, help="Records of a privacy unit, where sampled.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def compare(
    epsilon: float,
    delta: float,
    shape: str,
    l2_sensitivity: float | None,
    ranges: tuple[str, ...],
    record_dim: int | None,
    feature_dim: int | None,
    weights: str | None,
    directions_path: str | None,
    eigenvalues: str | None,
    floor: float,
    gamma: float | None,
    adjacency: str,
    steps: int,
    sampling_rate: float | None,
    sampling_of: str,
    max_contributions: int | None,
    as_json: bool,
) -> None:
    """Compare all mechanisms at the same budget."""
    from dpdask.mechanisms.compare import Colours, compare_mechanisms
    from dpdask.planning.build_mechanism import calibration_inputs
    from dpdask.spec import parse_calibration_spec

    sensitivity = {
        "l2": l2_sensitivity,
        "ranges": [numbers("--range", pair) for pair in ranges] or None,
        "record_dim": record_dim,
        "feature_dim": feature_dim,
        "adjacency": adjacency,
        "max_contributions": max_contributions,
    }
    sampling = None if sampling_rate is None else {"rate": sampling_rate, "of": sampling_of}
    spec = parse_calibration_spec(
        {
            "shape": [whole("--shape", part) for part in shape.lower().split("x")],
            "privacy": {"epsilon": epsilon, "delta": delta},
            "sensitivity": {key: value for key, value in sensitivity.items() if value is not None},
            "mechanism": {"name": "analytic-gaussian"},
            "composition": {"steps": steps, "sampling": sampling},
        }
    )
    inputs = calibration_inputs(spec)
    comparison = compare_mechanisms(
        **inputs.common(),
        gamma=gamma if gamma is not None else inputs.norm_bound,
        colours=Colours(
            weights=None if weights is None else numbers("--weights", weights),
            directions=None if directions_path is None else matrix("--directions", directions_path),
            eigenvalues=None if eigenvalues is None else numbers("--eigenvalues", eigenvalues),
            floor=floor,
        ),
    )
    if as_json:
        print_json(comparison.to_dict())
        return
    from dpdask.views.terminal import comparison_table, notes

    console().print(comparison_table(comparison), notes(comparison), sep="\n")
