"""The word list: what it finds, what it lets pass, and that the project keeps to it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def words() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_words", ROOT / ".ci" / "check_words.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_words"] = module
    spec.loader.exec_module(module)
    return module


def findings(words: ModuleType, text: str, path: str = "docs/page.md") -> list[str]:
    rules = words.read_rules(ROOT / ".ci" / "words.txt")
    return [str(each) for each in words.check_text(path, text, rules)]


FORBIDDEN = [
    "we reckon with",
    "to mend it",
    "it mends",
    "at the curator's word",
    "at the curator's\nword",
    "the rooms of the house",
    "one door to zarr",
    "this is no fingerprint of a release",
    "'x' is no number",
    "is none of sum, mean",
    "in so many words",
    "rounding parts two neighbours",
    "they are moved apart",
    "Again is fine.",
    "Nobody watches.",
    "the private end of the bracket",
    "resume goes on with it",
    "what was gone on with",
    "abort gives it up",
    "given up",
    "takes up what is left",
    "at its verified price",
    "one write unit",
    "a sensitivity body",
    "cut_at: 4",
    "--longest 2",
]


@pytest.mark.parametrize("text", FORBIDDEN)
def test_a_forbidden_turn_is_found(words: ModuleType, text: str) -> None:
    assert findings(words, f"Some text. {text} More.")


ALLOWED = [
    "we recommend an amendment",
    "there is no charge",
    "where there\nis no charge",
    "it is no longer open",
    "headroom",
    "indoors",
    "answers go on a grid first",
    "going once",
    "one privacy unit",
    "up to date",
]


@pytest.mark.parametrize("text", ALLOWED)
def test_plain_english_passes(words: ModuleType, text: str) -> None:
    assert findings(words, f"Some text. {text} More.") == []


def test_a_finding_names_the_line_and_the_way_out(words: ModuleType) -> None:
    [line] = findings(words, "one\ntwo\nto mend it\n")
    assert line == "docs/page.md:3: 'mend'; write: fix"


@pytest.mark.parametrize(
    "code",
    ["made = 1", "for found in x: pass", "def f(asked): pass", "def given(): pass", "a, facts = x"],
)
def test_a_name_that_does_not_say_what_it_holds_is_found_in_code(
    words: ModuleType, code: str
) -> None:
    assert findings(words, code, "dpdask/x.py")
    assert findings(words, code, "tests/x.py") == []


def test_names_of_others_and_prose_may_use_these_words(words: ModuleType) -> None:
    code = '"""What was found is given."""\nfrom hypothesis import given\nx = y.found\n'
    assert findings(words, code, "dpdask/x.py") == []


def test_a_line_of_the_list_without_a_replacement_is_refused(
    words: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "words.txt").write_text("mend\n")
    with pytest.raises(SystemExit, match="is not PATTERN => INSTEAD"):
        words.read_rules(tmp_path / "words.txt")


def test_the_project_keeps_to_its_words(words: ModuleType) -> None:
    assert words.main([]) == 0
