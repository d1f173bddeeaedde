"""Recorded jobs made up from a seed: a pipeline whose waits follow from who is slow.

Every rank's operations are laid out in time (all forwards, then all backwards, chunk by chunk), a
receive waits for its message, a collective for its last member; so a slow rank makes victims
of the others just as in a real job. Arrays are steps x replicas.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lightkeeper.monitor.offline.timings import TimingTable, build_table

OPS = (
    "backward-compute",
    "backward-recv",
    "backward-send",
    "forward-compute",
    "forward-recv",
    "forward-send",
    "gc",
    "grads-reduce-scatter",
    "optimizer",
    "params-all-gather",
)
_OP = {name: code for code, name in enumerate(OPS)}


@dataclass(frozen=True)
class Slow:
    """One rank slower by a factor, in some steps."""

    stage: int
    replica: int
    factor: float
    first: int = 0
    last: int = 1 << 30
    share: float = 1.0
    """Of the steps between them, at random."""


@dataclass(frozen=True)
class SlowLink:
    """Messages between `stage` and the next one take longer."""

    stage: int
    replica: int
    seconds: float


@dataclass(frozen=True)
class Recorded:
    """A job to record."""

    seed: int = 0
    dp: int = 4
    pp: int = 4
    tp: int = 1
    vpp: int = 1
    microbatches: int = 8
    steps: int = 40
    noise: float = 0.02
    slow: tuple[Slow, ...] = ()
    links: tuple[SlowLink, ...] = ()
    last_stage: float = 1.0
    long_sequences: float = 0.0
    """Sigma of the logarithm of a microbatch's work."""
    gc: float = 0.0
    """Pauses a rank and step, each of 30 forwards."""
    late: tuple[tuple[int, int, float], ...] = ()
    """Stage, replica, seconds before each step outside of recorded operations."""
    slow_group: tuple[int, int, float] | None = None
    """Stage, step and factor from which on its reduce-scatter takes longer."""
    clock_offsets_s: float = 0.0

    def rank(self, stage: int, replica: int) -> int:
        """The global rank, as Megatron numbers them."""
        return (stage * self.dp + replica) * self.tp

    @property
    def culprits(self) -> list[int]:
        """Ranks that are slow by themselves."""
        return sorted(self.rank(place.stage, place.replica) for place in self.slow)

    def columns(self) -> dict[str, NDArray]:
        """The table, rank by rank."""
        return _Recorder(self).columns()

    def table(self, shuffle: int | None = None) -> TimingTable:
        """As the judgement takes it."""
        columns = self.columns()
        if shuffle is not None:
            order = np.random.default_rng(shuffle).permutation(len(columns["rank"]))
            columns = {name: held[order] for name, held in columns.items()}
        return build_table(columns, OPS)


class _Recorder:
    def __init__(self, job: Recorded) -> None:
        self.job = job
        self.rng = np.random.default_rng(job.seed)
        self.parts: dict[str, list[NDArray]] = {}
        shape = (job.steps, job.dp)
        self.load = np.exp(self.rng.normal(0, job.long_sequences, (*shape, job.microbatches)))
        self.factor = np.ones((job.pp, *shape))
        for place in job.slow:
            hit = self.rng.random(job.steps) < place.share
            hit[: place.first] = False
            hit[place.last + 1 :] = False
            self.factor[place.stage, hit, place.replica] *= place.factor
        self.offset = self.rng.normal(0, job.clock_offsets_s, (job.pp, job.dp)) + (
            0.0 if not job.clock_offsets_s else 1000.0
        )
        self.pause = self.rng.random((job.pp, *shape)) < job.gc
        self.paused = self.rng.integers(0, job.microbatches, (job.pp, *shape))
        self.counts: dict[tuple[str, int], int] = {}

    def add(self, op: str, stage: int, start, duration, chunk: int = -1, microbatch: int = -1):
        job = self.job
        shape = (job.steps, job.dp)
        sequence = self.counts.get((op, stage), 0)
        self.counts[op, stage] = sequence + 1
        replica = np.broadcast_to(np.arange(job.dp), shape)
        gmc = chunk if chunk < 0 else chunk * job.pp + stage
        held = {
            "dp_rank": replica,
            "stage": stage,
            "rank": (stage * job.dp + replica) * job.tp,
            "step": np.broadcast_to(10 + 3 * np.arange(job.steps)[:, None], shape),
            "optype": _OP[op],
            "start_ts": start + self.offset[stage],
            "duration": duration,
            "seq_id": sequence,
            "mc": chunk,
            "mb_id": microbatch,
            "gmc": gmc,
        }
        for name, values in held.items():
            self.parts.setdefault(name, []).append(np.broadcast_to(values, shape).ravel())

    def noisy(self, seconds: float) -> NDArray:
        shape = (self.job.steps, self.job.dp)
        return seconds * np.exp(self.rng.normal(0, self.job.noise, shape))

    def compute(self, seconds: float, stage: int, microbatch: int) -> NDArray:
        heavier = self.job.last_stage if stage == self.job.pp - 1 else 1.0
        took = self.noisy(seconds * heavier / self.job.vpp)
        return took * self.load[:, :, microbatch] * self.factor[stage]

    def transfer(self, lower: int) -> NDArray:
        took = self.noisy(0.001)
        for link in self.job.links:
            if link.stage == lower:
                took[:, link.replica] += link.seconds
        return took

    def columns(self) -> dict[str, NDArray]:
        job = self.job
        ready = np.zeros((job.pp, job.steps, job.dp))
        for stage, replica, seconds in job.late:
            ready[stage, :, replica] += self.noisy(seconds)[:, replica]
        self._pass(ready, forward=True)
        self._pass(ready, forward=False)
        for stage in range(job.pp):
            self.add("gc", stage, ready[stage], 0.0)
            took = self.noisy(0.05)[:, :1]
            if job.slow_group is not None and job.slow_group[0] == stage:
                took = (
                    np.where(
                        np.arange(job.steps)[:, None] >= job.slow_group[1], job.slow_group[2], 1
                    )
                    * took
                )
            if job.dp > 1:
                end = ready[stage].max(axis=1, keepdims=True) + took
                self.add("grads-reduce-scatter", stage, ready[stage], end - ready[stage], chunk=0)
                ready[stage] = end
            self.add("optimizer", stage, ready[stage], 0.02)
        return {name: np.concatenate(held) for name, held in self.parts.items()}

    def _pass(self, ready: NDArray, *, forward: bool) -> None:
        job = self.job
        seconds, name = (0.2, "forward") if forward else (0.4, "backward")
        stages = range(job.pp) if forward else range(job.pp - 1, -1, -1)
        chunks = range(job.vpp) if forward else range(job.vpp - 1, -1, -1)
        ends: dict[tuple[int, int], NDArray] = {}
        for chunk in chunks:
            for microbatch in range(job.microbatches):
                for stage in stages:
                    place = chunk * job.pp + stage
                    before = place - 1 if forward else place + 1
                    start = ready[stage].copy()
                    if (before, microbatch) in ends:
                        left = ends[before, microbatch]
                        lower = (before if forward else place) % job.pp
                        took = self.transfer(lower)
                        came = np.maximum(left, start) + took
                        self.add(f"{name}-recv", stage, start, came - start)
                        self.add(f"{name}-send", before % job.pp, left, came - left)
                        start = came
                    took = self.compute(seconds, stage, microbatch)
                    if forward:
                        hit = self.pause[stage] & (self.paused[stage] == microbatch)
                        took = took + np.where(hit, 30 * seconds, 0.0)
                    self.add(f"{name}-compute", stage, start, took, chunk, microbatch)
                    ready[stage] = start + took
                    ends[place, microbatch] = ready[stage].copy()


def write_csv(path: Path, columns: dict[str, NDArray], ops: tuple[str, ...] = OPS) -> Path:
    """As a user would have it."""
    names = list(columns)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        held = [
            [ops[code] for code in columns[name]] if name == "optype" else columns[name].tolist()
            for name in names
        ]
        writer.writerows(zip(*held, strict=True))
    return path


def write_parquet(path: Path, columns: dict[str, NDArray], ops: tuple[str, ...] = OPS) -> Path:
    """The same with a dictionary of names."""
    import pyarrow
    import pyarrow.parquet

    held = {name: pyarrow.array(values) for name, values in columns.items()}
    codes = pyarrow.array(columns["optype"].astype(np.int8))
    held["optype"] = pyarrow.DictionaryArray.from_arrays(codes, pyarrow.array(list(ops)))
    pyarrow.parquet.write_table(pyarrow.table(held), path)
    return path
