"""The exact audit of answers that are sums over records; see test_exact_audit.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.privacy.campaign import check_query

QUERIES = ("sum", "mean", "second-moment", "covariance", "histogram")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("query", QUERIES)
def test_no_pair_of_neighbours_shows_more_than_was_verified(
    query: str, seed: int, tmp_path: Path
) -> None:
    check_query(query, seed, tmp_path)
