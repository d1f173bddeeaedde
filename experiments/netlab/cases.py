"""What breaks, and what is to come of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from experiments.netlab.job import Job

LOST_PAUSE_S: Final = 10.0
"""After the loss of a host, at TorchFT's and the Lighthouse's defaults."""
QUICK_PAUSE_S: Final = 7.0
"""The same with the Lighthouse's `--heartbeat_timeout_ms 1500`."""
PAIR_TOLD_S: Final = 12.0
PAIR_PAUSE_S: Final = 35.0
"""With a tie broken after 20 s."""


@dataclass(frozen=True)
class Shape:
    """Replica groups, their ranks, and how many ranks share a host."""

    groups: int
    ranks: int
    a_host: int = 1

    @property
    def places(self) -> dict[str, str]:
        """Rank -> its host."""
        names = [f"{group}.{rank}" for group in range(self.groups) for rank in range(self.ranks)]
        return {name: f"node-{number // self.a_host}" for number, name in enumerate(names)}

    @property
    def nodes(self) -> list[str]:
        """Hosts with ranks."""
        return list(dict.fromkeys(self.places.values()))


SHAPES: Final = {"3x1": Shape(3, 1), "2x2": Shape(2, 2), "2x2-packed": Shape(2, 2, 2)}


@dataclass(frozen=True)
class Case:
    """One row: what is done to a job that trains steadily, and the truth about it."""

    name: str
    what: str
    fault: Callable[[Job], None]
    shape: str = "3x1"
    watch_s: float = 90.0
    """From the fault on."""
    repair: Callable[[Job], None] | None = None
    repair_s: float = 0.0
    env: Mapping[str, str] = field(default_factory=dict)
    """Of the ranks."""
    lighthouse: tuple[str, ...] = ()
    wrong_names: bool = False
    """Names of the ranks' hosts lead to 127.0.0.1."""
    stores: bool = False
    """The store of group G has an address of its own, `store-G`."""
    gate: bool = False
    """Ranks ask a gate, by a name that leads to its host."""
    late: tuple[int, ...] = ()
    """Groups that the fault starts."""
    steady: bool = True
    """Whether all train before the fault."""
    # -- the truth
    culprits: tuple[str, ...] = ()
    """Ranks that have to be named, as likely or certain."""
    also: tuple[str, ...] = ()
    """Ranks that may be named, too, or instead where nothing tells which."""
    told_s: float | None = None
    """Culprits are named, and `says` is said, at most so long after the fault; None: no need."""
    says: str = ""
    """A pattern that a sentence of it holds."""
    pause_s: float | None = None
    """No survivor goes longer without a commit; None: it may."""
    survivors: tuple[str, ...] = ()
    """Ranks that can go on; empty: all but those of the culprits' groups."""
    evicted: tuple[str, ...] = ()
    """Groups that may be put out; where there are no culprits, one of them."""
    quiet: bool = False
    """No exchange is ended either: everything heals by itself."""

    @property
    def goes_on(self) -> tuple[str, ...]:
        """Survivors by name."""
        groups = {name.partition(".")[0] for name in self.culprits}
        ranks = SHAPES[self.shape].places
        return self.survivors or tuple(r for r in ranks if r.partition(".")[0] not in groups)

    def truth(self) -> dict[str, Any]:
        """What the judge goes by, as JSON."""
        names = ("culprits", "also", "told_s", "says", "pause_s", "evicted", "quiet")
        plain = {name: getattr(self, name) for name in names}
        lists = {name: list(value) for name, value in plain.items() if isinstance(value, tuple)}
        return {**plain, **lists, "hosts": [SHAPES[self.shape].places[r] for r in self.culprits]}


def _lost(name: str, shape: str, host: str, *ranks: str, **more: Any) -> Case:
    """`host`, where `ranks` are, for good."""
    return Case(**{
        "name": name, "what": f"the link of {host} goes down for good", "shape": shape,
        "fault": lambda job: job.lab.unplug(host), "watch_s": 90.0 if shape == "3x1" else 150.0,
        "culprits": ranks, "told_s": LOST_PAUSE_S, "pause_s": LOST_PAUSE_S,
        "evicted": (ranks[0][0],), **more,
    })  # fmt: skip


def _quick(name: str, shape: str, host: str, *ranks: str) -> Case:
    return _lost(
        name, shape, host, *ranks, lighthouse=("--heartbeat_timeout_ms", "1500"),
        told_s=QUICK_PAUSE_S, pause_s=QUICK_PAUSE_S,
    )  # fmt: skip


def _pair(name: str, what: str, fault: Callable[[Job], None]) -> Case:
    """Between node-1 and node-2: nothing tells whose fault it is."""
    return Case(
        name, what, fault, also=("1.0", "2.0"), evicted=("1", "2"), survivors=("0.0",),
        says=r"(node-1|\b1\b).*(node-2|\b2\b)|(node-2|\b2\b).*(node-1|\b1\b)",
        told_s=PAIR_TOLD_S, pause_s=PAIR_PAUSE_S,
    )  # fmt: skip


def _flap(where: str, seconds: int) -> Case:
    """Cables out and in again. A host that is away for 8 s may be called lost, for then it is."""

    def hosts(job: Job) -> list[str]:
        every = job.lab.hosts
        return {"host": ["node-1"], "all": list(every)}.get(where, [where])

    long = where == "host" and seconds >= 8
    return Case(
        f"flap-{where}-{seconds}",
        f"{'every cable' if where == 'all' else where} is out for {seconds} s",
        lambda job: job.lab.unplug(*hosts(job)),
        repair=lambda job: job.lab.plug(*hosts(job)), repair_s=float(seconds), watch_s=60.0,
        also=("1.0",) if long else (), quiet=not long, survivors=("0.0", "2.0"),
        pause_s=3.0 if where == "monitor" else seconds + 10.0,
    )  # fmt: skip


def _store_cut(job: Job) -> None:
    job.lab.lose("node-1", "store-0")
    job.start_group(1)


def _gate_gone(job: Job) -> None:
    job.kill("gate-0")
    while "gate-0" not in job.ended():  # its host says so to everybody
        time.sleep(0.01)
    job.lab.unplug("gate-0")


def _group_and_lighthouse_gone(job: Job) -> None:
    job.kill("1.0")
    job.lab.unplug("lighthouse")


def _one_way(job: Job) -> None:
    job.lab.lose("node-1", *(host for host in job.lab.hosts if host != "node-1"))


_ALL: Final = (
    _lost("host-lost", "3x1", "node-1", "1.0"),
    _lost("host-lost-2x2", "2x2", "node-3", "1.1"),
    _lost("host-lost-2x2-lead", "2x2", "node-2", "1.0"),
    _lost("host-lost-2x2-packed", "2x2-packed", "node-1", "1.0", "1.1"),
    _quick("host-lost-quick", "3x1", "node-1", "1.0"),
    _quick("host-lost-quick-2x2", "2x2", "node-3", "1.1"),
    _lost(
        "host-one-way", "3x1", "node-1", "1.0", fault=_one_way,
        what="nothing that node-1 sends arrives; it hears all",
    ),
    _lost(
        "host-back", "3x1", "node-1", "1.0", watch_s=120.0,
        what="the link of node-1 is down for 30 s, then up",
        repair=lambda job: job.lab.plug("node-1"), repair_s=30.0,
    ),
    Case(
        "group-killed-sockets-kept", "1.0 is killed; a process that it forked keeps its sockets",
        lambda job: job.kill("1.0"), env={"FORKS": "1.0"},
        culprits=("1.0",), told_s=LOST_PAUSE_S, pause_s=LOST_PAUSE_S, evicted=("1",),
    ),
    Case(
        "group-killed-no-lighthouse",
        "the same while nobody hears the Lighthouse, which is back 15 s later",
        _group_and_lighthouse_gone, env={"FORKS": "1.0"},
        repair=lambda job: job.lab.plug("lighthouse"), repair_s=15.0,
        culprits=("1.0",), told_s=LOST_PAUSE_S, pause_s=25.0, evicted=("1",),
    ),
    _pair(
        "pair-cut", "node-1 and node-2 do not hear each other",
        lambda job: job.lab.part("node-1", "node-2"),
    ),
    _pair(
        "pair-cut-one-way", "what node-1 sends to node-2 does not arrive",
        lambda job: job.lab.lose("node-1", "node-2"),
    ),
    _pair(
        "pair-cut-routes", "node-1 and node-2 have no routes to each other",
        lambda job: job.lab.blackhole("node-1", "node-2"),
    ),
    Case(
        "lighthouse-cut", "node-1 and the Lighthouse do not hear each other",
        lambda job: job.lab.part("node-1", "lighthouse"),
        also=("1.0",), told_s=12.0, says=r"(\b1\b|node-1).*Lighthouse", pause_s=15.0,
        survivors=("0.0", "2.0"), evicted=("1",),
    ),
    Case(
        "lighthouse-cut-all", "nobody hears the Lighthouse",
        lambda job: job.lab.unplug("lighthouse"), told_s=12.0, says="Lighthouse",
    ),
    Case(
        "gate-host-lost", "the gate's host goes down; 8 s later another one has its name",
        lambda job: job.lab.unplug("gate-0"), gate=True,
        repair=lambda job: job.move_gate(), repair_s=8.0, quiet=True, pause_s=20.0,
        told_s=20.0, says="nobody's request",
    ),
    Case(
        "gate-moved-late", "the gate dies, connections to its host hang; 8 s later it has moved",
        _gate_gone, gate=True, repair=lambda job: job.move_gate(), repair_s=8.0, quiet=True,
        pause_s=20.0,
    ),
    Case(
        "monitor-cut", "node-1 and the monitor do not hear each other",
        lambda job: job.lab.part("node-1", "monitor"), quiet=True, pause_s=3.0,
    ),
    Case(
        "monitor-cut-all", "nobody hears the monitor",
        lambda job: job.lab.unplug("monitor"), quiet=True, pause_s=3.0,
    ),
    Case(
        "store-cut", "0.1 does not reach the store of its group when the other group joins",
        _store_cut, shape="2x2", watch_s=150.0, stores=True, late=(1,),
        also=("0.1",), told_s=60.0, says="store", evicted=("0",), survivors=("0.0", "1.0"),
    ),
    Case(
        "data-silent", "the data server hears 1.0, and never answers",
        lambda job: job.silence_data_for("node-1"), env={"DATA": "data:9000"},
        culprits=("1.0",), told_s=30.0, says=r"\bdata\b|:9000", evicted=("1",), pause_s=60.0,
    ),
    Case(
        "data-cut", "node-1 and the data server do not hear each other",
        lambda job: job.lab.part("node-1", "data"), env={"DATA": "data:9000"},
        culprits=("1.0",), told_s=30.0, says=r"\bdata\b|:9000", evicted=("1",), pause_s=60.0,
    ),
    Case(
        "slow-link", "what node-1 sends leaves at 1 Mbit/s",
        lambda job: job.lab.slow("node-1"), watch_s=110.0, culprits=("1.0",), told_s=60.0,
        evicted=("1",),
    ),
    Case(
        "slow-evenly", "what hosts send leaves at 1 Mbit/s, on all of them",
        lambda job: job.lab.slow(*job.shape.nodes), watch_s=110.0, quiet=True,
    ),
    Case(
        "sends-much", "1.0 sends 20 MB/s to a far server besides", lambda job: job.upload(),
        watch_s=60.0, env={"UPLOADS": "1.0"}, quiet=True, pause_s=3.0,
    ),
    Case(
        "wrong-names", "names of hosts lead to 127.0.0.1 everywhere", lambda job: None,
        watch_s=150.0, wrong_names=True, steady=False, told_s=120.0, says=r"127\.0\.0\.1|refused",
    ),
    Case(
        "mtu", "packets to node-1 above 600 bytes are lost", lambda job: job.lab.shrink("node-1"),
        also=("0.0", "1.0", "2.0"), evicted=("0", "1", "2"), told_s=30.0, says=r"node-1|\b1\b",
        survivors=("0.0",),
    ),
    *(_flap(where, seconds) for where in ("host", "monitor", "lighthouse", "all")
      for seconds in (4, 6, 8, 10)),
)  # fmt: skip
CASES: Final = {case.name: case for case in _ALL}
