"""Put this one rank out: SIGTERM, grace, SIGKILL, then look whether it is gone."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from worker_server import wire
from worker_server.sidecar.process import RankProcess

INTERPRETER_DEAF_S = 3.0
"""Beats come every second. A rank whose interpreter missed three cannot run a SIGTERM handler:
waiting for one would only cost the others time."""
_KILL_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class Eviction:
    """What was sent, and whether the process is gone (it may sit in the kernel, state D)."""

    signalled: tuple[str, ...]
    gone: bool


def evict(rank: RankProcess, view: wire.Process, grace_s: float) -> Eviction:
    """End the process, politely where it can still hear.

    A stopped process keeps SIGTERM pending and a deaf interpreter never sees it: both get
    SIGKILL at once. One that is traced may be so for milliseconds only, while its
    stacks are taken.
    """
    if not view.alive:
        return Eviction((), gone=True)
    sent: list[str] = []
    if _can_hear(view) and rank.send(signal.SIGTERM):
        sent.append("SIGTERM")
        if rank.wait_death(grace_s):
            return Eviction(tuple(sent), gone=True)
    if rank.send(signal.SIGKILL):
        sent.append("SIGKILL")
    return Eviction(tuple(sent), gone=rank.wait_death(_KILL_WAIT_S))


def _can_hear(view: wire.Process) -> bool:
    deaf = view.interpreter_age_s is not None and view.interpreter_age_s > INTERPRETER_DEAF_S
    return not deaf and (view.traced or not view.stopped)
