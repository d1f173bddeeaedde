"""`lightkeeper demo`: faults in a real fleet, each from injection to recovery.

Every time is measured where it happens: the injection by the trainer that fails, the rest by the
monitor. Both run on this machine and use one clock.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from math import inf
from pathlib import Path
from typing import Any, Final

from lightkeeper.trainer.demo.fleet import (
    FAULTS,
    DemoFleet,
    DemoOptions,
    FleetError,
    MonitorAwayError,
    parse,
    start_fleet,
    unhealthy,
)
from lightkeeper.trainer.faults import KINDS, Marker

# -- one fault -------------------------------------------------------------------------------

START_LIMIT_S: Final = 180.0
STRIKE_LIMIT_S: Final = 60.0
KEEPER_LIMIT_S: Final = 150.0
POLL_S: Final = 0.5
EQUAL_STEPS: Final = 20
"""Two fingerprints at their default distance."""
MILESTONES: Final = ("firing", "evict_asked", "left_quorum", "survivor_commit", "rejoined")
"""Of the monitor's incident."""

Row = dict[str, Any]
"""An object of the monitor's JSON, or of ours."""
Show = Callable[[Row, str], None]
"""Shows a snapshot of the monitor and what the demo is waiting for."""


def _looks(fleet: DemoFleet, limit_s: float) -> Iterator[tuple[Row, list[Row]]]:
    """The monitor's snapshot and incidents, polled until the limit, while it answers.

    Raises:
        FleetError: a process of the demo ended.
    """
    for _ in fleet.attempts(limit_s, POLL_S):
        with contextlib.suppress(MonitorAwayError):
            seen = fleet.monitor.snapshot(), fleet.monitor.incidents()
            yield seen


def wait_until_whole(fleet: DemoFleet, show: Show, limit_s: float) -> None:
    """Wait until every rank of every group commits and no incident is open.

    Raises:
        FleetError: a process of the demo ended, or the fleet was not whole in time.
    """
    why: str | None = "the monitor did not answer"
    for snapshot, _ in _looks(fleet, limit_s):
        why = unhealthy(snapshot, fleet.options.groups, fleet.options.ranks_per_group)
        if why is None:
            return
        show(snapshot, f"waiting for a whole fleet: {why}")
    raise FleetError(
        f"the fleet was not whole within {limit_s:.0f} s: {why} (logs: {fleet.run_dir})"
    )


def run_fault(fleet: DemoFleet, kind: str, rank: str, show: Show) -> Row:
    """Inject one fault and follow it until the group is back, or the limit; returns its report."""
    earlier = {incident["id"] for incident in fleet.monitor.incidents()}
    # Weights must have been seen to be equal before one that differs can be recognised.
    best_step = max((row.get("step") or 0 for row in fleet.monitor.snapshot()["ranks"]), default=0)
    step = best_step + EQUAL_STEPS if kind == "corrupt" else None
    fault_id = fleet.inject(kind, rank, step)
    for _ in fleet.attempts(STRIKE_LIMIT_S, 0.1):
        marker = fleet.fired(fault_id)
        if marker is not None:
            break
        show(fleet.monitor.snapshot(), f"injecting {kind} into {rank}")
    else:
        raise FleetError(
            f"{kind} did not strike {rank} within {STRIKE_LIMIT_S:.0f} s: is it training?"
        )
    report = report_of(kind, marker, [], {})
    for snapshot, listed in _looks(fleet, KEEPER_LIMIT_S):
        incidents = [incident for incident in listed if incident["id"] not in earlier]
        left = {group: fleet.left_s(group, marker.time) for group in fleet.groups}
        report = report_of(kind, marker, incidents, left)
        show(snapshot, sentence(report))
        if report["to_rejoined"] is not None and report["to_survivor_commit"] is not None:
            break
    return report


def _main_incident(kind: str, incidents: list[Row]) -> Row | None:
    """The incident that fired for this fault: the evicting one, else the first to fire."""
    fired = [item for item in incidents if item["milestones"].get("firing_s") is not None]
    return min(
        fired,
        key=lambda item: (
            not _evicting(item),
            item["kind"] != FAULTS[kind].incident,
            item["milestones"]["firing_s"],
        ),
        default=None,
    )


def _evicting(incident: Row) -> bool:
    return incident["milestones"].get("evict_asked_s") is not None


def report_of(
    kind: str, struck: Marker, incidents: list[Row], left: dict[str, float | None]
) -> Row:
    """The outcome of one fault so far. Times are seconds after the injection; None: did not happen.

    `left`: when each group's launch first ended after it, unix time.
    """

    def after_s(at_s: float | None) -> float | None:
        return None if at_s is None else round(at_s - struck.time, 3)

    target = struck.rank.rpartition(".")[0]
    incident = _main_incident(kind, incidents)
    about: Row = incident or {"culprits": [], "groups": [], "milestones": {}, "account": {}}
    times = {f"to_{name}": after_s(about["milestones"].get(f"{name}_s")) for name in MILESTONES}
    account, group = about["account"], next(iter(about["groups"]), None)
    crashed = sorted(name for name, at_s in left.items() if at_s is not None and name != target)
    report = {
        "kind": kind,
        "target_rank": struck.rank,
        "target_group": target,
        "injected_s": round(struck.time, 3),
        "incident": about.get("id"),
        "culprit_ranks": about["culprits"],
        "culprit_group": group,
        "evicted_group": None if times["to_evict_asked"] is None else group,
        **times,
        "reason": about.get("reason"),
        "held": account["why"] if account.get("outcome") == "held" else None,
        "left_host": next(iter(about.get("hosts", ())), None),
        "rejoined_host": next(iter(about.get("back_on", ())), None),
        "survivors_crashed": crashed,
        "training_went_on": times["to_survivor_commit"] is not None and not crashed,
    }
    wrong = list(_wrong(report, incidents))
    return {**report, "correct": not wrong, "problems": [*wrong, *_failed(report)]}


def _wrong(report: Row, incidents: list[Row]) -> Iterator[str]:
    """What the monitor did wrong."""
    if report["to_firing"] is None:
        yield "not found"
    elif report["culprit_ranks"] != [report["target_rank"]]:
        yield f"accused {', '.join(report['culprit_ranks'])}, not {report['target_rank']}"
    evicted = {group for item in filter(_evicting, incidents) for group in item["groups"]}
    if evicted := evicted - {report["target_group"]}:
        yield f"evicted the healthy {', '.join(sorted(evicted))}"


def _failed(report: Row) -> Iterator[str]:
    """What it did not achieve."""
    if not report["training_went_on"]:
        yield "training did not go on"
    if not FAULTS[report["kind"]].leaves and report["evicted_group"] is None:
        yield f"not evicted ({report['held'] or 'no decision'})"
    if report["to_rejoined"] is None:
        yield "the group did not come back"


# -- what people see -------------------------------------------------------------------------

QUIET_LINE_S: Final = 20.0


class DemoLog:
    """Reports the demo's progress. Writes to stderr only: stdout is for results."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._last_line = ""
        self._last_line_s = 0.0

    def say(self, text: str) -> None:
        """One line."""
        print(f"{time.monotonic() - self._began_s:6.1f} s  {text}", file=sys.stderr, flush=True)

    def show(self, snapshot: dict[str, Any], waiting_for: str) -> None:
        """The fleet as it is now: a line when it changes, a short one when it long does not."""
        healths = [f"{rank['rank']} {rank['health']}" for rank in snapshot["ranks"]]
        line = f"{'  '.join(healths) or 'no ranks'} | {waiting_for}"
        since_s = time.monotonic() - self._last_line_s
        if line != self._last_line and since_s > 1:
            self._last_line, self._last_line_s = line, time.monotonic()
            self.say(line)
        elif since_s > QUIET_LINE_S:
            self._last_line_s = time.monotonic()
            self.say("no change")


def sentence(report: Row) -> str:
    """What happened of a fault so far; seconds after the injection."""
    times = ((name.replace("_", " "), report[f"to_{name}"]) for name in MILESTONES)
    done = ", ".join(f"{name} +{time_s:.1f} s" for name, time_s in times if time_s is not None)
    return f"{report['kind']} in {report['target_rank']}: {done or 'nothing seen yet'}"


def verdict(report: Row) -> str:
    """The same, and whether the monitor was right."""
    return f"{sentence(report)}; {', '.join(report['problems']) or 'right'}"


# -- the run ---------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    run_dir = options.run_dir or Path(tempfile.mkdtemp(prefix="lightkeeper-demo-"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        reports = _run_fleet(options, run_dir.resolve())
    except (OSError, FleetError, MonitorAwayError) as exc:
        at = f"{exc.filename or run_dir}: {exc.strerror}" if isinstance(exc, OSError) else exc
        print(f"error: {at}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted, everything was stopped", file=sys.stderr)
        return 130
    ok = not any(report["problems"] for report in reports)
    if options.format == "json":
        result = {
            "schema": 1,
            "groups": options.groups,
            "ranks_per_group": options.ranks_per_group,
            "run_dir": str(run_dir),
            "ok": ok,
            "faults": reports,
        }
        print(json.dumps(result))
    else:
        print(*map(verdict, reports), sep="\n")
    return 0 if ok else 1


def _run_fleet(options: DemoOptions, run_dir: Path) -> list[Row]:
    reports: list[Row] = []
    log = DemoLog()
    with start_fleet(options, run_dir) as fleet:
        log.say(
            f"starting {options.groups} groups x {options.ranks_per_group} ranks; logs in {run_dir}"
        )
        wait_until_whole(fleet, log.show, START_LIMIT_S)
        log.say(f"whole: every rank commits. Monitor: {fleet.monitor_url}")
        for number, kind in enumerate(options.faults):
            if number:
                wait_until_whole(fleet, log.show, START_LIMIT_S)
            # Another group for each fault, and its last rank, which hosts no TorchFT manager.
            rank = f"rg_{(number + 1) % options.groups}.{options.ranks_per_group - 1}"
            log.say(f"injecting {kind} into {rank}: {KINDS[kind]}")
            report = run_fault(fleet, kind, rank, log.show)
            reports.append(report)
            if report["incident"] is not None:
                fleet.print_story(report["incident"])
            log.say(verdict(report))
        if options.keep_running:
            rank_url = fleet.monitor.snapshot()["ranks"][0]["url"]
            log.say(
                f"everything stays up until Ctrl-C; open {fleet.monitor_url}/, or curl it and "
                f"{rank_url}: both say what else to ask; the token is in {fleet.token_file}"
            )
            with contextlib.suppress(KeyboardInterrupt):
                for _ in fleet.attempts(inf, 1):
                    pass
    return reports


if __name__ == "__main__":
    sys.exit(main())
