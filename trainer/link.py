"""A slow network, for one process: the kernel paces what its sockets send. Linux, no privileges."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import Final

FAIR_BYTES_PER_S: Final = 8_000_000.0
"""Moves the gradients of a step (1.9 MB with the defaults) in a calm step's time, 0.24 s."""
_SO_MAX_PACING_RATE: Final = 47  # asm-generic/socket.h; Python's socket module does not name it


def throttle(bytes_per_s: float) -> int:
    """Pace every TCP connection that this process has now; how many there were.

    Connections that are made later, as TorchFT does at each quorum, are not paced.
    """
    paced = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if not str(Path("/proc/self/fd", name).readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6):
                    connection.getpeername()  # a listener has none
                    connection.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, int(bytes_per_s))
                    paced += 1
    return paced
