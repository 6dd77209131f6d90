"""Faults of object stores are told apart, without secrets (row 6 of the operations review)."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from dpdask import patience
from dpdask.errors import StorageFault, StoreError, StoreUnavailable
from dpdask.patience import Patience
from dpdask.spec.release import SourceSection
from dpdask.storage import Storage, open_source, open_storage
from tests.support.object_stores import SECRET, s3
from tests.support.workspace import Workspace, people

__all__ = ["s3"]


def store(options: dict[str, Any], bucket: str = "bucket") -> Storage:
    parsed = SourceSection(url=f"s3://{bucket}/x", options=options).options
    return open_storage(f"s3://{bucket}/x", parsed, Patience(1))


def refusals(storage: Storage) -> Iterator[StoreError]:
    for ask in (
        lambda: storage.read("a"),
        lambda: storage.write("a", b""),
        lambda: storage.create("a", b""),
        lambda: list(storage.listing()),
        lambda: open_source(storage, "x"),
    ):
        with pytest.raises(StoreError) as caught:
            ask()
        assert SECRET not in str(caught.value)
        assert "127.0.0.1" not in str(caught.value)
        assert caught.value.__cause__ is None
        yield caught.value


def answering(status: str, body: str) -> tuple[str, socket.socket]:
    """A server that gives the same answer to everybody."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(16)
    answer = f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n{body}"

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            client.recv(1 << 16)
            client.sendall(answer.encode())
            client.close()

    threading.Thread(target=serve, daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}", listener


FAULTS = {
    "503 Slow Down": ("<Code>SlowDown</Code>", StoreUnavailable, "errors of its own for"),
    "500 Oh": ("", StoreUnavailable, "errors of its own for"),
    "403 Forbidden": ("<Code>AccessDenied</Code>", StorageFault, "lack the permission"),
    "403 Wrong": ("<Code>InvalidAccessKeyId</Code>", StorageFault, "not accept the credentials"),
    "404 Not Found": ("<Code>NoSuchBucket</Code>", StorageFault, "no such bucket"),
}


@pytest.mark.parametrize("status", FAULTS)
def test_row_06_answers_of_a_store_are_told_apart(s3: dict[str, Any], status: str) -> None:
    body, kind, message = FAULTS[status]
    endpoint, listener = answering(status, body)
    for number, error in enumerate(refusals(store({**s3, "endpoint": endpoint}))):
        if number < 4 or kind is StoreUnavailable:  # zarr tells no more than that it failed
            assert type(error) is kind
            assert message in str(error)
    listener.close()


def test_row_06_a_store_that_is_not_there_is_told_from_a_bucket_that_is_not(
    s3: dict[str, Any],
) -> None:
    for error in refusals(store({**s3, "endpoint": "http://127.0.0.1:1"})):
        assert type(error) is StoreUnavailable
        assert "nothing listens there" in str(error)
    for error in list(refusals(store(s3, bucket="elsewhere")))[:4]:
        assert "no such bucket" in str(error)
    store(s3).write("a", b"")


def test_row_06_a_store_without_credentials_is_told_from_others(
    s3: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint, listener = answering("401 Unauthorized", "")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DPDASK_TEST_METADATA", endpoint)  # where clients look for roles
    options = {k: v for k, v in s3.items() if "key" not in k}
    options["metadata_endpoint"] = {"env": "DPDASK_TEST_METADATA"}
    for error in list(refusals(store(options)))[:4]:
        assert "credentials" in str(error)
        assert type(error) is StorageFault
    listener.close()


def test_row_05_a_store_that_is_waited_for_is_named_meanwhile(
    s3: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(patience, "SLOW", 0.5)
    store(s3).read("a")
    assert caplog.messages == []
    with pytest.raises(StoreUnavailable):
        store({**s3, "endpoint": "http://127.0.0.1:1"}).read("a")
    assert caplog.messages == ["the object store has not answered for 0.5 s; still asking"]


def test_row_06_a_store_that_is_away_costs_nothing(space: Workspace, s3: dict[str, Any]) -> None:
    space.source(people())
    options = {**s3, "endpoint": "http://127.0.0.1:1"}
    with pytest.raises(StoreUnavailable, match="nothing listens there"):
        space.release(
            output={"url": "s3://bucket/out", "options": options},
            compute={"cluster": "inline", "patience": 1},
        )
    assert space.spent() == 0
