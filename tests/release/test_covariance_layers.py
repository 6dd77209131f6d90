"""Layers of covariances: positive semi-definite matrices and principal components, from published
numbers alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr

from dpdask.errors import DpdaskError, VerificationFailed
from dpdask.privatizers.eigen import nearest_psd, symmetric_eigen
from dpdask.releases.api import resume
from dpdask.releases.verify import verify_release
from tests.support.forging import rewrite_card
from tests.support.workspace import Workspace

LAYERS = ["psd", {"name": "pca", "components": 3}]
QUERIES: dict[str, dict[str, Any]] = {
    "private mean": {"query": "covariance"},
    "private count": {
        "query": "covariance",
        "privacy_unit": {"record_dim": 0, "l2_clip_norm": 3.0, "adjacency": "add-remove-one"},
    },
    "public centre": {"query": {"name": "covariance", "center": 0.5}},
    "second moment": {"query": "second-moment"},
    "correlated noise": {
        "query": "second-moment",
        "mechanism": {"name": "udn", "axis": 1, "weights": [1, 2, 3, 4, 5, 6, 7]},
    },
    "float32": {"query": "covariance", "noise": {"output_dtype": "float32"}},
}


def _table() -> Any:
    rng = np.random.default_rng(4)
    return rng.normal(0, 1, (400, 2)) @ rng.normal(0, 1, (2, 7)) * 0.5


def _changes(case: str, **publish: Any) -> dict[str, Any]:
    return {
        "privacy_unit": {"record_dim": 0, "l2_clip_norm": 3.0},
        "publish": {"layers": LAYERS, **publish},
        **QUERIES[case],
    }


def _opened(space: Workspace) -> xr.Dataset:
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)
    return xr.open_zarr(space.folder / "out.zarr", consolidated=False).load()


@pytest.mark.parametrize(
    "publish", [{}, {"chunks": [3, 3]}, {"chunks": [2, 2], "shards": [4, 4], "codec": "zstd"}]
)
@pytest.mark.parametrize("case", QUERIES)
def test_layers_follow_from_what_is_published(
    space: Workspace, case: str, publish: dict[str, Any]
) -> None:
    space.source(_table(), chunks=(90, 4))
    space.release(**_changes(case, **publish))
    found = _opened(space)
    values, vectors = symmetric_eigen(found.data.values.astype(np.float64))
    assert found.data_eigenvalues.values.tobytes() == values[:3].tobytes()
    assert found.data_eigenvectors.values.tobytes() == vectors[:3].tobytes()
    assert found.data_psd.values.tobytes() == nearest_psd(values, vectors).tobytes()
    assert found.data_eigenvectors.dims == ("component", found.data.dims[0])
    assert found.data_eigenvalues.dims == ("component",)


@pytest.mark.parametrize("case", QUERIES)
def test_lost_chunks_are_written_again_with_the_same_bytes(space: Workspace, case: str) -> None:
    """However the source is cut into tasks."""
    space.source(_table(), chunks=(90, 4))
    changes = _changes(case, chunks=[3, 3])
    first = space.staged(**changes)
    assert space.staged(**changes, compute={"cluster": "inline", "task_size": 2000}) == first
    assert any("eigenvectors" in name for name in first)


def test_interrupted_release_is_resumed_with_its_layers(space: Workspace) -> None:
    space.source(_table(), chunks=(90, 4))
    changes = _changes("private mean", chunks=[3, 3])

    class Stop(Exception):
        pass

    def stop(progress: Any) -> None:
        if progress.stage == "verify":
            raise Stop

    with pytest.raises(Stop):
        space.release(stop, **changes)
    [lost] = [path for path in space.folder.rglob("*_eigenvectors/*") if path.is_file()]
    lost.unlink()
    resume(space.spec(**changes))
    found = _opened(space)
    values, vectors = symmetric_eigen(found.data.values)
    assert found.data_eigenvectors.values.tobytes() == vectors[:3].tobytes()
    assert found.data_psd.values.tobytes() == nearest_psd(values, vectors).tobytes()


REFUSED: dict[str, tuple[tuple[int, ...], dict[str, Any], str]] = {
    "a mean": ((50, 4), {"query": "mean", "publish": {"layers": ["psd"]}}, "not from query mean"),
    "the tensor": ((4, 4), {"publish": {"layers": ["pca"]}}, "not from query identity"),
    "too many components": (
        (50, 4),
        {"query": "covariance", "publish": {"layers": [{"name": "pca", "components": 5}]}},
        "5 components of 4 features",
    ),
    "no components": (
        (50, 4),
        {"query": "covariance", "publish": {"layers": [{"name": "pca", "components": 0}]}},
        "components",
    ),
    "a step of several": (
        (50, 4),
        {"query": "covariance", "publish": {"layers": [["psd", "pca"]]}},
        "one by one",
    ),
    "twice": ((50, 4), {"query": "covariance", "publish": {"layers": ["psd", "psd"]}}, "psd"),
    "another dimension of its name": (
        (50, 4),
        {
            "query": "covariance",
            "publish": {"layers": ["pca"], "dimension_names": ["component", "other"]},
        },
        "rename",
    ),
    "too many features": (
        (3, 4100),
        {"query": "second-moment", "publish": {"layers": ["psd"]}},
        "at most 4096 features",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_anything_is_charged(space: Workspace, case: str) -> None:
    shape, changes, text = REFUSED[case]
    space.source(np.zeros(shape))
    with pytest.raises(DpdaskError, match=text):
        space.release(**changes)
    assert space.spent() == 0


TAMPERED: dict[str, Any] = {
    "other components": lambda card: card["released"]["layers"][1]["configuration"].update(
        components=4
    ),
    "no layer": lambda card: card["released"]["layers"].pop(),
    "another layer": lambda card: card["released"]["layers"][0].update(name="integer"),
    "an option too many": lambda card: card["released"]["layers"][0].update(
        configuration={"components": 3}
    ),
}


@pytest.mark.parametrize("case", TAMPERED)
def test_card_with_other_layers_is_refused(space: Workspace, case: str) -> None:
    space.source(_table())
    space.release(**_changes("private mean"))
    verify_release(str(space.folder / "out.zarr"))
    rewrite_card(space.folder / "out.zarr", TAMPERED[case])
    with pytest.raises(VerificationFailed, match=r"layers|arrays"):
        verify_release(str(space.folder / "out.zarr"))


def test_all_components_are_released_where_their_number_is_left_out(space: Workspace) -> None:
    space.source(_table())
    space.release(**{**_changes("second moment"), "publish": {"layers": ["pca"]}})
    found = _opened(space)
    assert found.data_eigenvectors.shape == (7, 7)
    rebuilt = (found.data_eigenvectors.values.T * found.data_eigenvalues.values) @ (
        found.data_eigenvectors.values
    )
    np.testing.assert_allclose(rebuilt, found.data, atol=1e-9)
