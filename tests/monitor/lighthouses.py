"""Real Lighthouses of any torchft, without importing torch or torchft's Python: a process each.

`LIGHTKEEPER_TORCHFTS=DIR[:DIR...]` names further installations (`pip install --no-deps --target DIR
torchft==0.1.1`, `... --pre torchft-nightly`); the environment's own is always there.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import util
from pathlib import Path

import grpc

from tests.gate.wires import field
from tests.waiting import wait_for

_RUN = """
import importlib.util, sys
path = sys.argv.pop(1)
name = "_torchft" if "/_torchft" in path else "torchft"
spec = importlib.util.spec_from_file_location(name, path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.lighthouse_main()
"""
"""Its command line is the process's own: the interpreter's first argument is dropped by it."""


def installations() -> dict[str, Path]:
    """Version -> the compiled half of torchft."""
    spec = util.find_spec("torchft")
    own = [] if spec is None or spec.origin is None else [Path(spec.origin).parent.parent]
    named = [
        Path(folder) for folder in os.environ.get("LIGHTKEEPER_TORCHFTS", "").split(":") if folder
    ]
    made: dict[str, Path] = {}
    for root in (*own, *named):
        library = next(iter(sorted((root / "torchft").glob("*torchft.cpython-*.so"))), None)
        dist_info = next(iter(sorted(root.glob("torchft*-[0-9]*.dist-info"))), None)
        if library is not None and dist_info is not None:
            made[dist_info.name.partition("-")[2].removesuffix(".dist-info")] = library
    return made


def lighthouse_program(library: Path, script: Path) -> list[str]:
    """The first words of what `torchft_lighthouse` is, but for torch; writes the script."""
    script.write_text(_RUN.replace("sys.argv.pop(1)", repr(str(library))))
    return [sys.executable, str(script)]


@contextmanager
def lighthouse_process(
    library: Path, script: Path, port: int, *, bind: str = "127.0.0.1", **options: int
) -> Iterator[str]:
    """One Lighthouse by its command line; gives its URL."""
    named = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    command = [*lighthouse_program(library, script), "--bind", f"{bind}:{port}", *named]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT) as process:
        try:
            wait_for(lambda: _listens(bind, port), within_s=60, what="the Lighthouse listens")
            yield f"http://{bind}:{port}"
        finally:
            process.kill()


def _listens(host: str, port: int) -> bool:
    with socket.socket() as held:
        return held.connect_ex((host, port)) == 0


# -- a group, as far as a Lighthouse can tell -----------------------------------------------------


class Groups:
    """Sends what managers send."""

    def __init__(self, url: str, *, rooms: bool = False) -> None:
        self._channel = grpc.insecure_channel(url.removeprefix("http://"))
        self._rooms = rooms

    def beat(self, *replica_ids: str) -> None:
        call = self._channel.unary_unary("/torchft.LighthouseService/Heartbeat")
        for replica_id in replica_ids:
            call(field(1, replica_id.encode()), timeout=5)

    def join(self, address: str, *replica_ids: str, step: int = 7) -> None:
        """They ask for a quorum together, and get it."""
        self.join_as(dict.fromkeys(replica_ids, address), step=step)

    def join_as(self, addresses: Mapping[str, str], step: int = 7) -> None:
        """The same, each with its manager's address."""
        call = self._channel.unary_unary("/torchft.LighthouseService/Quorum")

        def ask(replica_id: str) -> None:
            member = field(1, replica_id.encode()) + field(2, addresses[replica_id].encode())
            member += field(3, b"store:1") + field(4, step) + field(5, 2)
            request = field(1, b"room") + field(2, member) if self._rooms else field(1, member)
            call(request, timeout=20)

        asking = [threading.Thread(target=ask, args=(replica_id,)) for replica_id in addresses]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()

    def close(self) -> None:
        self._channel.close()
