"""What an incident leaves in the monitor's log, line by line."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.service import Service
from tests.monitor.api import FAST, Api, options
from tests.monitor.fakes import FakeFleet, FakeLighthouse, wait_until
from tests.monitor.process import Training


@pytest.mark.parametrize("hosts", [("vm", "vm"), ("vm", "other")], ids=["one host", "two"])
def test_a_job_of_one_host_is_told_before_anything_happens_what_an_eviction_costs(
    hosts: tuple[str, str],
    tmp_path: Path,
    fleet: FakeFleet,
    lighthouse: FakeLighthouse,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ranks = [
        fleet.add(f"rg_{n}", host=host, replica_id=f"rg_{n}:u{n}") for n, host in enumerate(hosts)
    ]
    lighthouse.form(*(rank.replica_id or "" for rank in ranks))
    config = KeeperConfig(**FAST)
    with Service(options(tmp_path, lighthouse.url, config=config)) as service:
        api = Api(service)
        api.register(ranks[0])
        api.tick()  # not all are here
        assert "quarantine" not in caplog.text
        api.register(ranks[1])
        for _ in range(3):
            api.tick()
    messages = [r.getMessage() for r in caplog.records if "quarantine" in r.getMessage()]
    warning = (
        "all 2 groups run on host vm: an eviction that blames the host (a straggler, a wait in the "
        "kernel) puts it in quarantine, and nothing may start there until "
        "`lightkeeper quarantine release vm`"
    )
    assert messages == ([warning] if len(set(hosts)) == 1 else [])


@pytest.mark.parametrize("observe", [False, True], ids=["acts", "observes"])
def test_firing_held_evicting_evicted_and_over_are_lines(
    observe: bool,
    tmp_path: Path,
    fleet: FakeFleet,
    lighthouse: FakeLighthouse,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name in ("lightkeeper", "lightkeeper.monitor.loop"):  # as `lightkeeper monitor` has it
        caplog.set_level(logging.INFO, name)
    ranks = [fleet.add(f"rg_{n}", host=f"node{n}", replica_id=f"rg_{n}:u{n}") for n in range(3)]
    lighthouse.form(*(rank.replica_id or "" for rank in ranks))
    config = KeeperConfig(observe=observe, clear_s=0.5, **FAST)
    with Service(options(tmp_path, lighthouse.url, config=config)) as service:
        api = Api(service)
        api.register(*ranks)
        training = Training(*ranks)
        try:
            for _ in range(5):
                api.tick()
            training.hung.add("rg_1")

            def state() -> str | None:
                if not api.tick_in_turn():
                    return None
                incidents = api.get("/v1/incidents")["incidents"]
                return incidents[0]["state"] if incidents else None

            if observe:
                wait_until(lambda: state() == "firing", 20, "it fires")
                training.hung.clear()
            else:
                wait_until(lambda: state() and not ranks[1].alive, 20, "rg_1 is out")
                lighthouse.form("rg_0:u0", "rg_2:u2")
            wait_until(lambda: state() == "resolved", 30, "it is over")
        finally:
            training.close()
    lines = [f"{r.levelname} {r.getMessage()}" for r in caplog.records if "rg_1" in r.getMessage()]
    wanted = ["WARNING critical incident ", "WARNING nobody is evicted for ", " is over: "]
    if not observe:
        wanted[1:] = ["WARNING evict rg_1: ", ": rg_1 is being evicted", " is over: evicted: left "]
    at = [next((n for n, line in enumerate(lines) if part in line), None) for part in wanted]
    assert None not in at, (wanted, lines)
    assert at == sorted(at), lines
