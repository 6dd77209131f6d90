"""What a plan is: all that is decided before a release is charged, and what follows from it."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
from dataclasses import dataclass

import numpy as np

from dpdask.ledger import Forecast, PrivacyUnit
from dpdask.planning.accuracy import Accuracy, accuracy_of
from dpdask.planning.answer import Component, Part
from dpdask.planning.disjoint import block_of, one_index_axis, unit_slice
from dpdask.planning.estimate import Estimate
from dpdask.planning.memory import worker_bytes
from dpdask.planning.partition import needs_norm_pass
from dpdask.planning.sessions import steps_in_words
from dpdask.planning.wording import in_words
from dpdask.privacy import Guarantee
from dpdask.queries import BesideArray, Layer, Query
from dpdask.spec.release import ReleaseSpec
from dpdask.storage import LabelArray, LabelledSource, Layout, SourceArray, Storage
from dpdask.types import Json

__all__ = ["Component", "Part", "ReleasePlan", "Variable", "identity_of"]


def identity_of(source: SourceArray, layers: tuple[Layer, ...]) -> str:
    """Return what tells the content of a source, and of public arrays that layers read, from any
    other.
    """
    public = [array.identity() for layer in layers for array in layer.public]
    if not public:
        return source.identity()
    return hashlib.sha256(" ".join([source.identity(), *public]).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Variable:
    """One released array: where it is read, its noisy answer, and how it is stored.

    Args:
        spec: The release as if the variable were alone in it.
        source: The array that is read, with its window.
        identity: What tells its content from any other.
        component: The noisy answer.
        layout: How the answer is stored.
        beside: How the arrays are stored that are published beside it.
        estimate: The noisy answer that decides on how it is released; None where the spec does.
    """

    spec: ReleaseSpec
    source: SourceArray
    identity: str
    component: Component
    layout: Layout
    beside: tuple[Layout, ...] = ()
    estimate: Estimate | None = None

    @property
    def name(self) -> str:
        """The name of the released array."""
        return self.layout.name

    @property
    def card_prefix(self) -> str:
        """What the names of arrays begin with that are published of it with the card."""
        return "" if self.component.name == "data" else f"{self.name}_"

    @property
    def noise_name(self) -> str:
        """What arrays of its noise are called that are published with the card."""
        return f"{self.card_prefix}noise"

    @property
    def query(self) -> Query:
        """The question."""
        return self.component.query

    @functools.cached_property  # asked for every tile
    def arrays_beside(self) -> tuple[tuple[BesideArray, Layout], ...]:
        """The arrays that are published beside it; none where it is not published itself."""
        if not self.beside:
            return ()
        return tuple(zip(self.component.arrays_beside(self.layout), self.beside, strict=True))

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The layouts of all arrays that tasks write, the main one first."""
        written = (layout for array, layout in self.arrays_beside if not array.constant)
        return (self.layout, *written)

    @property
    def arrays(self) -> tuple[tuple[str, int | None], ...]:
        """Where every private array that is read lies, with its record axis: source and labels."""
        address = self.source.address_digest
        own = () if address is None else ((address, self.query.units_axis),)
        return (*own, *((digest, 0) for digest in self.source.label_digests))

    @property
    def unchanged(self) -> bool:
        """Whether the source is still the one that was planned for."""
        return identity_of(self.source, self.component.layers) == self.identity

    @property
    def source_bytes(self) -> int:
        """The size of the source, uncompressed."""
        return self.source.stored_bytes

    @property
    def entry_std(self) -> float:
        """The root mean square of the noise of one entry, as the card states it."""
        return self.query.released_std(self.component.noise)

    @property
    def accuracy(self) -> Accuracy:
        """How far noise moves what is released; the spec may hint how far means lie."""
        return accuracy_of(self.query, self.component.noises, self.spec.privacy_unit)

    @property
    def scale_factor(self) -> float | None:
        """What a packed integer stands for, None for float output."""
        if np.dtype(self.layout.dtype).kind == "f":
            return None
        step = self.component.privatizer.step
        return None if step is None else step / self.query.divisor

    def _mechanism(self) -> Json:
        """The mechanism, and why ``auto`` chose it where it did."""
        choice = self.component.choice
        if choice is None:
            return {"name": self.spec.mechanism.name, "reason": None}
        if self.component.parts:  # one mechanism alone takes parts, whose noise is told elsewhere
            return {"name": choice.name, "reason": f"{choice.name}, for parts released together"}
        share = self.accuracy.std / self.component.noise.entry_std
        return {"name": choice.name, "reason": choice.reason(share)}

    def to_dict(self) -> Json:
        """Return the variable for people and programs who may see the source."""
        query, source, layout = self.query, self.source, self.layout
        return {
            "source": {
                "shape": list(source.shape),
                "dtype": source.dtype,
                "chunks": list(source.chunks),
            },
            **in_words(query, source, one_index_axis(self.spec, source)),
            **steps_in_words(self.spec, self.component),
            "output": {
                "shape": list(layout.shape),
                "dtype": layout.dtype,
                "chunks": list(layout.chunks),
                "shards": None if layout.shards is None else list(layout.shards),
                "bytes": layout.total_bytes,
            },
            "query": query.to_dict(),
            "bound": query.bound_to_dict(self.component.discretized),
            "bound_chosen": None if self.estimate is None else self.estimate.to_dict(),
            "sensitivity": query.sensitivity.radius / query.divisor,
            "sensitivity_of": "its noisy parts together" if query.noise_varies else "the answer",
            "mechanism": self._mechanism(),
            "expected_error": {"noise": self.component.noise.name, **self.accuracy.to_dict()},
            "grid": self.component.privatizer.to_dict(),
            "tiles": self.component.tiling.count,
            "tile_shape": list(self.component.tiling.extent),
        }

    def answering(self, component: Component) -> Variable:
        """Return the same source and layout with another noisy answer.

        Nothing is published beside an answer to another question.
        """
        beside = self.beside if component.name == self.component.name else ()
        return dataclasses.replace(self, component=component, beside=beside)

    @property
    def estimated(self) -> Variable | None:
        """The source with the noisy answer that is drawn first, as doubles; None without one."""
        if self.estimate is None:
            return None
        component = self.estimate.component
        shape = component.query.answer_shape
        layout = dataclasses.replace(
            self.layout,
            shape=shape,
            chunks=shape,
            shards=None,
            dtype="float64",
            dimension_names=tuple(f"dim_{axis}" for axis in range(len(shape))),
        )
        return dataclasses.replace(self.answering(component), layout=layout)


@dataclass(frozen=True, kw_only=True)
class ReleasePlan:
    """Everything that is decided before a release is charged."""

    spec: ReleaseSpec
    output: Storage
    variables: tuple[Variable, ...]
    guarantee: Guarantee
    fingerprint: str
    forecast: Forecast | None
    warnings: tuple[str, ...]

    @property
    def only(self) -> Variable:
        """The variable of a release that has one alone."""
        [variable] = self.variables
        return variable

    @property
    def estimated(self) -> tuple[Variable, ...]:
        """The variables of which a noisy answer is drawn first, with that answer."""
        every = (variable.estimated for variable in self.variables)
        return tuple(variable for variable in every if variable is not None)

    @property
    def directions(self) -> Component | None:
        """The covariance that noise directions come from, if there is one."""
        estimate = self.variables[0].estimate
        if estimate is None or estimate.kind != "directions":
            return None
        return estimate.component

    @property
    def source(self) -> SourceArray:
        """The source of the only variable."""
        return self.only.source

    @property
    def data(self) -> Component:
        """The noisy answer of the only variable."""
        return self.only.component

    @property
    def layout(self) -> Layout:
        """The layout of the only variable."""
        return self.only.layout

    @property
    def identity(self) -> str:
        """What tells the content of the source from any other."""
        if len(self.variables) == 1:
            return self.only.identity
        every = [[variable.name, variable.identity] for variable in self.variables]
        return hashlib.sha256(json.dumps(every).encode()).hexdigest()

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The layouts of all released arrays."""
        return tuple(layout for variable in self.variables for layout in variable.layouts)

    @property
    def unchanged(self) -> bool:
        """Whether the source is still the one that was planned for."""
        return all(variable.unchanged for variable in self.variables)

    @property
    def threads(self) -> int:
        """Threads of one worker."""
        return self.spec.compute.threads or os.cpu_count() or 1

    @property
    def privacy_unit(self) -> PrivacyUnit:
        """Whom the release protects, as the ledger compares it."""
        first = self.variables[0]
        address = first.source.address_digest
        axis = None if address is None else first.query.units_axis
        arrays = dict.fromkeys(array for variable in self.variables for array in variable.arrays)
        return PrivacyUnit(
            first.query.sensitivity.adjacency,
            first.query.max_contributions,
            address,
            axis,
            self.spec.budget.array_in_other_dataset,
            tuple(array for array in arrays if array != (address, axis)),
            per=unit_slice(first.spec, first.source, first.query),
            block=block_of(first.spec, first.source),
            name=None if first.query.people is None else first.query.people.name,
        )

    @property
    def ids(self) -> LabelArray | None:
        """The array that says whose every record is; None where privacy units are records."""
        source = self.variables[0].source
        return source.ids if isinstance(source, LabelledSource) else None

    @property
    def source_bytes(self) -> int:
        """The size of the source, uncompressed."""
        return sum(variable.source_bytes for variable in self.variables)

    @property
    def read_bytes(self) -> int:
        """Bytes to read, uncompressed: once, twice where records are bounded in a pass of their
        own.
        """
        passes = [
            needs_norm_pass(variable.component) + (1 if variable.estimate is None else 2)
            for variable in self.variables
        ]
        sizes = [variable.source_bytes for variable in self.variables]
        return sum(size * times for size, times in zip(sizes, passes, strict=True))

    @property
    def accuracy(self) -> Accuracy:
        """How far noise moves what the only variable releases."""
        return self.only.accuracy

    @property
    def entry_std(self) -> float:
        """The root mean square of an entry's noise, times its count where it is divided by one."""
        return self.accuracy.std

    def _ledger(self) -> Json | None:
        """What the dataset has spent before and after; None without a ledger."""
        if self.forecast is None:
            return None
        return {"dataset": self.spec.budget.dataset, **self.forecast.to_dict()}

    def to_dict(self) -> Json:
        """The plan for people and programs who may see the source.

        Of several variables, each stands under ``variables`` by its name.
        """
        each = {variable.name: variable.to_dict() for variable in self.variables}
        return {
            **(self.only.to_dict() if len(each) == 1 else {"variables": each}),
            "guarantee": self.guarantee.to_dict(),
            "ledger": self._ledger(),
            "peak_bytes_per_worker": worker_bytes(self),
            "bytes_to_read": self.read_bytes,
            "bytes_to_write": sum(layout.total_bytes for layout in self.layouts),
            "warnings": list(self.warnings),
        }
