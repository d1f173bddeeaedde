"""What the journal costs: bytes and CPU a tick, at 8, 100 and 1,000 ranks.

Run with LIGHTKEEPER_BENCH=1 and `pytest -s`. The fleet is simulated; its reports are made as real
ones look (milliseconds, two process groups, RSS, loss), every one of them different in each tick.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from pathlib import Path

import pytest
from msgspec import structs

from lightkeeper.monitor.decide.pipeline import Pipeline
from lightkeeper.monitor.journal import memory
from lightkeeper.monitor.journal.entries import (
    Head,
    Packer,
    Unpacker,
    head_text,
    outcome_of,
    tick_from_json,
    tick_text,
)
from lightkeeper.monitor.journal.writer import Journal, JournalDir, Limits
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.observation import Observation, Snapshot
from lightkeeper.worker_server.wire import StateReport, parse_state, to_json
from tests.changed import replace
from tests.monitor.fleet import SimFleet

pytestmark = [
    pytest.mark.skipif(
        os.environ.get("LIGHTKEEPER_BENCH") != "1", reason="a benchmark: set LIGHTKEEPER_BENCH=1"
    ),
    pytest.mark.timeout(600),
]
TICKS = 40
DICE = random.Random(1)


def lifelike(snapshot: Snapshot) -> Snapshot:
    def seen(observation: Observation) -> Observation:
        report = observation.outcome
        assert isinstance(report, StateReport)
        assert report.step is not None
        jitter = lambda value: value + DICE.uniform(0, 0.05)  # noqa: E731
        heads = [replace(head, age_s=jitter(head.age_s)) for head in report.heads]
        heads += [replace(head, name=f"{head.name}_dp") for head in heads]
        step = replace(
            report.step,
            loss=DICE.uniform(1, 3),
            tokens=8192 * report.step.attempt,
            phase_age_s=jitter(report.step.phase_age_s),
            last_commit_age_s=jitter(report.step.last_commit_age_s or 0.0),
            seconds={name: jitter(value) for name, value in report.step.seconds.items()},
        )
        process = replace(
            report.process,
            threads=40,
            rss_bytes=2_000_000_000 + 4096 * DICE.randrange(100),
            interpreter_age_s=DICE.uniform(0, 0.1),
        )
        made = replace(report, step=step, process=process, heads=tuple(heads))
        outcome = structs.replace(parse_state(to_json(made)), identity=made.identity)  # cached
        return replace(
            observation, outcome=outcome, round_trip_s=round(DICE.uniform(0.001, 0.02), 6)
        )

    return replace(snapshot, observations=tuple(map(seen, snapshot.observations)))


def cpu_ms(call) -> tuple[float, object]:
    began = time.process_time()
    answer = call()
    return 1000 * (time.process_time() - began), answer


@pytest.mark.parametrize(("groups", "size"), [(8, 1), (25, 4), (125, 8)])
def test_bytes_and_cpu_a_tick(groups: int, size: int, tmp_path: Path) -> None:
    fleet, config = SimFleet(groups, size, noise=0.2), KeeperConfig()
    snapshots = [lifelike(fleet.snapshot()) for _ in range(TICKS)]
    pipeline, writer, packer = Pipeline(config), memory.Writer(config), Packer()
    reader, unpacker = memory.Reader(config), Unpacker()
    judge, write, pack, sizes, read = [], [], [], [], []
    for snapshot in snapshots:
        took, result = cpu_ms(lambda s=snapshot: pipeline.tick(s))
        judge.append(took)
        took, text = cpu_ms(lambda s=snapshot, r=result: tick_text(s, outcome_of(r), writer))
        write.append(took)
        took, data = cpu_ms(lambda t=text: packer.line(*t))
        pack.append(took)
        sizes.append(len(data))
        took, _ = cpu_ms(
            lambda d=data: [tick_from_json(payload, reader) for payload in unpacker.feed(d)]
        )
        read.append(took)
    freeze, frozen = cpu_ms(lambda: memory.freeze(dict(pipeline.memory())))
    head, text = cpu_ms(lambda: head_text(Head(config, "1"), memory.Writer(config).plain(frozen)))
    whole = len(Packer().line(text))

    mean = statistics.fmean
    per_hour = 3600 * mean(sizes[5:]) / 1e6
    print(
        f"\n{groups * size} ranks: {mean(sizes[5:]):.0f} bytes a tick (first {sizes[0]}), "
        f"{per_hour:.1f} MB an hour at 1 Hz; CPU ms a tick: encode {mean(write[5:]):.2f}, "
        f"compress {mean(pack[5:]):.2f}, read back {mean(read[5:]):.2f}, "
        f"pipeline {mean(judge[5:]):.2f}; a new file: {freeze:.2f} ms in the loop, {head:.1f} ms "
        f"beside it, {whole} bytes"
    )
    slowed(snapshots, config, tmp_path)


def slowed(snapshots: list[Snapshot], config: KeeperConfig, folder: Path) -> None:
    """Wall time of judging and journalling, once a second as a monitor does, in turns."""
    journal_dir = JournalDir(folder / "j", Limits())
    pipelines = {"without": Pipeline(config), "with": Pipeline(config)}
    journal = Journal(journal_dir, Head(config, "1"), pipelines["with"].memory)
    took: dict[str, list[float]] = {"without": [], "with": []}
    taken = []
    for snapshot in snapshots[:20]:
        for kind, pipeline in pipelines.items():
            began = time.perf_counter()
            if kind == "with":
                journal.before_tick(snapshot.now_s)
            result = pipeline.tick(snapshot)
            judged = time.perf_counter()
            if kind == "with":
                journal.take(snapshot, result)
                taken.append(1e6 * (time.perf_counter() - judged))
            took[kind].append(1000 * (time.perf_counter() - began))
            time.sleep(max(0.0, 0.5 - (time.perf_counter() - began)))
    journal.close()
    without, held = (statistics.median(took[kind][5:]) for kind in ("without", "with"))
    print(
        f"  judging a tick, median: {without:.2f} ms without, {held:.2f} ms with; handing it to "
        f"the journal {statistics.median(taken):.0f} us; load {os.getloadavg()[0]:.0f}"
    )
