"""What a part of dpdask loads, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest


def test_the_commands_start_without_dask_zarr_prefect_or_a_database() -> None:
    heavy = {"dask", "zarr", "prefect", "dp_accounting", "sqlalchemy", "numba"}
    code = (
        "import sys, dpdask.cli, dpdask.mechanisms.compare, dpdask.views.terminal;"
        f" print(sorted({heavy!r} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("dpdask, dpdask.mechanisms", {"numba", "pydantic", "sqlalchemy", "yaml", "zarr"}),
        ("dpdask.queries, dpdask.privatizers.discretize", {"pydantic", "sqlalchemy", "zarr"}),
    ],
)
def test_the_core_loads_no_spec_no_storage_and_no_database(modules: str, absent: set[str]) -> None:
    code = f"import sys, {modules}; print(sorted({absent!r} & set(sys.modules)))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert loaded.stdout.strip() == "[]"


def test_public_names_are_listed_and_load() -> None:
    import dpdask

    assert set(dpdask.__all__) <= set(dir(dpdask))
    for name in dpdask.__all__:
        assert getattr(dpdask, name) is not None
