"""Eigenvectors of a symmetric matrix, with the same bytes on every machine.

LAPACK gives other last bits with another library, processor or number of threads; what is published
must not depend on the worker that computes it. This is the classical method (Householder reduction
to tridiagonal form, then implicit QL; Wilkinson & Reinsch 1971, tred2 and tql2), in loops whose
order is fixed, of additions, products, quotients and square roots, which are rounded alike
everywhere. Rows of the working matrix are the eigenvectors, so that inner loops run along memory.
"""

# Compiled code is typed by its arguments at run time: these functions carry no annotations.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from __future__ import annotations

import math

import numpy as np

from dpdask.machine.compiling import compiled
from dpdask.types import Floats

__all__ = ["nearest_psd", "symmetric_eigen"]

_EPSILON = 2.0**-52
_MOST_ITERATIONS = 60  # of one eigenvalue; about two are needed
_compiled = compiled()


def symmetric_eigen(matrix: Floats) -> tuple[Floats, Floats]:
    """Return the eigenvalues of a symmetric matrix, the largest first, and the eigenvectors as
    rows.

    The sign of an eigenvector is such that its entry of largest absolute value, the first of them,
    is positive.

    Guarantee: the bytes follow from the matrix alone. No value can raise.
    """
    finite: Floats = np.nan_to_num(matrix, copy=True)
    largest = float(np.max(np.abs(finite), initial=0.0))
    exponent = math.frexp(largest)[1]
    work = np.ascontiguousarray(np.ldexp(finite, -exponent))  # exact, and no square overflows
    values, off_diagonal = np.empty(len(work)), np.empty(len(work))
    _tridiagonalise(work, values, off_diagonal)
    _diagonalise(work, values, off_diagonal)
    order = np.argsort(-values, kind="stable")
    vectors = work[order]
    _fix_signs(vectors)
    with np.errstate(over="ignore"):
        return np.ldexp(values[order], exponent), vectors


def nearest_psd(values: Floats, vectors: Floats) -> Floats:
    """Return the positive semi-definite matrix nearest to one with these eigenvalues (Frobenius).

    Args:
        values: The eigenvalues.
        vectors: The eigenvectors, one per row.
    """
    out = np.zeros((len(values), len(values)))
    _add_positive(values, vectors, out)
    return out


@_compiled
def _tridiagonalise(v, d, e):
    """Reduce the symmetric matrix ``v`` to the diagonal ``d`` and off-diagonal ``e``.

    Its transformation is left in ``v``, transposed.
    """
    n = d.size
    for j in range(n):
        d[j] = v[j, n - 1]
    for i in range(n - 1, 0, -1):
        scale = 0.0
        for k in range(i):
            scale += abs(d[k])
        h = 0.0
        if scale == 0.0:
            e[i] = d[i - 1]
            for j in range(i):
                d[j] = v[j, i - 1]
                v[j, i] = 0.0
                v[i, j] = 0.0
        else:
            h = _reflect(v, d, e, i, scale)
        d[i] = h
    _accumulate(v, d)
    e[0] = 0.0


@_compiled
def _reflect(v, d, e, i, scale):
    """Apply one Householder reflection to the first ``i`` rows and columns; return its norm."""
    h = 0.0
    for k in range(i):
        d[k] /= scale
        h += d[k] * d[k]
    f = d[i - 1]
    g = -math.sqrt(h) if f > 0 else math.sqrt(h)
    e[i] = scale * g
    h -= f * g
    d[i - 1] = f - g
    for j in range(i):
        e[j] = 0.0
    for j in range(i):
        f = d[j]
        v[i, j] = f
        g = e[j] + v[j, j] * f
        for k in range(j + 1, i):
            g += v[j, k] * d[k]
            e[k] += v[j, k] * f
        e[j] = g
    f = 0.0
    for j in range(i):
        e[j] /= h
        f += e[j] * d[j]
    half = f / (h + h)
    for j in range(i):
        e[j] -= half * d[j]
    for j in range(i):
        f, g = d[j], e[j]
        for k in range(j, i):
            v[j, k] -= f * e[k] + g * d[k]
        d[j] = v[j, i - 1]
        v[j, i] = 0.0
    return h


@_compiled
def _accumulate(v, d):
    """Multiply all reflections, which lie in the rows of ``v``; leave the diagonal in ``d``."""
    n = d.size
    for i in range(n - 1):
        v[i, n - 1] = v[i, i]
        v[i, i] = 1.0
        h = d[i + 1]
        if h != 0.0:
            for k in range(i + 1):
                d[k] = v[i + 1, k] / h
            for j in range(i + 1):
                g = 0.0
                for k in range(i + 1):
                    g += v[i + 1, k] * v[j, k]
                for k in range(i + 1):
                    v[j, k] -= g * d[k]
        for k in range(i + 1):
            v[i + 1, k] = 0.0
    for j in range(n):
        d[j] = v[j, n - 1]
        v[j, n - 1] = 0.0
    v[n - 1, n - 1] = 1.0


@_compiled
def _diagonalise(v, d, e):
    """Make ``d`` the eigenvalues of a tridiagonal matrix, and the rows of ``v`` eigenvectors."""
    n = d.size
    for i in range(1, n):
        e[i - 1] = e[i]
    e[n - 1] = 0.0
    shift = 0.0
    largest = 0.0
    for low in range(n):
        largest = max(largest, abs(d[low]) + abs(e[low]))
        m = low
        while m < n - 1 and abs(e[m]) > _EPSILON * largest:
            m += 1
        iterations = 0
        while m > low and iterations < _MOST_ITERATIONS:
            shift += _ql_step(v, d, e, low, m)
            iterations += 1
            if not abs(e[low]) > _EPSILON * largest:
                break
        d[low] += shift
        e[low] = 0.0


@_compiled
def _ql_step(v, d, e, low, m):
    """Take one implicit QL step between ``low`` and ``m``; return by how much ``d`` was shifted."""
    n = d.size
    g = d[low]
    p = (d[low + 1] - g) / (2.0 * e[low])
    r = math.sqrt(p * p + 1.0)
    if p < 0:
        r = -r
    d[low] = e[low] / (p + r)
    d[low + 1] = e[low] * (p + r)
    following = d[low + 1]
    h = g - d[low]
    for i in range(low + 2, n):
        d[i] -= h
    shifted = h
    p = d[m]
    c, c2, c3 = 1.0, 1.0, 1.0
    s, s2 = 0.0, 0.0
    next_off = e[low + 1]
    for i in range(m - 1, low - 1, -1):
        c3, c2, s2 = c2, c, s
        g = c * e[i]
        h = c * p
        r = math.sqrt(p * p + e[i] * e[i])
        e[i + 1] = s * r
        s, c = (e[i] / r, p / r) if r > 0 else (0.0, 1.0)
        p = c * d[i] - s * g
        d[i + 1] = h + s * (c * g + s * d[i])
        for k in range(n):
            h = v[i + 1, k]
            v[i + 1, k] = s * v[i, k] + c * h
            v[i, k] = c * v[i, k] - s * h
    p = -s * s2 * c3 * next_off * e[low] / following if following != 0 else 0.0
    e[low] = s * p
    d[low] = c * p
    return shifted


@_compiled
def _fix_signs(vectors):
    for row in vectors:
        first = 0
        for k in range(1, row.size):
            if abs(row[k]) > abs(row[first]):
                first = k
        if row[first] < 0:
            for k in range(row.size):
                row[k] = -row[k]


@_compiled
def _add_positive(values, vectors, out):
    """Add every eigenvector's square with a positive eigenvalue, in their order."""
    n = values.size
    for component in range(n):
        value, row = values[component], vectors[component]
        if value > 0:
            for i in range(n):
                left = value * row[i]
                for j in range(i, n):
                    out[i, j] += left * row[j]
    for i in range(n):
        for j in range(i):
            out[i, j] = out[j, i]
