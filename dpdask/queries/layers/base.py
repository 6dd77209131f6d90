"""What every layer knows: the arrays that it adds, and how they follow from published numbers.

A layer is post-processing: it sees what is published of a tile, never the source, and draws no
noise, so it costs nothing, and a retry computes the same bytes. The main array stays as it is,
without bias; a layer stands beside it.

A layer takes one class here (:func:`register_layer_class`, by which cards are read again), a
section (:mod:`dpdask.spec.layers`) and a builder (:mod:`dpdask.planning.build_layers`).
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeVar

from dpdask.errors import InvalidSpec
from dpdask.noise import Noise
from dpdask.queries.beside import DATA, BesideArray
from dpdask.types import Array, Floats, Json, Region, Shape

__all__ = [
    "EntrywiseLayer",
    "Layer",
    "PublicArray",
    "Sequence",
    "layer_from_dict",
    "register_layer_class",
]


class PublicArray(Protocol):
    """An array beside the source that was declared public by being named."""

    @property
    def shape(self) -> Shape:
        """Its shape."""

    def pieces(self, region: Region) -> Iterator[Region]:
        """Cut a region into parts that are read at once."""

    def read(self, region: Region) -> Array:
        """Return a region."""

    def identity(self) -> str:
        """Return what changes whenever its content does."""


@dataclass(frozen=True, kw_only=True)
class Layer(abc.ABC):
    """Arrays that are computed from the published ones.

    ``whole`` says whether it needs all of the answer at once, which is then one tile; a layer that
    adds an array of another shape than the main one must. ``needs_noise`` says whether it reads the
    noise of entries, ``noise_std``, of length 1 along axes where that is constant.
    """

    name: ClassVar[str]
    whole: ClassVar[bool] = False
    needs_noise: ClassVar[bool] = False

    @property
    def public(self) -> tuple[PublicArray, ...]:
        """The public arrays that it reads beside the source."""
        return ()

    @property
    def public_names(self) -> tuple[str, ...]:
        """Their names."""
        return ()

    @abc.abstractmethod
    def arrays(self, shape: Shape, dimension_names: tuple[str, ...]) -> tuple[BesideArray, ...]:
        """Return the arrays that it adds beside a main array of this shape and these dimensions."""

    @abc.abstractmethod
    def apply(self, released: Mapping[str, Floats], box: Region) -> dict[str, Array]:
        """Return a tile of every array that it adds, by suffix. No value can make it raise.

        Args:
            released: What is published of the tile: the main array as ``data``, what the query
                publishes beside it by suffix, and ``noise_std`` where the layer needs it.
            box: The region of the answer.
        """

    def check_noise(self, noise: Noise, *, symmetric: bool) -> None:
        """Refuse noise that the layer has no meaning for; here none.

        Args:
            noise: The noise of the answer.
            symmetric: Whether the noisy answer is averaged with its transpose.
        """
        return

    def configuration(self) -> Json:
        """Return its public parameters, from which :meth:`from_configuration` builds it again."""
        return {}

    @classmethod
    def from_configuration(cls, configuration: Json) -> Layer:
        """Return the layer with these parameters."""
        return cls(**configuration)

    def to_dict(self) -> Json:
        """Return the layer as the card records it."""
        return {"name": self.name, "configuration": self.configuration()}


@dataclass(frozen=True, kw_only=True)
class EntrywiseLayer(Layer):
    """A layer of one array of the main one's shape, entry by entry."""

    suffix: ClassVar[str]
    long_name: ClassVar[str]

    def arrays(self, shape: Shape, dimension_names: tuple[str, ...]) -> tuple[BesideArray, ...]:
        """Return the one array."""
        array = BesideArray(suffix=self.suffix, shape=shape, aligned=True, long_name=self.long_name)
        return (array,)

    def apply(self, released: Mapping[str, Floats], box: Region) -> dict[str, Array]:
        """Return the entries of the main array, changed."""
        return {self.suffix: self.values(released[DATA], box)}

    @abc.abstractmethod
    def values(self, entries: Floats, box: Region) -> Floats:
        """Return new entries for those of a region."""


_L = TypeVar("_L", bound=type[Layer])
_CLASSES: dict[str, type[Layer]] = {}


def register_layer_class(layer: _L) -> _L:
    """Register a layer under the name that cards record; usable as a class decorator."""
    if _CLASSES.setdefault(layer.name, layer) is not layer:
        raise InvalidSpec(f"layer {layer.name!r} is registered already; choose another name")
    return layer


def layer_from_dict(description: Json) -> Layer:
    """Return the layer that :meth:`Layer.to_dict` wrote."""
    name = description["name"]
    if name not in _CLASSES:
        raise InvalidSpec(f"layer {name!r} is unknown; use {', '.join(_CLASSES)}")
    return _CLASSES[name].from_configuration(description["configuration"])


@register_layer_class
@dataclass(frozen=True, kw_only=True)
class Sequence(Layer):
    """Several entrywise layers, one after the other, in one array."""

    name: ClassVar[str] = "sequence"
    layers: tuple[EntrywiseLayer, ...]

    @classmethod
    def of(cls, layers: tuple[Layer, ...]) -> Sequence:
        """Return layers in order, all of which must be entrywise."""
        steps = tuple(layer for layer in layers if isinstance(layer, EntrywiseLayer))
        others = [layer.name for layer in layers if not isinstance(layer, EntrywiseLayer)]
        if others:
            raise InvalidSpec(
                f"publish.layers: {others[0]} does not change entries one by one, so it is not a"
                " step of a list; name it on its own"
            )
        return cls(layers=steps)

    @property
    def public(self) -> tuple[PublicArray, ...]:
        """Those of all layers."""
        return tuple(array for layer in self.layers for array in layer.public)

    @property
    def public_names(self) -> tuple[str, ...]:
        """Those of all layers."""
        return tuple(name for layer in self.layers for name in layer.public_names)

    @property
    def _suffix(self) -> str:
        return "_".join(layer.suffix for layer in self.layers)

    def arrays(self, shape: Shape, dimension_names: tuple[str, ...]) -> tuple[BesideArray, ...]:
        """Return the one array, named by all layers in their order."""
        array = BesideArray(
            suffix=self._suffix,
            shape=shape,
            aligned=True,
            long_name=", then ".join(layer.long_name for layer in self.layers),
        )
        return (array,)

    def apply(self, released: Mapping[str, Floats], box: Region) -> dict[str, Array]:
        """Return the entries of the main array, changed by every layer."""
        entries = released[DATA]
        for layer in self.layers:
            entries = layer.values(entries, box)
        return {self._suffix: entries}

    def configuration(self) -> Json:
        """Return the layers in their order."""
        return {"layers": [layer.to_dict() for layer in self.layers]}

    @classmethod
    def from_configuration(cls, configuration: Json) -> Sequence:
        """Return the layers in their order."""
        return cls.of(tuple(layer_from_dict(layer) for layer in configuration["layers"]))
