"""What NCCL says of its communicators, on the socket of its RAS threads (NCCL 2.28.7 or later).

Any rank's thread answers for the whole job, and every question walks through all of it: it is asked
seldom. Its counts of launched collectives are left to it: they differ in any job that runs, and our
own heads say more.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from typing import Any, Final

from lightkeeper.worker_server.sidecar.witnesses.witness import CannotReadError, MachineWitness
from lightkeeper.worker_server.wire import Weight

_TIMEOUT_S: Final = 1.0
_ANSWER_S: Final = 3.0
"""It waits for ranks that do not answer for the second that we allow it, and some more."""
_TRIES: Final = 3
"""All ranks of a user share the port; a stopped one may be picked, and never answers."""
_ANSWER_MOST: Final = 16 << 20
_GROUPS_MOST: Final = 64


class Ras(MachineWitness):
    """Asks one rank's RAS thread which ranks of its communicators are missing or failed."""

    name = "NCCL RAS"
    every_s = 30.0

    def __init__(self, address: str | None = None) -> None:
        """`address`: `HOST:PORT`; None: where NCCL would listen."""
        super().__init__()
        self._address = address or os.environ.get("NCCL_RAS_ADDR", "localhost:28028")

    def _read(self) -> None:
        try:
            for group in self._status()["communicators"][:_GROUPS_MOST]:
                if any(row["pid"] in self.ranks for row in group["ranks"]):  # else another job's
                    self._group(group)
        except (ValueError, LookupError, TypeError, RecursionError) as exc:
            raise CannotReadError(f"{self._address} answers something else") from exc

    def _group(self, group: Mapping[str, Any]) -> None:
        name = f"NCCL group {group['hash']}"
        for row in group["ranks"]:
            rank, pid, error = row["rank"], row["pid"], row["status"]["async_error"]
            if pid in self.ranks and error:
                text = f"{name}: rank {rank} reports error {error}"
                self.saw(Weight.SLOW, "nccl-error", text, about=name, pids=(pid,))
        for row in group.get("missing_ranks", ()):
            rank, pid, host = row["rank"], row["pid"], row["host"]
            how = "is taken for dead" if row["status"]["considered_dead"] else "does not answer"
            own = pid in self.ranks and host == socket.gethostname()
            self.saw(
                Weight.SLOW if own else Weight.CONTEXT, "nccl-missing",
                f"{name}: rank {rank}, pid {pid} of {host}, {how}",
                about=f"{name} {rank}", pids=(pid,) if own else (),
            )  # fmt: skip

    def _status(self) -> Any:
        for left in reversed(range(_TRIES)):
            try:
                return self._asked()
            except TimeoutError:
                if not left:
                    raise
        return {}

    def _asked(self) -> Any:
        host, _, port = self._address.rpartition(":")
        where = host.strip("[]") or "localhost", int(port)
        with (
            socket.create_connection(where, timeout=_TIMEOUT_S) as link,
            link.makefile("rwb", buffering=0) as lines,
        ):
            for order in ("CLIENT PROTOCOL 2", "TIMEOUT 1", "SET FORMAT json"):
                lines.write(f"{order}\n".encode())
                if lines.readline(1024).startswith(b"ERROR"):
                    raise CannotReadError(f"{self._address} gives no JSON: NCCL before 2.28.7")
            lines.write(b"VERBOSE STATUS\n")
            link.settimeout(_ANSWER_S)
            until_s, answer = time.monotonic() + _ANSWER_S, b""
            while (piece := link.recv(1 << 16)) and len(answer) < _ANSWER_MOST:
                answer += piece
                if time.monotonic() > until_s:
                    raise TimeoutError
        return json.loads(answer)
