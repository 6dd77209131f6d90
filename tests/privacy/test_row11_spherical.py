"""Row 11: spherical noise is not certified.

Its direction is made of integers that are stretched, and the answer scaled, in floating point: a
lattice and rounding errors that its profile knows nothing of. The card said `exact: false` and, in
0.1.0, `certified: true` beside it. No proof covers the two, so the noise is never certified: it is
refused unless the caller accepts that, and a card that says otherwise fails.
"""

from __future__ import annotations

from typing import Any

import pytest

from dpdask.errors import InvalidMechanism, VerificationFailed
from dpdask.releases.verify import verify_release
from tests.support.forging import rewrite_card
from tests.support.workspace import Workspace, people

QUERIES: dict[str, dict[str, Any]] = {
    "identity": {},
    "sum": {"query": "sum"},
    "histogram": {
        "query": {"name": "histogram", "edges": [[-1, 0, 1], [-1, 0, 0.5, 1]]},
        "privacy_unit": {"record_dim": 0},
    },
    "declared": {"query": {"name": "precomputed", "l2_sensitivity": 1.0}, "privacy_unit": {}},
}


@pytest.mark.parametrize("mechanism", ["rank-one", "k-norm"])
@pytest.mark.parametrize("query", QUERIES)
def test_spherical_noise_is_refused_unless_it_is_accepted_uncertified(
    space: Workspace, query: str, mechanism: str
) -> None:
    space.source(people(64, 8), chunks=(64, 8))
    with pytest.raises(
        InvalidMechanism, match="not certified: spherical noise is scaled in floating point"
    ):
        space.release(**QUERIES[query], mechanism=mechanism)
    assert space.spent() == 0
    receipt = space.release(**QUERIES[query], mechanism=mechanism, accept_uncertified=True)
    assert receipt.card.guarantee.certified is False
    assert receipt.card.grid["exact"] is False
    verify_release(str(space.folder / "out.zarr"))


def test_a_card_that_certifies_spherical_noise_does_not_verify(space: Workspace) -> None:
    space.source(people(64, 8), chunks=(64, 8))
    space.release(mechanism="k-norm", accept_uncertified=True)
    rewrite_card(space.folder / "out.zarr", lambda card: card["guarantee"].update(certified=True))
    with pytest.raises(VerificationFailed, match="verdict"):
        verify_release(str(space.folder / "out.zarr"))
