"""Has a nursery fork a process that outlives whoever asks. It imports next to nothing."""

import json
import socket


def fork(address: str, words, environ, cwd, streams) -> None:
    """It is nobody's child, and outlives whoever asks.

    Args:
        address: of the nursery (`Nursery.name`).
        words: what stands behind `python`.
        environ: all variables.
        cwd: where it begins.
        streams: descriptors that are its 0, 1, 2 and so on.
    """
    order = {"words": words, "environ": dict(environ), "cwd": str(cwd), "stays": True}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as nursery:
        nursery.connect(f"\0{address}")
        socket.send_fds(nursery, [json.dumps(order).encode()], streams)
        nursery.recv(100)
