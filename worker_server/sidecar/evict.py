"""Put this one rank out, with what it has started: SIGTERM, grace, SIGKILL, then look."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Literal, Protocol

from worker_server import wire
from worker_server.sidecar.hang import DEAF_S
from worker_server.sidecar.process import RankProcess
from worker_server.wire.messages import Count

_KILL_WAIT_S = 5.0
_FAMILY_WAIT_S = 1.0
"""One of them may sit in the kernel (state D) for as long as a file server is away."""


class Started(Protocol):
    """The processes that the rank has started, see `worker_server.sidecar.family`."""

    def look(self) -> None:
        """Find who there is now."""

    def end(self, wait_s: float) -> tuple[int, int]:
        """End them; how many are gone, and how many are not."""


@dataclass(frozen=True, slots=True)
class Eviction:
    """What was sent, and whether the process is gone (it may sit in the kernel, state D)."""

    signalled: tuple[Literal["SIGTERM", "SIGKILL"], ...]
    gone: bool
    started_gone: Count = 0
    """Processes that the rank had started and that were ended with it."""
    started_left: Count = 0
    """Those that were sent SIGKILL and are not gone yet."""


def evict(rank: RankProcess, view: wire.Process, grace_s: float, started: Started) -> Eviction:
    """End the process, politely where it can still hear, and all that it has started.

    A stopped process keeps SIGTERM pending and a deaf interpreter never sees it: both get
    SIGKILL at once. One that is traced may be so for milliseconds only, while its
    stacks are taken.
    """
    started.look()  # who dies takes its children's parent along
    sent: list[Literal["SIGTERM", "SIGKILL"]] = []
    gone = not view.alive
    if not gone and _can_hear(view) and rank.send(signal.SIGTERM):
        sent.append("SIGTERM")
        gone = rank.wait_death(grace_s)
    if not gone:
        started.look()  # who was started meanwhile
        if rank.send(signal.SIGKILL):
            sent.append("SIGKILL")
        gone = rank.wait_death(_KILL_WAIT_S)
    return Eviction(tuple(sent), gone, *started.end(_FAMILY_WAIT_S))


def _can_hear(view: wire.Process) -> bool:
    deaf = view.interpreter_age_s is not None and view.interpreter_age_s > DEAF_S
    return not deaf and (view.traced or not view.stopped)
