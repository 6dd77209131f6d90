"""Pages of tasks: their specs plan, with the noise that the pages state."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import yaml
import zarr

import dpdask
from dpdask.cli import main
from dpdask.ledger import Ledger
from dpdask.privacy import PrivacyBudget
from dpdask_studies.registry import NAMES

TASKS = Path(__file__).parents[2] / "docs" / "tasks"
PAGES = sorted(path.stem for path in TASKS.glob("*.md") if path.stem != "index")
SOURCES: dict[str, dict[str, tuple[int, ...]]] = {
    "counts-on-a-map": {"pickups.zarr/lat": (3829,), "pickups.zarr/lon": (3829,)},
    "principal-components": {"images.zarr/pixels": (1797, 64)},
    "regression": {"patients.zarr/columns": (10_000, 7)},
    "federated-gradients": {"gradients.zarr/gradients": (288, 65, 10)},
    "features": {"features.zarr/features": (1797, 10)},
}


def test_every_task_has_its_parts() -> None:
    assert sorted(SOURCES) == PAGES
    index = (TASKS / "index.md").read_text()
    for page in PAGES:
        text = (TASKS / f"{page}.md").read_text()
        assert f"({page}.md)" in index
        for part in ("papers say", "What holds", "What to use", "Expected error", "The spec"):
            assert re.search(rf"^## .*{part}$", text, re.MULTILINE), (page, part)


@pytest.mark.parametrize("page", PAGES)
def test_a_spec_plans_with_the_noise_that_is_stated(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (TASKS / f"{page}.md").read_text()
    [block] = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    spec = yaml.safe_load(block)
    for path, shape in SOURCES[page].items():
        folder, name = path.split("/")
        zarr.create_array(tmp_path / folder, name=name, data=np.zeros(shape), chunks=shape)
    ledger = Ledger(spec["budget"]["ledger"])
    ledger.open_dataset(spec["budget"]["dataset"], PrivacyBudget(epsilon=50.0, delta=1e-3))
    plan = dpdask.plan(spec)
    assert plan.guarantee.certified
    [stated] = re.findall(r"standard deviation of \*\*([\d.e-]+)\*\*", text)
    assert plan.entry_std == pytest.approx(float(stated), rel=0.005)


def test_pages_name_studies_and_commands_that_exist() -> None:
    for page in TASKS.glob("*.md"):
        for command, name in re.findall(r"dpdask (\w+) ([\w-]+)", page.read_text()):
            assert command in main.commands
            assert command != "study" or name in NAMES
