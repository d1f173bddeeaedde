"""All that is imported of the product and of its test doubles: what a move has to mend is here."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from experiments.weeks.weeks import Weeks, told
from lightkeeper.monitor.decide.pipeline import Pipeline
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import Hold, Release
from tests.experiments.test_scale import judged
from tests.experiments.test_weeks import one_of_each
from tests.monitor import fleet as sim
from tests.monitor.fakes import FakeFleet, FakeLighthouse
from tests.monitor.fleet import At, Drive, Fault, SimFleet
from tests.monitor.journal.tape import Tape
from tests.monitor.process import Training
from tests.worker_server.ranks import TOKEN, RankUnderTest

__all__ = [
    "BY_DEGREES", "FAULTS", "TELLS", "TOKEN", "FakeFleet", "FakeLighthouse", "RankUnderTest",
    "Training", "journal", "judged", "scripted", "weeks",
]  # fmt: skip

Choose = Callable[[random.Random, str, str], Fault]
"""A fault of this rank or its group."""


def _every(fault: Callable[[list[str]], Fault]) -> Choose:
    return lambda _, rank, group: lambda fleet: fault([r.name for r in fleet.ranks()])(fleet)


FAULTS: Final[Mapping[str, Choose]] = {
    "hang": lambda c, rank, _: sim.hang(rank, c.choice(("data", "forward", "backward"))),
    "gil": lambda _, rank, __: sim.gil(rank),
    "stop": lambda _, rank, __: sim.stop(rank),
    "crash": lambda _, rank, __: sim.crash(rank),
    "segfault": lambda _, rank, __: sim.ended_by(rank, "SIGSEGV"),
    "raises": lambda _, rank, __: sim.raises(rank, "RuntimeError: CUDA error"),
    "stands": lambda _, rank, __: sim.stands(rank, "fetch", 12),
    "traced": lambda _, rank, __: sim.traced(rank),
    "wrong op": lambda _, rank, __: sim.mismatch(rank, "op"),
    "wrong size": lambda _, rank, __: sim.mismatch(rank, "size"),
    "extra": lambda _, rank, __: sim.mismatch(rank, "extra"),
    "abort": lambda _, rank, __: sim.mismatch(rank, "abort"),
    "wrong dtype": lambda _, rank, __: sim.mismatch(rank, "dtype"),
    "slow": lambda c, rank, _: sim.slow(rank, c.uniform(1.2, 3.0)),
    "slow data": lambda c, rank, _: sim.slow_in(rank, "data", c.uniform(0.1, 0.8)),
    "stalled CPU": lambda c, rank, _: sim.cpu_stall(rank, c.uniform(2, 9)),
    "disk wait": lambda _, rank, __: sim.runs(rank, "D"),
    "checkpoint": _every(lambda ranks: sim.pause(ranks, "checkpoint", 25.0)),
    "evaluation": _every(lambda ranks: sim.habit(ranks, 20, "evaluation", 9.0)),
    "one pauses": lambda c, rank, _: sim.pause([rank], "other", c.uniform(8, 60)),
    "jam": lambda _, __, group: sim.jam(group),
    "slow link": lambda c, _, group: sim.slow_link(group, c.uniform(0.5, 7)),
    "slow network": lambda c, *_: sim.slow_network(c.uniform(0.5, 7)),
    "jam across": lambda *_: sim.jam_across(),
    "second life": lambda _, __, group: sim.second_life(group),
    "restart": lambda _, __, group: sim.restart(group),
    "silent": lambda c, rank, _: sim.silent(rank, c.uniform(8, 60)),
    "unregister": lambda _, __, group: sim.unregister(group),
    "Lighthouse away": lambda c, *_: sim.lighthouse_away(c.uniform(5, 30)),
    "Lighthouse down": lambda *_: sim.lighthouse_down(20.0),
    "Lighthouse restart": lambda *_: sim.lighthouse_restart(2.0),
    "commits fail": lambda _, __, group: sim.fail_commits([group]),
    "shut out": lambda _, __, group: sim.shut_out(group),
    "monitor late": lambda c, *_: sim.late(c.uniform(2, 12), 2),
    "nan": lambda _, rank, __: sim.nan(rank),
    "flip": lambda _, rank, __: sim.flip(rank),
    "loss": lambda c, rank, _: sim.loss([rank], c.uniform(1.2, 3.0)),
    "leaves vote": lambda _, rank, __: sim.leaves_vote(rank),
    "leaves out": lambda _, rank, __: sim.leaves_out(rank),
    "gives across": lambda _, rank, __: sim.gives_across(rank, 900),
}
BY_DEGREES: Final = ("slow", "slow data", "stalled CPU", "one pauses", "slow link", "slow network",
                     "silent", "Lighthouse away", "loss")  # fmt: skip
"""Drawn by chance: more of them."""
TELLS: Final[Mapping[str, Mapping[str, Any]]] = {
    "phases": {}, "torchft": {"source": "torchft", "across": True},
    "heads": {"source": None, "across": True}, "nccl": {"source": None, "across": True},
}  # fmt: skip
"""What the ranks tell: their phases, TorchFT's steps, nothing but heads, heads by NCCL's record."""
_SHAPES: Final = ((3, 1), (2, 2), (4, 1), (2, 3), (3, 4))
_CONFIGS: Final[tuple[Mapping[str, Any], ...]] = (
    {}, {}, {}, {"observe": True}, {"min_replicas": 2}, {"budget_per_hour": 1}, {"tick_s": 2.0},
)  # fmt: skip


def drive(name: str, make: Callable[[KeeperConfig], Any]) -> Drive:
    """A fleet with the faults of the name, `TELLS: FAULT, FAULT #N`, and what `make` gives."""
    chance = random.Random(zlib.crc32(name.encode()))
    tells, _, faults = name.partition(": ")
    faults = faults.partition(" #")[0]
    groups, size = chance.choice(_SHAPES)
    script, at_s = [], chance.uniform(18, 22)
    for fault in faults.split(", "):
        group = f"rg_{chance.randrange(groups)}"
        chosen = FAULTS[fault](chance, f"{group}.{chance.randrange(size)}", group)
        script.append(At(at_s, chosen))
        at_s += chance.uniform(2, 40)
    options = chance.choice(_CONFIGS)
    config = KeeperConfig(**options)
    made = SimFleet(groups, size, script, noise=chance.choice((0.0, 0.1)), seed=1,
                    tick_s=options.get("tick_s", 1.0), **TELLS[tells])  # fmt: skip
    made.on_nccl = tells == "nccl"
    made.tells_waits = tells == "torchft"
    if {"nan", "flip", "loss"} & set(faults.split(", ")):
        made.losses, made.fingerprint_every = True, 5
    return Drive(made, config, pipeline=make(config))


class _Watched:
    """A pipeline of which every decision is written down."""

    def __init__(self, pipeline: Any, rows: dict[str, Any]) -> None:
        self._pipeline, self._rows = pipeline, rows

    def tick(self, snapshot: Any) -> Any:
        result = self._pipeline.tick(snapshot)
        for at, row in _rows(result):
            self._rows[f"{snapshot.tick:05d} {at}"] = row
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipeline, name)


def _rows(result: Any) -> list[tuple[str, Any]]:
    """What is compared of a tick, by a name that is its own."""
    rows: list[tuple[str, Any]] = [(f"{incident.id} {incident.state.value}", {
        "kind": incident.kind.value, "culprits": list(incident.culprits),
        "groups": list(incident.groups),
        "confidence": incident.verdict.confidence.value, "reason": incident.verdict.reason,
        "severity": str(incident.severity.value), "resolution": incident.resolution,
        "story": [[line.to, round(line.at_s, 3)] for line in incident.story],
    }) for incident in result.changed]  # fmt: skip
    for number, decision in enumerate(result.decisions):
        if isinstance(decision, Hold):
            row = {"hold": decision.guard.value, "would": decision.would and decision.would.group}
        elif isinstance(decision, Release):
            row = {"release": decision.group, "ranks": [each.rank for each in decision.survivors]}
        else:
            row = {"evict": decision.group, "replica_id": decision.replica_id,
                   "quarantine": list(decision.quarantine),
                   "keep_out": list(decision.keep_out)}  # fmt: skip
        rows.append(
            (f"decision {number}", {**row, "of": decision.incident_id, "reason": decision.reason})
        )
    rows += [(f"crashed {k}", v) for k, v in result.detector_failures.items()]
    return rows


def scripted(name: str, ticks: int) -> dict[str, Any]:
    """What was decided over the faults of this name."""
    rows: dict[str, Any] = {}
    drive(name, lambda config: _Watched(Pipeline(config), rows)).run(ticks)
    return rows


def journal(name: str, ticks: int, folder: Path) -> None:
    """The journal of the same."""
    tapes: list[Tape] = []

    def make(config: KeeperConfig) -> Tape:
        tapes.append(Tape(Pipeline(config), config, turn_every=ticks // 2))
        return tapes[0]

    drive(name, make).run(ticks)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(len(tapes[0].files)):
        file = f"journal-20260101T00000{number}.000000Z-{number + 1:04d}.gz"
        (folder / file).write_bytes(tapes[0].packed(number))


class _Weeks(Weeks):
    """Weeks whose pipelines, a new one after each restart of the monitor, are all written down."""

    def __init__(self, **options: Any) -> None:
        self.rows: dict[str, Any] = {}
        super().__init__(**options)

    @property
    def pipeline(self) -> Any:  # type: ignore[override]
        return self._watched

    @pipeline.setter
    def pipeline(self, made: Any) -> None:
        self._watched = _Watched(made, self.rows)


def weeks(name: str) -> dict[str, Any]:
    """A virtual day of a large fleet."""
    if name == "one of each":
        run, days = _Weeks(sample=48, size=12, days=1.0, seed=3, script=one_of_each(4, 12)), 1.0
    else:
        run, days = _Weeks(sample=64, size=16, days=0.5, seed=int(name)), 0.5
    account = run.run()
    return {"rows": run.rows, "sequence": account.sequence, "told": told(run, days)}
