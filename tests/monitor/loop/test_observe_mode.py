"""Observe mode against real HTTP: who is asked what, and a pause in the middle of an eviction."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import Rung
from lightkeeper.monitor.service import Service
from lightkeeper.worker_server.wire import to_json
from tests.monitor.api import FAST, TOKEN, Api, Script, options
from tests.monitor.decided import to_evict
from tests.monitor.fakes import FakeFleet, FakeLighthouse, FakeRank, page, wait_until
from tests.monitor.process import Training


class Watched:
    """Every request that reaches a fake server, by method."""

    def __init__(self, server) -> None:
        self.asked: list[str] = []
        serve = server.serve

        def noted(handler, method: str, path: str, body: bytes) -> None:
            self.asked.append(f"{method} {path}")
            serve(handler, method, path, body)

        server.serve = noted

    def methods(self) -> set[str]:
        return {line.split()[0] for line in self.asked}


@pytest.fixture
def api(tmp_path: Path, lighthouse: FakeLighthouse) -> Iterator[Api]:
    config = KeeperConfig(observe=True, **FAST)
    with Service(options(tmp_path, lighthouse.url, config=config)) as service:
        yield Api(service)


def test_in_observe_mode_nobody_is_asked_to_do_anything_and_the_record_is_full(
    api: Api, fleet: FakeFleet, lighthouse: FakeLighthouse
) -> None:
    ranks = [fleet.add(f"rg_{n}", host=f"node{n}", replica_id=f"rg_{n}:u{n}") for n in range(3)]
    lighthouse.form(*(rank.replica_id or "" for rank in ranks))
    watched, seen = Watched(fleet), Watched(lighthouse)
    api.register(*ranks)
    training = Training(*ranks)
    try:

        def would() -> list[dict]:
            if not api.tick_in_turn():
                return []
            incidents = api.get("/v1/incidents")["incidents"]
            rows = [row for item in incidents for row in item["decisions"]]
            return [row for row in rows if row["action"] == "would_evict"]

        for _ in range(5):
            api.tick()
        training.hung.add("rg_1")
        (row,) = wait_until(would, 20, "an eviction that would have been")
    finally:
        training.close()
    assert (row["guard"], row["reason"]) == ("observe", "observe mode: would evict rg_1")
    would = row["would"]
    assert (would["group"], would["quarantine"]) == ("rg_1", [])
    assert row["release"].startswith("To let lightkeeper evict: start it without --observe")
    assert (watched.methods(), seen.methods()) == ({"GET"}, {"GET"})
    assert all(rank.alive and not rank.evictions for rank in ranks)
    assert lighthouse.kills == []
    assert api.get("/v1/quarantine")["quarantine"] == []


def test_a_pause_in_the_middle_of_an_eviction_leaves_the_other_rungs_alone(
    api: Api, fleet: FakeFleet, lighthouse: FakeLighthouse
) -> None:
    rank = fleet.add("rg_1", host="node1", replica_id="rg_1:u")
    lighthouse.form("rg_1:u")
    pressed: list[str] = []

    def kill(replica_id: str):
        body = {"reason": "stop it", "author": "alice"}
        pressed.append(api.call("POST", "/v1/pause", json=body, headers=TOKEN).text)
        return page({}, 500)

    lighthouse.on_kill = kill
    api.register(rank)
    evict = to_evict("inc-1", "rg_1", "rg_1:u", (), "not_entered: it hangs")
    api.judged_by(Script([{"decisions": (evict,)}]))
    api.tick()
    api.evictions_end()
    (progress,) = api.components.evictors.log.progress()
    assert progress.failed == "paused by alice: stop it: its other rungs are not climbed"
    assert Rung.WORKER_EVICT not in [rung.rung for rung in progress.rungs]
    assert rank.alive
    assert len(pressed) == 1


def asks_again(api: Api, rank: FakeRank) -> bool:
    """What a WorkerServer is told when it renews its lease."""
    body = to_json(rank.registration())
    answer = api.call("POST", "/v1/register", json=body, headers=TOKEN)
    return bool(answer.json()["asks_again"])


def test_worker_servers_shut_nothing_in_observe_mode_nor_in_a_pause(
    api: Api, fleet: FakeFleet, tmp_path: Path, lighthouse: FakeLighthouse
) -> None:
    rank = fleet.add("rg_0")
    assert not asks_again(api, rank)
    acts = options(tmp_path / "acts", lighthouse.url, config=KeeperConfig(**FAST))
    with Service(acts) as service:
        acting = Api(service)
        assert asks_again(acting, rank)
        pause = {"reason": "a switch", "author": "anna"}
        acting.call("POST", "/v1/pause", json=pause, headers=TOKEN)
        assert not asks_again(acting, rank)
