"""The gate is kept taught, whatever happens to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from lightkeeper.monitor.act.gate import Gatekeeper
from lightkeeper.monitor.act.http import Fetcher, Tokens
from lightkeeper.monitor.act.quarantine import Quarantine
from lightkeeper.monitor.clock import Clock
from lightkeeper.monitor.metric import Filled
from lightkeeper.monitor.model.eviction import Eviction, QuarantineEntry, Rung, RungOutcome
from lightkeeper.monitor.model.names import GroupName, Host, IncidentId, ReplicaId
from lightkeeper.monitor.show import metrics as page_metrics
from tests.monitor.act.gates import FakeGate
from tests.monitor.doubles import HandClock, Memory
from tests.monitor.fakes import wait_until

ID = ReplicaId("rg_1:a")


@pytest.fixture
def gate() -> Iterator[FakeGate]:
    made = FakeGate()
    yield made
    made.close()


class Bench:
    def __init__(self, gate: FakeGate, fetcher: Fetcher) -> None:
        self.clock = HandClock(Clock().now_s())
        self.quarantine = Quarantine(self.clock, Memory())
        self.evictions: list[Eviction] = []
        self.acts = True
        fetcher.tokens = Tokens("secret")
        self.keeper = Gatekeeper(
            gate.url, fetcher, clock=self.clock, quarantine=self.quarantine, may=lambda: self.acts
        )
        self.keeper._evictions = lambda: self.evictions

    def evict(self) -> None:
        now_s = self.clock.now_s()
        rungs = (RungOutcome(Rung.GATE, now_s, None, "asked"),)
        self.evictions.append(Eviction(IncidentId("inc-1"), GroupName("rg_1"), ID, now_s, rungs))


@pytest.fixture
def bench(gate: FakeGate, fetcher: Fetcher) -> Bench:
    gate.speaks("rg_0:x", ID)
    return Bench(gate, fetcher)


def test_what_is_evicted_is_refused_and_for_how_long_is_known(bench: Bench, gate: FakeGate) -> None:
    bench.keeper.turn()
    assert (gate.lists, bench.keeper.up, [*bench.keeper.troubles()]) == (0, True, [])
    bench.evict()
    bench.keeper.turn()
    assert gate.refuses() == [f"replica {ID}"]
    assert bench.keeper.refusing_for_s(ID) == 0.0
    assert bench.keeper.refusing_for_s(ReplicaId("rg_0:x")) is None
    bench.clock.advance(7.0)
    bench.keeper.turn()
    assert bench.keeper.refusing_for_s(ID) == 7.0
    assert gate.lists == 1  # nothing changed, nothing sent


def test_a_gate_that_forgot_its_list_is_taught_again(bench: Bench, gate: FakeGate) -> None:
    bench.evict()
    bench.keeper.turn()
    gate.restart()
    gate.speaks(ID)
    bench.clock.advance(30.0)
    bench.keeper.turn()
    assert gate.refuses() == [f"replica {ID}"]
    assert bench.keeper.refusing_for_s(ID) == 0.0  # anew: it may have passed meanwhile
    gate.replicas.clear()  # one that never spoke to this gate
    bench.keeper.turn()
    assert bench.keeper.refusing_for_s(ID) is None


def test_quarantine_and_release_are_taught(bench: Bench, gate: FakeGate) -> None:
    entry = QuarantineEntry(Host("node1"), "hung", "me", bench.clock.now_s(), None, None)
    bench.quarantine.add(entry)
    bench.keeper.turn()
    assert gate.refuses() == ["host node1"]
    bench.quarantine.release(Host("node1"))
    bench.keeper.turn()
    assert gate.refuses() == []


def test_a_gate_that_is_away_is_a_trouble_and_taught_when_it_is_back(
    bench: Bench, gate: FakeGate
) -> None:
    bench.evict()
    gate.down = True
    bench.keeper.turn()
    assert not bench.keeper.up
    assert list(bench.keeper.troubles()) == ["the gate is away: GET /v1/gate answered 503: down"]
    gate.down = False
    bench.keeper.turn()
    assert gate.refuses() == [f"replica {ID}"]
    assert not [*bench.keeper.troubles()]


@pytest.mark.parametrize("how", ["token", "deaf"])
def test_a_gate_that_does_not_take_its_list_is_a_trouble(
    how: str, bench: Bench, gate: FakeGate
) -> None:
    gate.token = "other" if how == "token" else gate.token
    gate.deaf = how == "deaf"
    bench.evict()
    bench.keeper.turn()
    (trouble,) = bench.keeper.troubles()
    assert trouble.startswith("the gate does not take its list: ")
    assert bench.keeper.refusing_for_s(ID) is None
    metrics = CollectorRegistry()
    metrics.register(Filled(page_metrics.GATE_METRICS, lambda: bench.keeper))
    text = generate_latest(metrics).decode()
    assert "lightkeeper_gate_untaught 1.0" in text
    if how == "token":
        assert 'lightkeeper_gate_lists_total{outcome="failed"} 1.0' in text


def test_a_standby_looks_and_teaches_nobody(bench: Bench, gate: FakeGate) -> None:
    bench.acts = False
    bench.evict()
    bench.keeper.turn()
    assert (gate.refuses(), bench.keeper.up) == ([], True)


def test_what_an_earlier_monitor_evicted_is_refused_for_its_day(
    bench: Bench, gate: FakeGate
) -> None:
    bench.evict()
    old = [replace(bench.evictions.pop(), asked_s=bench.clock.now_s() - 7200)]
    bench.keeper.start(lambda: (), old)
    try:
        wait_until(lambda: gate.refuses() == [f"replica {ID}"], what="the gate is taught")
        bench.clock.advance(24 * 3600 - 7200 + 1)
        assert bench.keeper.wanted() == ()  # and its entry at the gate has ended by itself
    finally:
        bench.keeper.close()
