"""A real Prometheus takes every shipped query, and says what exporters show."""

from __future__ import annotations

from contextlib import closing

import pytest

from lightkeeper.monitor.act.http import Fetcher
from lightkeeper.monitor.act.prometheus import Prometheus
from lightkeeper.monitor.act.schedulers.base import NotDone
from lightkeeper.monitor.model.queries import PrometheusQuery
from tests.http_server import FakeServer
from tests.prometheus.server import prometheus
from tests.waiting import wait_for

pytestmark = pytest.mark.integration
HOSTS = {"gpu-7", "gpu-8.example", "amd-1"}
CONFIG = """\
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: exporter
    static_configs: [{{targets: ["{address}"]}}]
"""
GPU = '{{{{gpu="{gpu}",UUID="GPU-{gpu}",Hostname="gpu-7"}}}}'
PAGE = f"""\
DCGM_FI_DEV_XID_ERRORS{GPU.format(gpu=0)} 0
DCGM_FI_DEV_XID_ERRORS{GPU.format(gpu=3)} {{xid}}
DCGM_FI_DEV_XID_ERRORS{GPU.format(gpu=5)} {{other}}
DCGM_FI_DEV_ROW_REMAP_FAILURE{GPU.format(gpu=2)} {{bad}}
DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS{GPU.format(gpu=1)} {{count}}
DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS{GPU.format(gpu=2)} 512
DCGM_FI_DEV_THERMAL_VIOLATION{GPU.format(gpu=4)} {{count}}
node_uname_info{{{{nodename="gpu-8.example"}}}} 1
node_edac_uncorrectable_errors_total{{{{controller="1"}}}} {{count}}
node_filesystem_readonly{{{{mountpoint="/data",device="/dev/sdb",fstype="ext4"}}}} {{bad}}
node_filesystem_readonly{{{{mountpoint="/usr",device="/dev/sdc",fstype="ext4"}}}} 1
node_disk_io_now{{{{device="sdb"}}}} 7
node_cpu_package_throttles_total{{{{package="0",node="0"}}}} {{count}}
gpu_ecc_uncorrect_total{{{{gpu_id="6",hostname="amd-1"}}}} {{count}}
gpu_violation_vr_thermal_residency_accumulated{{{{gpu_id="7",hostname="amd-1"}}}} {{count}}
"""


class Exporter(FakeServer):
    """Shows a healthy machine until `bad`."""

    bad = False

    def serve(self, handler, method, path, body):
        values = {"xid": 79, "other": 31, "bad": 1, "count": 9} if self.bad else dict.fromkeys(
            ("xid", "other", "bad", "count"), 0)  # fmt: skip
        handler.reply(200, "text/plain; version=0.0.4", PAGE.format(**values).encode())


def test_every_query_is_taken_and_only_what_is_new_since_the_run_began_is_said():
    own = (
        PrometheusQuery("up", "up == 0", text="nobody"),
        PrometheusQuery("bad-query", "sum(", text="x"),
    )
    with closing(Exporter()) as exporter, prometheus(CONFIG.format(address=exporter.address)) as up:
        fetcher = Fetcher()
        source = Prometheus(up.url, fetcher, lambda: own, lambda: 5.0)

        def said() -> set[str]:
            texts, refused = set(), ""
            try:
                for names, each in source.testimonies((), 10.0):
                    name = next(name for name in names if name in HOSTS)
                    texts.add(f"{name}: {each.weight} {each.text}")
            except NotDone as exc:
                refused = str(exc)
            assert refused.startswith("bad-query: answered 400: ")
            assert refused.count("answered") == 1
            return texts

        up.wait_for("DCGM_FI_DEV_XID_ERRORS offset 6s", within_s=30)
        healthy = said()
        exporter.bad = True
        seen: set[str] = set()  # the run is 5 s old: what is older is no news

        def all_seen() -> bool:
            seen.update(said())
            return expected <= seen

        expected = {
            "gpu-8.example: broken /data has become read-only",
            "gpu-8.example: broken uncorrectable memory errors (EDAC, controller 1)",
            "gpu-8.example: slow CPU clocks are throttled (heat)",
            "gpu-7: broken GPU 3: Xid 79",
            "gpu-7: context GPU 3: Xid 79",
            "gpu-7: context GPU 5: Xid 31",
            "gpu-7: broken GPU 2: a bad memory row could not be replaced",
            "gpu-7: broken GPU 1: uncorrectable memory errors, rows were replaced",
            "gpu-7: slow GPU 4: clocks are throttled (heat, power or reliability)",
            "amd-1: broken GPU 6: uncorrectable memory errors",
            "amd-1: slow GPU 7: clocks are throttled (heat)",
        }
        try:
            wait_for(all_seen, within_s=20, what="what the exporter shows")
        finally:
            fetcher.close()
        assert (healthy, seen) == (set(), expected)
