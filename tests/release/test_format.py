"""A newer dpdask of the same format finishes what an older one began (row 10 of the operations
review).
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from pathlib import Path
from typing import Any

import pytest

from dpdask.planning.fingerprint import FORMAT
from dpdask.releases.api import release, resume
from dpdask.releases.batch import check_batch
from dpdask.spec import parse_release_spec
from dpdask.spec.schema import release_spec_schema
from tests.support.workspace import Workspace, people

GOLDEN = Path(__file__).parents[1] / "golden"

CASES = ("identity-clip", "identity-rank-one", "mean-range", "histogram", "laplace-range")
# The bytes that this format draws, for a few cases of the golden file.
PINNED = (
    {"sampler": 1, "grid": 1, "wire": 1},
    "8fdb14e7109d650d204170b6190c07117248b83de3fa71957112b7a65df51fd5",
)


def other_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that a patch release of dpdask was installed meanwhile."""
    real = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: "0.2.99" if name == "dpdask" else real(name)
    )


def test_row_10_a_patch_release_finishes_what_an_older_one_began(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    space.source(people(), chunks=(10, 4))
    spec = space.spec(publish={"chunks": [10, 4]})
    staged: dict[Path, bytes] = {}

    def stop(progress: Any) -> None:
        if progress.stage == "tiles" and progress.done >= 4:
            [folder] = (space.folder / "out.zarr.dpdask-staging").glob("*/release")
            files = [path for path in folder.rglob("*") if path.is_file()]
            staged.update((path.relative_to(folder), path.read_bytes()) for path in files)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        release(spec, on_progress=stop)
    assert staged
    other_version(monkeypatch)
    resume(spec)
    [charged] = space.ledger.state("people").releases.values()
    assert charged == "commit"
    for name, content in staged.items():
        assert (space.folder / "out.zarr" / name).read_bytes() == content


def test_row_10_a_half_done_batch_is_finished_by_a_patch_release(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    space.source(people(), chunks=(20, 8))
    specs = [space.spec(output={"url": f"{space.folder}/{name}.zarr"}) for name in "ab"]
    release(specs[0])
    other_version(monkeypatch)
    batch = check_batch([parse_release_spec(spec) for spec in specs])
    assert [spec.output.url for spec in batch.published] == [f"{space.folder}/a.zarr"]
    assert [spec.output.url for spec in batch.missing] == [f"{space.folder}/b.zarr"]


def test_row_10_other_bytes_need_another_format() -> None:
    golden = json.loads((GOLDEN / "bytes.json").read_text())
    known = [golden[case]["values"] for case in CASES]
    digest = hashlib.sha256(json.dumps(known).encode()).hexdigest()
    assert (FORMAT, digest) == PINNED, "raise a number of FORMAT, and pin the new bytes here"


def test_row_10_another_default_needs_another_format() -> None:
    """A spec without an option must mean the same to every version of a format."""
    definitions: Any = release_spec_schema()["$defs"]
    defaults = {
        f"{section}.{name}": option["default"]
        for section, model in definitions.items()
        for name, option in model.get("properties", {}).items()
        if "default" in option and section != "ComputeSection"
    }
    pinned = json.loads((GOLDEN / "defaults.json").read_text())
    changed = {name for name in pinned if defaults.get(name, "gone") != pinned[name]}
    assert not changed, "raise a number of FORMAT, and write the defaults anew"
