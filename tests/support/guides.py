"""Guides as programs: their blocks are run in order, and what they print is compared.

A guide is a page whose fenced blocks are run in one folder:

- ``yaml`` and ``python`` blocks that begin with ``# NAME.yaml`` or ``# NAME.py`` are written to
  that file;
- other ``python`` blocks share one namespace, as in a notebook;
- ``sh`` blocks hold ``dpdask`` commands, or ``python NAME.py``, one per line;
- a ``text`` block after a ``python`` or ``sh`` block is what that block prints. Where noise is in
  it, it is marked ``text noisy``: digits are then compared as digits, whatever their value. Of a
  picture, ``text drawn``, only its size is compared.

To write the outputs of a real run into pages: ``python -m tests.support.guides docs/guides/*.md``.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner

from dpdask.cli import main

_BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE_NAME = re.compile(r"# ([\w-]+\.(?:yaml|py))\n")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: what it is, and what it holds."""

    language: str
    content: str
    start: int  # of the content in the page
    stop: int


@dataclass(frozen=True)
class Output:
    """What a block printed, and the block of the page that shows it."""

    shown: Block
    printed: str

    def differs(self) -> bool:
        """Return whether the page shows something else."""
        return self.comparable(self.shown.content) != self.comparable(self.printed)

    def comparable(self, text: str) -> str:
        """Return what has to be the same in every run."""
        if "noisy" in self.shown.language:
            return masked(text)
        if "drawn" in self.shown.language:
            return re.sub(r"[^\n]", "#", text.rstrip())
        return without_memory(text)


def blocks(text: str) -> list[Block]:
    """Return the fenced blocks of a page."""
    return [Block(m[1].strip(), m[2], m.start(2), m.end(2)) for m in _BLOCK.finditer(text)]


def masked(text: str) -> str:
    """Return a text with every number as ``#``, and without what depends on their lengths."""
    text = re.sub(r"\b[0-9a-f]{12,}\b", "#", text)
    text = re.sub(r"(?<![\w.])-?\d+(\.\d*)?(e[+-]?\d+)?", "#", text)
    text = re.sub(r"[─━]+", "-", text)
    lines = (re.sub(r"[ \t]+", " ", line).strip() for line in text.splitlines())
    return "\n".join(lines).strip()


def without_memory(text: str) -> str:
    """Return a text without the memory of a plan, which changes with the implementation."""
    return re.sub(r"(│ memory +│ )[\d.]+ .B", r"\1#", text.rstrip())


def run_page(text: str) -> Iterator[Output]:
    """Run the blocks of a page in the current folder; yield what those print that show it."""
    names: dict[str, object] = {"__name__": "guide"}
    printed: str | None = None
    for block in blocks(text):
        language = block.language.split(" ")[0]
        if language == "text" and printed is not None:
            yield Output(block, printed)
            printed = None
        elif language in ("yaml", "python") and (name := _FILE_NAME.match(block.content)):
            Path(name[1]).write_text(block.content)
        elif language == "python":
            printed = _run_python(block.content, names)
        elif language == "sh":
            printed = "".join(map(run_command, block.content.splitlines()))


def _run_python(code: str, names: dict[str, object]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr's, on text of fixed length
        exec(compile(code, "guide", "exec"), names)
    return _without_trailing_blanks(out.getvalue())


def run_command(line: str) -> str:
    """Run a ``dpdask`` command, which must succeed, or a program; return what it prints."""
    command, *arguments = shlex.split(line, comments=True)
    if command == "python":
        return _run_program(line, arguments)
    assert command == "dpdask", f"guides run dpdask and python alone: {line}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, f"{line}\n{result.output}"
    return _without_trailing_blanks(result.output)


def _run_program(line: str, arguments: list[str]) -> str:
    """Run a Python program, which must succeed or kill itself; a shell says so."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    assert done.returncode in (0, -signal.SIGKILL), f"{line}\n{done.stdout}{done.stderr}"
    return done.stdout + ("Killed\n" if done.returncode else "")


def _without_trailing_blanks(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def with_outputs(text: str) -> str:
    """Return a page with the outputs of a run in the current folder."""
    for output in reversed(list(run_page(text))):
        shown = output.shown
        text = text[: shown.start] + output.printed.rstrip() + "\n" + text[shown.stop :]
    return text


if __name__ == "__main__":
    for page in map(Path, sys.argv[1:]):
        page = page.absolute()
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            os.environ["XDG_CONFIG_HOME"] = folder
            page.write_text(with_outputs(page.read_text()))
