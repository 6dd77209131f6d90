"""Layers of covariances and second moments: positive semi-definite, and principal components."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dpdask.loading import when_used
from dpdask.queries.beside import DATA, BesideArray
from dpdask.queries.layers.base import Layer, register_layer_class
from dpdask.types import Array, Floats, Json, Region, Shape

if TYPE_CHECKING:
    from dpdask.privatizers import eigen
else:
    eigen = when_used("dpdask.privatizers.eigen")

__all__ = ["PositiveSemidefinite", "PrincipalComponents"]

COMPONENT = "component"  # the dimension of principal components


@register_layer_class
@dataclass(frozen=True, kw_only=True)
class PositiveSemidefinite(Layer):
    """The nearest positive semi-definite matrix: negative eigenvalues become 0.

    Its variances are then too large on average.
    """

    name: ClassVar[str] = "psd"
    whole: ClassVar[bool] = True

    def arrays(self, shape: Shape, dimension_names: tuple[str, ...]) -> tuple[BesideArray, ...]:
        """Return the one matrix."""
        array = BesideArray(
            suffix=self.name,
            shape=shape,
            aligned=True,
            long_name="nearest positive semi-definite matrix",
        )
        return (array,)

    def apply(self, released: Mapping[str, Floats], box: Region) -> dict[str, Array]:
        """Return the matrix without its negative eigenvalues."""
        return {self.name: eigen.nearest_psd(*eigen.symmetric_eigen(released[DATA]))}


@register_layer_class
@dataclass(frozen=True, kw_only=True)
class PrincipalComponents(Layer):
    """The eigenvectors of the largest eigenvalues, one per row, and these eigenvalues.

    Args:
        components: How many of them.
    """

    name: ClassVar[str] = "pca"
    whole: ClassVar[bool] = True
    components: int

    def arrays(self, shape: Shape, dimension_names: tuple[str, ...]) -> tuple[BesideArray, ...]:
        """Return eigenvectors along components and features, and eigenvalues."""
        vectors = BesideArray(
            suffix="eigenvectors",
            shape=(self.components, shape[0]),
            aligned=False,
            long_name="principal components",
            units="1",
            standard_name=None,
            dimension_names=(COMPONENT, dimension_names[0]),
        )
        values = BesideArray(
            suffix="eigenvalues",
            shape=(self.components,),
            aligned=False,
            long_name="variances along principal components",
            standard_name=None,
            dimension_names=(COMPONENT,),
        )
        return vectors, values

    def apply(self, released: Mapping[str, Floats], box: Region) -> dict[str, Array]:
        """Return the first eigenvectors and eigenvalues."""
        values, vectors = eigen.symmetric_eigen(released[DATA])
        return {
            "eigenvectors": vectors[: self.components],
            "eigenvalues": values[: self.components],
        }

    def configuration(self) -> Json:
        """Return the number of components."""
        return {"components": self.components}
