"""A gate before a server: while it is closed, the server is away for whoever comes through it."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

__all__ = ["Gate"]


class Gate:
    """Passes connections on to a server, by TCP or a Unix socket, until it is closed."""

    def __init__(self, target: tuple[str, int] | str) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._listener = self._listening(0)
        self.port: int = self._listener.getsockname()[1]
        self.outages = 0

    def _listening(self, port: int) -> socket.socket:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(64)
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return listener

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            family = socket.AF_UNIX if isinstance(self._target, str) else socket.AF_INET
            server = socket.socket(family)
            try:
                server.connect(self._target)
            except OSError:
                client.close()
                continue
            with self._lock:
                self._sockets |= {client, server}
            for one, other in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        for one in (source, sink):
            _shut(one)
        with self._lock:
            self._sockets -= {source, sink}

    def close(self) -> None:
        """Refuse new connections and break those that are open."""
        _shut(self._listener)
        with self._lock:
            broken = list(self._sockets)
        for one in broken:
            _shut(one)

    def open(self) -> None:
        """Accept connections again, at the same port."""
        self._listener = self._listening(self.port)

    def away(self, seconds: float) -> None:
        """Be closed for some seconds, while the caller continues."""
        self.outages += 1
        self.close()

        def reopen() -> None:
            time.sleep(seconds)
            self.open()

        threading.Thread(target=reopen, daemon=True).start()


def _shut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        one.close()
