"""Answers of a monitor, as JSON: fixed, so that whole screens can be compared."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from lightkeeper.monitor.decide.view import IncidentReport
from lightkeeper.monitor.decide.view_json import report_from_json
from lightkeeper.monitor.show.status import StatusFacts
from lightkeeper.monitor.show.tables import fleet_of
from tests.http_server import FakeServer, Handler

NOW_S = 1_700_000_000.0


def rank(group: str, number: int, **more: Any) -> dict[str, Any]:
    return {
        "rank": f"{group}.{number}", "group": group, "host": f"node{group[3:]}",
        "pid": 100 + number, "incarnation": "one", "place": {}, "url": f"http://10.0.0.{number}:4000",
        "health": "healthy", "process_state": "S", "phase": "forward", "phase_age_s": 0.1,
        "step": 120, "commits": 118, "last_commit_age_s": 0.3, "quorum_id": 4, "participants": 2,
        "loss": 2.25, "step_s": 0.5, "busy_s": 0.4, "unreachable": None,
        "trouble": "", **more,
    }  # fmt: skip


def group(name: str, ranks: int = 2, **more: Any) -> dict[str, Any]:
    return {
        "group": name, "host": f"node{name[3:]}", "replica_id": f"{name}:a", "in_quorum": True,
        "ranks": [f"{name}.{number}" for number in range(ranks)], "health": "healthy", "step": 120,
        "commits": 118, "heartbeat_age_s": 0.1, "eviction": None, "launched_as": None, **more,
    }  # fmt: skip


def headline(state: str = "training", says: str = "all 4 ranks are healthy", **more: Any
             ) -> dict[str, Any]:  # fmt: skip
    return {"state": state, "says": says, "next": "", "incident": None, "step": 120,
            "step_s": 0.5, "commit_age_s": 0.3, "at_s": None, **more}  # fmt: skip


_AMOUNT = {"low": 0.0, "high": 0.0, "words": ""}
_ACCOUNT = {
    "decided_by": "nobody", "why": "nothing was to be decided", "outcome": "open", "intervals": [],
    "holds": [], "ran_on": [], "back_on": [], "final": False, "lost": _AMOUNT,
    "lost_by_others": _AMOUNT, "lost_by_own": _AMOUNT,
}  # fmt: skip


def incident(name: str = "not_entered-rg_1.1-7", **more: Any) -> dict[str, Any]:
    account, eviction = more.pop("account", {}), more.pop("eviction", None)
    if eviction is not None:
        eviction = {"incident_id": name, "group": "rg_1", "replica_id": None, **eviction}
    return {
        "id": name, "kind": "not_entered", "state": "firing", "severity": "critical",
        "fingerprint": "", "signature": "", "replica_ids": [], "incarnations": [], "story": [],
        "culprits": ["rg_1.1"], "candidates": [], "groups": ["rg_1"], "since_s": NOW_S - 20,
        "reason": "rg_1.1 stands still in 'data'", "says": "rg_1.1 stands still in 'data'",
        "next": "rg_1 is being evicted", "seen": {}, "waiting": 1, "confidence": "likely",
        "last_seen_s": NOW_S, "bundle": None, "evidence": {}, "lost_s": 0.0, "for_s": 20.0,
        "victims": ["rg_0.0"], "victim_count": 1, "eviction": eviction, "evictions": [],
        "milestones": {"first_seen_s": NOW_S - 15},
        "account": {**_ACCOUNT, **account}, **more,
    }  # fmt: skip


BUNDLE = {"url": "/v1/incidents/not_entered-rg_1.1-7/bundle", "bytes": 1, "written_s": NOW_S}


def reported(*bodies: dict[str, Any]) -> tuple[IncidentReport, ...]:
    return tuple(map(report_from_json, bodies))


def snapshot(**more: Any) -> dict[str, Any]:
    return {
        "schema": 1, "now_s": NOW_S, "tick": 9, "lateness_s": 0.0, "observe": False,
        "monitor": None, "pause": None, "maintenance": None, "troubles": [], "unknown": [],
        "self_health": {"state": "well", "scale": 1.0, "hold": None, "conditions": {}},
        "lighthouse": {
            "up": True, "quorum_id": 4, "status": "fine", "heartbeat_ages_s": {},
            "members": [{"replica_id": "rg_0:a", "group": "rg_0", "step": 120},
                        {"replica_id": "rg_1:a", "group": "rg_1", "step": 120}],
        },
        "groups": [group("rg_0"), group("rg_1")],
        "ranks": [rank(name, number) for name in ("rg_0", "rg_1") for number in range(2)],
        "warnings": [], "ended": None, "headline": headline(), "tokenless": False,
        "incidents": [], "quarantine": [], "quarantine_groups": [], **more,
    }  # fmt: skip


def hung() -> dict[str, Any]:
    """rg_1.1 stands still, and the others wait for it."""
    waits = {"health": "waiting", "phase": "communication", "phase_age_s": 14.2,
             "last_commit_age_s": 14.0, "step_s": None, "busy_s": None}  # fmt: skip
    sick = group("rg_1", health="stalled", eviction="evicting")
    return snapshot(
        groups=[group("rg_0", health="waiting"), sick],
        ranks=[
            rank("rg_0", 0, **waits), rank("rg_0", 1, **waits), rank("rg_1", 0, **waits),
            rank("rg_1", 1, **{**waits, "health": "stalled", "phase": "data"}),
        ],
        incidents=[incident(bundle=BUNDLE)],
        headline=headline("stopped", "rg_1.1 stands still in 'data'", next="rg_1 is being evicted",
                          step_s=None, commit_age_s=14.0),
    )  # fmt: skip


def many(groups: int, each: int) -> dict[str, Any]:
    """A fleet of a size; rank 3 of group 7 works longest."""
    names = [f"rg_{number}" for number in range(groups)]
    ranks = [rank(name, number) for name in names for number in range(each)]
    ranks[7 * each + 3]["busy_s"] = 0.49
    return snapshot(groups=[group(name, each) for name in names], ranks=ranks)


def asked(body: dict[str, Any], **more: Any) -> StatusFacts:
    return StatusFacts(fleet_of(body), **{"tick_age_s": 0.5, **more})


class FakeMonitor(FakeServer):
    """Answers as a monitor does; what it says is changed while it is served."""

    def __init__(self, body: dict[str, Any]) -> None:
        super().__init__()
        self.body = body
        self.recent: list[dict[str, Any]] = []
        self.refuse = False
        self.looks = 0
        self.on_look: Callable[[], object] = lambda: None

    def serve(self, handler: Handler, method: str, path: str, body: bytes) -> None:
        place = path.partition("?")[0]
        if place == "/v1/snapshot":
            self.looks += 1
            self.on_look()
        if self.refuse:
            handler.reply(503, "application/json", b'{"error": "the database is away"}')
            return
        said = {
            "/v1/snapshot": self.body,
            "/v1/ranks": {"ranks": self.body["ranks"]},
            "/v1/groups": {"groups": self.body["groups"]},
            "/v1/hosts": {"hosts": [_host(name) for name in self._hosts()]},
            "/v1/incidents": {"incidents": [*self.body["incidents"], *self.recent]},
            "/readyz": {"ready": True, "last_tick_age_s": 0.5},
        }.get(place)
        status = 404 if said is None else 200
        handler.reply(status, "application/json", json.dumps(said or {"error": "no"}).encode())

    def _hosts(self) -> list[str]:
        return [*sorted({row["host"] for row in self.body["ranks"]}), "spare"]


def _host(name: str) -> dict[str, Any]:
    quarantined = name == "spare"
    return {"host": name, "incidents": {"not_entered": 2} if quarantined else {},
            "evictions": 1 if quarantined else 0, "quarantined": quarantined,
            "lemon": None, "until_s": None}  # fmt: skip
