"""What a scrape of the monitor's page would cost a tick beside which it runs, at 10,000 ranks.

It does not run beside it, as long as there is half a second without a tick's judgement to be had:
`Keeper.idle`.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable

from lightkeeper.monitor.decide.pipeline import Pipeline
from lightkeeper.monitor.decide.view import View
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.observation import Snapshot
from lightkeeper.monitor.show.metrics import Bounds
from lightkeeper.worker_server.http_server import metrics_page
from tests.metrics_doc.measure import registry_of, view_of
from tests.monitor.fleet import SimFleet

RANKS = 10_000
WORLD = 8
TICKS = 9
WARM = 3


def test_a_tick_beside_a_scrape(capsys) -> None:
    fleet = SimFleet(RANKS // WORLD, WORLD)
    snapshots = [fleet.snapshot() for _ in range(TICKS)]
    view = view_of(RANKS)
    gc.collect()
    gc.freeze()  # nine ticks of a fleet: a monitor has one
    alone = _ticks(snapshots, lambda: None)
    beside = _ticks(snapshots, lambda: _scrape(view))
    took = min(_cpu_s(lambda: _scrape(view)) for _ in range(5))
    with capsys.disabled():
        print(
            f"\n{RANKS:,} ranks: a scrape takes {took * 1e3:.0f} ms of CPU, a tick's judgement "
            f"{min(alone) * 1e3:.0f} ms alone and {min(beside) * 1e3:.0f} ms beside a scrape "
            f"(best of {len(alone)})"
        )
    assert len(alone) == len(beside) == TICKS - WARM


def _scrape(view: View) -> None:
    """By a collector of its own: nothing is made already."""
    metrics_page(registry_of(view, Bounds()), "")


def _cpu_s(act: Callable[[], None]) -> float:
    began_s = time.thread_time()
    act()
    return time.thread_time() - began_s


def _ticks(snapshots: list[Snapshot], scrape: Callable[[], None]) -> list[float]:
    """Seconds of each tick; a scrape begins with each."""
    pipeline, took = Pipeline(KeeperConfig()), []
    for number, snapshot in enumerate(snapshots):
        other = threading.Thread(target=scrape)
        began_s = time.perf_counter()
        other.start()
        pipeline.tick(snapshot)
        if number >= WARM:
            took.append(time.perf_counter() - began_s)
        other.join()
    return took
