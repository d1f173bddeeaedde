"""`KillFleet` in seconds: agents and ranks are forks of one process that imported torch, and so is
the Lighthouse (its own program imports torch too).

Whoever has had a Lighthouse in its process has threads of Rust and can fork no more. So a fork that
never has one keeps it: it forks a Lighthouse, and another when that one is gone.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from experiments import forks
from experiments.fleet import SMALL, Fleet
from experiments.killing.fleet import PAUSES_S, KillFleet
from lightkeeper.trainer.status import StatusFile
from tests.forks import light

_POLL_S: Final = 0.02


@dataclass
class ForkedFleet(KillFleet):
    """Made by `made`."""

    zygote: ClassVar[str] = "experiments.killing.forked"

    def __post_init__(self) -> None:
        self.trainer_options = (*self.trainer_options, *SMALL)

    def start_lighthouse(self) -> None:
        """The zygote forks it."""
        (self.folder / "lighthouse.json").write_text(
            json.dumps({"port": self.lighthouse_port, "min_replicas": self.min_replicas})
        )
        self.start_gate()

    def _spawn(self, name: str, command: list[str]) -> None:
        if name == "zygote":
            super(KillFleet, self)._spawn(name, command)
        else:
            super()._spawn(name, command)

    def _start_groups(self) -> None:
        Fleet._start_groups(self)


class Beacon:
    """A Lighthouse, started again a second after it was killed."""

    def __init__(self, folder: Path) -> None:
        self._told: dict[str, Any] = json.loads((folder / "lighthouse.json").read_text())
        self._record = StatusFile(folder / "events" / "units.jsonl", unit="lighthouse")

    def __call__(self) -> None:
        """Keep it."""
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        while True:
            pid = forks.fork(self._shine, signal.SIGKILL)
            self._record.write("started", pid=pid)
            while os.waitpid(pid, os.WNOHANG)[0] == 0:
                time.sleep(_POLL_S)
            self._record.write("left", pid=pid)
            time.sleep(PAUSES_S["lighthouse"])

    def _shine(self) -> None:
        from torchft.coordination import LighthouseServer

        server = LighthouseServer(
            bind=f"[::]:{self._told['port']}", min_replicas=self._told["min_replicas"],
            join_timeout_ms=60_000, quorum_tick_ms=100, heartbeat_timeout_ms=5_000,
        )  # fmt: skip
        while server is not None:
            time.sleep(3600)


def zygote() -> None:
    """The keeper of the Lighthouse is forked first, then the supervisors."""
    forks.fork(Beacon(Path(sys.argv[1]).parent), signal.SIGTERM)
    forks.main()


def main() -> None:
    """A fork comes back here to be what it was made for."""
    import torch._dynamo
    import torchft  # noqa: F401

    from lightkeeper.trainer import train  # noqa: F401

    torch.set_num_threads(1)
    light()
    role: Callable[[], None] = zygote
    while True:
        try:
            role()
        except forks.Become as fork:
            role = fork.role
            continue
        return


if __name__ == "__main__":
    main()
