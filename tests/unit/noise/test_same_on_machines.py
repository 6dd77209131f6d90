"""A dense factor is applied with the same bits, whatever the linear algebra library does."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from dpdask.noise.rounding import coarsened_up, same_inverse

APPLIED = """
import hashlib, json, sys
import numpy as np
from dpdask.noise import DenseFactor

matrices = [
    np.array([[2.0 * (i == j) + 0.1 * (i > j) for j in range(8)] for i in range(8)]),
    np.cos(np.arange(1600.0).reshape(40, 40) ** 1.5) + 4 * np.eye(40),
]
library = np.concatenate([np.linalg.inv(matrix).ravel() for matrix in matrices])
factors = [DenseFactor(matrix) for matrix in matrices]
print(json.dumps({
    "inverses": [hashlib.sha256(factor.inverse().tobytes()).hexdigest() for factor in factors],
    "smallest": [factor.smallest.hex() for factor in factors],
    "axes": [factor.largest_whitened_axis().hex() for factor in factors],
    "library": hashlib.sha256(library.tobytes()).hexdigest(),
}))
"""


def _applied(kernels: str) -> dict[str, object]:
    environment = {**os.environ, "OPENBLAS_CORETYPE": kernels}
    done = subprocess.run(
        [sys.executable, "-c", APPLIED], env=environment, capture_output=True, check=True, text=True
    )
    applied: dict[str, object] = json.loads(done.stdout)
    return applied


@pytest.mark.slow
def test_factors_are_applied_alike_by_all_kernels_of_the_library() -> None:
    kinds = [_applied(kernels) for kernels in ("Nehalem", "Sandybridge", "Haswell", "Zen")]
    for name in ("inverses", "smallest", "axes"):
        assert len({json.dumps(applied[name]) for applied in kinds}) == 1, name
    # the twin: the library's own inverse differs between its kernels
    assert len({applied["library"] for applied in kinds}) > 1


def test_the_inverse_is_an_inverse() -> None:
    rng = np.random.default_rng(5)
    for size in (1, 2, 7, 60):
        matrix = rng.normal(size=(size, size)) + 3 * np.eye(size)
        condition = np.linalg.cond(matrix)
        error = np.abs(same_inverse(matrix) @ matrix - np.eye(size)).max()
        assert error <= 1e-14 * size * condition


def test_the_inverse_exchanges_rows_where_it_must() -> None:
    matrix = np.array([[0.0, 2.0, 0.0], [0.0, 0.0, 4.0], [0.5, 0.0, 0.0]])
    assert np.array_equal(same_inverse(matrix) @ matrix, np.eye(3))


def test_numbers_are_rounded_up_by_little_and_forget_their_last_bits() -> None:
    values = np.random.default_rng(3).uniform(0.1, 1e6, 2000)
    rounded = np.array([coarsened_up(float(value)) for value in values])
    assert np.all(rounded >= values)
    assert np.all(rounded <= values * (1 + 2.0**-40))
    nearby = np.array([coarsened_up(float(np.nextafter(value, np.inf))) for value in values])
    assert np.mean(rounded == nearby) > 0.99
