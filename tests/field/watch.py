"""What the monitor said, and what the job did: everything a record is made from."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import requests

from tests.field.fleet import Fleet

_SENTENCES: Final = ("sentence", "headline", "title", "reason")


def sentence(incident: Mapping[str, Any]) -> str:
    """What it says first."""
    return next((str(incident[key]) for key in _SENTENCES if incident.get(key)), "")


@dataclass
class Seen:
    """One incident over its life."""

    first_s: float
    latest: dict[str, Any]
    accused: dict[str, str] = field(default_factory=dict)
    """Rank -> the best confidence with which it was named while the incident had fired."""
    pending: set[str] = field(default_factory=set)
    """Ranks that were named before it fired, or without that it did."""
    sentences: list[list[Any]] = field(default_factory=list)
    """[when, what] at each change but of numbers."""

    def look(self, incident: dict[str, Any], now_s: float) -> bool:
        """Take in what it says now; whether it says something new."""
        self.latest = incident
        fired = incident["milestones"].get("firing_s") is not None
        for rank in incident["culprits"]:
            if not fired:
                self.pending.add(rank)
            elif _RANKING.get(incident["confidence"], 0) >= _RANKING.get(
                self.accused.get(rank, ""), -1
            ):
                self.accused[rank] = incident["confidence"]
        says = sentence(incident)
        new = not self.sentences or _shape(self.sentences[-1][1]) != _shape(says)
        if new and len(self.sentences) < 40:
            self.sentences.append([round(now_s, 2), says])
        return new


_RANKING: Final = {"unsure": 0, "likely": 1, "certain": 2}


def _shape(text: str) -> str:
    return "".join("#" if letter.isdigit() else letter for letter in text).replace("##", "#")


class Watch:
    """Looks twice a second; keeps what it saw, in memory and in the case's folder."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.seen: dict[str, Seen] = {}
        self.snapshot: dict[str, Any] | None = None
        self.quarantined: set[str] = set()
        """Hosts and groups."""
        self.hosts: set[str] = set()
        """Hosts alone."""
        self.health: dict[str, str] = {}
        """Rank -> what the monitor called it last."""
        self.headlines: list[list[Any]] = []
        """[when, what] at each change but of numbers."""
        self.progress_s: float = time.time()
        """When any group last made a step."""
        self.trained = False
        """Whether any group has made a step: before, the job starts and does not stand."""
        self.stands: list[list[float]] = []
        """[from, to] of every time in which no group made a step for 5 s and longer."""
        self.exit: tuple[int, float] | None = None
        """A plain job's status, and when it had ended."""
        self.statuses: list[list[Any]] = []
        self.away = 0
        self.lateness_s = 0.0
        self._session = requests.Session()
        self._session.trust_env = False
        self._written = 0.0
        self._told: dict[str, str] = {}

    def look(self) -> None:
        """One look at the job and at the monitor."""
        now_s = time.time()
        self._look_at_job(now_s)
        try:
            self.snapshot = self._get("/v1/snapshot")
            incidents = self._get("/v1/incidents")["incidents"]
        except (requests.RequestException, ValueError, KeyError):
            self.away += 1
            return
        snapshot = self.snapshot
        self.lateness_s = max(self.lateness_s, float(snapshot.get("lateness_s") or 0.0))
        self.hosts |= {entry["host"] for entry in snapshot["quarantine"]}
        self.quarantined |= self.hosts
        self.quarantined |= {entry["group"] for entry in snapshot["quarantine_groups"]}
        self.health |= {rank["rank"]: rank["health"] for rank in snapshot["ranks"]}
        changed = self._look_at_headline(str(snapshot["headline"]["text"]), now_s)
        for incident in incidents:
            changed |= self._look_at_incident(incident, now_s)
        if changed or now_s - self._written > 2:
            self._written = now_s
            self._write("snapshots.jsonl", {"seen_s": now_s, **snapshot})

    def _look_at_job(self, now_s: float) -> None:
        if self.fleet.look(now_s):
            if self.trained and now_s - self.progress_s >= 5:
                self.stands.append([round(self.progress_s, 2), round(now_s, 2)])
            self.progress_s, self.trained = now_s, True
        if self.exit is None and (status := self.fleet.exit_status()) is not None:
            self.exit = status, now_s

    def _look_at_incident(self, incident: dict[str, Any], now_s: float) -> bool:
        """Whether it says something new."""
        seen = self.seen.setdefault(incident["id"], Seen(now_s, incident))
        changed = seen.look(incident, now_s)
        digest = json.dumps([incident["state"], incident["culprits"], incident["confidence"],
                           len(incident["story"]), len(incident["decisions"])])  # fmt: skip
        if self._told.get(incident["id"]) == digest:
            return changed
        self._told[incident["id"]] = digest
        self._write("incidents.jsonl", {"seen_s": now_s, **incident})
        return True

    def _look_at_headline(self, text: str, now_s: float) -> bool:
        """Whether it is new."""
        if self.headlines and _shape(self.headlines[-1][1]) == _shape(text):
            return False
        self.headlines.append([round(now_s, 2), text])
        return True

    def _get(self, path: str) -> dict[str, Any]:
        answer = self._session.get(f"{self.fleet.monitor_url}{path}", timeout=5)
        answer.raise_for_status()
        return dict(answer.json())

    def _write(self, name: str, body: Mapping[str, Any]) -> None:
        with Path(self.fleet.folder, name).open("a") as file:
            file.write(json.dumps(body) + "\n")

    def steady(self, least_steps: int, ranks: int) -> str | None:
        """Why the job does not train steadily, all together; None when it does."""
        if self.snapshot is None:
            return "the monitor does not answer"
        now_s = time.time()
        for name, tail in self.fleet.tails.items():
            if tail.steps < least_steps:
                return f"{name} has made {tail.steps} steps"
            if now_s - tail.moved_s > 3:
                return f"{name} makes no steps"
            if tail.participants != tail.mates:
                return f"{name} sees {tail.participants} of {tail.mates} groups"
        seen = len(self.snapshot["ranks"])
        return None if seen >= ranks else f"the monitor sees {seen} of {ranks} ranks"

    @property
    def fired(self) -> list[Seen]:
        """Incidents that have fired."""
        return [
            seen for seen in self.seen.values()
            if seen.latest["milestones"].get("firing_s") is not None
        ]  # fmt: skip

    def stood(self, since_s: float, now_s: float) -> list[list[float]]:
        """Every stand that lasted into the time since, the present one too. A job that never made a
        step stands from then on.
        """
        if not self.trained:
            return [[since_s, now_s]]
        stands = now_s - self.progress_s >= 5
        last = [[self.progress_s, now_s]] if stands else []
        return [[max(a, since_s - 5), b] for a, b in (*self.stands, *last) if b > since_s]

    def close(self) -> None:
        """Close the connections."""
        self._session.close()
