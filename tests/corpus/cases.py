"""The corpus: every fault x parallelism x kind of dump x pace of the CPU x number of faults.

A case is named by its coordinates and built from them alone: the same name gives the same dumps.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.corpus.faults import KINDS, Fault, NotPossibleError, Place
from tests.corpus.programs import Shape, programs
from tests.corpus.records import Recorder, dump, write
from tests.corpus.simulate import Run, Simulation
from tests.corpus.truth import ACCEPTED, Evidence, Truth, judge

PARALLEL = ("DP", "TPxDP", "TPxPPxDP", "FSDP", "HSDP", "EP")
DUMPS = ("full", "partial", "wrapped", "one_silent")
HEALTHY = ("healthy", "straggler", "pause")
"""Nothing is wrong: dumps taken while it runs, with one slow rank, and when all have finished."""
SECOND = ("not_entered", "wrong_size", "gpu_error")
UNSHOWN = frozenset({"stuck_inside", "timed_out", "wrong_root", "tie", "order_tie"})
"""With one rank silent these look like that rank's fault: no such cases."""
QUIET = frozenset({"silent_dtype"})
"""Nothing hangs."""
GLOO_KINDS = ("not_entered", "most_absent", "wrong_op", "silent_dtype", "skipped", "extra",
              "extra_last", "order_inversion", "order_tie")  # fmt: skip


@dataclass(frozen=True)
class Case:
    """Coordinates of one labelled set of dumps."""

    kind: str
    layout: str
    dumps: str
    blocking: bool
    faults: int = 1
    backend: str = "nccl"
    salt: int = 0

    @property
    def name(self) -> str:
        pace = "blocking" if self.blocking else "ahead"
        parts = [self.backend, self.kind, self.layout, self.dumps, pace, f"{self.faults}f"]
        return "-".join(parts) + (f"-{self.salt}" if self.salt else "")

    def build(self) -> Labelled | None:
        """Simulate and label it; None where such a job has no place for such a fault."""
        for attempt in range(8):
            rng = random.Random(zlib.crc32(f"{self.name}/{attempt}".encode()))
            built = _Builder(self, rng).build()
            if built is not None:
                return built
        return None


@dataclass(frozen=True)
class Labelled:
    """The dumps of a case and what is true of them."""

    case: Case
    run: Run
    how: Recorder
    taken: dict[int, float]
    """When each rank's record was written, ms; silent ranks are not in it."""
    truth: Truth
    faults: tuple[Fault, ...]

    @property
    def world(self) -> int:
        return len(self.run.entries)

    @cached_property
    def documents(self) -> list[tuple[int, dict[str, Any], float]]:
        return [(r, dump(self.run, r, at, self.how), at) for r, at in sorted(self.taken.items())]

    def write(self, folder: Path, *, json_files: bool = False) -> None:
        write(self.documents, folder, json_files=json_files)


class _Builder:
    def __init__(self, case: Case, rng: random.Random) -> None:
        self.case, self.rng = case, rng

    def build(self) -> Labelled | None:
        job = programs(self.shape(), self.rng)
        try:
            faults = self.inject(job)
        except NotPossibleError:
            return None
        run = Simulation(
            job, self.rng, blocking=self.case.blocking, gloo=self.case.backend == "gloo",
            eager=self.rng.random() < 0.5,
        ).run()  # fmt: skip
        happened = [fault for fault in faults if fault.mark in run.fired]
        hangs = any(not e.kernel.is_done for rows in run.entries.values() for e in rows)
        kind = self.case.kind
        if kind not in HEALTHY and (not happened or happened[0].mark != "fault0"):
            return None
        if kind not in HEALTHY and kind not in QUIET and not hangs:
            return None
        how = self.recorder(run)
        silent = self.silent(run, happened)
        taken = self.times(run, hangs=hangs)
        evidence = Evidence(run, taken, how, silent, several=len(happened) > 1)
        truth = self.label(happened, evidence)
        if truth is None:
            return None
        seen = {rank: at for rank, at in taken.items() if rank not in silent}
        return Labelled(self.case, run, how, seen, truth, tuple(happened))

    def shape(self) -> Shape:
        rng, kind = self.rng, self.case.kind
        uniform = kind == "extra_last" or (kind in {"extra", "skipped"} and rng.random() < 0.4)
        return Shape(
            self.case.layout,
            steps=rng.choice([6, 7, 8]),
            ragged=rng.random() < 0.35,
            batched=rng.random() < 0.4,
            uniform=uniform,
            barrier=rng.random() < 0.3,
            sync_every=rng.choice([1, 1, 2, 3]),
            slow=rng.choice([1.0, 4.0, 12.0]),
        )

    def inject(self, job: Any) -> list[Fault]:
        kind = self.case.kind
        if kind in HEALTHY:
            if kind == "straggler":
                slow = self.rng.choice(sorted(job.steps))
                job.steps[slow] = [_five_times(item) for item in job.steps[slow]]
            return []
        ranks = self.rng.sample(sorted(job.steps), 2)
        step = self.rng.choice([2, 3])
        faults = [KINDS[kind](Place(job, ranks[0], self.rng, "fault0", step))]
        if self.case.faults == 2:
            other = self.rng.choice([kind, *SECOND]) if kind not in UNSHOWN else "not_entered"
            if other in faults[0].kind and kind in {"most_absent", "extra_last"}:
                other = "not_entered"
            if ranks[1] in faults[0].culprits:
                raise NotPossibleError
            faults.append(KINDS[other](Place(job, ranks[1], self.rng, "fault1", step)))
        return faults

    def recorder(self, run: Run) -> Recorder:
        rng, case = self.rng, self.case
        longest = max(len(rows) for rows in run.entries.values())
        # A real ring of 2,000 never overwrites what is still queued: no GPU queue is so long.
        queued = max(sum(not e.kernel.is_done for e in rows) for rows in run.entries.values())
        wrapped = case.dumps == "wrapped"
        return Recorder(
            backend=case.backend,
            version="2.10" if case.backend == "gloo" else rng.choice(["2.10", "2.9", "2.5"]),
            timing=case.backend == "nccl" and rng.random() < 0.5,
            only_active=case.dumps == "partial",
            frames=case.kind == "extra_last" or rng.random() < 0.6,
            status=rng.random() < 0.85,
            capacity=max(24, int(longest * 0.4), queued + 12) if wrapped else 2000,
            aborted=case.kind == "timed_out",
            # A ring that holds everything is that of a young job.
            older={"wrapped": 14_000, "partial": rng.choice([0, 87_000])}.get(case.dumps, 0),
            clocks={rank: rng.uniform(-3, 3) for rank in run.entries},
        )

    def silent(self, run: Run, happened: list[Fault]) -> set[int]:
        if self.case.dumps != "one_silent":
            return set()
        guilty = {rank for fault in happened for rank in fault.culprits}
        if self.rng.random() < 0.5 and happened[0].culprits:
            return {happened[0].culprits[0]}
        innocent = sorted(set(run.entries) - guilty)
        return {self.rng.choice(innocent)} if innocent else set()

    def times(self, run: Run, *, hangs: bool) -> dict[int, float]:
        """Hung jobs are dumped after the timeout, moving ones a few operations apart."""
        rng, ranks = self.rng, run.entries
        if self.case.kind == "pause" or hangs:
            until = run.last + rng.choice([20_000, 180_000, 600_000])
            return {rank: until + rng.uniform(0, 900) for rank in ranks}
        middle = run.last * rng.uniform(0.55, 0.85)
        skew = run.last * rng.choice([0.0, 0.01, 0.04])
        return {rank: middle + rng.uniform(0, skew) for rank in ranks}

    def is_timeout(self, fault: Fault) -> bool:
        return self.case.kind == "timed_out" and fault.kind == "stuck_inside"

    def label(self, happened: list[Fault], evidence: Evidence) -> Truth | None:
        must: set[int] = set()
        may: set[int] = set()
        kinds: set[str] = set()
        for fault in happened:
            kind = "timed_out" if self.is_timeout(fault) else fault.kind
            named, allowed = judge(fault, kind, evidence)
            must |= named
            may |= allowed
            kinds |= ACCEPTED[kind]
        seen = (must | may) - evidence.silent
        differing = any(evidence.stands_out(rank) != "no" for rank in seen)
        shown = bool(must - evidence.silent) or differing
        alone = not shown and evidence.only_missing(evidence.silent)
        if seen and not alone:
            # Who is seen at fault may be what the silent one waits for too: nobody knows.
            may |= must & evidence.silent
            must -= evidence.silent
        if evidence.silent and not must:
            return None
        if evidence.silent & (must | may):
            kinds |= {"silent"}
        return Truth(frozenset(must), frozenset(may - must), frozenset(kinds))


def _five_times(step: Any) -> Any:
    return type(step)(step.ms * 5) if type(step).__name__ == "Compute" else step


def coordinates() -> Iterator[Case]:
    """All that are worth asking for; some have no place for their fault and give no dumps."""
    for layout in PARALLEL:
        for blocking in (False, True):
            for dumps in DUMPS:
                yield from _of(layout, blocking=blocking, dumps=dumps)
    for layout in ("DP", "TPxDP", "FSDP"):
        for blocking in (False, True):
            for dumps in ("full", "one_silent"):
                for kind in GLOO_KINDS:
                    if dumps == "one_silent" and kind in UNSHOWN | QUIET:
                        continue
                    yield Case(kind, layout, dumps, blocking, backend="gloo")
            for kind in HEALTHY:
                yield Case(kind, layout, "full", blocking, backend="gloo")


def _of(layout: str, *, blocking: bool, dumps: str) -> Iterator[Case]:
    for kind in KINDS:
        if dumps == "one_silent" and kind in UNSHOWN | QUIET:
            continue
        for faults in (1, 2):
            if faults == 2 and kind in QUIET:
                continue
            yield Case(kind, layout, dumps, blocking, faults)
    if dumps != "one_silent":
        for kind in HEALTHY:
            for salt in range(3 if kind == "healthy" else 1):
                yield Case(kind, layout, dumps, blocking, salt=salt)
