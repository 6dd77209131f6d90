"""docs/tutorial.md, followed literally."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from dpdask.ledger import Ledger
from tests.flows.conftest import BIN

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"


def free_port() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


@pytest.mark.slow
def test_the_tutorial_works_as_it_is_written(tmp_path: Path) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", TUTORIAL.read_text(), re.DOTALL)
    assert len(blocks) == 6
    script = "set -e\n" + "\n".join(blocks)
    for port in ("8786", "4200"):  # the machine may use them already
        script = script.replace(port, free_port())
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PREFECT", "DASK"))
    }
    environment |= {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "PREFECT_HOME": str(tmp_path / "prefect"),
    }
    (tmp_path / "work").mkdir()
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            ["bash", "-c", script],
            cwd=tmp_path / "work",
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            code = process.wait(300)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    said = (tmp_path / "log").read_text()
    assert code == 0, said[-4000:]
    assert "release card" in said
    releases = Ledger(f"sqlite:///{tmp_path}/work/ledger.db").state("households").releases
    assert list(releases.values()) == ["commit"] * 3
