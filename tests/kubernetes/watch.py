"""What the monitor and the API server say during a run, looked at once a second."""

from __future__ import annotations

import threading
import time
from typing import Any, Final

import requests

from experiments.watch import Seen
from tests.kubernetes.job import Job
from tests.kubernetes.lab import MARK, LabError, condition

LOOK_S: Final = 0.7


class Watch(threading.Thread):
    """Of one job, until `close`."""

    def __init__(self, job: Job) -> None:
        super().__init__(name="watch", daemon=True)
        self._job, self._end = job, threading.Event()
        self.seen: dict[str, Seen] = {}
        self.away = 0
        """Looks at which the monitor gave no answer."""
        self.quarantined: set[str] = set()
        self.events: list[list[Any]] = []
        """[when, what] of nodes and pods, at each change."""
        self.headlines: list[list[Any]] = []
        self.snapshots: list[dict[str, Any]] = []
        """Whole, at each new headline, the last hundred."""
        self._states: dict[str, str] = {}
        self.old: set[str] = set()
        """Incidents of before."""

    def run(self) -> None:
        """One look after the other."""
        while not self._end.wait(LOOK_S):
            now_s = time.time()
            try:
                self._look_at_cluster(now_s)
            except (requests.RequestException, ValueError, KeyError):
                self._event("API server", "away", now_s)
            else:
                self._event("API server", "there", now_s)
            try:
                self._look_at_monitor(now_s)
            except (LabError, requests.RequestException, ValueError, KeyError):
                self.away += 1

    def _event(self, name: str, state: str, now_s: float) -> None:
        if self._states.get(name) != state:
            self._states[name] = state
            self.events.append([round(now_s, 1), name, state])

    def _look_at_cluster(self, now_s: float) -> None:
        for node in self._job.api.nodes():
            words = [f"Ready={condition(node, 'Ready')}"]
            words += ["cordoned"] * bool(node["spec"].get("unschedulable"))
            words += ["ours"] * (MARK in node["metadata"].get("annotations", {}))
            self._event(node["metadata"]["name"], " ".join(words), now_s)
        for pod in self._job.api.pods("train"):
            words = [pod["spec"].get("nodeName", "nowhere"), pod["status"]["phase"]]
            words += ["Ready"] * (condition(pod, "Ready") == "True")
            words += ["Terminating"] * ("deletionTimestamp" in pod["metadata"])
            words += ["DisruptionTarget"] * (condition(pod, "DisruptionTarget") == "True")
            self._event(pod["metadata"]["name"], " ".join(words), now_s)

    def _look_at_monitor(self, now_s: float) -> None:
        snapshot, listed = self._job.ask("/v1/snapshot"), self._job.ask("/v1/incidents")
        self.quarantined |= {row["host"] for row in snapshot["quarantine"]}
        text = str(snapshot["headline"]["text"])
        if not self.headlines or self.headlines[-1][1] != text:
            self.headlines.append([round(now_s, 1), text])
            self.snapshots = [*self.snapshots[-99:], {"seen_s": now_s, **snapshot}]
        for incident in listed["incidents"]:
            if incident["id"] not in self.old:
                seen = self.seen.setdefault(incident["id"], Seen(now_s, incident))
                seen.look(incident, now_s)

    def close(self) -> None:
        """Stop looking."""
        self._end.set()
        if self.ident is not None:
            self.join(20)
