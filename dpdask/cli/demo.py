"""The demo: a generated tensor, a ledger and a spec in a new folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpdask.errors import InvalidSpec
from dpdask.ledger import Ledger
from dpdask.privacy import PrivacyBudget
from dpdask.storage import write_example

__all__ = ["Demo", "prepare_demo"]

_SPEC = """\
# The mean of 20,000 people's daily readings: every person's year is clipped to norm 14, summed,
# and noised tile by tile.
source: {{url: {folder}/readings.zarr, array: readings}}
output: {{url: {folder}/released.zarr, array: readings}}
privacy_unit: {{adjacency: replace-one, record_dim: 0, l2_clip_norm: 14.0, missing: center}}
query: mean
privacy: {{epsilon: 1.0, delta: 1.0e-6}}
mechanism: analytic-gaussian
budget: {{ledger: "{ledger}", dataset: demo, curator: dpdask demo}}
publish:
  chunks: [73]
  dimension_names: [day]
  coordinates: [day]
  attributes: [units]
  description: Mean daily reading of 20,000 generated people
"""


@dataclass(frozen=True)
class Demo:
    """Where everything of a demo lies."""

    folder: Path
    spec: Path
    ledger: str


def prepare_demo(folder: str | None = None) -> Demo:
    """Generate the demo's tensor, open its ledger with epsilon 3, and write its spec."""
    new = _new_folder(folder)
    people, days = 20_000, 365
    generator = np.random.default_rng(2026)  # an example to look at, not noise
    season = np.sin(np.arange(days) * 2 * np.pi / 365)
    readings = (
        0.5 + 0.2 * season + 0.3 * generator.standard_normal((people, days), dtype=np.float32)
    )
    write_example(
        new / "readings.zarr",
        name="readings",
        values=readings.astype(np.float32),
        chunks=(1000, days),
        dimension_names=("person", "day"),
        attributes={
            "units": "kWh",
            "collected_by": "not on the list of public attributes, so it is not copied",
        },
        coordinates={"day": np.arange(days, dtype=np.int32)},
    )
    ledger = f"sqlite:///{new}/ledger.db"
    Ledger(ledger).open_dataset("demo", PrivacyBudget(epsilon=3.0, delta=1e-5))
    spec = new / "release.yaml"
    spec.write_text(_SPEC.format(folder=new, ledger=ledger))
    return Demo(new, spec, ledger)


def _new_folder(folder: str | None) -> Path:
    numbered = [Path("dpdask-demo"), *(Path(f"dpdask-demo-{n}") for n in range(2, 1000))]
    candidates = [Path(folder)] if folder else numbered
    for candidate in candidates:
        try:
            candidate.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise InvalidSpec(
                f"cannot create {str(candidate)!r}: {error.strerror}; choose another --folder"
            ) from None
        return candidate
    raise InvalidSpec(f"{str(candidates[0])!r} exists; choose another --folder")
