"""The format of the release card, dp-release/2, is held by a golden file of a real release.

To write it anew after a deliberate change: ``python -m tests.unit.releases.test_card``.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from dpdask import PrivacyBudget
from dpdask.releases.card import ReleaseCard, card_text
from tests.support.workspace import Workspace, people

GOLDEN = Path(__file__).parents[2] / "golden" / "card-dp-release-2.json"


def released_card(space: Workspace) -> dict[str, Any]:
    """Release the mean of sixty people and return its card as JSON."""
    space.source(people(), chunks=(13, 8))
    receipt = space.release(query="mean", publish={"description": "a golden card"})
    card: dict[str, Any] = json.loads(card_text(receipt.card))
    return card


def shape_of(value: Any) -> Any:
    """Return the keys and types of a JSON value, without what it says."""
    if isinstance(value, dict):
        return {name: shape_of(inner) for name, inner in value.items()}
    return type(value).__name__


def test_the_golden_card_is_read_and_written_unchanged() -> None:
    golden = json.loads(GOLDEN.read_text())
    card = ReleaseCard.model_validate(golden)
    assert card.schema_version == "dp-release/2"
    assert json.loads(card_text(card)) == golden


def test_a_card_of_today_has_the_format_of_the_golden_one(space: Workspace) -> None:
    golden, card = json.loads(GOLDEN.read_text()), released_card(space)
    assert shape_of(card) == shape_of(golden)
    for name in ("privacy_unit", "sensitivity", "query", "mechanism", "noise", "grid", "released"):
        assert card[name] == golden[name], name


def write_golden() -> None:
    """Write the golden file anew."""
    with tempfile.TemporaryDirectory() as folder:
        space = Workspace(Path(folder))
        space.ledger.open_dataset("people", PrivacyBudget(epsilon=1e6, delta=0.1))
        GOLDEN.write_text(json.dumps(released_card(space), indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    write_golden()
