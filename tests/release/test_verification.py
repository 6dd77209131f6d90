"""`dpdask verify`: what a release says of itself holds, or verification fails in one line."""

from __future__ import annotations

from typing import Any

import pytest

from dpdask import PrivacyBudget
from dpdask.accounting import GaussianProfile
from dpdask.errors import VerificationFailed
from dpdask.releases.read import read_card
from dpdask.releases.verify import verify_release
from tests.support.forging import rewrite_card, scale_noise_std
from tests.support.workspace import Workspace, people


def test_metadata_that_contradicts_its_copy_does_not_verify(space: Workspace) -> None:
    space.source(people(64, 8), chunks=(16, 8))
    space.release()
    path = space.folder / "out.zarr" / "data" / "zarr.json"
    path.write_text(path.read_text().replace('"dp:epsilon": 1.0', '"dp:epsilon": 0.1'))
    with pytest.raises(VerificationFailed, match=r"'data/zarr.json' was changed"):
        verify_release(str(space.folder / "out.zarr"))


def edited(space: Workspace, change: Any) -> None:
    rewrite_card(space.folder / "out.zarr", change)


def test_a_card_that_promises_more_than_was_charged_does_not_verify(space: Workspace) -> None:
    space.source(people(64, 8), chunks=(16, 8))
    space.release(privacy={"epsilon": 50.0, "delta": 1e-5})
    better = GaussianProfile.meeting(PrivacyBudget(epsilon=0.1, delta=1e-5))

    def promise(card: dict[str, Any]) -> None:
        card["guarantee"]["claimed"]["epsilon"] = 0.1
        card["guarantee"]["verified"].update(
            configuration={"mu": better.mu},
            epsilon_at_delta=better.epsilon(1e-5),
            delta_at_epsilon=better.delta(0.1),
        )

    edited(space, promise)
    with pytest.raises(VerificationFailed, match="smaller than its guarantee needs"):
        verify_release(str(space.folder / "out.zarr"))
    edited(
        space, lambda card: card["composition"].update(steps=2, steps_are_independent="declared")
    )
    with pytest.raises(VerificationFailed, match="smaller than its guarantee needs"):
        verify_release(str(space.folder / "out.zarr"))
    edited(
        space, lambda card: card.update(noise={"name": card["noise"]["name"], "sha256": "0" * 64})
    )
    assert (
        read_card(str(space.folder / "out.zarr")).guarantee.claimed.epsilon == 0.1
    )  # agrees with itself
    with pytest.raises(VerificationFailed, match="cannot be rebuilt"):
        verify_release(str(space.folder / "out.zarr"))


@pytest.mark.parametrize(
    "query", ["sum", "mean", "second-moment", {"name": "precomputed", "l2_sensitivity": 1.0}]
)
def test_a_card_whose_noise_does_not_cover_rounding_does_not_verify(
    space: Workspace, query: Any
) -> None:
    """An exact answer is rounded to the noise's grid; noise as calibrated, without the share for
    that, is too little.
    """
    space.source(people(64, 300 if query != "second-moment" else 20))
    unit = {} if isinstance(query, dict) else {"record_dim": 0, "l2_clip_norm": 1.0}
    space.release(
        query=query,
        privacy_unit=unit,
        noise={"steps_per_sigma": 2**15} if query in ("sum", "mean") else {},
    )
    verify_release(str(space.folder / "out.zarr"))
    card = read_card(str(space.folder / "out.zarr"))
    grown = card.guarantee.verified.configuration["mu"] / (
        card.sensitivity.l2 / card.noise["configuration"]["sigma"]
    )
    assert grown > 1 + 1e-6

    def shrink(facts: dict[str, Any]) -> None:
        facts["noise"]["configuration"]["sigma"] /= grown
        scale_noise_std(facts, 1 / grown)
        facts["grid"]["step"] /= grown

    edited(space, shrink)
    with pytest.raises(VerificationFailed, match="smaller than its guarantee needs"):
        verify_release(str(space.folder / "out.zarr"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda card: card["guarantee"]["verified"].update(configuration={}),
        lambda card: card["guarantee"]["verified"].update(name="wishful"),
        lambda card: card["released"].update(array="elsewhere"),
        lambda card: card["noise"].update(configuration={}),
        lambda card: card["query"].clear(),
    ],
)
def test_a_damaged_card_fails_verification_in_one_line(space: Workspace, damage: Any) -> None:
    space.source(people(64, 8), chunks=(16, 8))
    space.release()
    edited(space, damage)
    with pytest.raises(VerificationFailed):
        verify_release(str(space.folder / "out.zarr"))


def test_unreadable_metadata_is_one_line(space: Workspace) -> None:
    space.source(people(64, 8), chunks=(16, 8))
    space.release()
    (space.folder / "out.zarr" / "zarr.json").write_text("{")
    with pytest.raises(VerificationFailed, match="cannot be read"):
        verify_release(str(space.folder / "out.zarr"))
