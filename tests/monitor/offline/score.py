"""Precision and recall over seeds: `python -m tests.monitor.offline.score [SEEDS]`.

Prints a table in Markdown for docs/offline.md. Each line is one scenario in jobs of several
shapes, every one with SEEDS seeds and the culprit at another place.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import numpy as np

from lightkeeper.monitor.offline.slow import judge
from tests.changed import replace
from tests.monitor.offline.jobs import Recorded, Slow, SlowLink

SHAPES = (
    Recorded(dp=4, pp=4),
    Recorded(dp=8, pp=2, tp=4, microbatches=4),
    Recorded(dp=16, pp=1, tp=8, microbatches=4),
    Recorded(dp=4, pp=4, vpp=2, tp=2),
    Recorded(dp=32, pp=4, steps=20, microbatches=8),
)
FEW = (
    Recorded(dp=1, pp=4),
    Recorded(dp=2, pp=4),
    Recorded(dp=2, pp=1, microbatches=4),
    Recorded(dp=3, pp=2),
)


def _at(job: Recorded, seed: int, **how) -> Slow:
    rng = np.random.default_rng(seed + 1000)
    return Slow(int(rng.integers(job.pp)), int(rng.integers(job.dp)), **how)


def slow(**how) -> Callable[[Recorded, int], Recorded]:
    return lambda job, seed: replace(job, slow=(_at(job, seed, **how),))


def two(factor: float) -> Callable[[Recorded, int], Recorded]:
    def make(job: Recorded, seed: int) -> Recorded:
        rng = np.random.default_rng(seed + 2000)
        a, b = rng.choice(job.pp * job.dp, 2, replace=False).tolist()
        return replace(
            job, slow=tuple(Slow(rank // job.dp, rank % job.dp, factor) for rank in (a, b))
        )

    return make


def link(job: Recorded, seed: int) -> Recorded:
    rng = np.random.default_rng(seed + 3000)
    if job.pp == 1:
        return job
    return replace(
        job, links=(SlowLink(int(rng.integers(job.pp - 1)), int(rng.integers(job.dp)), 0.2),)
    )


def change(**how) -> Callable[[Recorded, int], Recorded]:
    return lambda job, _: replace(job, **how)


def half(factor: float) -> Callable[[Recorded, int], Recorded]:
    return lambda job, seed: replace(
        job, slow=(_at(job, seed, factor=factor, first=job.steps // 2),)
    )


LONG = {"long_sequences": 0.6}
SCENARIOS: dict[str, tuple[tuple[Recorded, ...], Callable[[Recorded, int], Recorded]]] = {
    "healthy": (SHAPES, change()),
    "healthy, noise of 10 %": (SHAPES, change(noise=0.1)),
    "long sequences": (SHAPES, change(**LONG)),
    "long sequences, 1.0": (SHAPES, change(long_sequences=1.0)),
    "garbage collection": (SHAPES, change(gc=0.1)),
    "garbage collection, half of the steps": (SHAPES, change(gc=0.5)),
    "slow last stage": (SHAPES, change(last_stage=2.0)),
    "all four at once": (SHAPES, change(gc=0.1, last_stage=1.5, noise=0.05, **LONG)),
    "slow link": (SHAPES, link),
    "slow worker 1.15x": (SHAPES, slow(factor=1.15)),
    "slow worker 1.3x": (SHAPES, slow(factor=1.3)),
    "slow worker 2x": (SHAPES, slow(factor=2.0)),
    "slow worker 1.3x among long sequences": (
        SHAPES,
        lambda job, seed: replace(slow(factor=1.3)(job, seed), **LONG),
    ),
    "slow worker 2x among long sequences and GC": (
        SHAPES,
        lambda job, seed: replace(slow(factor=2.0)(job, seed), gc=0.1, **LONG),
    ),
    "slow worker 2x, second half": (SHAPES, half(2.0)),
    "slow worker 2x, half of the steps at random": (SHAPES, slow(factor=2.0, share=0.5)),
    "two stragglers 1.5x": (SHAPES, two(1.5)),
    "few peers: healthy": (FEW, change()),
    "few peers: long sequences": (FEW, change(**LONG)),
    "few peers: long sequences and GC": (FEW, change(gc=0.1, **LONG)),
    "few peers: 2x from the start": (FEW, slow(factor=2.0)),
    "few peers: 1.3x from the middle": (FEW, half(1.3)),
    "few peers: 2x from the middle": (FEW, half(2.0)),
}


def outcomes(name: str, seeds: int) -> Iterator[tuple[Recorded, list[int], int]]:
    """Job, ranks named, and number of verdicts."""
    shapes, make = SCENARIOS[name]
    for shape in shapes:
        for seed in range(seeds):
            job = make(replace(shape, seed=seed), seed)
            table = job.table()
            report = judge(table)
            yield job, table.ranks[list(report.culprits)].tolist(), len(report.verdicts)


def main() -> None:
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    wanted = sys.argv[2] if len(sys.argv) > 2 else ""
    print("| scenario | jobs | exact | wrongly named | missed | verdicts without a name |")
    print("|---|---|---|---|---|---|")
    for name in SCENARIOS:
        if wanted not in name:
            continue
        jobs = exact = wrong = missed = unnamed = 0
        for job, named, verdicts in outcomes(name, seeds):
            jobs += 1
            exact += named == job.culprits
            wrong += len(set(named) - set(job.culprits))
            missed += len(set(job.culprits) - set(named))
            unnamed += max(0, verdicts - len(named))
            if named != job.culprits and wanted:
                print(job, named)
        print(f"| {name} | {jobs} | {exact} | {wrong} | {missed} | {unnamed} |", flush=True)


if __name__ == "__main__":
    main()
