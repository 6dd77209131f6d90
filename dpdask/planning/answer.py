"""One noisy answer of a plan: the question, the noise on its grid, the tiles, the guarantee."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from dpdask.mechanisms import Choice
from dpdask.noise import Noise, NoiseLevel
from dpdask.planning.tiling import Tiling
from dpdask.privacy import Guarantee
from dpdask.privatizers.base import Discretized, Privatizer
from dpdask.queries import BesideArray, ExactSum, Layer, Query
from dpdask.queries.base import DATA
from dpdask.storage import Layout
from dpdask.types import Json

__all__ = ["Component", "Part"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A further noisy sum of a component: counts beside a sum.

    Args:
        name: Its name within the component.
        discretized: Its noise on its grid.
        exact_sum: How exact sums become values.
        tiling: Its tiles: those of the component, or a single one.
        aligned: Whether they are those of the component.
    """

    name: str
    discretized: Discretized
    exact_sum: ExactSum
    tiling: Tiling
    aligned: bool

    @property
    def privatizer(self) -> Privatizer:
        """How noise is added to a tile."""
        return self.discretized.privatizer

    @property
    def noise(self) -> Noise:
        """The noise that is really added."""
        return self.discretized.noise


@dataclass(frozen=True, kw_only=True)
class Component:
    """One noisy answer of a release: the data, or what is drawn first to decide on them.

    Args:
        name: Its name, part of what its noise is drawn for.
        query: The question.
        discretized: The noise that is really added, on its grid.
        exact_sum: How the answer is summed over records; None where it is not a sum.
        guarantee: The guarantee of that noise.
        tiling: The tiles of the answer.
        mu: The mu that Gaussian noise was calibrated to; None for other noise.
        warnings: What the mechanism warns of.
        parts: Further noisy sums, charged with the main one.
        choice: Which mechanism ``auto`` chose, and why; None where the spec names one.
        layers: What is computed from published numbers.
        chosen: The bound that an earlier noisy answer chose for it; None where the spec says it.
    """

    name: str
    query: Query
    discretized: Discretized
    exact_sum: ExactSum | None
    guarantee: Guarantee
    tiling: Tiling
    mu: float | None
    warnings: tuple[str, ...]
    parts: tuple[Part, ...] = ()
    choice: Choice | None = None
    layers: tuple[Layer, ...] = ()
    chosen: Json | None = None

    @property
    def privatizer(self) -> Privatizer:
        """How noise is added to a tile."""
        return self.discretized.privatizer

    @property
    def noise(self) -> Noise:
        """The noise that is really added."""
        return self.discretized.noise

    @property
    def noise_level(self) -> NoiseLevel | None:
        """The noise of released entries; None where it depends on released numbers."""
        return None if self.query.noise_varies else self.query.noise_level(self.noise)

    def arrays_beside(self, layout: Layout) -> tuple[BesideArray, ...]:
        """Return the arrays that are published beside the main one.

        They are the query's, the standard deviation of the noise, then those of layers.
        """
        shape, names = layout.shape, layout.dimension_names
        level = self.noise_level
        stds = () if level is None else (BesideArray.of_level(level, shape, names),)
        of_layers = (layer.arrays(shape, names) for layer in self.layers)
        return (*self.query.arrays_beside, *stds, *itertools.chain.from_iterable(of_layers))

    @property
    def noises(self) -> dict[str, Noise]:
        """The noise of every part, by name."""
        return {DATA: self.noise} | {part.name: part.noise for part in self.parts}

    def part_name(self, part: Part) -> str:
        """Return what the noise of a further part is drawn for."""
        return f"{self.name}-{part.name}"

    def grid_to_dict(self) -> Json:
        """Return the grid of the noise, and that of the records, as the card records them."""
        sums = {} if self.exact_sum is None else self.exact_sum.to_dict()
        return self.privatizer.to_dict() | sums
