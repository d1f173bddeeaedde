"""How large the monitor's page is, and what a scrape costs, at 1,000, 10,000 and 100,000 ranks."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest

from lightkeeper.monitor.decide.pipeline import TickResult
from lightkeeper.monitor.decide.rank_seconds import RankSeconds
from lightkeeper.monitor.decide.tempo import TempoBook
from lightkeeper.monitor.decide.view import View
from lightkeeper.monitor.metric import new_page
from lightkeeper.monitor.model.names import RankName
from lightkeeper.monitor.model.verdict import RankHealth
from lightkeeper.monitor.show.metrics import Bounds, ViewCollector
from lightkeeper.worker_server.http_server import metrics_page
from tests.monitor.fleet import SimFleet
from tests.worker_server.pages import enter
from tests.worker_server.scraped import Rank

SIZES: Final = (1_000, 10_000, 100_000)
WORLD: Final = 8
"""Ranks of a group."""
_TICKS: Final = 4
_SCRAPES: Final = 3
_PHASES: Final = ("data", "forward", "backward", "communication", "optimizer")
_GROUPS: Final = 4


def view_of(ranks: int, world: int = WORLD, tick_s: float = 1.0) -> View:
    """What a monitor shows of the simulated fleet in its fourth tick, all of it well."""
    fleet = SimFleet(ranks // world, world, tick_s=tick_s)
    for rank in fleet.ranks():
        rank.tokens_a_step = 4096
    tempos, seconds = TempoBook(), RankSeconds()
    for _ in range(_TICKS):
        seen = fleet.snapshot()
        health = {
            RankName(observation.rank): RankHealth.HEALTHY for observation in seen.observations
        }
        result = TickResult(seen.now_s, rank_health=health)
        paces = tempos.push(seen)
        spent = seconds.push(seen, result)
    return View(seen, result, observe=False, tempos=paces, tokens=tempos.tokens, spent=spent)


def registry_of(view: View, bounds: Bounds) -> CollectorRegistry:
    """The monitor's page of that view."""
    made = new_page()
    made.register(ViewCollector(lambda: view, bounds))
    return made


def measured() -> dict[str, Any]:
    """All of it."""
    rows = []
    for ranks in SIZES:
        view = view_of(ranks)
        several = [Bounds(), Bounds(0, Bounds().groups), Bounds(0, 0)]
        if ranks == SIZES[-1]:
            several.append(Bounds(ranks, ranks))
        rows += [{"ranks": ranks, **_row(view, bounds)} for bounds in several]
    return {"monitor": rows, "rank": _rank()}


def _row(view: View, bounds: Bounds) -> dict[str, Any]:
    costs = []
    for _ in range(_SCRAPES):
        registry = registry_of(view, bounds)  # another: one keeps what it made of a tick
        began_s = time.process_time()
        page, _ = metrics_page(registry, "")
        costs.append(time.process_time() - began_s)
    return {
        "ranks_told": bounds.ranks,
        "groups_told": bounds.groups,
        "default": bounds == Bounds(),
        "series": series_of(page),
        "bytes": len(page),
        "cpu_s": round(min(costs), 4),
    }


def series_of(page: bytes) -> int:
    """Lines that are no comment."""
    return sum(not line.startswith(b"#") for line in page.splitlines())


def _rank() -> dict[str, int]:
    """Series of a rank's page: bare, and of one with five phases, four process groups, TorchFT."""
    with TemporaryDirectory() as folder:
        rank = Rank(Path(folder) / "rank.page")
        bare = series_of(generate_latest(rank.registry))
        for kind in range(5):
            rank.page.add_time(kind, 0.5)
        for n in range(_GROUPS):
            row = rank.page.group_row(f"group {n}", 2)
            rank.page.leave(row, *enter(rank.page, row))
        for n in range(3):
            rank.reporter.begin_step(n)
            for phase in _PHASES:
                with rank.reporter.phase(phase):
                    pass
            rank.reporter.end_step(n, committed=True, loss=2.5, tokens=8)
        page = generate_latest(rank.registry)
        buckets = sum(b"_bucket{" in line for line in page.splitlines())
        series = series_of(page)
        return {
            "rank_bare": bare,
            "rank_series": series,
            "rank_lean": series - buckets,
            "rank_bytes": len(page),
        }
