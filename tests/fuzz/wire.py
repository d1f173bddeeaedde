"""Whatever some WorkerServers answer, the others are seen, judged and shown.

A small fleet on a virtual clock, the real poller (its sweep, its parsing, its recognising), the
real pipeline and all that is shown of a tick. Every tick a few WorkerServers answer something odd:
honest answers in which values have been replaced (numbers beyond every bound, other types, deep
nesting, odd text), keys taken away or doubled, rows repeated, bytes cut, flipped or blown up. A
finding is: an exception anywhere; a detector that crashed; an honest rank that was not seen, or is
accused; a page, an answer of the API or the metrics that is an error or no JSON; a tick that took
seconds; an honest hang that is not named.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from concurrent.futures import Future
from copy import deepcopy
from typing import Any, Final
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry

from experiments.scale.fleet import Fleet
from lightkeeper.monitor.act.http import Answer, Question, Tokens
from lightkeeper.monitor.act.launches import Target
from lightkeeper.monitor.act.poller import Poller
from lightkeeper.monitor.decide.pipeline import Pipeline
from lightkeeper.monitor.decide.rank_seconds import RankSeconds
from lightkeeper.monitor.decide.tempo import TempoBook
from lightkeeper.monitor.decide.view import View
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.observation import (
    NO_LIGHTHOUSE,
    LighthouseAway,
    Snapshot,
    Unreachable,
    with_pauses,
)
from lightkeeper.monitor.show.metrics import ViewCollector
from lightkeeper.monitor.show.web.server import create_app
from lightkeeper.worker_server import wire
from tests.fuzz.games import NUMBERS, ODD, RAW, TEXTS, places
from tests.monitor.api import app_context
from tests.monitor.doubles import HandClock

RANKS: Final = 32
ODD_HOSTS: Final = 1
"""Of the four hosts: a fifth of the fleet silent at once is the monitor's own sickness."""
TICKS: Final = 40
HANG_AT: Final = 15
SLOW_S: Final = 5.0
PAGES: Final = ("/", "/v1/snapshot", "/v1/ranks", "/v1/groups", "/v1/incidents", "/metrics",
                "/healthz", "/readyz", "/v1/sd", "/v1/hosts",
                "/groups/rg_0", "/ranks/rg_0.0", "/hosts/node0", "/incidents")  # fmt: skip


def mutated(chance: random.Random, body: bytes) -> bytes:
    """An honest answer with a few things that are not."""
    if chance.random() < 0.1:
        return chance.choice(RAW)
    value = json.loads(body)
    for _ in range(chance.choice((1, 1, 2, 3, 8))):
        _replace(chance, value)
    text = json.dumps(value, ensure_ascii=chance.random() < 0.7)
    said = text.encode("utf-8", "surrogatepass")
    match chance.randrange(12):
        case 0:
            return said[: chance.randrange(len(said) + 1)]
        case 1:
            at = chance.randrange(len(said) or 1)
            return said[:at] + bytes([chance.randrange(256)]) + said[at + 1 :]
        case 2:  # a key twice
            return said.replace(b'"step":', b'"step": 7, "step":', 1)
        case 3:
            return said.replace(b"0", chance.choice((b"NaN", b"Infinity", b"-1e999", b"00")), 1)
        case _:
            return said


def _replace(chance: random.Random, value: Any) -> None:
    every = places(value) if isinstance(value, dict | list) else []
    if not every or len(every) > 20_000:  # each change may make it fifty times as large
        return
    box, key = chance.choice(every)
    kind = chance.randrange(10)
    if kind < 4 and isinstance(box[key], int | float) and not isinstance(box[key], bool):
        box[key] = chance.choice(NUMBERS)
    elif kind < 4 and isinstance(box[key], str):
        box[key] = chance.choice(TEXTS)
    elif kind == 4 and isinstance(box, dict):
        del box[key]
    elif kind == 5 and isinstance(box, list):
        box[key : key + 1] = [box[key]] * chance.choice(
            (0, 2, 50, 3000 if len(every) < 1000 else 3)
        )
    elif kind == 6 and isinstance(box, dict):
        box[chance.choice(TEXTS)] = box[key]
    elif kind == 7:
        deep: Any = box[key]
        for _ in range(chance.choice((3, 60, 900))):
            deep = [deep]
        box[key] = deep
    elif kind == 8:
        other, at = chance.choice(every)
        box[key] = json.loads(json.dumps(other[at])) if isinstance(other, dict | list) else 0
    else:
        odd = deepcopy(chance.choice(ODD))
        box[key] = None if isinstance(odd, bytes) else list(odd) if isinstance(odd, tuple) else odd


class Wire:
    """What the poller fetches: honest answers, and those of the odd hosts."""

    def __init__(self, fleet: Fleet, chance: random.Random) -> None:
        self.fleet, self.chance = fleet, chance
        self.odd = {host.port for host in fleet.hosts[:ODD_HOSTS]}
        self.spent_s = 0.0
        self.tokens = Tokens()
        self.last = b""
        """The last odd answer."""

    def submit(self, work: Any) -> Future[Any]:
        """Run it here and now."""
        done: Future[Any] = Future()
        done.set_result(asyncio.run(work))
        return done

    async def fetch(self, question: Question) -> Answer:
        """What a WorkerServer says."""
        parts = urlsplit(question.url)
        host = next(sim_host for sim_host in self.fleet.hosts if sim_host.port == parts.port)
        body = self.fleet.answer(host, parts.path)
        if parts.port in self.odd and self.chance.random() < 0.7:
            began_s = time.process_time()
            body = self.last = mutated(self.chance, body or b"{}")[: question.max_bytes]
            self.spent_s += time.process_time() - began_s
        return Answer(200 if body else 404, body, "application/json", 0.001)


class Watch:
    """A monitor without sockets over such a fleet."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.now_s = 10_000.0
        self.fleet = Fleet(RANKS, clock=lambda: self.now_s)
        for number, host in enumerate(self.fleet.hosts):
            host.port = 20_000 + number
        self.wire = Wire(self.fleet, self.chance)
        self.poller = Poller(self.wire)  # type: ignore[arg-type]
        self.targets = [self._target(rank) for rank in self.fleet.ranks]
        self.honest = {t.rank for t in self.targets if urlsplit(t.url).port not in self.wire.odd}
        self.pipeline = Pipeline(KeeperConfig())
        self.tempos, self.spent = TempoBook(), RankSeconds(1.0)
        self.view: View | None = None
        self.wanted: tuple[Any, ...] = ()
        self.past: tuple[Any, ...] = ()
        self.watched: tuple[Any, ...] = ()
        metrics = CollectorRegistry()
        metrics.register(ViewCollector(lambda: self.view))
        desk = app_context(
            HandClock(self.now_s), fetcher=self.wire, metrics=metrics, view=lambda: self.view
        )
        self.client = create_app(desk).test_client()

    def _target(self, rank: Any) -> Target:
        identity = wire.parse_identity(self.fleet._identity(rank))
        return Target(identity, rank.url, 3600.0, self.now_s)

    def tick(self, number: int) -> Any:
        """One; what was decided.

        Raises:
            AssertionError: what no answer of one rank may lead to.
        """
        self.now_s += 1.0
        if number == HANG_AT:
            self.fleet.hang(self.fleet.ranks[-3])
        sweep = self.poller.sweep(
            self.targets, deadline_s=60.0, wanted=self.wanted, past=self.past,
            watched=self.watched,
        )  # fmt: skip
        for observation in sweep.observations:
            assert observation.rank not in self.honest or observation.report is not None, (
                f"{observation.rank}, honest, is not seen: {observation.outcome}"
            )
        snapshot = Snapshot(
            now_s=1e9 + self.now_s, tick=number, lateness_s=0.0, records=sweep.records,
            observations=sweep.observations, lighthouse=LighthouseAway(NO_LIGHTHOUSE),
            steps={rank: steps if isinstance(steps, Unreachable) else with_pauses(steps)
                   for rank, steps in sweep.steps.items()},
        )  # fmt: skip
        result = self.pipeline.tick(snapshot)
        assert not result.detector_failures, f"crashed: {result.detector_failures}"
        self.wanted, self.past, self.watched = (
            result.wants_records, result.wants_steps, result.watches)  # fmt: skip
        if number % 3 == 0:  # records of whoever is odd, too
            self.wanted = (*self.wanted, *(t.rank for t in self.targets[:2]))
            self.past = (*self.past, *(t.rank for t in self.targets[:2]))
        self.view = View(
            snapshot=snapshot, result=result, observe=True, incidents=tuple(result.incidents),
            tempos=self.tempos.push(snapshot), tokens=self.tempos.tokens,
            spent=self.spent.push(snapshot, result),
        )  # fmt: skip
        self._shown(self.chance.sample(PAGES, 3) if number % 8 else PAGES)
        return result

    def _shown(self, pages: Any) -> None:
        for path in pages:
            answer = self.client.get(path)
            expected = answer.status_code in (200, 404, 503)
            assert expected, f"{path} answers {answer.status_code}: {answer.data[:200]!r}"
            if path.startswith("/v1/") and answer.status_code == 200:
                json.loads(answer.data, parse_constant=_no_constant)

    def run(self) -> None:
        """All ticks, with the hang in the middle; raises what `tick` does."""
        hung, named = self.fleet.ranks[-3].name, False
        for number in range(1, TICKS + 1):
            began_s = time.process_time() - self.wire.spent_s
            result = self.tick(number)
            took_s = time.process_time() - self.wire.spent_s - began_s
            assert took_s < SLOW_S, f"a tick took {took_s:.1f} s of CPU"
            for incident in result.incidents:
                wrong = set(incident.culprits) & self.honest - {hung}
                assert not (wrong and incident.milestones.firing_s), f"{incident.verdict.reason}"
                named = named or hung in incident.culprits
        assert named, f"{hung} hangs for {TICKS - HANG_AT} ticks and is not named"


def _no_constant(name: str) -> float:
    raise AssertionError(f"{name} in JSON")


def play(chance: random.Random) -> list[str]:
    """One fleet."""
    watch = Watch(chance)
    try:
        watch.run()
    except Exception as exc:
        exc.add_note(f"the last odd answer: {watch.wire.last[:200]!r}")
        raise
    return []
