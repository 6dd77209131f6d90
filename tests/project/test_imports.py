"""What a part of dpdask loads, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dpdask.privacy import PrivacyBudget
from tests.support.workspace import Workspace

COMMAND = """
import sys
from dpdask.cli import main
sys.argv = ["dpdask", *{arguments!r}]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print("\\nloaded:", *sys.modules)
"""


def loaded_by(code: str) -> set[str]:
    """Return the modules that are loaded when the code ends."""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(ended.stdout.rpartition("loaded:")[2].split())


def after_command(*arguments: str) -> set[str]:
    return loaded_by(COMMAND.format(arguments=list(arguments)))


def test_the_commands_start_without_dask_zarr_prefect_or_a_database() -> None:
    heavy = {"dask", "zarr", "prefect", "dp_accounting", "sqlalchemy", "numba"}
    code = "import sys, dpdask.cli, dpdask.mechanisms.compare, dpdask.views.terminal;"
    loaded = loaded_by(code + " print('loaded:', *sys.modules)")
    assert "dpdask.cli" in loaded
    assert not heavy & loaded


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run", "--help"]])
def test_help_loads_the_command_line_and_little_else(arguments: list[str]) -> None:
    loaded = after_command(*arguments)
    assert "dpdask.cli" in loaded
    assert not {"numpy", "scipy", "pydantic", "yaml", "rich", "zarr", "numba", "dask"} & loaded
    assert len(loaded) < 250  # with NumPy or pydantic they are far more


@pytest.fixture
def spec(tmp_path: Path) -> str:
    """A tiny release whose spec says nothing of where it is computed."""
    space = Workspace(tmp_path, {})
    space.ledger.open_dataset("people", PrivacyBudget(epsilon=100.0, delta=0.1))
    space.source(np.ones((100, 10)))
    return str(space.write_spec())


def test_a_plan_loads_neither_compiled_kernels_nor_dask(spec: str) -> None:
    loaded = after_command("plan", spec)
    assert "dpdask.planning" in loaded
    assert not {"numba", "llvmlite", "mpmath", "dask", "distributed", "prefect"} & loaded


def test_a_tiny_release_needs_no_dask(spec: str) -> None:
    loaded = after_command("run", spec)
    assert "numba" in loaded
    assert not {"dask", "distributed", "prefect"} & loaded


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("dpdask, dpdask.mechanisms", {"numba", "pydantic", "sqlalchemy", "yaml", "zarr"}),
        ("dpdask.queries, dpdask.privatizers.discretize", {"pydantic", "sqlalchemy", "zarr"}),
    ],
)
def test_the_core_loads_no_spec_no_storage_and_no_database(modules: str, absent: set[str]) -> None:
    loaded = loaded_by(f"import sys, {modules}; print('loaded:', *sys.modules)")
    assert "dpdask" in loaded
    assert not absent & loaded


def test_public_names_are_listed_and_load() -> None:
    import dpdask

    assert set(dpdask.__all__) <= set(dir(dpdask))
    for name in dpdask.__all__:
        assert getattr(dpdask, name) is not None
