"""Who listens on a port."""

import os
import socket

from lightkeeper.worker_server.sidecar.last_words import _port_taken
from lightkeeper.worker_server.sidecar.ports import listener


def test_the_process_that_listens_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert f"(pid {os.getpid()})" in (listener(port) or "")
        text = f"the server socket has failed to listen. port: {port}, code: -98, name: EADDRINUSE"
        assert _port_taken(text) == f"port {port} is taken by {listener(port)}"


def test_a_port_on_which_nobody_listens_is_nobodys() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        assert listener(free.getsockname()[1]) is None
