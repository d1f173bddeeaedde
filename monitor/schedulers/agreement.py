"""What one scheduler should be asked for next, so that it agrees with the quarantine list. Pure.

Theory of operation. A host on the list is cordoned once; a host that we cordoned, or tried to, and
that is off the list is uncordoned. What failed is tried again, ever more slowly. What an earlier
monitor had cordoned is read back from the scheduler, and is uncordoned too unless it is on the
list. Two things are left alone: a host that somebody else keeps out is looked at now and then, in
case that he lets it in while it is on the list; a cordon of ours that somebody takes back by hand
is not made again while this monitor runs: he knows more than we do, and launchers are refused there
anyway.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from monitor.names import Host, IncidentId
from monitor.schedulers.protocol import Outcome

FIRST_RETRY_S: Final = 1.0
LONGEST_RETRY_S: Final = 300.0
"""A scheduler that comes back is asked within five minutes."""
FOREIGN_LOOK_S: Final = 60.0
"""A host that somebody else keeps out is looked at so often."""
STRAY_S: Final = 15.0
"""A cordon that was read back and stands for no host on the list is taken back after so long: the
list of a monitor that has just taken over may be on its way."""
_TROUBLE_AFTER: Final = 2
"""Failures in a row; one is the network's ordinary life."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A host on the quarantine list."""

    host: Host
    reason: str
    incident_id: IncidentId | None
    since_s: float


@dataclass(frozen=True, slots=True)
class Action:
    """A request that is due: a cordon, or an uncordon where `wanted` is None."""

    host: Host
    wanted: Wanted | None

    @property
    def word(self) -> str:
        """For metrics and people."""
        return "uncordon" if self.wanted is None else "cordon"


@dataclass(frozen=True, slots=True)
class _Made:
    since_s: float
    ours: bool
    look_s: float


@dataclass(frozen=True, slots=True)
class _Failed:
    word: str
    times: int
    next_s: float
    said: str


class Agreement:
    """Of one scheduler."""

    def __init__(self) -> None:
        self._made: dict[Host, _Made] = {}
        self._failed: dict[Host, _Failed] = {}
        self._owed: dict[Host, float] = {}
        """Hosts that may bear our cordon, and from when on it is taken back if they are off the
        list."""

    def recalled(self, hosts: Iterable[Host], now_s: float) -> None:
        """These bear our cordon, by the scheduler's own word."""
        for host in hosts:
            self._owed.setdefault(host, now_s + STRAY_S)

    def due(self, list_: Sequence[Wanted], now_s: float) -> Iterator[Action]:
        """What to ask for now, sorted by host, what has to be kept out first."""
        wanted = {one.host: one for one in list_}
        for host in sorted(wanted):
            if self._is_time(host, "cordon", now_s) and self._is_news(wanted[host], now_s):
                yield Action(host, wanted[host])
        for host in sorted(self._owed.keys() - wanted.keys()):
            if now_s >= self._owed[host] and self._is_time(host, "uncordon", now_s):
                yield Action(host, None)

    def _is_news(self, wanted: Wanted, now_s: float) -> bool:
        made = self._made.get(wanted.host)
        if made is None or made.since_s != wanted.since_s:
            return True
        return not made.ours and now_s >= made.look_s

    def _is_time(self, host: Host, word: str, now_s: float) -> bool:
        failed = self._failed.get(host)
        return failed is None or failed.word != word or now_s >= failed.next_s

    def learned(self, action: Action, outcome: Outcome, now_s: float) -> None:
        """What became of a request; one that failed may have been carried out all the same."""
        host, wanted = action.host, action.wanted
        if wanted is not None:
            self._owed[host] = now_s
        if not outcome.done:
            self._fail(action, outcome, now_s)
            return
        self._failed.pop(host, None)
        if wanted is None:
            self._made.pop(host, None)
            self._owed.pop(host, None)
        else:
            self._made[host] = _Made(wanted.since_s, outcome.ours, now_s + FOREIGN_LOOK_S)

    def _fail(self, action: Action, outcome: Outcome, now_s: float) -> None:
        before = self._failed.get(action.host)
        again = before is not None and before.word == action.word
        times = 1 + (before.times if before is not None and again else 0)
        wait_s = min(FIRST_RETRY_S * 2.0 ** min(times - 1, 20), LONGEST_RETRY_S)
        self._failed[action.host] = _Failed(action.word, times, now_s + wait_s, outcome.detail)

    def counts(self) -> dict[str, int]:
        """Hosts by state: `ours`, `foreign` (kept out by somebody else), `failing`."""
        made = [one for host, one in self._made.items() if host not in self._failed]
        ours = sum(one.ours for one in made)
        return {"ours": ours, "foreign": len(made) - ours, "failing": len(self._failed)}

    def troubles(self) -> Iterator[str]:
        """What does not succeed, one sentence each."""
        for host in sorted(self._failed):
            failed = self._failed[host]
            if failed.times >= _TROUBLE_AFTER:
                yield f"{failed.said} ({failed.times} tries)"
