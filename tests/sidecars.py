"""WorkerServers that are forks of a process that has imported what they need: 0.3 s of CPU less for
each. For tests that ask what one answers, and not how it is started or what the kernel shows of it.
"""

from __future__ import annotations

import functools
import os

from lightkeeper.worker_server.rank.settings import for_sidecar
from lightkeeper.worker_server.run_dir import RankFiles
from tests import hatch
from tests.nursery import SIDECARS, nursery


def forked() -> dict[str, str]:
    """The variable by which `install` knows where they are forked; and no witnesses of the machine,
    which are an interpreter more for each run directory: 0.2 s of CPU."""
    return {SIDECARS: nursery("sidecar").name, "LIGHTKEEPER_MACHINE": "0"}


def install() -> None:
    """In a rank, before it attaches; without that variable it does nothing."""
    if SIDECARS in os.environ:
        from lightkeeper.worker_server.rank import attach

        attach.SidecarProcess = functools.partial(attach.SidecarProcess, start=_start)  # type: ignore[misc,assignment]


class _Launched:
    """What is left of a launcher, which ends at once."""

    returncode = 0

    def poll(self) -> int:
        return self.returncode


def _start(files: RankFiles) -> _Launched:
    """As `attach.start_sidecar` does."""
    words = ["-m", "lightkeeper.worker_server.sidecar", str(files.page), "3"]
    rank = os.pidfd_open(os.getpid())
    try:
        with open(os.devnull, "r+b") as null, files.log.open("ab") as log:
            streams = [null.fileno(), null.fileno(), log.fileno(), rank]
            hatch.fork(
                os.environ[SIDECARS], words, for_sidecar(os.environ), files.page.parent, streams
            )
    finally:
        os.close(rank)
    return _Launched()
