"""How a trainer and the process that releases its steps hand them to each other: small files.

One folder holds noisy steps, which are public. Another one, if steps are sampled, holds the sample
of every step and lies inside the trust boundary. A file appears whole or not at all, and is never
replaced.
"""

from __future__ import annotations

import io
import time

import numpy as np

from dpdask.errors import InvalidSpec, StoreError
from dpdask.spec.release import SourceSection
from dpdask.storage import Storage, open_storage, steps_written
from dpdask.types import Array, Json

__all__ = ["STEPS_SUFFIX", "StepFiles", "StepInput", "wait_for_step"]

STEPS_SUFFIX = ".steps"  # of the folder of noisy steps beside an output
_PLACEHOLDER = "{step}"


class StepFiles:
    """A folder of one file per step."""

    def __init__(self, folder: Storage) -> None:
        self._folder = folder

    def put(self, step: int, values: Array) -> None:
        """Put the file of a step, unless it is there.

        Raises:
            StoreError: Other values are there.
        """
        content = _encoded(values)
        self._folder.make()
        name = _name(step)
        if not self._folder.create(name, content) and self._folder.read(name) != content:
            raise StoreError(
                f"the folder of steps holds another file for step {step}; remove it, or choose"
                " another folder"
            )

    def get(self, step: int) -> Array | None:
        """Return the file of a step, None if it is not there."""
        content = self._folder.read(_name(step))
        return None if content is None else np.load(io.BytesIO(content), allow_pickle=False)


def _name(step: int) -> str:
    return f"{step:06d}.npy"


def _encoded(values: Array) -> bytes:
    content = io.BytesIO()
    np.save(content, values, allow_pickle=False)
    return content.getvalue()


def wait_for_step(
    url: str,
    step: int,
    *,
    timeout: float = 3600.0,
    poll: float = 0.2,
    options: Json | None = None,
) -> Array:
    """Wait until a step is there, and return it: what a trainer calls.

    Args:
        url: The folder of noisy steps, ``<output.url>.steps``; or that of the samples.
        step: Which step.
        timeout: How many seconds to wait at most.
        poll: How many seconds to wait between two looks.
        options: Storage options of the folder.

    Raises:
        StoreError: It did not come in time.
    """
    files, until = StepFiles(open_storage(url, options)), time.monotonic() + timeout
    while True:
        values = files.get(step)
        if values is not None:
            return values
        if time.monotonic() >= until:
            raise StoreError(
                f"step {step} did not come within {timeout:g} seconds; look at the flow that"
                " releases steps, and wait again"
            )
        time.sleep(poll)


class StepInput:
    """Where a trainer writes its steps: one array that grows, or one array for each step.

    An attribute ``steps_written`` of the array says how many of its steps are complete.
    """

    def __init__(self, section: SourceSection) -> None:
        if section.window is not None or section.coarsen is not None or section.arrays is not None:
            raise InvalidSpec("steps are read whole, from one array; give url, array and options")
        self._section = section

    @property
    def options(self) -> Json | None:
        """The options of the storage."""
        return self._section.options

    @property
    def array(self) -> str:
        """The path of the array in its group."""
        return self._section.array

    def url(self, step: int) -> str:
        """Return where a step is written."""
        return self._section.url.replace(_PLACEHOLDER, f"{step:06d}")

    def entry(self, step: int) -> int | None:
        """Return which entry of its array a step is; None where it has an array of its own."""
        return None if _PLACEHOLDER in self._section.url else step

    def written(self, step: int) -> bool:
        """Return whether a step is there, all of it."""
        storage = open_storage(self.url(step), self._section.options)
        return steps_written(storage, self.array) > (self.entry(step) or 0)
