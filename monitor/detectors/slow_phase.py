"""What a slow rank is slow at: the kind of phase in which it exceeds its peers most."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from monitor.names import RankName, split_rank_name
from monitor.pace import Pace, Window
from worker_server.wire import LONG_PHASES, WAITING_PHASE

_KINDS: Final[Mapping[str, str]] = {
    "data": "data loading",
    "forward": "compute",
    "backward": "compute",
    "optimizer": "compute",
}
_QUIET: Final = LONG_PHASES | {WAITING_PHASE}
TRANSFERS: Final = "communication inside its group"


@dataclass(frozen=True, slots=True)
class Blame:
    """Where a rank's excess lies, in medians over some windows."""

    kind: str | None
    """`data loading`, `compute`, or a phase of the user's own in quotes; None: no phases tell."""
    own_s: float
    """Seconds a step that it spends there."""
    peers_s: float
    """The same of its peers."""
    peers: int
    peers_alone_s: float
    """Seconds a step in which its peers worked: busy, and not held inside collectives."""


def blame(windows: Sequence[Window], rank: RankName) -> Blame:
    """The kind of phase with the greatest excess over the peers in these windows."""
    own: dict[str, list[float]] = {}
    theirs: dict[str, list[float]] = {}
    alone: list[float] = []
    most = 0
    for window in windows:
        if rank not in window.paces:
            continue
        peers = [pace for name, pace in window.paces.items() if _peers(name, rank)]
        most = max(most, len(peers))
        mine = by_kind(window.paces[rank])
        others = [by_kind(pace) for pace in peers]
        for kind in sorted({*mine, *(name for one in others for name in one)}):
            own.setdefault(kind, []).append(mine.get(kind, 0.0))
            theirs.setdefault(kind, []).append(_median(one.get(kind, 0.0) for one in others))
        alone.append(_median(pace.alone_s for pace in peers))
    excess = {kind: _median(own[kind]) - _median(theirs[kind]) for kind in own}
    worst = max(sorted(excess), key=lambda kind: excess[kind], default=None)
    return Blame(
        kind=worst,
        own_s=_median(own.get(worst or "", ())),
        peers_s=_median(theirs.get(worst or "", ())),
        peers=most,
        peers_alone_s=_median(alone),
    )


def by_kind(pace: Pace) -> dict[str, float]:
    """Busy seconds a step by kind of phase."""
    found: dict[str, float] = {}
    for phase, spent_s in pace.phases.items():
        if phase not in _QUIET:
            kind = _KINDS.get(phase, f"'{phase}'")
            found[kind] = found.get(kind, 0.0) + spent_s
    return found


def _peers(one: RankName, other: RankName) -> bool:
    return one != other and split_rank_name(one)[1] == split_rank_name(other)[1]


def _median(values: Iterable[float]) -> float:
    known = list(values)
    return median(known) if known else 0.0
