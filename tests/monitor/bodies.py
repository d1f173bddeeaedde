"""A monitor of a fleet that is always the same, so that whole screens can be compared."""

from __future__ import annotations

import json
from typing import Any

from lightkeeper.monitor.decide.pipeline import TickResult
from lightkeeper.monitor.decide.tempo import Tempo
from lightkeeper.monitor.decide.view import View
from lightkeeper.monitor.model.eviction import Eviction, EvictionState, QuarantineEntry
from lightkeeper.monitor.model.incident import BundleView, Incident, Milestones
from lightkeeper.monitor.model.names import GroupName, Host, IncidentId, RankName, ReplicaId
from lightkeeper.monitor.model.observation import LighthouseView, Member, Observation, Snapshot
from lightkeeper.monitor.model.verdict import RankHealth
from lightkeeper.monitor.show.terminal.status import status_to_json
from lightkeeper.monitor.show.web.answers import dump
from lightkeeper.monitor.show.web.server import create_app
from lightkeeper.worker_server.wire import Registration, StepState
from tests.changed import replace
from tests.http_server import FakeServer, Handler
from tests.monitor.api import app_context
from tests.monitor.doubles import HandClock
from tests.monitor.fakes import FakeRank, identity
from tests.monitor.samples import incident as sample

NOW_S = 1_700_000_000.0
ID = IncidentId("not_entered-rg_1.1-7")


def rank(group: str, number: int, **more: Any) -> dict[str, Any]:
    """As `GET /v1/ranks` says it."""
    return {
        "rank": f"{group}.{number}", "group": group, "host": f"node{group[3:]}",
        "pid": 100 + number, "incarnation": "one", "place": {}, "url": f"http://10.0.0.{number}:4000",
        "health": "healthy", "process_state": "S", "phase": "forward", "phase_age_s": 0.1,
        "step": 120, "commits": 118, "last_commit_age_s": 0.3, "quorum_id": 4, "participants": 2,
        "loss": 2.25, "step_s": 0.5, "busy_s": 0.4, "wait_s": 0.1, "unreachable": None,
        "trouble": "", **more,
    }  # fmt: skip


def group(name: str, ranks: int = 2, **more: Any) -> dict[str, Any]:
    """As `GET /v1/groups` says it."""
    return {
        "group": name, "host": f"node{name[3:]}", "replica_id": f"{name}:a", "in_quorum": True,
        "ranks": [f"{name}.{number}" for number in range(ranks)], "health": "healthy", "step": 120,
        "commits": 118, "heartbeat_age_s": 0.1, "eviction": None, "launched_as": None, **more,
    }  # fmt: skip


def observed(group: str, number: int, each: int = 2, **step: Any) -> Observation:
    who = identity(group, number, world_size=each, host=f"node{group[3:]}")
    state = {"step": 120, "commits": 118, "last_commit_age_s": 0.3, **step}
    seen = FakeRank(who, replica_id=f"{group}:a").report()
    assert isinstance(seen.step, StepState)
    report = replace(seen, step=replace(seen.step, **state))
    return Observation(who, f"http://10.0.0.{number}:4000", report, 0.01)


def fleet(*seen: Observation, **more: Any) -> View:
    """A view of these ranks; `more`: fields of the view, of its snapshot and of its result."""
    groups = list(dict.fromkeys(each.identity.group for each in seen))
    ids = [ReplicaId(f"{name}:a") for name in groups]
    members = tuple(Member(replica_id, 120) for replica_id in ids)
    lighthouse = LighthouseView(4, members, dict.fromkeys(ids, 0.1), "fine")
    health = {each.rank: RankHealth.HEALTHY for each in seen}
    shown = Snapshot(NOW_S, 9, 0.0, seen, more.pop("lighthouse", lighthouse),
                     pause=more.pop("pause", None))  # fmt: skip
    result = {name: more.pop(name) for name in ("unknown", "health") if name in more}
    return View(**{
        "snapshot": shown, "observe": False,
        "result": TickResult(NOW_S, rank_health=more.pop("rank_health", health), **result),
        "tempos": {each.rank: Tempo(0.5, 0.4) for each in seen}, **more,
    })  # fmt: skip


def trains(**more: Any) -> View:
    ranks = [observed(name, number) for name in ("rg_0", "rg_1") for number in range(2)]
    return fleet(*ranks, **more)


def many(groups: int, each: int) -> View:
    """A fleet of a size; rank 3 of group 7 works longest."""
    view = fleet(*(observed(f"rg_{at}", n, each) for at in range(groups) for n in range(each)))
    return replace(view, tempos={**view.tempos, RankName("rg_7.3"): Tempo(0.5, 0.49)})


def incident(name: str = ID, *, culprits: tuple[str, ...] = ("rg_1.1",), **more: Any) -> Incident:
    """rg_1.1 stands still; `more`: fields of the incident and of its verdict."""
    of_verdict = ("since_s", "reason", "candidates", "confidence", "victims")
    said = {"since_s": NOW_S - 20, "reason": "rg_1.1 stands still in 'data'", "evidence": {}}
    said |= {key: more.pop(key) for key in of_verdict if key in more}
    made = sample(name)
    verdict = replace(made.verdict, kind=more.get("kind", made.kind), culprits=culprits, **said)
    marks = Milestones(first_seen_s=NOW_S - 15, firing_s=NOW_S - 10)
    more.setdefault("candidates", said.get("candidates", ()))
    return replace(
        made, verdict=verdict, culprits=culprits, milestones=marks, last_seen_s=NOW_S, **more
    )


def hung(**more: Any) -> View:
    """rg_1.1 stands still, and the others wait for it."""
    waits = {"phase": "communication", "phase_age_s": 14.2, "last_commit_age_s": 14.0}
    ranks = [observed(name, n, **waits) for name in ("rg_0", "rg_1") for n in range(2)]
    ranks[3] = observed("rg_1", 1, **{**waits, "phase": "data"})
    health = {each.rank: RankHealth.WAITING for each in ranks}
    health[RankName("rg_1.1")] = RankHealth.STALLED
    decided = replace(
        eviction(NOW_S - 4), state=EvictionState.DECIDED, taken_up=False, reason="hung"
    )
    return fleet(*ranks, **{
        "rank_health": health, "tempos": {}, "incidents": (incident(),),
        "evicting": frozenset({GroupName("rg_1")}), "bundles": {ID: BundleView(1, NOW_S)},
        "decisions": {ID: (decided,)}, **more,
    })  # fmt: skip


def evicted(*evictions: Eviction) -> dict[str, Any]:
    """Fields of a view in which these have begun or are over."""
    return {"decisions": {eviction.incident_id: (eviction,) for eviction in evictions}}


def eviction(asked_s: float, name: str = ID) -> Eviction:
    return Eviction(IncidentId(name), GroupName("rg_1"), ReplicaId("rg_1:a"), asked_s)


def entry(name: str, **more: Any) -> QuarantineEntry:
    return QuarantineEntry(Host(name), "hung", "lightkeeper", NOW_S, None, None, **more)


def status(view: View, not_ready: str = "") -> dict[str, Any]:
    """The body of `GET /v1/status`, half a second after the tick."""
    body: dict[str, Any] = json.loads(dump(status_to_json(view, 0.5, not_ready)))
    return body


class ServedView(FakeServer):
    """Answers as a monitor does; what it sees is changed while it is served."""

    def __init__(self, view: View) -> None:
        super().__init__()
        self.view = view
        self.refuse = False
        self.status = "/v1/status"
        context = app_context(HandClock(NOW_S + 0.5), view=lambda: self.view)
        for seen in view.snapshot.observations[:8]:
            context.registry.register(Registration(seen.identity, seen.url, 3600.0))
        context.quarantine.add(entry("spare"))
        self._app = create_app(context).test_client()

    def serve(self, handler: Handler, method: str, path: str, body: bytes) -> None:
        if self.refuse:
            handler.reply(503, "application/json", b'{"error": "the database is away"}')
            return
        path = path if path.startswith(self.status) or "/status" not in path else "/no"
        said = self._app.open(path, method=method, data=body)
        handler.reply(said.status_code, "application/json", said.data)
