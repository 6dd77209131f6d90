"""What the documentation names exists: files, functions, tests, headings."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpdask.mechanisms import Calibration

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "deploy/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
LINK = re.compile(r"\]\(([^)\s]+)\)")
FUNCTION = re.compile(r"`((?:dpdask|dpdask_studies|flows|tests)/[\w/]+\.py):([\w.]+)`")
FILE = re.compile(r"`((?:dpdask|dpdask_studies|flows|tests|docs|deploy|\.ci)/[\w/.-]+\.\w+)`")


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page: its headings, as GitHub spells them, and explicit ones."""
    text = page.read_text()
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain} | set(
        re.findall(r'<a id="([^"]+)">', text)
    )


def defined(path: Path) -> set[str]:
    """Return the functions, classes and methods that a module defines."""

    def names(body: list[ast.stmt], prefix: str) -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield prefix + node.name
            if isinstance(node, ast.ClassDef):
                yield from names(node.body, f"{prefix}{node.name}.")

    return set(names(ast.parse(path.read_text()).body, ""))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in LINK.findall(page.read_text()):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_files_that_are_named_exist(page: Path) -> None:
    named = set(FILE.findall(page.read_text()))
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


def test_every_step_of_the_walks_exists() -> None:
    steps = FUNCTION.findall((ROOT / "docs" / "architecture.md").read_text())
    assert len(steps) > 20
    assert [f"{file}:{name}" for file, name in steps if name not in defined(ROOT / file)] == []


def test_the_picture_shows_every_package_and_no_other() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    table = text[text.index("| package |") : text.index("| import |")]
    described = set(
        re.findall(
            r"`(\w+)`", " ".join(row.split("|")[1] for row in table.splitlines() if "|" in row)
        )
    )
    modules = {path.stem for path in (ROOT / "dpdask").glob("*.py")} - {"__init__"}
    packages = {path.parent.name for path in (ROOT / "dpdask").glob("*/__init__.py")}
    assert described == modules | packages


def test_the_python_of_the_readme_runs() -> None:
    text = (ROOT / "README.md").read_text()
    section = text[text.index("## In Python") : text.index("## Guides")]
    names: dict[str, object] = {}
    exec(textwrap.dedent(section.partition("\n")[2]), names)
    calibration = names["calibration"]
    assert isinstance(calibration, Calibration)
    assert calibration.guarantee.certified
    assert repr(calibration.noise).startswith("IidNoise(shape=(1000, 100), sigma=3.73")


def test_the_numbers_of_the_refutation_are_what_its_code_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", page_text("rank-one"), re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(block, {})
        printed = capsys.readouterr().out.split()
        stated = re.findall(r"^print\(.*#\s*([\d.e-]*\d)", block, re.MULTILINE)
        assert len(stated) == len(printed) == 2
        assert list(map(float, printed)) == pytest.approx([float(b) for b in stated], rel=1e-4)


def page_text(mechanism: str) -> str:
    return (ROOT / "docs" / "mechanisms" / f"{mechanism}.md").read_text()


def test_every_safety_rule_has_its_test() -> None:
    tests = defined(ROOT / "tests" / "release" / "test_safety_rules.py")
    for rule in range(1, 10):
        assert any(name.startswith(f"test_rule_{rule}_") for name in tests), rule
