"""Sources and outputs of every kind, read back with xarray and with plain zarr."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
import zarr

import dpdask
from dpdask.errors import StoreError, VerificationFailed
from dpdask.releases.api import release, resume
from dpdask.releases.card import json_schema
from dpdask.releases.read import open_release, read_card
from dpdask.releases.verify import verify_release
from dpdask.storage import LocalStorage, open_storage, read_output_lock
from tests.support.forging import rewrite_card, scale_noise_std
from tests.support.object_stores import s3
from tests.support.workspace import Workspace, people

__all__ = ["s3"]

LOUD = {"epsilon": 9e4, "delta": 1e-2}


@pytest.mark.parametrize(
    "options", [{}, {"compressors": None}, {"dtype": ">f4"}, {"order": "F", "compressors": None}]
)
def test_zarr_v2_sources_are_read(space: Workspace, options: dict[str, Any]) -> None:
    x = people().astype(options.get("dtype", "f8"))
    array = zarr.create_array(
        space.folder / "source.zarr",
        name="x",
        shape=x.shape,
        chunks=(13, 5),
        zarr_format=2,
        **{"dtype": x.dtype, **options},
    )
    array[...] = x
    space.release(privacy_unit={"record_dim": 0, "ranges": [-1, 1]}, privacy=LOUD)
    assert np.max(np.abs(space.values() - x)) < 0.1


def test_zip_files_and_file_urls_are_read(space: Workspace) -> None:
    x = people()
    with zarr.storage.ZipStore(space.folder / "source.zarr.zip", mode="w") as store:
        zarr.create_array(store, name="x", data=x, chunks=(20, 8))
    privacy_unit = {"record_dim": 0, "ranges": [-1, 1]}
    for url in (f"{space.folder}/source.zarr.zip", f"file://{space.folder}/source.zarr.zip"):
        space.release(privacy_unit=privacy_unit, privacy=LOUD, source={"url": url, "array": "x"})
        assert np.max(np.abs(space.values() - x)) < 0.1
        LocalStorage(space.folder / "out.zarr").delete()
        if url.startswith("file"):
            break
        space = Workspace(space.folder)
    with pytest.raises(StoreError, match="for reading only"):
        space.release(
            privacy_unit=privacy_unit,
            source={"url": url, "array": "x"},
            output={"url": f"{space.folder}/out.zip"},
        )


def test_memory_is_read_and_written_in_this_process_only(space: Workspace) -> None:
    x = people()
    zarr.create_array("memory://dpdask-source", name="x", data=x, chunks=(20, 8), overwrite=True)
    where = {
        "source": {"url": "memory://dpdask-source", "array": "x"},
        "output": {"url": "memory://dpdask-out"},
    }
    try:
        with pytest.raises(StoreError, match="workers: 1"):
            space.release(compute={"workers": 2, "threads": 1}, **where)
        space.release(privacy_unit={"record_dim": 0, "ranges": [-1, 1]}, privacy=LOUD, **where)
        assert np.max(np.abs(zarr.open_array("memory://dpdask-out/data", mode="r")[...] - x)) < 0.1
        verify_release("memory://dpdask-out")
    finally:
        open_storage("memory://dpdask-source").delete()
        open_storage("memory://dpdask-out").delete()


def test_s3_is_read_and_written_with_the_root_metadata_last(
    space: Workspace, s3: dict[str, Any]
) -> None:
    from obstore.store import from_url
    from zarr.storage import ObjectStore

    from dpdask.spec.release import SourceSection

    options = SourceSection(url="s3://bucket/source", options=s3).options  # type: ignore[arg-type]
    plain = {
        "endpoint": s3["endpoint"],
        "region": "us-east-1",
        "access_key_id": "test",
        "secret_access_key": "x",
    }
    x = people(64, 8)
    store = ObjectStore(
        from_url("s3://bucket/source", config=plain, client_options={"allow_http": True})
    )  # type: ignore[arg-type]
    zarr.create_array(store, name="x", data=x, chunks=(16, 8), overwrite=True)
    where: dict[str, Any] = {
        "source": {"url": "s3://bucket/source", "array": "x", "options": s3},
        "output": {"url": "s3://bucket/released", "options": s3},
        "privacy_unit": {"record_dim": 0, "ranges": [-1, 1]},
        "privacy": LOUD,
    }
    seen = []
    output = open_storage("s3://bucket/released", options)

    def watch(progress: Any) -> None:
        if progress.stage in ("tiles", "verify"):
            seen.append(output.read("zarr.json"))
        if progress.stage == "verify" and len(seen) > 1 and not progress_stopped:
            progress_stopped.append(True)
            raise KeyboardInterrupt

    progress_stopped: list[bool] = []
    with pytest.raises(KeyboardInterrupt):
        space.release(on_progress=watch, **where)
    assert seen
    assert all(root is None for root in seen)  # invisible until all is there
    receipt = resume(space.spec(**where))
    released = open_release("s3://bucket/released", options)
    assert np.max(np.abs(released.values - x)) < 0.1
    verify_release("s3://bucket/released", options, ledger=space.ledger)
    assert open_storage("s3://bucket/released.dpdask-staging", options).occupied() is False
    with pytest.raises(StoreError, match="exists"):
        release(space.spec(**where))
    assert "canary" not in json.dumps(receipt.card.model_dump(mode="json"))
    with pytest.raises(StoreError, match="has no such bucket"):
        space.release(**{**where, "output": {"url": "s3://no-such-bucket/x", "options": s3}})


def test_plain_secrets_are_refused_in_specs(space: Workspace) -> None:
    with pytest.raises(dpdask.DpdaskError, match="may be a secret"):
        space.release(source={"url": "s3://b/x", "options": {"secret_access_key": "oops"}})
    with pytest.raises(dpdask.DpdaskError, match="holds a password"):
        space.release(budget={"dataset": "people", "ledger": "postgresql://me:secret@host/db"})


def test_the_output_opens_cleanly_in_xarray_and_zarr(space: Workspace) -> None:
    x = people(60, 8).astype("f4")
    space.source(
        x,
        chunks=(16, 3),
        dimension_names=("person", "day"),
        attributes={"units": "kWh", "secret_note": "mean 0.2"},
        fill_value=0,
    )
    zarr.create_array(
        space.folder / "source.zarr", name="day", data=np.arange(8), dimension_names=("day",)
    )
    zarr.create_array(
        space.folder / "source.zarr", name="income", data=x[:, 0], dimension_names=("person",)
    )
    space.release(publish={"attributes": ["units"], "coordinates": ["day"]})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataset = xarray.open_zarr(space.folder / "out.zarr")
    assert dataset["data"].dims == ("person", "day")
    assert dataset["data"].dtype == np.float32
    assert list(dataset["day"].values) == list(range(8))
    assert dataset["data"].attrs["units"] == "kWh"
    assert "secret_note" not in dataset["data"].attrs
    assert "income" not in dataset
    assert np.array_equal(dataset["data"].values, space.values())
    netcdf_safe = {k: v for k, v in dataset["data"].attrs.items() if not isinstance(v, dict | list)}
    assert netcdf_safe == dataset["data"].attrs  # flat scalars only
    group = zarr.open_group(space.folder / "out.zarr", mode="r")
    assert group.attrs["zarr_conventions"][0]["name"] == "dp"  # type: ignore[index,call-overload]
    assert dpdask.open_release(str(space.folder / "out.zarr")).shape == (60, 8)


def test_every_chunk_is_stored_even_if_all_fill(space: Workspace) -> None:
    space.source(np.zeros((64, 8)), chunks=(4, 4))  # the source stores nothing at all
    receipt = space.release(noise={"output_dtype": "int32"}, publish={"codec": "zstd"})
    assert len(list((space.folder / "out.zarr" / "data").glob("c.*"))) == 32
    assert receipt.card.manifest is not None
    assert (
        receipt.card.manifest.objects == 32 + 3 + 2
    )  # and the metadata of the array and of two groups, and the noise of an entry


def test_verify_finds_damage(space: Workspace) -> None:
    space.source(people(64, 8), chunks=(16, 8))
    space.release()
    url = str(space.folder / "out.zarr")
    assert verify_release(url, ledger=space.ledger).guarantee.certified
    chunk = next((space.folder / "out.zarr" / "data").glob("c.*"))
    content = bytearray(chunk.read_bytes())
    content[7] ^= 1
    chunk.write_bytes(content)
    with pytest.raises(VerificationFailed, match=f"'data/{chunk.name}' was changed"):
        verify_release(url)
    with pytest.raises(ValueError, match=r"[Cc]hecksum"):
        zarr.open_array(space.folder / "out.zarr" / "data", mode="r")[...]
    chunk.unlink()
    with pytest.raises(VerificationFailed, match=f"'data/{chunk.name}' is missing"):
        verify_release(url)


def change_card(space: Workspace, change: Any) -> None:
    rewrite_card(space.folder / "out.zarr", change)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda card: card["guarantee"]["verified"].update(epsilon_at_delta=0.1),
            "does not follow",
        ),
        (lambda card: card["guarantee"]["claimed"].update(epsilon=0.5), "does not follow"),
        (lambda card: card["guarantee"].update(certified=False), "verdict"),
        (lambda card: card["noise"]["configuration"].update(sigma=0.1), "noise level"),
        (
            lambda card: card["sensitivity"]["set"]["configuration"].update(l2=9.0),
            "not the radius of its set",
        ),
        (lambda card: card.update(extra=1), "schema at extra"),
        (lambda card: card.update(release_id="0" * 64), "does not know"),
    ],
)
def test_verify_finds_a_card_that_contradicts_itself(
    space: Workspace, change: Any, text: str
) -> None:
    space.source(people(64, 8), chunks=(16, 8))
    space.release()
    change_card(space, change)
    with pytest.raises(VerificationFailed, match=text):
        verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)


def test_the_schema_in_the_docs_is_the_cards(space: Workspace) -> None:
    stored = json.loads((Path(__file__).parents[2] / "docs" / "dp-release.schema.json").read_text())
    assert stored == json_schema()


def test_publishing_never_replaces_even_an_empty_folder(tmp_path: Path) -> None:
    staged, target = LocalStorage(tmp_path / "staged"), LocalStorage(tmp_path / "target")
    staged.path.mkdir()
    (staged.path / "a").write_text("a")
    target.path.mkdir()
    assert staged.move_to(target) is False
    target.path.rmdir()
    assert staged.move_to(target) is True
    assert (target.path / "a").read_text() == "a"


def test_a_released_group_holds_no_path_of_the_source(space: Workspace) -> None:
    space.source(people(64, 8), chunks=(16, 8))
    space.release()
    for path in (space.folder / "out.zarr").rglob("zarr.json"):
        assert "source.zarr" not in path.read_text()
        assert str(space.folder) not in path.read_text()
    assert read_output_lock(open_storage(str(space.folder / "out.zarr"))) is None


def test_show_reads_the_card_of_any_release(space: Workspace) -> None:
    space.source(people(64, 8), chunks=(16, 8))
    receipt = space.release()
    assert read_card(str(space.folder / "out.zarr")) == receipt.card
    with pytest.raises(StoreError, match="no published release"):
        read_card(str(space.folder / "nothing.zarr"))
    zarr.create_group(space.folder / "other.zarr")
    with pytest.raises(VerificationFailed, match="no dp attribute"):
        read_card(str(space.folder / "other.zarr"))


def test_without_xarray_a_release_opens_as_zarr_with_its_card(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    space.source(people(64, 8), chunks=(16, 8))
    receipt = space.release()
    monkeypatch.setitem(sys.modules, "xarray", None)
    array, card = open_release(str(space.folder / "out.zarr"))
    assert array.shape == (64, 8)
    assert card == receipt.card


@pytest.mark.parametrize(
    "mechanism", ["analytic-gaussian", "imgm", "mgm", "rank-one", "directional"]
)
def test_verify_recomputes_the_guarantee_of_every_noise_shape(
    space: Workspace, mechanism: str
) -> None:
    space.source(people(30, 8), chunks=(16, 8))
    privacy_unit = (
        {"record_dim": 0, "ranges": [-1, 1]}
        if mechanism == "directional"
        else {"record_dim": 0, "l2_clip_norm": 1.0}
    )
    mechanism_section: Any = (
        mechanism
        if mechanism != "imgm"
        else {"name": "imgm", "factors": ["identity", {"diagonal": [1.0] * 7 + [2.0]}]}
    )
    space.release(
        mechanism=mechanism_section,
        privacy_unit=privacy_unit,
        accept_uncertified=mechanism == "rank-one",
    )
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)

    def quieter(card: dict[str, Any]) -> None:
        configuration = card["noise"]["configuration"]
        if "sigma" in configuration:
            configuration["sigma"] *= 0.5
        elif "radius" in configuration:
            configuration["radius"]["configuration"]["scale"] *= 0.5
        else:
            for factor in configuration["factors"]:
                inner = factor["configuration"]
                if "scale" in inner:
                    inner["scale"] *= 0.5
                if "scales" in inner:
                    inner["scales"] = [scale * 0.5 for scale in inner["scales"]]
        halved = 0.5 ** sum("scale" in str(f) for f in configuration.get("factors", [0]))
        scale_noise_std(card, halved)

    change_card(space, quieter)
    with pytest.raises(VerificationFailed, match=r"smaller than its guarantee|does not follow"):
        verify_release(str(space.folder / "out.zarr"))
