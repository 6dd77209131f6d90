"""Find words that the project does not use: ``python .ci/check_words.py [PATH ...]``.

The list is ``words.txt`` beside this file.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
TARGETS = (
    "dpdask",
    "dpdask_studies",
    "docs",
    "flows",
    "deploy",
    "tests",
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
)
SUFFIXES = {".py", ".md", ".yaml", ".sbatch", ".json", ""}
SKIPPED = {"tests/golden", "tests/vectors", "tests/project/test_words.py", "deploy/secrets"}
NAME = "name:"


@dataclass(frozen=True)
class Rule:
    """A pattern, as written and compiled, and what to write instead."""

    source: str
    pattern: re.Pattern[str]
    instead: str

    @property
    def is_name(self) -> bool:
        """Whether the pattern is a name that Python code binds."""
        return self.source.startswith(NAME)


@dataclass(frozen=True)
class Finding:
    """A place where a rule does not hold."""

    path: str
    line: int
    text: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text!r}; write: {self.instead}"


def read_rules(path: Path) -> list[Rule]:
    """Return the rules of a word list."""
    rules = []
    for line in _lines(path):
        source, arrow, instead = line.partition(" => ")
        if not arrow:
            raise SystemExit(f"{path.name}: {line!r} is not PATTERN => INSTEAD")
        expression = source.removeprefix(NAME)
        expression = expression.replace(" ", r"\s+")
        rules.append(Rule(source, re.compile(expression, re.IGNORECASE), instead))
    return rules


def _lines(path: Path) -> list[str]:
    """Return the lines of a file that are neither empty nor comments."""
    if not path.exists():
        return []
    lines = (line.strip() for line in path.read_text().splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def check_text(path: str, text: str, rules: Sequence[Rule]) -> Iterator[Finding]:
    """Yield every place of a text that a rule forbids.

    Args:
        path: Where the text comes from, relative to the root; names are checked in Python files
            that are not tests.
        text: The text.
        rules: The word list.
    """
    for rule in rules:
        if rule.is_name:
            continue
        for match in rule.pattern.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            yield Finding(path, line, " ".join(match.group().split()), rule.instead)
    if path.endswith(".py") and not path.startswith("tests/"):
        yield from _check_names(path, text, [rule for rule in rules if rule.is_name])


def _check_names(path: str, text: str, rules: Sequence[Rule]) -> Iterator[Finding]:
    for name, line in _bound_names(ast.parse(text)):
        for rule in rules:
            if rule.pattern.fullmatch(name):
                yield Finding(path, line, name, rule.instead)


def _bound_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield every name that is assigned, is a parameter, or names a function or a class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name, node.lineno


def files(root: Path, targets: Sequence[str], skipped: set[str]) -> Iterator[Path]:
    """Yield the text files of the targets, but for those that are skipped."""
    for target in targets:
        start = root / target
        for path in [start] if start.is_file() else sorted(start.rglob("*")):
            relative = path.relative_to(root).as_posix()
            below_skipped = any(relative == s or relative.startswith(f"{s}/") for s in skipped)
            if path.is_file() and path.suffix in SUFFIXES and not below_skipped:
                yield path


def check(root: Path, targets: Sequence[str], rules: Sequence[Rule]) -> list[str]:
    """Return one line for each finding, in the order of the files.

    Args:
        root: The root of the project.
        targets: Files and folders below it.
        rules: The word list.
    """
    lines = []
    for path in files(root, targets, SKIPPED):
        relative = path.relative_to(root).as_posix()
        findings = check_text(relative, path.read_text(encoding="utf-8"), rules)
        lines += [str(each) for each in sorted(findings, key=lambda each: each.line)]
    return lines


def main(arguments: Sequence[str]) -> int:
    """Print what was found; 1 if there was anything."""
    rules = read_rules(HERE / "words.txt")
    lines = check(ROOT, arguments or TARGETS, rules)
    print("\n".join(lines) or "words: nothing found")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
