"""Eigenvectors with the same bytes everywhere: against LAPACK, and against uncompiled loops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dpdask.privatizers import eigen
from dpdask.privatizers.eigen import nearest_psd, symmetric_eigen

Values = np.ndarray[Any, Any]
COMPILED = (
    "_tridiagonalise",
    "_reflect",
    "_accumulate",
    "_diagonalise",
    "_ql_step",
    "_fix_signs",
    "_add_positive",
)


def _symmetric(n: int, seed: int = 0) -> Values:
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal((n, n)) * np.exp(rng.uniform(-3, 3, n))
    return np.asarray((matrix + matrix.T) / 2)


DEGENERATE = {
    "zero": np.zeros((4, 4)),
    "identity": np.eye(5),
    "diagonal": np.diag([3.0, -1.0, 2.0, 0.0]),
    "ones": np.ones((6, 6)),
    "swap": np.array([[0.0, 1.0], [1.0, 0.0]]),
    "blocks": np.kron(np.eye(3), [[0.0, 1.0], [1.0, 0.0]]),
    "one": np.array([[-7.0]]),
    "tiny": np.full((3, 3), 1e-300),
    "huge": np.full((3, 3), 1e300) + np.diag([1e300, -1e300, 0]),
    "graded": np.diag([1e12, 1.0, 1e-12]) + 1e-13,
    "block of equal values": np.diag([2.0] * 4 + [1.0] * 3) + 1e-17,
}


@pytest.mark.parametrize("name", [*DEGENERATE, *(str(n) for n in (2, 3, 7, 40, 150))])
def test_eigenvectors_are_those_of_the_matrix(name: str) -> None:
    matrix = DEGENERATE[name] if name in DEGENERATE else _symmetric(int(name))
    values, vectors = symmetric_eigen(matrix)
    size = float(np.max(np.abs(matrix))) or 1.0
    tolerance = 50 * len(matrix) * 2.0**-52 * size
    np.testing.assert_allclose(vectors @ vectors.T, np.eye(len(matrix)), atol=1e-13)
    np.testing.assert_allclose(matrix @ vectors.T, vectors.T * values, atol=tolerance)
    np.testing.assert_allclose(values, np.linalg.eigvalsh(matrix)[::-1], atol=tolerance)
    assert np.all(np.diff(values) <= 0)


def test_first_largest_entry_of_an_eigenvector_is_positive() -> None:
    for seed in range(20):
        _, vectors = symmetric_eigen(_symmetric(6, seed))
        largest = np.argmax(np.abs(vectors), axis=1)
        assert np.all(vectors[np.arange(6), largest] > 0)
    _, vectors = symmetric_eigen(-_symmetric(6, 3))  # the same ones in another order
    _, turned = symmetric_eigen(_symmetric(6, 3))
    np.testing.assert_allclose(np.abs(vectors[::-1]), np.abs(turned), atol=1e-12)
    np.testing.assert_allclose(vectors[::-1], turned, atol=1e-12)


@pytest.mark.parametrize("n", [1, 2, 5, 23])
def test_compiled_loops_round_as_they_are_written(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is fused, reordered or taken from another library: Python gives the same bytes."""
    matrix = _symmetric(n, seed=n)
    values, vectors = symmetric_eigen(matrix)
    psd = nearest_psd(values, vectors)
    for name in COMPILED:
        monkeypatch.setattr(eigen, name, getattr(eigen, name).py_func)
    plain_values, plain_vectors = symmetric_eigen(matrix)
    assert plain_values.tobytes() == values.tobytes()
    assert plain_vectors.tobytes() == vectors.tobytes()
    assert nearest_psd(plain_values, plain_vectors).tobytes() == psd.tobytes()


@pytest.mark.parametrize("fill", [math.nan, math.inf, -math.inf, 1.7e308, 5e-324])
def test_no_value_raises(fill: float) -> None:
    for matrix in (np.full((4, 4), fill), np.diag([fill, 1.0, -fill, 0.0])):
        values, vectors = symmetric_eigen(matrix)
        assert values.shape == (4,)
        assert np.all(np.isfinite(vectors))


def test_nearest_psd_matrix_is_that_of_all_positive_eigenvalues() -> None:
    matrix = _symmetric(30)
    found = nearest_psd(*symmetric_eigen(matrix))
    values, vectors = np.linalg.eigh(matrix)
    expected = (vectors * np.maximum(values, 0)) @ vectors.T
    np.testing.assert_allclose(found, expected, atol=1e-11)
    assert np.array_equal(found, found.T)
    assert np.linalg.eigvalsh(found)[0] > -1e-11
    rng = np.random.default_rng(2)
    for _ in range(50):  # nearest: no other positive semi-definite matrix is closer
        other = rng.standard_normal((30, 30)) * 0.1
        nearby = found + other @ other.T
        assert np.linalg.norm(nearby - matrix) >= np.linalg.norm(found - matrix)
