"""What a scrape of the monitor's page costs a tick that falls together with it, at 10,000 ranks."""

from __future__ import annotations

import statistics
import threading
import time

from monitor.config import KeeperConfig
from monitor.metrics import Bounds, exposition
from monitor.pipeline import Pipeline
from monitor.snapshot import Snapshot
from tests.metrics_doc.measure import registry_of, view_of
from tests.monitor.fleet import SimFleet

RANKS = 10_000
WORLD = 8
TICKS = 14
WARM = 4


def test_a_tick_beside_a_scrape(capsys) -> None:
    fleet = SimFleet(RANKS // WORLD, WORLD)
    snapshots = [fleet.snapshot() for _ in range(TICKS)]
    registry = registry_of(view_of(RANKS), Bounds())
    alone, beside = _ticks(snapshots, None), _ticks(snapshots, registry)
    began_s = time.perf_counter()
    page, _ = exposition.page(registry, "")
    scrape_s = time.perf_counter() - began_s
    with capsys.disabled():
        print(
            f"\n{RANKS:,} ranks, page of {len(page) / 1e6:.1f} MB made in {scrape_s * 1e3:.0f} ms: "
            f"a tick takes {statistics.median(alone) * 1e3:.0f} ms alone and "
            f"{statistics.median(beside) * 1e3:.0f} ms beside a scrape (medians of {len(alone)})"
        )
    assert len(alone) == len(beside) == TICKS - WARM


def _ticks(snapshots: list[Snapshot], registry) -> list[float]:
    """Seconds of each tick; with a registry, one scrape begins with each."""
    pipeline, took = Pipeline(KeeperConfig()), []
    for number, snapshot in enumerate(snapshots):
        scrape = threading.Thread(target=lambda: exposition.page(registry, ""))
        began_s = time.perf_counter()
        if registry is not None:
            scrape.start()
        pipeline.tick(snapshot)
        if number >= WARM:
            took.append(time.perf_counter() - began_s)
        if registry is not None:
            scrape.join()
    return took
