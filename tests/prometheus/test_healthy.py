"""Plain DDP that trains raises no alert. A TorchFT fleet: test_panels.py, before its fault."""

from __future__ import annotations

import shutil

import pytest

pytest.importorskip("torch")

from tests.examples.hanging import RANKS, Forked
from tests.examples.scripts import Example, texts
from tests.monitor.process import Monitor
from tests.ports import free_port
from tests.prometheus import healthy
from tests.waiting import wait_for
from tests.worker_server.ranks import Rank

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(240),
    pytest.mark.skipif(shutil.which("promtool") is None, reason="needs Prometheus' promtool"),
]
COMMITS = 10
SLOWLY = """
import runpy, sys, time
from torch.utils.data import DataLoader
batches = DataLoader.__iter__
def slowly(loader):
    for batch in batches(loader):
        time.sleep(0.2)
        yield batch
DataLoader.__iter__ = slowly
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_no_alert_fires_of_plain_ddp_that_trains(tmp_path_factory) -> None:
    folder = tmp_path_factory.mktemp("ddp")  # a short path: sockets lie in it
    data = texts(folder / "texts", 64)
    monitor = Monitor("--store", str(folder / "m.db"), port=free_port())
    job, ranks = None, []
    try:
        monitor.ready()
        job = Forked.started(
            folder, ["-c", SLOWLY, str(Example("ddp").script), "--data", str(data), "--save",
                     str(folder / "model.pt"), "--epochs", "1000000"],
            name="ddp", LIGHTKEEPER_ATTACH="1", LIGHTKEEPER_MONITOR=monitor.url,
        )  # fmt: skip

        def trains() -> bool:
            rows = monitor.get("/v1/snapshot")["ranks"]
            ranks[:] = [Rank(row["pid"], folder / "run") for row in rows]
            return len(rows) == RANKS and all(
                row["health"] == "healthy" and (row["step"] or 0) > COMMITS for row in rows
            )

        wait_for(trains, within_s=120, what="both ranks train")
        healthy.assert_silent(monitor.url, folder)
    finally:
        if job is not None:
            job.terminate()
            job.wait(30)
        for rank in ranks:
            rank.end()
        monitor.end()
