"""What the papers print and nobody can reproduce from their own formulas, and what shows it."""

from __future__ import annotations

from dataclasses import dataclass

from dpdask.views.rows import Record, Row

__all__ = ["UNREPRODUCED", "Unreproduced", "unreproduced_records"]


@dataclass(frozen=True, slots=True)
class Unreproduced:
    """A printed value or claim.

    Args:
        where: The paper and the place in it.
        printed: What it says.
        why: What follows from its own formulas, or from exact computation.
        study: The study that shows it.
        line: How the line of the study that shows it begins.
    """

    where: str
    printed: str
    why: str
    study: str
    line: str


UNREPRODUCED = (
    Unreproduced(
        "R1SMG Thm 5",
        "(epsilon, delta)-DP with sigma_* = 2 s²/(epsilon psi)",
        "false: the proof fixes the noise's direction, which the output does not show; verified"
        " delta 0.217 against 1e-7",
        "r1-counts",
        "R1SMG: delta at epsilon 1e-5",
    ),
    Unreproduced(
        "R1SMG 7.1, Fig. 5",
        "loss about 1.5e4 (R1SMG) and 5e4 (others)",
        "4.0e5, 2.1e6 (classic), 1.3e6 (analytic) over all 7,921 cells; a sum over about 300 cells"
        " would fit two of the three",
        "r1-counts",
        "loss, R1SMG as published",
    ),
    Unreproduced(
        "R1SMG 7.1, Fig. 4",
        "largest counts above 50 (MVG) and 40 (MGM)",
        "noise of a cell has standard deviation 1.1e7 and 2.3e4 at the bounds of the theorems",
        "r1-counts",
        "loss, MVG",
    ),
    Unreproduced(
        "R1SMG 7.2",
        "MVG needs a product of at most 0.011 at (1.6, 1e-7)",
        "2.3e-17 by Thm 3 as printed",
        "r1-pca",
        "MVG's bound",
    ),
    Unreproduced(
        "R1SMG 7.2 (Jiang, Xie & Zhang)",
        "the Wishart mechanism has pure epsilon",
        "outputs exclude a neighbour with probability 1 - exp(-epsilon/3)",
        "r1-pca",
        "deviation, Wishart",
    ),
    Unreproduced(
        "R1SMG 7.3, CIFAR-10",
        "epsilon 2.673 and 20.713; epsilon_0 0.54 and 3.52",
        "3.43 and 31.5 by the same accountant; eq. 16 gives 0.571 and 3.49 for the printed ones",
        "r1-training",
        "CIFAR-10, sigma 1.1",
    ),
    Unreproduced(
        "R1SMG 7.3, Figs. 7 and 8",
        "training with R1SMG is (epsilon, delta)-DP",
        "verified delta of a single step is 1",
        "r1-training",
        "R1SMG, verified delta of one step",
    ),
    Unreproduced(
        "MVG Table 3",
        "errors of 0.0123 to 0.0249",
        "the non-private error is 0.15 as a root mean square; with the theorem's noise the"
        " regression predicts 0",
        "mvg-regression",
        "MVG binary",
    ),
    Unreproduced(
        "MVG Table 4",
        "MVG better than the Gaussian",
        "reversed by three orders of magnitude",
        "mvg-component",
        "MVG, Thm 3",
    ),
    Unreproduced(
        "MVG Table 5",
        "MVG at about half of the error of random directions",
        "as good as random directions, like all noise on records",
        "mvg-covariance",
        "MVG binary",
    ),
    Unreproduced(
        "MGM Table 4, Fig. 2",
        "IDN better than the Gaussian",
        "only than the Gaussian on every entry with 1/mn of the budget; on the matrix IDN has 5 to"
        " 1.8e5 times the loss",
        "mgm-errors",
        "CIFAR-10 gradient",
    ),
    Unreproduced(
        "MGM Fig. 3",
        "shared features useful at epsilon 1 to 10",
        "a coin, at the sensitivity 2 sqrt(mn) that is stated",
        "mgm-features",
        "accuracy, IDN",
    ),
)


def unreproduced_records() -> list[Record]:
    """Return the table, each line with the command that shows it."""
    return [
        [
            Row("where", each.where),
            Row("printed", each.printed),
            Row("what comes out", each.why),
            Row("shown by", f"dpdask study {each.study}"),
        ]
        for each in UNREPRODUCED
    ]
