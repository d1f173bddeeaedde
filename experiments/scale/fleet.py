"""N ranks on H hosts in one process: what their WorkerServers would say at this moment.

A job of replica groups that step together; a rank that hangs keeps all others waiting from its next
collective on, as under TorchFT. Hosts may be silent, slow, gone, or answer garbage. Every host has
an address of its own in 127/8, and all have the same port: one socket listens for them all.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from experiments.scale.hostile import odd_state
from lightkeeper.monitor.act.launches import Target
from lightkeeper.monitor.act.targets import target_to_json
from lightkeeper.monitor.model.names import RunId
from lightkeeper.monitor.model.run import Run
from lightkeeper.monitor.store.store import Store
from lightkeeper.worker_server import wire
from lightkeeper.worker_server.wire import parse_identity

STEP_S: Final = 1.0
_COMPUTES: Final = 0.8
"""Of a step; the rest is communication."""
_APART: Final = 0.01
"""Share by which hosts' computing differs: no two windows of a real fleet hold the same number."""


@dataclass
class Host:
    """One host: its ranks, and how it answers."""

    name: str
    address: str = "127.0.0.1"
    ranks: list[Rank] = field(default_factory=list)
    port: int = 0
    behaves: str = "well"
    """well, silent, slow (drips), garbage, gone."""
    computes: float = _COMPUTES
    """Its share of a step, on average."""


@dataclass
class Rank:
    """One rank."""

    group: str
    number: int
    size: int
    host: Host
    hangs_s: float | None = None
    """Monotonic moment from which on it computes for ever."""
    odd: bool = False
    """Whether it says by now what no rank says."""
    told: str = ""
    """Who it is, as JSON."""

    @property
    def name(self) -> str:
        """GROUP.RANK."""
        return f"{self.group}.{self.number}"

    @property
    def url(self) -> str:
        """Of its WorkerServer."""
        return f"http://{self.host.address}:{self.host.port}/{self.name}"


class Fleet:
    """All of it."""

    def __init__(
        self,
        ranks: int,
        a_host: int = 8,
        a_group: int = 8,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self.began_s = clock() - 1000.0
        self.hosts = [
            Host(f"node{n}", f"127.{1 + n // 62_500}.{n // 250 % 250}.{1 + n % 250}")
            for n in range((ranks + a_host - 1) // a_host)
        ]
        draw = random.Random(11)
        for machine in self.hosts:
            machine.computes *= 1 + draw.uniform(-_APART, _APART)
        self.ranks: list[Rank] = []
        for n in range(ranks):
            host = self.hosts[n // a_host]
            rank = Rank(f"rg_{n // a_group}", n % a_group, a_group, host)
            host.ranks.append(rank)
            self.ranks.append(rank)
        self.stands_s: float | None = None
        """From when on nobody steps."""
        self.asked: dict[str, int] = {"host": 0, "state": 0, "other": 0}

    def hang(self, rank: Rank) -> None:
        """It computes for ever from its next step on."""
        now_s = self._clock()
        step = int((now_s - self.began_s) / STEP_S) + 1
        rank.hangs_s = self.began_s + step * STEP_S
        self.stands_s = rank.hangs_s + _COMPUTES * STEP_S

    def write_targets(self, path: Path) -> None:
        """Make a monitor's store in which all ranks are registered."""
        now_s = time.time()
        store = Store(path)
        for rank in self.ranks:
            identity = parse_identity(self._identity(rank))
            target = Target(identity, rank.url, 3600.0, now_s, bringer="loopback")
            store.save_target(target.rank, target_to_json(target, ()))
        store.save_run(Run(RunId("sim"), "sim", now_s))
        written = store.flush(wait_s=60.0)
        store.close()
        if not written:
            raise OSError(f"{path} is not written: {store.last_error}")

    # -- what a rank says ----------------------------------------------------------------------

    def report(self, rank: Rank) -> dict[str, Any]:
        """Its state now, as JSON."""
        now_s = self._clock()
        at_s = now_s if self.stands_s is None else min(now_s, self.stands_s)
        step, into = divmod((at_s - self.began_s) / STEP_S, 1.0)
        if rank.hangs_s is not None and now_s >= rank.hangs_s:
            step, phase, age_s = (
                (rank.hangs_s - self.began_s) / STEP_S,
                "forward",
                now_s - rank.hangs_s,
            )
        elif into < _COMPUTES and (self.stands_s is None or now_s < self.stands_s):
            phase, age_s = "forward", into * STEP_S
        else:
            phase, age_s = "communication", (into - _COMPUTES) * STEP_S + now_s - at_s
        number = int(step)
        since_s = round(max(0.0, now_s - self.began_s - number * STEP_S), 3)
        return {
            "identity": self._identity(rank),
            "process": {"alive": True, "state": "S", "threads": 40, "rss_bytes": 3 << 30,
                        "interpreter_age_s": 0.2, "cores": 1.1, "starved": 0.01, "bytes_s": 1e6},
            "step": {
                "step": number, "attempt": number, "progress": 2 * number + (phase != "forward"),
                "phase": phase, "phase_age_s": round(max(0.0, age_s), 3), "commits": number - 1,
                "last_commit_age_s": since_s,
                "replica_id": f"{rank.group}:uuid", "quorum_id": 7,
                "participants": len(self.ranks) // rank.size, "loss": 2.5, "tokens": 4096 * number,
                "seconds": {"forward": round(number * rank.host.computes, 3),
                            "communication": round(number * (1 - rank.host.computes), 3)},
            },
            "heads": [["default", rank.size, 10 * number, 0, "all_reduce", since_s],
                      ["torchft", 8, number, 0, "all_reduce", since_s]],
        }  # fmt: skip

    def _identity(self, rank: Rank) -> dict[str, Any]:
        return {
            "job": "sim", "group": rank.group, "group_rank": rank.number, "world_size": rank.size,
            "host": rank.host.name, "pid": 1000 + rank.number, "incarnation": f"{rank.name}#0",
        }  # fmt: skip

    def _entries(self, ranks: Sequence[Rank]) -> Iterator[str]:
        """What a host says of its ranks: those that do the same say it in the same words."""
        same: dict[bool, tuple[str, str]] = {}
        for rank in ranks:
            hangs = rank.hangs_s is not None
            if hangs not in same:
                said = self.report(rank)
                step = json.dumps({**said["step"], "replica_id": "\0"})
                rest = {"process": said["process"], "heads": said["heads"]}
                same[hangs] = step, json.dumps(rest)[1:]
            if not rank.told:
                rank.told = json.dumps(self._identity(rank))
            step, rest_told = same[hangs]
            step = step.replace("\\u0000", f"{rank.group}:uuid")
            report = f'{{"identity":{rank.told},"step":{step},{rest_told}'
            yield f'{{"rank":"{rank.name}","url":"{rank.url}","report":{report}}}'

    def answer(self, host: Host, path: str) -> bytes:
        """The body for a path: `/RANK/v1/state`, `/RANK/v1/host`."""
        name, _, rest = path.lstrip("/").partition("/")
        if rest == "v1/host":
            self.asked["host"] += 1
            if any(member.odd for member in host.ranks):
                return b""
            entries = ",".join(self._entries(host.ranks))
            said = f'"schema":{wire.SCHEMA},"host":"{host.name}","entries":[{entries}]'
            return f"{{{said}}}".encode()
        rank = next((member for member in host.ranks if member.name == name), None)
        if rank is None:
            return b""
        if rank.odd and rest == "v1/state":
            return odd_state(self.ranks.index(rank), {"schema": wire.SCHEMA, **self.report(rank)})
        said: dict[str, Any] = {"schema": wire.SCHEMA, "identity": self._identity(rank)}
        self.asked["state" if rest == "v1/state" else "other"] += 1
        match rest:
            case "v1/state":
                said |= self.report(rank)
            case "v1/steps":
                said |= {"alive": True, "rows": [], "dropped": 0}
            case "v1/flight_recorder":
                said |= {"alive": True, "members": {}, "ring": [], "dropped": 0, "torch_only": []}
            case _:
                return b""
        return json.dumps(said).encode()

    # -- how it is served ----------------------------------------------------------------------

    async def serve(self) -> None:
        """Listen for every host; returns once all do."""
        hosts = {host.address: host for host in self.hosts}
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: _Connection(self, hosts), "0.0.0.0", 0, backlog=4096, family=socket.AF_INET
        )  # fmt: skip
        for host in self.hosts:
            host.port = server.sockets[0].getsockname()[1]


class _Connection(asyncio.Protocol):
    """Just enough HTTP: requests without a body, kept connections."""

    def __init__(self, fleet: Fleet, hosts: Mapping[str, Host]) -> None:
        self._fleet, self._hosts = fleet, hosts
        self._buffer = b""

    def connection_made(self, transport: Any) -> None:
        """Somebody asks; nobody from elsewhere is answered."""
        self._transport = transport
        host = self._hosts.get(transport.get_extra_info("sockname")[0])
        if host is None or host.behaves == "gone":
            transport.abort()
        else:
            self._host = host

    def data_received(self, data: bytes) -> None:
        """A request, or a part of one."""
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head, self._buffer = self._buffer[:end], self._buffer[end + 4 :]
            self._answer(head.split(b" ", 2)[1].decode())

    def _answer(self, path: str) -> None:
        behaves = self._host.behaves
        if behaves == "silent":
            return
        body = (
            b'{"schema": 1, "entries": 7'
            if behaves == "garbage"
            else self._fleet.answer(self._host, path)
        )
        status = b"200 OK" if body else b"404 Not Found"
        head = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        said = head % (status, len(body)) + body
        if behaves != "slow":
            self._transport.write(said)
            return
        loop = asyncio.get_running_loop()
        for at in range(0, len(said), 64):  # a few KiB take minutes
            loop.call_later(at / 64, self._drip, said[at : at + 64])

    def _drip(self, piece: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(piece)
