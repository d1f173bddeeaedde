"""Ports of loopback, for servers whose address others must know before they start."""

from __future__ import annotations

import socket
from typing import Final

_KEPT: Final[list[socket.socket]] = []


def free_port() -> int:
    """A port that the kernel chose, and gives to nobody else while this process lives.

    A socket that is bound and does not listen keeps it. Closed, it would be free for whoever asks
    next, and with several tests at once somebody does before the server is up. The server binds
    beside it: both set SO_REUSEADDR, as every server does here.
    """
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    _KEPT.append(kept)
    return int(kept.getsockname()[1])
