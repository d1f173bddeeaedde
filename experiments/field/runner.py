"""One case: a job of its own from the start to its end, and the record of it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from experiments.field import acts, judge
from experiments.field.cases import Case, Fate
from experiments.field.fleet import Fleet
from experiments.field.watch import JobWatch
from experiments.harness import ENDING, FleetError, code
from experiments.watch import Seen

LOOK_S: Final = 0.5
START_LIMIT_S: Final = 240.0
STEADY_STEPS: Final = 60
"""Steps that every group makes before anything happens: 12 s, in which a pace is learned."""
SETTLE_S: Final = 12.0
"""How long the monitor may still say something wrong when the truth is decided."""
STANDS_S: Final = 60.0
"""A stand longer than this has to be told, a quarter of it later at the latest."""
STRICT_STANDS_S: Final = 30.0
"""The same of a strict case."""
AFTER_END_S: Final = judge.END_TOLD_WITHIN_S
_OF_A_DECISION: Final = ("action", "guard", "reason", "release")
_STATUS_S: Final = (8.0, 30.0, 62.0)


def run(case: Case, number: int, folder: Path) -> dict[str, Any]:
    """The record of one run.

    Raises:
        FleetError: the job did not come up, or a deed could not be done.
    """
    fleet = Fleet(case, folder)
    watch, actor = JobWatch(fleet), acts.Actor(fleet)
    try:
        fleet.start()
        _until_steady(case, fleet, watch)
        since_s = time.time()
        why = _play(case, fleet, watch, actor, since_s)
        record = _record(case, number, fleet, watch, actor, since_s)
        record["ended"] = why
        record["verdict"], record["because"] = judge.judge(record)
        return record
    finally:
        actor.close()
        fleet.stop()
        watch.close()


def _until_steady(case: Case, fleet: Fleet, watch: JobWatch) -> None:
    ranks = (case.groups - len(case.late)) * case.ranks - _unseen(case)
    deadline, calm = time.monotonic() + START_LIMIT_S, 0
    why: str | None = None
    while time.monotonic() < deadline:
        for ended in fleet.ended():
            raise FleetError(ended)
        watch.look()
        if not case.steady:
            if watch.snapshot is not None:
                return
        else:
            problem = watch.steady(STEADY_STEPS, ranks)
            why = problem or why
            calm = calm + 1 if problem is None else 0
            if calm >= 6:
                return
            if fleet.exit_status() is not None:
                raise FleetError(f"the job ended before it trained ({fleet.folder})")
        if ENDING.wait(LOOK_S):
            raise FleetError("ended from outside")
    raise FleetError(f"the job does not train: {why} ({fleet.folder})")


def _unseen(case: Case) -> int:
    return (
        sum(environ.get("LIGHTKEEPER") == "0" for environ in case.group_env.values()) * case.ranks
    )


def _play(case: Case, fleet: Fleet, watch: JobWatch, actor: acts.Actor, since_s: float) -> str:
    """Do what the rows say and look on, until the truth is decided or the time is up."""
    left = sorted(map(acts.parse, case.acts), key=lambda act: act.at_s)
    busy_s = max(act.end_s for act in left)
    statuses = list(_STATUS_S)
    decided_s: float | None = None
    while True:
        now_s = time.time()
        at_s = now_s - since_s
        while left and left[0].at_s <= at_s:
            act = left.pop(0)
            try:
                actor.do(act)
            except (
                OSError,
                ValueError,
                RuntimeError,
                IndexError,
                subprocess.SubprocessError,
            ) as exc:
                raise FleetError(f"{act.verb} {act.whom}: {exc!r} ({fleet.folder})") from exc
        watch.look()
        if statuses and at_s >= statuses[0]:
            statuses.pop(0)
            line = [round(at_s, 1), "had not answered by the end"]
            watch.statuses.append(line)
            threading.Thread(target=_tell_status, args=(fleet, line), daemon=True).start()
        if at_s >= case.watch_s:
            return "its time was up"
        if watch.exit is not None and now_s - watch.exit[1] >= AFTER_END_S and not left:
            return "the job had ended"
        if (
            not case.healthy
            and at_s >= max(busy_s, case.least_s)
            and _decided(case, fleet, watch, since_s)
        ):
            decided_s = decided_s or now_s
            if now_s - decided_s >= SETTLE_S:
                return "its truth was decided"
        else:
            decided_s = None
        if ENDING.wait(LOOK_S):
            raise FleetError("ended from outside")


def _decided(case: Case, fleet: Fleet, watch: JobWatch, since_s: float) -> bool:
    """All culprits were named, and the others train (or nothing more is to come of it)."""
    if case.strict:
        return judge.judge(_facts(case, fleet, watch, since_s))[0] is judge.Verdict.EXACT
    if not case.culprits:
        return False
    named = {name for seen in watch.fired for name in seen.accused}
    if not all(any(judge.is_(culprit, name) for name in named) for culprit in case.culprits):
        return False
    trains = time.time() - watch.progress_s < 5
    return trains or case.fate is Fate.STAY


def _tell_status(fleet: Fleet, line: list[Any]) -> None:
    line[1] = status(fleet)


def status(fleet: Fleet) -> str:
    """What `lightkeeper status` says now."""
    try:
        done = subprocess.run(
            [
                str(Path(sys.executable).parent / "lightkeeper"), "status",
                "--monitor", fleet.monitor_url,
            ],
            capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL,
            env={**os.environ, "NO_COLOR": "1", "COLUMNS": "140"},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "did not answer"
    return (done.stdout + done.stderr).strip()


def _record(
    case: Case, number: int, fleet: Fleet, watch: JobWatch, actor: acts.Actor, since_s: float
) -> dict[str, Any]:
    return {
        "key": f"{case.name}#{number}",
        "case": case.name,
        "number": number,
        "family": str(case.family),
        "shape": case.shape,
        "script": case.script,
        "healthy": case.healthy,
        **_facts(case, fleet, watch, since_s),
        "failed": [line for line in actor.done if line.startswith("FAILED")],
        "statuses": watch.statuses,
        "lateness_s": round(watch.lateness_s, 1),
        "away": watch.away,
        "load": round(os.getloadavg()[0], 1),
        "code": code(),
        "folder": str(fleet.folder),
    }


def _facts(case: Case, fleet: Fleet, watch: JobWatch, since_s: float) -> dict[str, Any]:
    """What the judge goes by."""
    now_s = time.time()
    struck = fleet.struck()
    begun_s = min((float(str(strike["time"])) for strike in struck), default=since_s)
    begun_s = begun_s if case.bug and begun_s >= since_s else since_s
    fired = sorted(watch.fired, key=lambda incident: incident.latest["milestones"]["firing_s"])
    evicted: dict[str, float] = {}
    for seen in watch.seen.values():
        for progress in seen.latest.get("evictions") or ():
            evicted.setdefault(progress["group"], round(progress["asked_s"] - begun_s, 1))
    until_s = now_s if watch.exit is None else watch.exit[1]
    stands = [
        [round(a - begun_s, 1), round(b - begun_s, 1)] for a, b in watch.stood(begun_s, until_s)
    ]
    spans = [_span(incident, begun_s) for incident in fired]
    return {
        "bug": case.bug,
        "truth": case.truth(),
        "marks": fleet.marks(),
        "struck": [
            [strike["bug"], strike["rank"], round(float(str(strike["time"])) - begun_s, 1)]
            for strike in struck
        ],
        "failed": [],
        "accused": _accused(watch),
        "evicted": evicted,
        "quarantined": sorted(watch.quarantined),
        "hosts": sorted(watch.hosts),
        "to_firing": _first(fired, begun_s),
        "to_commit": _trains_again(watch, stands),
        "stands": stands,
        "stood_untold": untold(stands, spans, STRICT_STANDS_S if case.strict else STANDS_S),
        "incidents": [_short(incident, begun_s) for incident in watch.seen.values()],
        "headlines": _headlines(watch, begun_s),
        "health": watch.health,
        "exit": None if watch.exit is None else [watch.exit[0], round(until_s - begun_s, 1)],
        "took_s": round(now_s - since_s, 1),
        "at_s": round(begun_s, 1),
    }


def _headlines(watch: JobWatch, begun_s: float) -> list[list[Any]]:
    """From the one that stood when it began."""
    lines_of = [[round(at_s - begun_s, 1), text] for at_s, text in watch.headlines]
    first = sum(at_s < 0 for at_s, _ in lines_of) - 1
    return lines_of[max(first, 0) :]


def _accused(watch: JobWatch) -> list[list[str]]:
    """[rank, confidence or `pending`, kind, sentence] of everybody who was ever named."""
    rows = []
    for seen in watch.seen.values():
        kind, says = seen.latest["kind"], seen.sentences[-1][1]
        rows += [[rank, confidence, kind, says] for rank, confidence in seen.accused.items()]
        rows += [[rank, "pending", kind, says] for rank in set(seen.pending) - set(seen.accused)]
    return sorted(rows)


def _first(fired: list[Seen], begun_s: float) -> float | None:
    times = [seen.latest["milestones"]["firing_s"] - begun_s for seen in fired]
    return next((round(at_s, 1) for at_s in times if at_s >= 0), None)


def _trains_again(watch: JobWatch, stands: list[list[float]]) -> float | None:
    """Until anybody makes a step after the first stand; None while it lasts, 0 without one."""
    if not stands:
        return 0.0
    return stands[0][1] if time.time() - watch.progress_s < 5 or len(stands) > 1 else None


def _span(seen: Seen, begun_s: float) -> tuple[float, float]:
    latest = seen.latest
    end_s = latest["last_seen_s"] if latest["state"] == "resolved" else float("inf")
    return latest["milestones"]["firing_s"] - begun_s, end_s - begun_s


def untold(
    stands: list[list[float]], spans: list[tuple[float, float]], limit_s: float = STANDS_S
) -> list[list[float]]:
    """Stands longer than the limit of which no incident told in time."""
    return [
        [a, b]
        for a, b in stands
        if b - a > limit_s
        and not any(begin <= a + 1.25 * limit_s and end >= a for begin, end in spans)
    ]


def _short(seen: Seen, begun_s: float) -> dict[str, Any]:
    latest = seen.latest
    milestones = {
        name: round(at_s - begun_s, 1)
        for name, at_s in latest["milestones"].items()
        if at_s is not None
    }
    return {
        "id": latest["id"],
        "kind": latest["kind"],
        "state": latest["state"],
        "severity": latest["severity"],
        "culprits": latest["culprits"],
        "victims": latest["victims"],
        "confidence": latest["confidence"],
        "accused": seen.accused,
        "pending": sorted(seen.pending),
        "sentences": [[round(at_s - begun_s, 1), says] for at_s, says in seen.sentences],
        "milestones": milestones,
        "resolution": latest["resolution"],
        "signature": latest["signature"],
        "evidence": list(latest["evidence"].values()),
        "bundle": (latest["bundle"] or {}).get("bytes"),
        "decisions": [
            [round(d["at_s"] - begun_s, 1), *(d.get(key) for key in _OF_A_DECISION)]
            for d in latest["decisions"]
        ],
        "story": [[round(s["at_s"] - begun_s, 1), s["to"], s["reason"]] for s in latest["story"]],
    }  # fmt: skip
