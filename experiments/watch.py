"""What a monitor ever said: every incident over its life, headlines, quarantines, health."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import requests

from lightkeeper.trainer.demo import unhealthy

_RANKING: Final = {"unsure": 0, "likely": 1, "certain": 2}
_MOST: Final = 40
"""Sentences that are kept of an incident."""


@dataclass
class Seen:
    """One incident over its life."""

    first_s: float
    latest: dict[str, Any]
    accused: dict[str, str] = field(default_factory=dict)
    """Rank -> the best confidence with which it was named while the incident had fired."""
    pending: dict[str, str] = field(default_factory=dict)
    """Rank -> the same before it fired, or without that it did."""
    sentences: list[list[Any]] = field(default_factory=list)
    """[when, what] at each change but of numbers."""

    def look(self, incident: dict[str, Any], now_s: float) -> bool:
        """Take in what it says now; whether it says something new."""
        self.latest = incident
        named = self.accused if self.fired else self.pending
        sure = incident["confidence"]
        for rank in (*incident["culprits"], *incident["candidates"]):
            if _RANKING.get(sure, 0) >= _RANKING.get(named.get(rank, ""), -1):
                named[rank] = sure
        says = sentence(incident)
        new = not self.sentences or shape(self.sentences[-1][1]) != shape(says)
        if new and len(self.sentences) < _MOST:
            self.sentences.append([round(now_s, 2), says])
        return new

    @property
    def fired(self) -> bool:
        return self.latest["milestones"].get("firing_s") is not None

    @property
    def evicted(self) -> list[str]:
        """Groups whose eviction it asked for."""
        asked = self.latest["milestones"].get("evict_asked_s") is not None
        return list(self.latest["groups"]) if asked else []

    @property
    def states(self) -> dict[str, str]:
        """Rank -> the furthest state in which it stood accused: pending or firing."""
        return {**dict.fromkeys(self.pending, "pending"), **dict.fromkeys(self.accused, "firing")}

    def unsure(self, rank: str) -> bool:
        """Whether it was named only as a candidate."""
        return (self.accused.get(rank) or self.pending[rank]) == "unsure"


def sentence(incident: Mapping[str, Any]) -> str:
    """What it says first."""
    names = ("sentence", "headline", "title", "reason")
    return next((str(incident[key]) for key in names if incident.get(key)), "")


def shape(text: str) -> str:
    """A text without its numbers."""
    letters = "".join("#" if letter.isdigit() else letter for letter in text)
    return letters.replace("##", "#")


class Watch:
    """Looks at a monitor when told to; keeps what it saw, in memory and, with a folder, there."""

    def __init__(
        self, url: str, folder: Path | None = None, ask: Callable[[str], Any] | None = None
    ) -> None:
        self._url, self._folder = url, folder
        self._session = requests.Session()
        self._session.trust_env = False
        self._ask = ask or self._get
        self.seen: dict[str, Seen] = {}
        self.snapshot: dict[str, Any] | None = None
        """The latest; None while the monitor is away."""
        self.hosts: set[str] = set()
        """Hosts that were in quarantine."""
        self.quarantined: set[str] = set()
        """Hosts and groups."""
        self.health: dict[str, str] = {}
        """Rank -> what the monitor called it last."""
        self.headlines: list[list[Any]] = []
        """[when, what] at each change but of numbers."""
        self.away = 0
        """Looks at which it gave no answer."""
        self.lateness_s = 0.0
        self._old: frozenset[str] = frozenset()
        self._told: dict[str, str] = {}
        self._written = 0.0

    def look(self) -> dict[str, Any] | None:
        """One look; None while the monitor is away."""
        try:
            snapshot = dict(self._ask("/v1/snapshot"))
            incidents = self._ask("/v1/incidents")["incidents"]
            self._take(snapshot, incidents, time.time())
        except (requests.RequestException, ValueError, KeyError):  # KeyError: its first moments
            self.away += 1
            self.snapshot = None
        return self.snapshot

    def _take(self, snapshot: dict[str, Any], incidents: Any, now_s: float) -> None:
        changed = self._look_at_headline(str(snapshot["headline"]["text"]), now_s)
        self.lateness_s = max(self.lateness_s, float(snapshot.get("lateness_s") or 0.0))
        self.hosts |= {entry["host"] for entry in snapshot["quarantine"]}
        self.quarantined |= self.hosts
        self.quarantined |= {entry["group"] for entry in snapshot["quarantine_groups"]}
        self.health |= {rank["rank"]: rank["health"] for rank in snapshot["ranks"]}
        self.snapshot = snapshot
        for incident in incidents:
            if incident["id"] not in self._old:
                changed |= self._look_at_incident(incident, now_s)
        if self._folder is not None and (changed or now_s - self._written > 2):
            self._written = now_s
            self._write("snapshots.jsonl", {"seen_s": now_s, **snapshot})

    def _look_at_headline(self, text: str, now_s: float) -> bool:
        """Whether it is new."""
        if self.headlines and shape(self.headlines[-1][1]) == shape(text):
            return False
        self.headlines.append([round(now_s, 2), text])
        return True

    def _look_at_incident(self, incident: dict[str, Any], now_s: float) -> bool:
        """Whether it says something new."""
        seen = self.seen.setdefault(incident["id"], Seen(now_s, incident))
        changed = seen.look(incident, now_s)
        if self._folder is None:
            return changed
        named = incident["culprits"] + incident["candidates"]
        digest = json.dumps([incident["state"], named, incident["confidence"],
                             incident["severity"], len(incident["story"]),
                             len(incident["decisions"])])  # fmt: skip
        if self._told.get(incident["id"]) == digest:
            return changed
        self._told[incident["id"]] = digest
        self._write("incidents.jsonl", {"seen_s": now_s, **incident})
        return True

    def _get(self, path: str) -> Any:
        answer = self._session.get(f"{self._url}{path}", timeout=5)
        answer.raise_for_status()
        return answer.json()

    def _write(self, name: str, body: Mapping[str, Any]) -> None:
        assert self._folder is not None
        with (self._folder / name).open("a") as file:
            file.write(json.dumps(body) + "\n")

    def forget(self) -> None:
        """A new run: what was seen so far belongs to others."""
        self._old = self._old | frozenset(self.seen)
        self.seen = {}
        self.lateness_s = 0.0

    def close(self) -> None:
        """Close the connections."""
        with contextlib.suppress(requests.RequestException):
            self._session.close()

    # -- what it comes to ----------------------------------------------------------------

    @property
    def fired(self) -> list[Seen]:
        """Incidents that have fired."""
        return [seen for seen in self.seen.values() if seen.fired]

    @property
    def evicted(self) -> list[str]:
        """Groups whose eviction was asked for."""
        return sorted({group for seen in self.seen.values() for group in seen.evicted})

    def not_whole(self, groups: int, ranks_per_group: int) -> str | None:
        """Why the fleet is not committing, all of it, with no incident open; None when it is.

        Lost progress stays open until it is made again, while all commit.
        """
        if self.snapshot is None:
            return "the monitor does not answer"
        why = unhealthy(self.snapshot, groups, ranks_per_group)
        pending = [i["kind"] for i in self.snapshot["incidents"] if i["kind"] != "progress_lost"]
        return why or (f"{pending[0]} is open" if pending else None)

    def step(self) -> int:
        """The furthest step of any rank."""
        ranks = self.snapshot["ranks"] if self.snapshot else []
        return max((rank.get("step") or 0 for rank in ranks), default=0)

    def processes(self, group: str) -> frozenset[tuple[str, int]]:
        """Host and pid of each of a group's ranks now."""
        ranks = self.snapshot["ranks"] if self.snapshot else []
        return frozenset((rank["host"], rank["pid"]) for rank in ranks if rank["group"] == group)
