"""A Dask scheduler with one worker, in processes of their own, which tests may kill."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time

__all__ = ["Cluster"]

_ENVIRONMENT = {
    "DASK_DISTRIBUTED__WORKER__MEMORY__TARGET": "False",
    "DASK_DISTRIBUTED__WORKER__MEMORY__SPILL": "False",
}


class Cluster:
    """A scheduler and a worker on loopback, at the same address after each start."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._processes: list[subprocess.Popen[bytes]] = []
        self.start()

    def start(self) -> None:
        self._run("scheduler", "--host", "127.0.0.1", "--port", str(self.port), "--no-dashboard")
        for _ in range(300):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                break
            time.sleep(0.1)
        self.start_worker()

    def start_worker(self) -> None:
        address = f"tcp://127.0.0.1:{self.port}"
        self._run("worker", address, "--no-nanny", "--nthreads", "1", "--no-dashboard")

    def _run(self, *arguments: str) -> None:
        self._processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "distributed.cli.dask_" + arguments[0], *arguments[1:]],
                env={**os.environ, **_ENVIRONMENT},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )

    def freeze_worker(self) -> None:
        """Stop the newest worker, which keeps its connections."""
        self._processes[-1].send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        """End scheduler and worker without a word."""
        for process in self._processes:
            process.kill()
            process.wait()
        self._processes.clear()
