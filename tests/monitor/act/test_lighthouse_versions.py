"""The driver against real Lighthouses, of the torchft installed and of those named (opt-in)."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightkeeper.monitor.act.http import Fetcher
from lightkeeper.monitor.act.lighthouse import Lighthouse
from lightkeeper.monitor.model.names import ReplicaId
from lightkeeper.monitor.model.observation import LighthouseAway, LighthouseRecord, LighthouseView
from tests.monitor.fakes import FakeFleet
from tests.monitor.lighthouses import Groups, installations, lighthouse_process
from tests.ports import free_port

pytestmark = pytest.mark.integration
FOUND = installations()
ODD = "rg_1:two & <three>"


def looked(light: Lighthouse) -> LighthouseView:
    view = light.look(5.0)
    assert isinstance(view, LighthouseView)
    return view


@pytest.mark.parametrize("version", sorted(FOUND))
@pytest.mark.timeout(90)
def test_reads_kills_and_sees_the_restart_of(
    version: str, tmp_path: Path, fetcher: Fetcher, fleet: FakeFleet
) -> None:
    library, script, port = FOUND[version], tmp_path / "lighthouse.py", free_port()
    options = {"min_replicas": 1, "join_timeout_ms": 300, "quorum_tick_ms": 50}
    record, rooms = LighthouseRecord(), version.startswith("0.1.")
    with lighthouse_process(library, script, port, **options) as url:
        light, groups = Lighthouse(url, fetcher), Groups(url, rooms=rooms)
        empty = looked(light)
        assert (empty.quorum_id, empty.members) == (0, ())
        groups.beat("rg_0:one", ODD, "rg_9:stranger")
        groups.join(fleet.url, "rg_0:one", ODD)
        view = looked(light)
        assert view.quorum_id == 1
        assert [(member.replica_id, member.step, member.world_size) for member in view.members] == [
            ("rg_0:one", 7, 2),
            (ODD, 7, 2),
        ]
        assert {member.address for member in view.members} == {fleet.url}
        assert sorted(view.heartbeat_ages_s) == ["rg_0:one", ODD, "rg_9:stranger"]
        assert max(view.heartbeat_ages_s.values()) < 60
        record = record.after(empty, 0.0).after(view, 1.0)
        assert (record.restarts, record.quorum_changes) == (0, 1)
        # nobody of that name; then a manager that speaks no gRPC: 500, as for a death
        unknown = light.begin_kill(ReplicaId("rg_9:none"), 5.0).result()
        assert unknown == "answered 500: Something went wrong: failed to find replica"
        assert "500" in light.begin_kill(ReplicaId(ODD), 5.0).result()
        groups.close()
    away = light.look(2.0)
    assert isinstance(away, LighthouseAway)
    with lighthouse_process(library, script, port, **options):
        record = record.after(away, 2.0).after(looked(light), 3.0)
    assert record.restarts == 1
