"""Compiled kernels are kept for the next process, in a folder that nobody else can touch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dpdask.machine import compiling
from dpdask.machine.compiling import FOLDER_VARIABLE, compiled, kernel_folder

SCRIPT = """
from dpdask.machine.compiling import compiled, kernel_folder
import dpdask.machine.compiling as compiling

def doubled(x):
    return x * FACTOR

kernel = compiled(name=NAME)(doubled)
print(kernel_folder() is not None, kernel(21), sum(kernel._cache_hits.values()))
"""


def run(folder: Path | str, factor: int = 2, name: str = "") -> list[str]:
    script = f"FACTOR = {factor}\nNAME = {name!r}\n{SCRIPT}"
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), FOLDER_VARIABLE: str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_the_next_process_loads_what_the_first_compiled(tmp_path: Path) -> None:
    folder = tmp_path / "kernels"
    assert run(folder) == ["True", "42", "0"]
    assert folder.stat().st_mode & 0o777 == 0o700
    [kept] = folder.iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    assert run(folder) == ["True", "42", "1"]
    assert run(folder, name="another") == ["True", "42", "0"]


def test_no_folder_means_compiling_in_memory(tmp_path: Path) -> None:
    assert run("") == ["False", "42", "0"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o755, 0o722])
def test_a_folder_that_others_can_enter_is_not_used(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "kernels"
    folder.mkdir()
    folder.chmod(mode)
    assert run(folder) == ["False", "42", "0"]
    assert list(folder.iterdir()) == []


def test_a_link_to_a_folder_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "kernels").symlink_to(tmp_path / "real")
    assert run(tmp_path / "kernels") == ["False", "42", "0"]


def test_a_folder_of_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "kernels"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
    assert kernel_folder.__wrapped__() == folder
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(folder).st_uid + 1)
    assert kernel_folder.__wrapped__() is None


def test_a_file_that_is_not_what_was_written_is_compiled_again(tmp_path: Path) -> None:
    folder = tmp_path / "kernels"
    run(folder)
    [kept] = folder.iterdir()
    whole = kept.read_bytes()
    for damaged in (whole[:-1], whole[:40] + b"?" + whole[41:]):
        kept.write_bytes(damaged)
        assert run(folder) == ["True", "42", "0"]
        assert kept.read_bytes()[:32] == compiling._digest(kept.read_bytes()[32:])
    kept.chmod(0o620)
    assert run(folder) == ["True", "42", "0"]


def test_a_planted_file_runs_nothing(tmp_path: Path) -> None:
    """A link in the folder is not followed, whoever put it there."""
    folder = tmp_path / "kernels"
    run(folder)
    [kept] = folder.iterdir()
    kept.rename(tmp_path / "elsewhere")
    kept.symlink_to(tmp_path / "elsewhere")
    assert run(folder) == ["True", "42", "0"]


def test_the_oldest_files_are_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compiling, "_MOST_FILES", 10)
    for number in range(11):
        (tmp_path / f"{number}.kernel").write_bytes(b"")
        os.utime(tmp_path / f"{number}.kernel", (number, number))
    compiling._remove_oldest(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {f"{n}.kernel" for n in range(5, 11)}


def test_other_sources_have_other_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No kernel of another version is ever loaded: the name of a file depends on all sources."""
    cache = compiled()(lambda x: x)._cache
    own = cache._file(("int64",))
    assert own == cache._file(("int64",))
    assert own != cache._file(("float64",))
    (tmp_path / "module.py").write_text("CONSTANT = 1\n")
    monkeypatch.setattr(compiling, "_PACKAGE", tmp_path)
    first = compiling._origin.__wrapped__()
    (tmp_path / "module.py").write_text("CONSTANT = 2\n")
    assert compiling._origin.__wrapped__() != first
    monkeypatch.setattr(compiling, "_origin", lambda: first)
    assert cache._file(("int64",)) != own
