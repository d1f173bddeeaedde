"""What the cluster says of hosts, from a Prometheus to the snapshot, the journal and the page."""

from __future__ import annotations

from contextlib import closing

import pytest

from lightkeeper.monitor.journal.entries import JournalTick
from lightkeeper.monitor.journal.replay import find_journals, journal_events
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.rulebook import Rulebook, effective
from lightkeeper.monitor.service import Service
from lightkeeper.worker_server.wire import Weight
from tests.monitor.act.fake_prometheus import FakePrometheus, row
from tests.monitor.api import Api, options
from tests.monitor.fakes import FakeFleet, wait_until

pytestmark = pytest.mark.integration  # a whole monitor


def test_a_testimony_stands_in_the_snapshot_and_in_the_journal_and_a_failure_is_told(tmp_path):
    policy = tmp_path / "policy.toml"
    policy.write_text("[[prometheus]]\ncode = 'fan'\nquery = 'fan == 0'\ntext = 'fan {n}'\n")
    rules = Rulebook(effective(policy, {}, loaded_s=0.0))
    with closing(FakePrometheus()) as prometheus, closing(FakeFleet()) as fleet:
        prometheus.series = {
            "XID_ERRORS == 79": [row("79", Hostname="node0", gpu="3"), row("79", Hostname="else")],
            "fan == 0": [row("0", instance="NODE0.example:9100", n="7")],
        }
        rank = fleet.add(host="node0")
        asked = options(
            tmp_path, rules=rules, config=KeeperConfig(), journal=tmp_path / "journal",
            prometheus=f"{prometheus.url}/prom", prometheus_auth="Bearer s3cr3t",
        )  # fmt: skip
        assert "s3cr3t" not in repr(asked)
        with Service(asked) as service:
            api = Api(service)
            api.register(rank)
            (source,) = api.components.cluster._sources

            def said():
                source.worker.wake()
                api.tick()
                return service.keeper.view.snapshot.cluster.get("node0")

            testimonies = wait_until(said)
            assert [(each.weight, each.code, each.text) for each in testimonies] == [
                (Weight.BROKEN, "xid-79", "GPU 3: Xid 79"),
                (Weight.CONTEXT, "fan", "fan 7"),
            ]
            assert service.keeper.view.snapshot.cluster.keys() == {"node0"}
            assert prometheus.authorization == {"Bearer s3cr3t"}
            assert not any("Prometheus" in line for line in service.keeper.view.troubles)
            prometheus.raw[""] = (503, b"Service Unavailable")
            away = "Prometheus cannot be read for what it says of hosts: "

            def troubled():
                said()
                return [line for line in service.keeper.view.troubles if line.startswith(away)]

            assert "s3cr3t" not in wait_until(troubled)[0]
    ticks = [each for each in journal_events(find_journals([tmp_path / "journal"])[0]) if
             isinstance(each, JournalTick)]  # fmt: skip
    assert any(
        [each.code for each in tick.snapshot.cluster.get("node0", ())] == ["xid-79", "fan"]
        for tick in ticks
    )
