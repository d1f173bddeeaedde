"""Fakes over real HTTP on loopback: a fleet of WorkerServers, a Lighthouse."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from typing import Any
from urllib.parse import unquote

from lightkeeper.monitor.act.launches import Target
from lightkeeper.monitor.model.names import GroupName, Host, RankName, ReplicaId, rank_name
from lightkeeper.worker_server.wire import (
    FlightRecord,
    Identity,
    Process,
    Registration,
    StateReport,
    StepState,
    to_json,
)
from tests.changed import replace
from tests.http_server import FakeServer, Handler, Hang
from tests.waiting import wait_for


def wait_until(condition: Callable[[], Any], timeout_s: float = 10.0, what: str = "") -> Any:
    """The first truthy value of the condition; fails when there is none in time."""
    return wait_for(condition, within_s=timeout_s, what=what or str(condition))


def identity(
    group: str = "rg_0",
    group_rank: int = 0,
    *,
    world_size: int = 1,
    host: str = "node0",
    incarnation: str = "one",
) -> Identity:
    return Identity(
        job="job",
        group=GroupName(group),
        group_rank=group_rank,
        world_size=world_size,
        host=Host(host),
        pid=4242,
        incarnation=incarnation,
    )


Page = tuple[int, str, bytes]
"""Status, content type, body."""


@dataclass
class FakeRank:
    """One rank with its WorkerServer. Tests change it while it is served."""

    identity: Identity
    base: str = ""
    alive: bool = True
    process_state: str = "S"
    interpreter_age_s: float | None = 0.1
    step: int = 10
    phase: str = "forward"
    phase_age_s: float = 0.1
    replica_id: str | None = None
    token: str | None = "secret"
    mortal: bool = True
    evict: Callable[[FakeRank], Page] | None = None
    """How it answers an eviction; None: as a good WorkerServer does."""
    answer: Callable[[FakeRank], Page] | None = None
    """How it answers `/v1/state`; None: as a good WorkerServer does."""
    steps: Any = None
    """Its answer to `/v1/steps?since=`."""
    raw: bytes | None = None
    """Sent instead of any HTTP answer to `/v1/state`."""
    drip: bytes | None = None
    """Sent one byte every 0.1 s, for ever, as the body of `/v1/state`."""
    record: FlightRecord | None = None
    stacks: bytes | None = b"Thread 1: train.py:10\n"
    """None: asking for them hangs."""
    guarded: bool = False
    """Whether reading needs the token too, as on a WorkerServer that others can reach."""
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Path and Authorization of every read."""
    evictions: list[dict[str, Any]] = field(default_factory=list)
    releases: list[dict[str, Any]] = field(default_factory=list)
    polls: int = 0

    @property
    def url(self) -> str:
        return f"{self.base}/{self.identity.rank}"

    def report(self) -> StateReport:
        return StateReport(
            identity=self.identity,
            process=Process(
                alive=self.alive,
                state=self.process_state if self.alive else None,
                dead_age_s=None if self.alive else 1.0,
                interpreter_age_s=self.interpreter_age_s if self.alive else None,
            ),
            step=StepState(
                step=self.step,
                attempt=self.step,
                progress=self.step * 5,
                phase=self.phase,
                phase_age_s=self.phase_age_s,
                commits=self.step,
                last_commit_age_s=self.phase_age_s + 0.1,
                replica_id=None if self.replica_id is None else ReplicaId(self.replica_id),
                quorum_id=3,
                participants=3,
                loss=2.5,
                seconds={"forward": self.step * 0.1, "communication": self.step * 0.05},
            ),
        )

    def registration(self, lease_s: float = 15.0) -> Registration:
        return Registration(self.identity, self.url, lease_s)

    def target(self) -> Target:
        return Target(self.identity, self.url, 15.0, 0.0)

    def die(self) -> None:
        if self.mortal:
            self.alive = False

    def restart(self, incarnation: str) -> None:
        self.identity = replace(self.identity, incarnation=incarnation)
        self.alive, self.process_state, self.interpreter_age_s = True, "S", 0.1

    def on_release(self, body: dict[str, Any], token: str) -> Page:
        self.releases.append(body)
        if token != f"Bearer {self.token}":
            return page({"error": "wrong token"}, 401)
        if body["incarnation"] != self.identity.incarnation:
            return page({"error": "another incarnation"}, 409)
        return page({"schema": 1, "ended": 2, "said": "ended 2 connections"})

    def on_evict(self, body: dict[str, Any], token: str) -> Page:
        self.evictions.append(body)
        if self.evict is not None:
            return self.evict(self)
        if self.token is None:
            return page({"error": "no token configured"}, 403)
        if token != f"Bearer {self.token}":
            return page({"error": "wrong token"}, 401)
        if body.get("incarnation") not in (None, self.identity.incarnation):
            return page({"error": "another incarnation"}, 409)
        self.die()
        return page({"schema": 1, "signalled": ["SIGTERM"], "gone": not self.alive})


def page(body: Any, status: int = 200) -> Page:
    return status, "application/json", json.dumps(body).encode()


class FakeFleet(FakeServer):
    """Many WorkerServers behind one port: `BASE/RANK/v1/state`."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(tls)
        self.ranks: dict[RankName, FakeRank] = {}
        self.redirects: dict[RankName, str] = {}
        self.host_page: Callable[[FakeRank], Page] | None = None
        """How a WorkerServer answers for its host; None: as one that has no such page."""
        self.serve_record: Callable[[FakeRank, str], Page] | None = None

    def add(self, group: str = "rg_0", group_rank: int = 0, **options: Any) -> FakeRank:
        who = {k: options.pop(k) for k in ("world_size", "host", "incarnation") if k in options}
        who.setdefault("world_size", group_rank + 1)
        rank = FakeRank(identity(group, group_rank, **who), base=self.url, **options)
        self.ranks[rank_name(group, group_rank)] = rank
        return rank

    def serve(self, handler: Handler, method: str, path: str, body: bytes) -> None:
        name, _, rest = path.lstrip("/").partition("/")
        rank = self.ranks.get(RankName(unquote(name)))
        if rank is None:
            handler.reply(*page({"error": "no such rank"}, 404))
        elif method == "POST" and rest in ("v1/evict", "v1/release"):
            token = handler.headers.get("Authorization", "")
            obey = rank.on_evict if rest == "v1/evict" else rank.on_release
            handler.reply(*obey(json.loads(body), token))
        elif not self._may_read(handler, rank, rest):
            handler.reply(*page({"error": "wrong or missing bearer token"}, 401))
        elif rank.identity.rank in self.redirects:
            handler.reply(307, "text/plain", b"", Location=self.redirects[rank.identity.rank])
        elif rest.partition("?")[0] == "v1/state":
            self._state(handler, rank)
        elif rest == "v1/host" and self.host_page is not None:
            handler.reply(*self.host_page(rank))
        else:
            self._page(handler, rank, rest)

    def _page(self, handler: Handler, rank: FakeRank, rest: str) -> None:
        if rest.startswith("v1/flight_recorder") and self.serve_record is not None:
            handler.reply(*self.serve_record(rank, rest))
        elif rest == "v1/flight_recorder":
            record = rank.record or FlightRecord(rank.identity, rank.alive, {}, (), 0, None)
            handler.reply(*page(to_json(record)))
        elif rest == "v1/stacks":
            if rank.stacks is None:
                raise Hang
            handler.reply(200, "text/plain", rank.stacks)
        elif rest.startswith("v1/steps?since") and rank.steps is not None:
            handler.reply(*page(rank.steps))
        elif rest.partition("?")[0] in ("v1/steps", "v1/last_words", "v1/network", "v1/machine"):
            who = to_json(rank.report())["identity"]
            handler.reply(*page({"asked": rest, "identity": who}))
        else:
            handler.reply(*page({"error": "no such path"}, 404))

    def _may_read(self, handler: Handler, rank: FakeRank, rest: str) -> bool:
        token = handler.headers.get("Authorization", "")
        rank.asked.append((rest, token))
        return not rank.guarded or token == f"Bearer {rank.token}"

    def _state(self, handler: Handler, rank: FakeRank) -> None:
        rank.polls += 1
        if rank.raw is not None:
            handler.wfile.write(rank.raw)
            handler.close_connection = True
        elif rank.drip is not None:
            handler.send_response(200)
            handler.send_header("Content-Length", "1000000")
            handler.end_headers()
            while self.pause(0.1):
                handler.wfile.write(rank.drip[:1])
        elif rank.answer is not None:
            status, kind, body = rank.answer(rank)
            handler.reply(status, kind, body, Location="http://127.0.0.1:1/")
        else:
            handler.reply(*page(to_json(rank.report())))


class FakeLighthouse(FakeServer):
    """Prints pages as TorchFT 0.2.0 does, and has a kill button."""

    def __init__(self) -> None:
        super().__init__()
        self.quorum_id = 1
        self.members: dict[str, int] = {}
        self.ages_s: dict[str, float] = {}
        self.kills: list[str] = []
        self.on_kill: Callable[[str], Page] = lambda _: (500, "text/plain", b"transport error")
        self.down = False

    def form(self, *replica_ids: str) -> None:
        """A new quorum of these."""
        self.quorum_id += 1
        self.members = dict.fromkeys(replica_ids, 10)
        for replica_id in replica_ids:
            self.ages_s[replica_id] = 0.1

    def serve(self, handler: Handler, method: str, path: str, body: bytes) -> None:
        if self.down:
            handler.reply(503, "text/plain", b"down")
        elif method == "GET" and path == "/status":
            handler.reply(200, "text/html", self.html().encode())
        elif method == "POST" and path.startswith("/replica/") and path.endswith("/kill"):
            replica_id = unquote(path.split("/")[2])
            self.kills.append(replica_id)
            handler.reply(*self.on_kill(replica_id))
        else:
            handler.reply(404, "text/plain", b"no such path")

    def html(self) -> str:
        members = "".join(
            f'<div class="member\n">\n<b>{escape(replica_id)}</b> <br/>\nStep: {step} <br/>\n'
            f"Manager: http://h:1 <br/>\nTCPStore: s:1 <br/>\nWorld size: 1 <br/>\n"
            f'<button hx-post="/replica/{escape(replica_id)}/kill">Kill</button></div>\n'
            for replica_id, step in self.members.items()
        )
        beats = "".join(
            f'<li class="heartbeat\n">\n{escape(replica_id)}: seen {age_s}s ago\n</li>\n'
            for replica_id, age_s in self.ages_s.items()
        )
        return (
            f"Current quorum_id: {self.quorum_id} <br>\nNext quorum status: fine\n"
            f"<h3>Previous Quorum</h3>\n<div>{members}</div>\n"
            f"<h2>Heartbeats</h2>\n<ul>{beats}</ul>\n"
        )
