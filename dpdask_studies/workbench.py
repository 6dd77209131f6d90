"""Releases of a study: real ones, in a temporary folder with throwaway ledgers."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import dpdask
from dpdask.errors import BareKeysWarning
from dpdask.ledger import Ledger
from dpdask.mechanisms import Calibration
from dpdask.privacy import PrivacyBudget
from dpdask.releases.card import ReleaseCard
from dpdask.spec import parse_calibration_spec
from dpdask.storage import write_example
from dpdask.types import Floats, Json

__all__ = ["Release", "Workbench", "calibrated", "workbench"]

# Throwaway ledgers protect nothing: they admit every charge of finite size.
_UNLIMITED = PrivacyBudget(epsilon=1e6, delta=0.5)


def calibrated(**spec: object) -> Calibration:
    """Return the noise and the guarantee that the keys of a calibration spec describe."""
    return dpdask.calibrate(parse_calibration_spec(dict(spec)))


@dataclass(frozen=True, slots=True)
class Release:
    """What was published: the values, and the card."""

    values: Floats
    card: ReleaseCard

    @property
    def verified_epsilon(self) -> float:
        """Return the epsilon that the card verifies at the claimed delta."""
        return self.card.guarantee.verified.epsilon_at_delta

    @property
    def verified_delta(self) -> float:
        """Return the delta that the card verifies at the claimed epsilon."""
        return self.card.guarantee.verified.delta_at_epsilon


@dataclass
class Workbench:
    """A folder with sources; every release of one has a ledger and an output of its own."""

    folder: Path
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def source(self, values: Floats) -> str:
        """Write an array as the source of releases and return its URL."""
        path = self.folder / f"source-{next(self._numbers)}.zarr"
        write_example(
            path,
            name="x",
            values=np.ascontiguousarray(values),
            chunks=values.shape,
            dimension_names=tuple(f"axis_{axis}" for axis in range(values.ndim)),
            attributes={},
            coordinates={},
        )
        return str(path)

    def release(self, source: str, **spec: object) -> Release:
        """Release a source by the keys of a spec, and read what was published.

        The noise is new every time. Mechanisms that are not certified are accepted.
        """
        whole: Json = {"source": {"url": source, "array": "x"}, **self.places(), **spec}
        receipt = dpdask.release(whole)
        values = np.asarray(dpdask.open_release(receipt.output).values, float)
        return Release(values, receipt.card)

    def places(self) -> Json:
        """Return the keys of a spec that say where: a new output, a new ledger, this process."""
        number = next(self._numbers)
        ledger = f"sqlite:///{self.folder}/ledger-{number}.db"
        with contextlib.closing(Ledger(ledger)) as book:
            book.open_dataset("study", _UNLIMITED)
        return {
            "output": {"url": str(self.folder / f"output-{number}.zarr")},
            "budget": {"ledger": ledger, "dataset": "study"},
            "compute": {"cluster": "inline"},
            "accept_uncertified": True,
        }


@contextlib.contextmanager
def workbench() -> Iterator[Workbench]:
    """Open a workbench in a temporary folder, which is removed with everything in it."""
    with (
        tempfile.TemporaryDirectory(prefix="dpdask-study-") as folder,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", BareKeysWarning)  # keys of throwaway ledgers guard nothing
        yield Workbench(Path(folder))
