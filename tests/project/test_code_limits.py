"""Modules stay one screenful of ideas: no file above 400 lines, no function above 60."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import dpdask
import dpdask_studies

PACKAGES = [Path(package.__file__).parent for package in (dpdask, dpdask_studies)]
MODULES = [path for package in PACKAGES for path in package.rglob("*.py")]
MOST_LINES = 400
MOST_LINES_OF_A_FUNCTION = 60


def functions(source: str) -> Iterator[tuple[str, int]]:
    """Yield the name and the number of lines of every function."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield node.name, node.end_lineno - node.lineno + 1


def test_no_module_is_longer_than_400_lines() -> None:
    sizes = {path: len(path.read_text().splitlines()) for path in MODULES}
    assert len(sizes) > 100
    assert {str(path): size for path, size in sizes.items() if size > MOST_LINES} == {}


def test_no_function_is_longer_than_60_lines() -> None:
    long = [
        f"{path}:{name} has {size} lines"
        for path in MODULES
        for name, size in functions(path.read_text())
        if size > MOST_LINES_OF_A_FUNCTION
    ]
    assert long == []


def test_a_long_function_is_noticed() -> None:
    source = "def f():\n" + "    x = 1\n" * 60
    assert list(functions(source)) == [("f", 61)]
