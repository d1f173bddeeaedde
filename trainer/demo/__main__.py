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
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Final

from rich.box import HEAVY_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lightkeeper.trainer.demo.fleet import (
    DemoFleet,
    DemoOptions,
    FleetError,
    MonitorAwayError,
    MonitorClient,
    parse,
    start_fleet,
    unhealthy,
    wait_for_lighthouse,
)

# -- one fault -------------------------------------------------------------------------------

START_LIMIT_S: Final = 180.0
STRIKE_LIMIT_S: Final = 60.0
OUTCOME_LIMIT_S: Final = 150.0
POLL_S: Final = 0.5
EQUAL_STEPS: Final = 20
"""Two fingerprints at their default distance."""

EXPECTED_KIND: Final = {
    "hang": "not_entered",
    "gil": "not_entered",
    "stop": "not_entered",
    "crash": "dead",
    "slow": "straggler",
    "nan": "state_corrupt",
    "corrupt": "state_corrupt",
    "mismatch": "mismatch",
    "mismatch:size": "mismatch",
}
_LEAVES_BY_ITSELF: Final = frozenset({"crash", "mismatch:size"})
"""Faults that end the group before anybody can evict it."""
_MILESTONES: Final = (
    ("firing", "firing_s"),
    ("evict_asked", "evict_asked_s"),
    ("left_quorum", "left_quorum_s"),
    ("survivor_commit", "survivor_commit_s"),
    ("rejoined", "rejoined_s"),
)
"""Event of a fault, and the milestone of the monitor's incident."""

Row = dict[str, Any]
"""An object of the monitor's JSON."""
Show = Callable[[Row, str], None]
"""Shows a snapshot of the monitor and what the demo is waiting for."""


@dataclass
class FaultReport:
    """The outcome of one fault. Times are seconds after the injection; None: did not happen."""

    kind: str
    target_rank: str
    injected_s: float
    incident_id: str | None = None
    """The monitor's incident of it."""
    culprit_ranks: list[str] = field(default_factory=list)
    evicted_groups: list[str] = field(default_factory=list)
    correct: bool = False
    to_firing: float | None = None
    to_evict_asked: float | None = None
    to_left_quorum: float | None = None
    to_survivor_commit: float | None = None
    to_rejoined: float | None = None
    survivors_crashed: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def target_group(self) -> str:
        return self.target_rank.rpartition(".")[0]

    def to_json(self) -> dict[str, Any]:
        """Plain types, seconds rounded to milliseconds."""
        return {
            key: round(value, 3) if isinstance(value, float) else value
            for key, value in asdict(self).items()
        }


def _looks(
    fleet: DemoFleet, client: MonitorClient, limit_s: float
) -> Iterator[tuple[Row, list[Row]]]:
    """The monitor's snapshot and incidents, polled until the limit, while it answers.

    Raises:
        FleetError: a process of the demo ended.
    """
    for _ in fleet.attempts(limit_s, POLL_S):
        with contextlib.suppress(MonitorAwayError):
            seen = client.snapshot(), client.incidents()
            yield seen


def wait_until_whole(fleet: DemoFleet, client: MonitorClient, show: Show, limit_s: float) -> None:
    """Wait until every rank of every group commits and no incident is open.

    Raises:
        FleetError: a process of the demo ended, or the fleet was not whole in time.
    """
    why: str | None = "the monitor did not answer"
    for snapshot, _ in _looks(fleet, client, limit_s):
        why = unhealthy(snapshot, fleet.options.groups, fleet.options.ranks_per_group)
        if why is None:
            return
        show(snapshot, f"waiting for a whole fleet: {why}")
    raise FleetError(
        f"the fleet was not whole within {limit_s:.0f} s: {why} (logs: {fleet.run_dir})"
    )


def run_fault(
    fleet: DemoFleet, client: MonitorClient, kind: str, rank: str, show: Show
) -> FaultReport:
    """Inject one fault and follow it until the group is back, or the limit."""
    earlier = {incident["id"] for incident in client.incidents()}
    committed = max((row.get("step") or 0 for row in client.snapshot()["ranks"]), default=0)
    # Weights must have been seen to be equal before one that differs can be recognised.
    step = committed + EQUAL_STEPS if kind == "corrupt" else None
    fault_id = fleet.inject(kind, rank, step)
    for _ in fleet.attempts(STRIKE_LIMIT_S, 0.1):
        marker = fleet.fired(fault_id)
        if marker is not None:
            break
        show(client.snapshot(), f"injecting {kind} into {rank}")
    else:
        raise FleetError(
            f"{kind} did not strike {rank} within {STRIKE_LIMIT_S:.0f} s: is it training?"
        )
    report = FaultReport(kind, rank, marker.time)
    for snapshot, listed in _looks(fleet, client, OUTCOME_LIMIT_S):
        _read_incidents(report, [item for item in listed if item["id"] not in earlier])
        show(snapshot, _progress(report))
        if report.to_rejoined is not None and report.to_survivor_commit is not None:
            break
    report.survivors_crashed = [
        group
        for group in fleet.groups
        if group != report.target_group
        and any(e["event"] == "left" and e["time"] >= marker.time for e in fleet.events(group))
    ]
    _judge(report)
    return report


def _read_incidents(report: FaultReport, incidents: list[Row]) -> None:
    """Read the evicting incident, or else the first to fire, of the expected kind if there is one;
    and everybody who is evicted.
    """
    fired = [item for item in incidents if item["milestones"].get("firing_s") is not None]
    evicting = [item for item in fired if item["milestones"].get("evict_asked_s") is not None]
    expected = [item for item in fired if item["kind"] == EXPECTED_KIND[report.kind]]
    report.evicted_groups = sorted({group for item in evicting for group in item["groups"]})
    candidates = evicting or expected or fired
    if not candidates:
        return
    incident = min(candidates, key=lambda item: float(item["milestones"]["firing_s"]))
    report.incident_id, report.culprit_ranks = incident["id"], list(incident["culprits"])
    for name, milestone in _MILESTONES:
        at_s = incident["milestones"].get(milestone)
        setattr(report, f"to_{name}", None if at_s is None else float(at_s) - report.injected_s)


def _progress(report: FaultReport) -> str:
    """What happened so far. Finding a straggler takes several windows of 5 s or more after the
    start: a minute here.
    """
    times = [(name, getattr(report, f"to_{name}")) for name, _ in _MILESTONES]
    done = ", ".join(f"{name.replace('_', ' ')} +{s:.1f} s" for name, s in times if s is not None)
    if not done:
        done = "nothing seen yet"
        if report.kind == "slow":
            done += ": its own and its peers' pace are being learnt, for about a minute"
    return f"{report.kind} in {report.target_rank}: {done}"


def _judge(report: FaultReport) -> None:
    problems, wrongly = report.problems, {*report.evicted_groups} - {report.target_group}
    if report.to_firing is None:
        problems.append("not found")
    elif report.culprit_ranks != [report.target_rank]:
        problems.append(f"accused {', '.join(report.culprit_ranks)}, not {report.target_rank}")
    if wrongly:
        problems.append(f"evicted the healthy {', '.join(sorted(wrongly))}")
    report.correct = not problems
    if report.to_survivor_commit is None or report.survivors_crashed:
        problems.append("training did not go on")
    if report.kind not in _LEAVES_BY_ITSELF and report.target_group not in report.evicted_groups:
        problems.append("not evicted")
    if report.to_rejoined is None:
        problems.append("the group did not come back")


# -- what people see -------------------------------------------------------------------------

QUIET_LINE_S: Final = 20.0
LOG_WIDTH: Final = 118
_TRY: Final = (
    "lightkeeper top --monitor {monitor}",
    "curl {monitor}/v1/groups",
    "curl {monitor}/v1/incidents",
    "curl {rank}/",
    "curl {rank}/v1/state",
    "curl {rank}/v1/flight_recorder",
    "curl {rank}/v1/stacks",
    (
        'curl -X POST -H "Authorization: Bearer $(cat {token_file})" '
        '-d \'{{"reason": "trying it"}}\' {rank}/v1/evict'
    ),
)


def console(*, stderr: bool = False) -> Console:
    """As wide as the terminal; without one, wide enough for the tables."""
    made = Console(stderr=stderr, highlight=False)
    return made if made.is_terminal else Console(stderr=stderr, highlight=False, width=LOG_WIDTH)


class DemoLog:
    """Reports the demo's progress. Writes to stderr only: stdout is for results."""

    def __init__(self) -> None:
        self.console = console(stderr=True)
        self._began_s = time.monotonic()
        self._last_line = ""
        self._last_line_s = 0.0

    def say(self, text: str) -> None:
        """One line that stays."""
        self.console.print(f"[dim]{time.monotonic() - self._began_s:6.1f} s[/dim]  {text}")

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
            self.say("[dim]no change[/dim]")


def show_story(report: FaultReport, client: MonitorClient, out: Console) -> None:
    """What the monitor says of it, word for word, and what is wrong with that."""
    right = "[bold green]right" if report.correct else "[bold red]WRONG"
    out.print(f"{report.kind} in {report.target_rank}: {right}")
    for line in client.story(report.incident_id) if report.incident_id else ():
        out.print(Text(line), soft_wrap=True)
    for problem in report.problems:
        out.print(Text(f"problem: {problem}", style="red"))


def summary(reports: list[FaultReport], out: Console) -> Table:
    """All faults in one table, with lines around its cells only on a terminal."""
    box = HEAVY_HEAD if out.is_terminal else None
    table = Table(title="summary (seconds after the injection)", title_justify="left", box=box)
    for column in ("fault", "culprit", "evicted", "firing", "evict asked", "left quorum",
                   "survivors commit", "group back", "verdict"):  # fmt: skip
        table.add_column(column)
    for report in reports:
        times = (getattr(report, f"to_{name}") for name, _ in _MILESTONES)
        table.add_row(
            report.kind,
            ", ".join(report.culprit_ranks) or "-",
            ", ".join(report.evicted_groups) or "-",
            *("-" if time_s is None else f"{time_s:.1f}" for time_s in times),
            "; ".join(report.problems) or "right",
        )
    return table


# -- the run ---------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    run_dir = options.run_dir or Path(tempfile.mkdtemp(prefix="lightkeeper-demo-"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        reports = _run(options, run_dir.resolve())
    except (OSError, FleetError, MonitorAwayError) as exc:
        at = f"{exc.filename or run_dir}: {exc.strerror}" if isinstance(exc, OSError) else exc
        print(f"error: {at}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted, everything was stopped", file=sys.stderr)
        return 130
    ok = not any(report.problems for report in reports)
    if options.format == "json":
        result = {
            "schema": 1,
            "groups": options.groups,
            "ranks_per_group": options.ranks_per_group,
            "run_dir": str(run_dir),
            "ok": ok,
            "faults": [report.to_json() for report in reports],
        }
        print(json.dumps(result))
    else:
        out = console()
        out.print(summary(reports, out))
    return 0 if ok else 1


def _run(options: DemoOptions, run_dir: Path) -> list[FaultReport]:
    reports: list[FaultReport] = []
    view = DemoLog()
    with start_fleet(options, run_dir) as fleet, contextlib.closing(fleet.monitor()) as client:
        view.say(
            f"starting {options.groups} groups x {options.ranks_per_group} ranks; logs in {run_dir}"
        )
        wait_for_lighthouse(fleet, START_LIMIT_S)
        wait_until_whole(fleet, client, view.show, START_LIMIT_S)
        view.say(f"whole: every rank commits. Monitor: {fleet.monitor_url}")
        for number, kind in enumerate(options.faults):
            if number:
                wait_until_whole(fleet, client, view.show, START_LIMIT_S)
            # Another group for each fault, and its last rank, which hosts no TorchFT manager.
            rank = f"rg_{(number + 1) % options.groups}.{options.ranks_per_group - 1}"
            view.say(f"injecting {kind} into {rank}")
            reports.append(run_fault(fleet, client, kind, rank, view.show))
            show_story(reports[-1], client, view.console)
        if options.keep_running:
            url = client.snapshot()["ranks"][0]["url"]
            view.say(f"everything stays up until Ctrl-C; open {fleet.monitor_url}/ or try:")
            for line in _TRY:
                said = line.format(monitor=fleet.monitor_url, rank=url, token_file=fleet.token_file)
                view.console.print(f"  {said}", soft_wrap=True, markup=False)
            with contextlib.suppress(KeyboardInterrupt):
                for _ in fleet.attempts(inf, 1):
                    pass
    return reports


if __name__ == "__main__":
    sys.exit(main())
