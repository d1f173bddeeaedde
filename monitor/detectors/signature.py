"""Where in the program a fault stands: the same place again is the same bug. Pure.

The innermost frame of the user's code, with its line, or the exception with it. The rank is no part
of it: a bug moves with the program. Empty where nothing tells: then nobody can say "again".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from monitor.history import RankTrack
from worker_server.wire import Frame

_OF_PEERS: Final = (
    "connection", "timed out", "timeout", "gloo", "nccl", "socket", "peer", "abort", "broken pipe",
    "quorum", "lighthouse", "transport", "unavailable", "cancelled", "rendezvous", "store",
    "distbackend", "closed", "disconnected",
)  # fmt: skip
"""Words of exceptions that say that somebody else is gone, in lower case."""


def of_peers(exception: str) -> bool:
    """Whether an exception says that somebody else is gone."""
    told = exception.lower()
    kind, _, message = told.partition(":")
    if kind == "assertionerror" and not message.strip():
        return True  # all that torchft's DDP says of a peer that died in an all-reduce
    if "dataloader worker" in told:
        return False  # its own child, whatever killed it
    return any(word in told for word in _OF_PEERS)


def of_hang(roots: Sequence[RankTrack]) -> str:
    """Of ranks that stand still: by their stacks, else by the phase that the loop declares."""
    for track in roots:
        seen = None if track.fresh is None else track.fresh.witness
        if seen is not None:
            return f"not_entered@{_at(seen.frame)}"
    track = roots[0]
    return f"not_entered:{track.rank}:{track.doing}" if track.phased else ""


def of_death(track: RankTrack) -> str:
    """Of a dead rank: its exception and where it was raised; a bare signal tells no bug."""
    ending = None if track.report is None else track.report.ending
    if ending is None or ending.exception is None or of_peers(ending.exception):
        return ""
    kind = ending.exception.partition(":")[0]
    return f"dead:{kind}@{_at(ending.frame)}" if ending.frame is not None else f"dead:{kind}"


def _at(frame: Frame) -> str:
    return f"{frame.file}:{frame.line}:{frame.function}"
