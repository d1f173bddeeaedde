"""One case: a lab and a job of its own from the start to the end, and the record of it."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from math import inf
from pathlib import Path
from statistics import median
from typing import Any, Final

from experiments.field.judge import rank_of
from experiments.netlab.cases import Case
from experiments.netlab.job import Job, lab_of
from experiments.netlab.lab import LabError
from experiments.watch import Seen, Watch

START_LIMIT_S: Final = 150.0
STEADY_STEPS: Final = 50
"""Commits of every rank with all groups, about 10 s, before anything breaks: a pace is learned."""
LOOK_S: Final = 0.25
_NEW_NETWORK: Final = 0x40000000


class Inside(threading.Thread):
    """Looks at the monitor from its own host, whatever is cut around it."""

    def __init__(self, job: Job) -> None:
        super().__init__(name="watch", daemon=True)
        self._job, self._end = job, threading.Event()
        self.watch = Watch(f"http://127.0.0.1:{job.monitor_port}", job.folder)
        self.named: dict[str, float] = {}
        """Rank -> when an incident that had fired named it as likely or certain, at first."""

    def run(self) -> None:
        """Until `close`."""
        network = os.open(self._job.lab.namespace("monitor"), os.O_RDONLY)
        ctypes.CDLL(None).setns(network, _NEW_NETWORK)  # of this thread alone
        os.close(network)
        while not self._end.wait(LOOK_S):
            self.watch.look()
            for seen in list(self.watch.seen.values()):
                for rank, confidence in seen.accused.items():
                    if confidence != "unsure":
                        self.named.setdefault(rank_of(rank), time.time())

    def close(self) -> None:
        """Stop looking."""
        self._end.set()
        if self.ident is not None:
            self.join(20)
        self.watch.close()


def run(
    case: Case, number: int, folder: Path, *, alone: bool, settle_s: float = inf,
    forked: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """The record of one run, with lightkeeper or with TorchFT alone; it is over at the latest when
    survivors have gone on for `settle_s` and a rank is named. `forked` is as of `Job`.

    Raises:
        LabError: no namespaces here, or the job did not come up.
    """
    with lab_of(case, folder) as lab:
        job = Job(case, lab, folder, alone=alone, forked=forked)
        watch = Inside(job)
        try:
            job.start()
            if not alone:
                watch.start()
            if case.steady:
                _until_steady(job, watch)
            span_s = _play(job, watch, settle_s)
        finally:
            watch.close()
        return record(job, watch, number, *span_s)


def _until_steady(job: Job, watch: Inside) -> None:
    deadline, why = time.monotonic() + START_LIMIT_S, "it does not train"
    while time.monotonic() < deadline:
        if ended := job.ended():
            raise LabError(f"{ended} ended before anything broke ({job.folder})")
        why = _unsteady(job, watch)
        if not why:
            return
        time.sleep(LOOK_S)
    raise LabError(f"no steady job: {why} ({job.folder})")


def _unsteady(job: Job, watch: Inside) -> str:
    """Why the job does not train steadily, all together; empty when it does."""
    groups = job.shape.groups - len(job.case.late)
    for rank, steps in job.steps().items():
        if int(rank.partition(".")[0]) in job.case.late:
            continue
        last = steps[-STEADY_STEPS:]
        if len(last) < STEADY_STEPS or any(line["groups"] != groups for line in last):
            return f"{rank} has made {len(steps)} steps, not {STEADY_STEPS} with {groups} groups"
    if not job.alone:
        rows = (watch.watch.snapshot or {"ranks": []})["ranks"]
        ranks = {row["rank"]: row["health"] for row in rows}
        unwell = {rank: health for rank, health in ranks.items() if health != "healthy"}
        if unwell or len(ranks) != groups * job.shape.ranks:
            return f"the monitor sees {ranks}"
    return ""


def _play(job: Job, watch: Inside, settle_s: float) -> tuple[float, float]:
    """The fault, its repair, and a look on; when the fault was, and the end."""
    case, at_s = job.case, time.time()
    case.fault(job)
    if case.repair is not None:
        time.sleep(max(0.0, at_s + case.repair_s - time.time()))
        case.repair(job)
    while (now_s := time.time()) < at_s + case.watch_s:
        rows = _pauses(job, at_s, now_s).values()
        settled = (
            row["over"] is not None and now_s > at_s + row["over"] + settle_s for row in rows
        )
        if watch.named and all(settled):
            break
        time.sleep(LOOK_S)
    return at_s, now_s


def _pauses(job: Job, at_s: float, until_s: float) -> dict[str, dict[str, Any]]:
    steps = job.steps()
    return {
        rank: pause([line["time"] for line in steps[rank]], at_s, until_s)
        for rank in job.case.goes_on
    }


def record(job: Job, watch: Inside, number: int, at_s: float, until_s: float) -> dict[str, Any]:
    """What is kept of a run; times are seconds after the fault."""
    case, steps = job.case, job.steps()
    incidents = [_short(seen, at_s) for seen in watch.watch.seen.values()]
    fired = [row["fired"] for row in incidents if row["fired"] is not None and row["fired"] >= 0]
    return {
        "key": f"{case.name}{'-alone' * job.alone}#{number}",
        "case": case.name, "shape": case.shape, "alone": job.alone, "number": number,
        "pauses": _pauses(job, at_s, until_s),
        "pace": {rank: pace([line["time"] for line in lines], at_s, until_s)
                 for rank, lines in steps.items()},
        "quorums": {rank: len({line["quorum"] for line in lines if line["time"] > at_s})
                    for rank, lines in steps.items()},
        "told": min(fired, default=None),
        "named": {rank: round(seen_s - at_s, 1) for rank, seen_s in watch.named.items()},
        "quarantined": sorted(watch.watch.hosts),
        "incidents": incidents,
        "headlines": [[round(seen_s - at_s, 1), text] for seen_s, text in watch.watch.headlines],
        "ended": job.ended(),
        "folder": str(job.folder),
    }  # fmt: skip


def pause(times: Sequence[float], at_s: float, until_s: float) -> dict[str, Any]:
    """The longest time without a commit that reaches past the fault: `pause`, when it was `over`
    (None: not by the end), and when the `first` commit after the fault was.
    """
    before = [time_s for time_s in times if time_s <= at_s][-1:]
    after = [time_s for time_s in times if at_s < time_s <= until_s]
    marks = [*(before or [at_s]), *after, until_s]
    gaps = [(b - a, b) for a, b in pairwise(marks)]
    longest, end_s = max(gaps)
    stands = end_s == until_s
    return {
        "pause": round(longest, 1),
        "over": None if stands and longest > 2 else round(end_s - at_s, 1),
        "first": round(after[0] - at_s, 1) if after else None,
    }


def pace(times: Sequence[float], at_s: float, until_s: float) -> list[float | None]:
    """Median seconds from commit to commit: in the 10 s before the fault, and in the last 30 s."""
    spans = ((at_s - 10, at_s), (max(at_s, until_s - 30), until_s))
    medians: list[float | None] = []
    for begin_s, end_s in spans:
        mine = [time_s for time_s in times if begin_s <= time_s <= end_s]
        gaps = [b - a for a, b in pairwise(mine)]
        medians.append(round(median(gaps), 2) if gaps else None)
    return medians


def _short(seen: Seen, at_s: float) -> dict[str, Any]:
    """An incident: what it says, and all of its JSON."""
    latest = seen.latest
    fired_s = latest["milestones"].get("firing_s")
    evictions = {row["group"]: round(row["asked_s"] - at_s, 1)
                 for row in latest.get("evictions") or ()}  # fmt: skip
    return {
        "kind": latest["kind"],
        "fired": None if fired_s is None else round(fired_s - at_s, 1),
        "state": latest["state"],
        "severity": latest["severity"],
        "confidence": latest["confidence"],
        "accused": seen.accused,
        "sentences": [[round(seen_s - at_s, 1), text] for seen_s, text in seen.sentences],
        "evicted": evictions,
        "released": released(latest),
        "json": latest,
    }


def released(incident: dict[str, Any]) -> list[str]:
    """What ranks said that they ended at the monitor's word."""
    decisions = incident.get("decisions", ())
    done = (row for row in decisions if row["action"] == "release" and row["state"] == "confirmed")
    return [str(row["outcome"]) for row in done]
