"""What the demo learns from the monitor, over HTTP as everybody else does."""

from __future__ import annotations

from typing import Any

import requests


class MonitorAwayError(RuntimeError):
    """The monitor did not answer, or not in JSON."""


class MonitorClient:
    """The few reads of the monitor's API that the demo needs."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session = requests.Session()
        self._session.trust_env = False  # no proxy between us and the loopback interface

    def _get(self, path: str) -> dict[str, Any]:
        try:
            answer = self._session.get(f"{self._url}{path}", timeout=5)
            answer.raise_for_status()
            return dict(answer.json())
        except (requests.RequestException, ValueError) as exc:
            raise MonitorAwayError(f"{self._url}{path}: {exc}") from exc

    def snapshot(self) -> dict[str, Any]:
        """The answer of `GET /v1/snapshot`."""
        return self._get("/v1/snapshot")

    def incidents(self) -> list[dict[str, Any]]:
        """All incidents, newest first."""
        return list(self._get("/v1/incidents")["incidents"])

    def close(self) -> None:
        """Close the connections."""
        self._session.close()


def unhealthy(snapshot: dict[str, Any], groups: int, ranks_per_group: int) -> str | None:
    """Why the fleet is not whole and committing yet, or None when it is.

    Whole means: every rank is there, has committed within the last five seconds in its present
    life and in one quorum of all groups, and no incident is open.
    """
    ranks = snapshot["ranks"]
    if len(ranks) < groups * ranks_per_group:
        return f"{len(ranks)} of {groups * ranks_per_group} ranks registered"
    for rank in ranks:
        commits, age = rank.get("commits") or 0, rank.get("last_commit_age_s")
        if rank["health"] not in ("healthy", "waiting"):
            return f"{rank['rank']} is {rank['health']}"
        if commits < 5 or age is None or age > 5:  # past the first, slow steps
            return f"{rank['rank']} has {commits} commits"
        if rank.get("participants") != groups:
            return f"{rank['rank']} sees {rank.get('participants')} of {groups} groups"
    open_incidents = [item for item in snapshot["incidents"] if item["state"] != "pending"]
    if open_incidents:
        return f"{open_incidents[0]['kind']} of {open_incidents[0]['culprits']} is open"
    return None
