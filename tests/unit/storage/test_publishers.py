"""Publishers without a release: the output's lock, publication, withdrawal, foreign objects.

Each statement is checked for a folder and for memory, one for each kind of publisher.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dpdask.errors import OutputLockDamaged, StoreError
from dpdask.keystream import ReleaseKey
from dpdask.storage import (
    ROOT,
    Layout,
    ManifestEntry,
    OutputLock,
    Publisher,
    Storage,
    open_storage,
    read_output_lock,
    remove_output_lock,
)
from dpdask.storage.publishers import PutIfAbsentPublisher, RenamePublisher

FIRST, SECOND = "1" * 32, "2" * 32
LAYOUT = Layout(
    name="data",
    shape=(4, 2),
    chunks=(2, 2),
    shards=None,
    dtype="<f8",
    codec="none",
    dimension_names=("row", "column"),
)
BLOCK = np.arange(4.0).reshape(2, 2)


@pytest.fixture(params=["folder", "memory"])
def output(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    folder = str(tmp_path) if request.param == "folder" else f"memory://{tmp_path.name}"
    storage = open_storage(f"{folder}/out.zarr")
    yield storage
    storage.delete()
    storage.beside(".dpdask-staging").delete()


def staged(publisher: Publisher) -> tuple[dict[str, bytes], set[str]]:
    """Put one chunk and return documents and keys of the release."""
    publisher.lock_output()
    entry = publisher.put(LAYOUT, (0, 0), BLOCK)
    assert entry is not None
    documents = {ROOT: b"{}", "data/zarr.json": b"{}"}
    return documents, {*documents, entry.key}


def test_the_storage_decides_how_a_release_is_published(output: Storage) -> None:
    local = output.file_path("") is not None
    assert type(Publisher.of(output, FIRST)) is (RenamePublisher if local else PutIfAbsentPublisher)


def test_one_release_holds_the_lock_until_it_releases_it(output: Storage) -> None:
    first, second = Publisher.of(output, FIRST), Publisher.of(output, SECOND)
    assert read_output_lock(output) is None
    assert first.lock_output()
    assert not first.lock_output()
    with pytest.raises(StoreError, match="another release to this output is under way"):
        second.lock_output()
    second.discard(charged=False)
    assert (read_output_lock(output), first.holds_lock(), second.holds_lock()) == (
        FIRST,
        True,
        False,
    )
    first.discard(charged=False)
    assert read_output_lock(output) is None
    assert second.lock_output()
    second.discard(charged=False)
    assert not output.beside(".dpdask-staging").occupied()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"release_id": "../x"}', json.dumps({"x": FIRST}).encode()]
)
def test_a_damaged_lock_is_nobodys_and_can_be_removed(output: Storage, content: bytes) -> None:
    control = output.beside(".dpdask-staging")
    control.make()
    control.write("release.json", content)
    with pytest.raises(OutputLockDamaged, match="the lock beside the output is damaged"):
        read_output_lock(output)
    assert not OutputLock(control, FIRST).held_or_free()
    remove_output_lock(output)
    assert read_output_lock(output) is None


def test_an_object_is_removed_only_if_it_holds_what_was_expected(output: Storage) -> None:
    output.make()
    output.write("name", b"old")
    assert not output.remove_if("name", b"new")
    assert output.read("name") == b"old"
    assert output.remove_if("name", b"old")
    assert output.read("name") is None
    assert not output.remove_if("name", b"old")


def test_what_is_ready_is_published_once_and_whole(output: Storage) -> None:
    publisher = Publisher.of(output, FIRST)
    documents, keys = staged(publisher)
    publisher.check_no_foreign_objects(keys)
    publisher.ready(documents, keys)
    assert output.read(ROOT) is None
    assert publisher.ready_root() == documents[ROOT]
    assert publisher.publish(documents[ROOT])
    publisher.discard()
    assert {name for name, _, _ in output.listing()} == keys
    late = Publisher.of(output, SECOND)
    late.lock_output()
    if isinstance(late, RenamePublisher):
        late.data.make()
    assert not late.publish(b"other")
    late.discard(charged=False)
    assert output.read(ROOT) == documents[ROOT]


def test_only_a_release_that_can_be_withdrawn_says_that_it_stays_invisible(
    output: Storage,
) -> None:
    publisher = Publisher.of(output, FIRST)
    documents, keys = staged(publisher)
    publisher.ready(documents, keys)
    withdrawn = publisher.withdraw()
    assert withdrawn is isinstance(publisher, RenamePublisher)
    if withdrawn:
        with pytest.raises(StoreError, match="cannot be published"):
            publisher.publish(documents[ROOT])
        assert not output.occupied()
        assert publisher.holds_lock()
    publisher.discard()
    assert not publisher.withdraw()  # without its lock it takes nothing away
    assert not output.occupied()


def test_what_others_put_beside_the_chunks_is_never_published(output: Storage) -> None:
    publisher = Publisher.of(output, FIRST)
    documents, keys = staged(publisher)
    publisher.data.write("planted", b"x")
    if isinstance(publisher, PutIfAbsentPublisher):
        for check in (
            lambda: publisher.check_no_foreign_objects(keys),
            lambda: publisher.ready(documents, keys),
        ):
            with pytest.raises(StoreError, match="'planted', which is not of this release"):
                check()
    else:
        publisher.check_no_foreign_objects(keys)
        publisher.ready(documents, keys)
        assert {name for name, _, _ in publisher.data.listing()} == keys
    publisher.discard()


def test_a_manifest_segment_that_the_release_did_not_seal_is_ignored(output: Storage) -> None:
    publisher = Publisher.of(output, FIRST)
    publisher.lock_output()
    seal, other = ReleaseKey(bytes(32)).seal("staging"), ReleaseKey(b"o" * 32).seal("staging")
    first, second = ManifestEntry("a", 1, "x"), ManifestEntry("b", 2, "y")
    publisher.append_manifest([first], seal)
    publisher.append_manifest([second], other)
    publisher.append_manifest([second], seal)
    assert publisher.read_manifest(seal) == [first, second]
    assert publisher.read_manifest(other) == [second]
    publisher.discard(charged=False)


def test_a_discarded_release_leaves_what_others_staged(output: Storage) -> None:
    first = Publisher.of(output, FIRST)
    staged(first)
    first.control.write("notes.txt", b"of somebody else")
    first.discard()
    assert first.control.read("notes.txt") == b"of somebody else"
    second = Publisher.of(output, SECOND)
    second.lock_output()  # removes what aborted releases left, and nothing else
    assert first.control.read("notes.txt") == b"of somebody else"
    second.discard(charged=False)
    first.control.delete()
