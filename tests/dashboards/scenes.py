"""Simulated fleets as Prometheus stores them: 40 minutes of four jobs, written in a minute or so.

A world has four jobs, each with its own monitor:

    vision    TorchFT, 3 groups of one rank: two hangs that end in evictions, a straggler between
    nightly   plain DDP, 3 ranks without steps and without a Lighthouse; at the end one stands
    pretrain  TorchFT, 64 groups of 8 (small: 6 of 2): a slow host, then a stopped rank, whose
              eviction a person's pause holds back until it is lifted
    gone      TorchFT, 2 groups; its monitor ends after 25 minutes

The fleets are those of `tests.monitor.fleet`. What a monitor exports of them is written as
OpenMetrics with times of its own, of which promtool makes blocks: nobody waits for 40 minutes.
Blocks have no marks of series that ended, so the server looks back for `LOOKBACK` only.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lightkeeper.monitor.decide.rank_seconds import RankSeconds
from lightkeeper.monitor.decide.tempo import TempoBook
from lightkeeper.monitor.decide.view import DepartureBook, View
from lightkeeper.monitor.loop.evictions import ENDED, HOLDS, count_incidents
from lightkeeper.monitor.loop.loop import LATENESS, TICKS
from lightkeeper.monitor.metric import Filled
from lightkeeper.monitor.model.eviction import Guard, Hold
from lightkeeper.monitor.model.names import RunId
from lightkeeper.monitor.model.observation import LighthouseRecord, Pause, Snapshot
from lightkeeper.monitor.model.run import Run
from lightkeeper.monitor.show import metrics as page_metrics
from lightkeeper.monitor.show.metrics import ViewCollector
from lightkeeper.monitor.store.lease import LeaseStanding
from lightkeeper.worker_server.sidecar.metrics import RankCollector, StepFollower
from lightkeeper.worker_server.wire import Doing, StateReport, StepRow
from tests.changed import replace
from tests.dashboards.rules import alerts, recorded
from tests.monitor.fleet import SimFleet, SimRank, at, gil, slow, stop
from tests.monitor.fleet.plain import PlainJob
from tests.monitor.fleet.rank import START_S
from tests.page.views import Simulated
from tests.prometheus.server import Prometheus, prometheus

EPOCH_S: Final = 1_795_000_000
"""Unix time at which the world begins."""
LASTS_S: Final = 2400
SCRAPE_S: Final = 5
LOOKBACK: Final = "11s"
MOMENTS: Final[Mapping[str, int]] = {
    "healthy": 850, "evicting": 908, "after": 1100, "straggler": 1515, "held": 2100,
    "resumed": 2215, "end": LASTS_S,
}  # fmt: skip
"""Seconds after the begin of the world at which there is something to see."""

Labels = Mapping[str, str]


@dataclass(frozen=True)
class Job:
    """One job of the world."""

    name: str
    number: int
    fleet: Any
    place: Labels
    """What Prometheus adds to every series of it."""
    begins_s: int = 0
    ends_s: int = LASTS_S
    """When its monitor ends; Prometheus goes on to ask it."""
    paused_s: tuple[float, float] = (0.0, 0.0)
    scraped: bool = True
    """Whether the ranks' own pages are."""

    @property
    def shift_s(self) -> float:
        """From the fleet's time to the world's."""
        return EPOCH_S + self.begins_s - START_S


def jobs(*, large: bool) -> tuple[Job, ...]:
    groups, ranks = (64, 8) if large else (6, 2)
    host = [f"rg_5.{number}" for number in range(ranks)]
    here, there = (
        {"cluster": cluster, "namespace": namespace}
        for cluster, namespace in (("eu-1", "vision"), ("us-2", "research"))
    )
    vision = [at(900, gil("rg_1.0")), at(1500, slow("rg_2.0", 1.8)), at(1800, slow("rg_2.0", 1.0)),
              at(1900, gil("rg_0.0"))]  # fmt: skip
    pretrain = [*(at(150, slow(rank, 1.4)) for rank in host), at(400, stop("rg_3.1"))]
    return (
        Job("vision", 1, SimFleet(3, 1, [*vision, *_learns()], across=True, noise=0.05), here),
        Job("nightly", 2, PlainJob(3, (2000, _stands)), here),
        Job("pretrain", 3, SimFleet(groups, ranks, [*pretrain, *_learns()], across=True,
                                    noise=0.05, seed=3),
            there, begins_s=1500, paused_s=(350.0, 700.0), scraped=not large),
        Job("gone", 4, SimFleet(2, 1, noise=0.05), here, ends_s=1500),
    )  # fmt: skip


def _learns() -> Iterator[Any]:
    """Ranks report tokens and a loss that falls; those that were started again as well."""

    def learn(fleet: SimFleet, factor: float) -> None:
        fleet.losses = True
        for rank in fleet.ranks():
            rank.tokens_a_step, rank.loss_factor = 32_768, factor

    for at_s in range(0, LASTS_S, 10):
        yield at(at_s, partial(learn, factor=1 + 3 / (1 + at_s / 200)))


def _stands(job: PlainJob) -> None:
    job.stand(1, "read_batch", 31, Doing.UNKNOWN)


# -- its monitor ----------------------------------------------------------------------------------


class _Process(Collector):
    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("process_start_time_seconds", "", value=START_S)


class Watched(Simulated):
    """A simulated fleet, its pipeline, and the books that a keeper keeps beside it."""

    def __init__(self, job: Job) -> None:
        super().__init__(job.fleet)
        self.job, self.view = job, None
        self.metrics = CollectorRegistry(auto_describe=False)
        self.run_of = Run(RunId(f"20261118-{100 + job.number}000"), job.name, START_S)
        self._seconds, self._departures = RankSeconds(), DepartureBook()
        self._tokens, self._lighthouse = TempoBook(), LighthouseRecord()
        self._known: dict[Any, Any] = {}
        self._ended: set[Any] = set()
        standing = LeaseStanding(active=True, epoch=1, holder="me", url=None, since_s=START_S)
        stats = SimpleNamespace(ticks=job.fleet.tick, lost=0, bytes=0, problem=None)
        store = SimpleNamespace(errors=0, place=SimpleNamespace(path=None))
        for collector in (
            Filled((page_metrics.BUILD,), lambda: "0.2.0"),
            Filled(page_metrics.STORE, lambda: store),
            Filled(page_metrics.LEASE, lambda: standing),
            Filled(page_metrics.JOURNAL, lambda: stats),
            Filled((page_metrics.QUEUES,), lambda: {"store": int, "http": int}),
            _Process(),
            ViewCollector(lambda: self.view, url=lambda: f"http://{job.name}.example:8470"),
        ):
            self.metrics.register(collector)
        LATENESS.on(self.metrics).set(0.02)

    def _see(self, snapshot: Snapshot) -> Snapshot:
        since_s, until_s = (START_S + seconds for seconds in self.job.paused_s)
        pause = Pause("a look at the network", "ann", since_s, None)
        paused = since_s <= snapshot.now_s < until_s
        return super()._see(replace(snapshot, run=self.run_of, pause=pause if paused else None))

    def tick(self) -> View:
        view = super().tick()
        snapshot, result = view.snapshot, view.result
        self._tokens.push(snapshot)
        self._lighthouse = self._lighthouse.after(snapshot.lighthouse, snapshot.now_s)
        self._count(view)
        self.view = replace(
            view,
            spent=self._seconds.push(snapshot, result),
            tokens=self._tokens.tokens,
            departures=self._departures.push(snapshot),
            lighthouse=self._lighthouse,
            runs=(self.run_of,),
        )
        return self.view

    def _count(self, view: View) -> None:
        """Count what the loop counts as it happens."""
        TICKS.on(self.metrics).observe(0.05)
        count_incidents(self.metrics, view.result.changed, self._known)
        self._known |= {incident.id: incident for incident in view.result.changed}
        for decision in view.result.decisions:
            if isinstance(decision, Hold) and decision.guard is not Guard.WATCH_ONLY:
                HOLDS.on(self.metrics).labels(str(decision.guard)).inc()
        for eviction in view.snapshot.evictions:
            if eviction.out and (eviction.group, eviction.asked_s) not in self._ended:
                self._ended.add((eviction.group, eviction.asked_s))
                kind = str(self._known[eviction.incident_id].kind)
                ENDED.on(self.metrics).labels(kind, "gone").inc()


# -- the ranks' own pages -------------------------------------------------------------------------


class _StepsOf:
    """The steps of a simulated rank, as `StepFollower` reads them from a page."""

    def __init__(self, rank: SimRank) -> None:
        self._log = rank.log

    def steps(self, since: int, _now_ns: int) -> tuple[tuple[StepRow, ...], int]:
        pairs = zip(self._log[since:], self._log[since + 1 :], strict=False)
        return tuple(
            StepRow(attempt, step, 1, 0.0, end_s - before[2],
                    {phase: s - before[3].get(phase, 0.0) for phase, s in spent.items()})
            for before, (attempt, step, end_s, spent) in pairs
        ), 0  # fmt: skip

    def times(self) -> Mapping[str, Any]:
        return {}

    def held_s(self) -> float:
        return 0.0


class RankPages:
    """The pages of a job's ranks, each process with its own."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._pages: dict[str, RankCollector] = {}
        self._reports: dict[str, StateReport] = {}

    def now(self, view: View) -> Iterator[tuple[Labels, Any]]:
        """Labels of each target, and its page."""
        for report in view.snapshot.reports.values():
            who = report.identity
            address = f"{who.host}:{9400 + who.group_rank}"
            self._reports[who.incarnation] = report
            if who.incarnation not in self._pages:
                self._pages[who.incarnation] = RankCollector(
                    partial(self._reports.__getitem__, who.incarnation),
                    lambda address=address: f"http://{address}",
                    self._follower(who.incarnation),
                )
            assert view.snapshot.run is not None
            yield {
                "job": "lightkeeper-ranks", "instance": address, "run": view.snapshot.run.id,
                "job_id": self._job.name, "replica_group": who.group, "rank": str(who.group_rank),
            }, self._pages[who.incarnation]  # fmt: skip

    def _follower(self, incarnation: str) -> StepFollower | None:
        if isinstance(self._job.fleet, PlainJob):
            return None
        (rank,) = (r for r in self._job.fleet.ranks() if r.identity.incarnation == incarnation)
        return StepFollower(_StepsOf(rank))  # type: ignore[arg-type]


# -- all of it in a TSDB --------------------------------------------------------------------------


def _line(name: str, labels: Labels, value: float, at_s: float) -> str:
    inside = ",".join(
        '{}="{}"'.format(key, text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n"))
        for key, text in labels.items()
        if text
    )
    return f"{name}{{{inside}}} {value:.17g} {at_s:.3f}\n"


def _write_page(
    out: IO[str], page: Any, target: Labels, at_s: float, shift_s: float, job: str
) -> None:
    """One scrape; times on the page are moved by `shift_s`."""
    out.write(_line("up", target, 1, at_s))
    for family in page.collect():
        for sample in family.samples:
            own = {"job_id": job} if "job_id" in sample.labels else {}
            labels = {**sample.labels, **own, **target}
            is_time = sample.name.endswith(("_timestamp_seconds", "process_start_time_seconds"))
            out.write(_line(sample.name, labels, sample.value + shift_s * is_time, at_s))


def write_job(job: Job, out: IO[str], lasts_s: int = LASTS_S) -> None:
    """Every scrape of a job's monitor and ranks."""
    monitor = {"job": "lightkeeper", "instance": f"10.0.{job.number}.1:8470", **job.place}
    watched, pages = Watched(job), RankPages(job)
    for second in range(job.begins_s, lasts_s + 1):
        scrapes, at_s = second % SCRAPE_S == 0, EPOCH_S + second
        if second > job.ends_s:
            out.write(_line("up", monitor, 0, at_s) if scrapes else "")
            continue
        view = watched.tick()
        if not scrapes:
            continue
        _write_page(out, watched.metrics, monitor, at_s, job.shift_s, job.name)
        for target, page in pages.now(view) if job.scraped else ():
            _write_page(out, page, {**target, **job.place}, at_s, at_s - time.time(), job.name)


def make_blocks(text: Path, data: Path) -> None:
    promtool = shutil.which("promtool")
    assert promtool is not None, "apt-get install prometheus"
    done = subprocess.run(
        [promtool, "tsdb", "create-blocks-from", "openmetrics", str(text), str(data)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def make_world(data: Path, every: Sequence[Job], lasts_s: int = LASTS_S) -> None:
    """The TSDB of a world; what our rules and alerts make of it is in it, too."""
    data.mkdir(parents=True)
    text = data / "scrapes.om"
    for job in every:
        with text.open("w") as out:
            write_job(job, out, lasts_s)
            out.write("# EOF\n")
        make_blocks(text, data)
    with serving(data) as prom, text.open("w") as out:
        for name, labels, value, at_s in judged(prom, lasts_s):
            out.write(_line(name, labels, value, at_s))
        out.write("# EOF\n")
    make_blocks(text, data)
    text.unlink()


@contextmanager
def serving(data: Path) -> Iterator[Prometheus]:
    """A Prometheus over such a TSDB; it scrapes nothing."""
    flags = (f"--query.lookback-delta={LOOKBACK}", "--storage.tsdb.retention.time=100y")
    with prometheus("global: {}\n", *flags, data=data) as prom:
        yield prom


def judged(prom: Prometheus, lasts_s: int) -> Iterator[tuple[str, Labels, float, float]]:
    """Samples of all recording rules and alerts over the world."""
    for name, expr in recorded().items():
        for labels, points in _over_the_world(prom, expr, lasts_s):
            yield from ((name, labels, value, at_s) for at_s, value in points)
    for alert in alerts():
        for labels, points in _over_the_world(prom, alert.expr, lasts_s):
            said = {**labels, "alertname": alert.name, **alert.labels}
            begun_s = last_s = float("-inf")
            for at_s, _ in points:
                begun_s = at_s if at_s - last_s > 2 * SCRAPE_S else begun_s
                last_s = at_s
                state = "firing" if at_s - begun_s >= alert.for_s else "pending"
                yield "ALERTS", {**said, "alertstate": state}, 1.0, at_s
                yield "ALERTS_FOR_STATE", said, begun_s, at_s


def _over_the_world(
    prom: Prometheus, expr: str, lasts_s: int
) -> Iterator[tuple[Labels, list[Any]]]:
    span = {"start": str(EPOCH_S), "end": str(EPOCH_S + lasts_s), "step": str(SCRAPE_S)}
    for series in prom.api("query_range", query=expr, **span)["result"]:
        labels = {name: text for name, text in series["metric"].items() if name != "__name__"}
        yield labels, [(at_s, float(value)) for at_s, value in series["values"]]
