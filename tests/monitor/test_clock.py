"""The monitor's clock never jumps; a monitor whose host's clock was set starts again by it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from lightkeeper.monitor.act.notices import Event, Message, Notice, NoticeEnding
from lightkeeper.monitor.clock import Clock
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.service import Service
from lightkeeper.monitor.store.store import Store
from tests.monitor.api import FAST, TOKEN, Api, options
from tests.monitor.fakes import FakeFleet, FakeLighthouse, wait_until


@pytest.mark.parametrize(("set_by_s", "ahead_s"), [(3600.0, 3600.0), (-90.0, -90.0), (2.0, 0.0)])
def test_a_clock_that_ntp_sets_changes_no_age_and_is_known(monkeypatch, set_by_s, ahead_s) -> None:
    clock, wall = Clock(), time.time
    before_s = clock.now_s()
    monkeypatch.setattr(time, "time", lambda: wall() + set_by_s)
    assert clock.now_s() - before_s < 60
    assert clock.ahead_s() == pytest.approx(ahead_s, abs=1.0)


def test_a_message_goes_out_by_the_receivers_clock() -> None:
    """An alert whose end lay an hour in the past was resolved as it came."""
    notice = Notice("k", Event.INCIDENT, "i", "critical", "title", "text", 1000.0)
    sent = Message(notice, 1010.0, NoticeEnding(1009.0, "over")).by_the_wall(3600.0)
    assert (sent.notice.since_s, sent.at_s, sent.ended.at_s) == (4600.0, 4610.0, 4609.0)
    assert sent.notice.key == notice.key


@pytest.mark.parametrize("by_s", [3600.0, -3600.0])
def test_what_a_monitor_says_and_stores_follows_a_clock_that_was_set_after_its_start(
    monkeypatch, tmp_path: Path, fleet: FakeFleet, lighthouse: FakeLighthouse, by_s: float
) -> None:
    """VMs resume, and hosts boot, an hour off, and NTP sets the clock then."""
    wall, set_by = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: wall() + set_by[0])
    lighthouse.form("rg_0:a", "rg_1:b")
    stop = threading.Event()
    given = options(tmp_path, lighthouse.url, config=KeeperConfig(**FAST))

    def near(at_s: float, ahead_s: float = 0.0) -> bool:
        return abs(at_s - time.time() - ahead_s) < 120.0

    with Service(given) as service:
        api, old = Api(service), service.keeper
        loop = threading.Thread(target=service.run, args=(stop,))
        loop.start()
        try:
            ranks = [fleet.add("rg_0", replica_id="rg_0:a"), fleet.add("rg_1", replica_id="rg_1:b")]
            api.register(*ranks)
            wait_until(
                lambda: old.view and len(old.view.snapshot.by_rank) == 2, 10, "both are watched"
            )
            set_by[0] = by_s
            wait_until(lambda: service.keeper is not old and service.keeper.view, 15, "it follows")
            assert "clock" not in str(api.get("/readyz")["degraded"])
            seen = api.get("/v1/snapshot")
            assert near(seen["now_s"])
            hour = {"reason": "ECC", "hours": 1}
            assert api.call("PUT", "/v1/quarantine/n7", json=hour, headers=TOKEN).status_code == 200
            (held,) = api.get("/v1/quarantine")["quarantine"]
            assert near(held["since_s"])
            assert near(held["until_s"], 3600.0)
            assert api.get("/v1/status")["ranks"]["all"] == 2
            assert api.get("/v1/incidents")["incidents"] == []
            said = api.call("POST", "/v1/groups/rg_1/evict", json={"reason": "x"}, headers=TOKEN)
            assert near(float(said.json()["incident_id"].rpartition("-")[2]) / 1e3)
            wait_until(lambda: not ranks[1].alive, 15, "it still acts")
        finally:
            stop.set()
            loop.join(20)
    store = Store(tmp_path / "m.db")
    remembered = store.remembered()
    store.close()
    assert near(remembered.decisions[-1].at_s)
    (entry,) = remembered.quarantine
    assert near(entry.until_s, 3600.0)
