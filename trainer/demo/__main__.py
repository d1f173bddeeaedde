"""`lightkeeper demo`: faults in a real fleet, each from injection to recovery, as a timeline.

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
KEEPER_LIMIT_S: Final = 150.0
# TorchFT alone: survivors crash after about 125 s and restart (facts/torchft.md).
ALONE_LIMIT_S: Final = 300.0
# A slow group slows the others forever; longer would show the same.
ALONE_SLOW_LIMIT_S: Final = 60.0
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
    target_group: str
    injected_s: float
    culprit_ranks: list[str] = field(default_factory=list)
    culprit_group: str | None = None
    evicted_group: str | None = None
    correct: bool = False
    to_firing: float | None = None
    to_evict_asked: float | None = None
    to_left_quorum: float | None = None
    to_survivor_commit: float | None = None
    to_rejoined: float | None = None
    reason: str | None = None
    """The monitor's sentence about the culprit."""
    held: str | None = None
    """Why nobody was evicted, if so."""
    rejoined_host: str | None = None
    left_host: str | None = None
    survivors_crashed: list[str] = field(default_factory=list)
    to_survivors_crashed: float | None = None
    steps_lost: int | None = None
    """Committed steps that no living rank has any more; 0 while a survivor lives."""
    training_went_on: bool = False
    problems: list[str] = field(default_factory=list)

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
    group = rank.rpartition(".")[0]
    before = client.snapshot()
    best_step = _furthest(before["ranks"])
    # Weights must have been seen to be equal before one that differs can be recognised.
    step = best_step + EQUAL_STEPS if kind == "corrupt" else None
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
    hosts = {row["group"]: row["host"] for row in before["groups"]}
    report = FaultReport(kind, rank, group, marker.time, left_host=hosts.get(group))
    alone_s = ALONE_SLOW_LIMIT_S if kind == "slow" else ALONE_LIMIT_S
    keeper = fleet.options.keeper
    incidents: list[Row] = []
    for snapshot, listed in _looks(fleet, client, KEEPER_LIMIT_S if keeper else alone_s):
        incidents = [incident for incident in listed if incident["id"] not in earlier]
        _read_incidents(report, incidents)
        _read_supervisors(report, fleet, snapshot, best_step)
        show(snapshot, _progress(report))
        # Alone it is over when the others commit again; with a slow rank they do, slowly.
        ended = report.to_rejoined is not None if keeper else kind != "slow"
        if ended and report.to_survivor_commit is not None:
            break
    _judge(report, incidents, keeper)
    return report


def _furthest(ranks: list[Row]) -> int:
    return max((rank.get("step") or 0 for rank in ranks), default=0)


def _main_incident(report: FaultReport, incidents: list[Row]) -> Row | None:
    """The incident that fired for this fault: the evicting one, else the first to fire."""
    fired = [item for item in incidents if item["milestones"].get("firing_s") is not None]
    evicting = [item for item in fired if item["milestones"].get("evict_asked_s") is not None]
    expected = [item for item in fired if item["kind"] == EXPECTED_KIND[report.kind]]
    candidates = evicting or expected or fired
    return min(candidates, key=lambda item: float(item["milestones"]["firing_s"]), default=None)


def _read_incidents(report: FaultReport, incidents: list[Row]) -> None:
    incident = _main_incident(report, incidents)
    if incident is None:
        return
    report.culprit_ranks = list(incident["culprits"])
    report.culprit_group = incident["groups"][0] if incident["groups"] else None
    report.reason = incident["reason"]
    for name, milestone in _MILESTONES:
        at_s = incident["milestones"].get(milestone)
        setattr(report, f"to_{name}", None if at_s is None else float(at_s) - report.injected_s)
    if report.to_evict_asked is not None:
        report.evicted_group = report.culprit_group
    holds = [item for item in incident.get("decisions", []) if item["action"] == "hold"]
    report.held = f"{holds[0]['guard']}: {holds[0]['reason']}" if holds else None


def _read_supervisors(report: FaultReport, fleet: DemoFleet, snapshot: Row, best_step: int) -> None:
    for group in fleet.groups:
        events = [item for item in fleet.events(group) if item["time"] >= report.injected_s]
        left = [item for item in events if item["event"] == "left"]
        started = [item for item in events if item["event"] == "started"]
        if group == report.target_group and started:
            report.rejoined_host = started[-1]["host"]
        if group != report.target_group and left and group not in report.survivors_crashed:
            report.survivors_crashed.append(group)
            crashed_after = left[0]["time"] - report.injected_s
            report.to_survivors_crashed = min(
                crashed_after, report.to_survivors_crashed or crashed_after
            )
    report.steps_lost = report.steps_lost or 0
    if len(report.survivors_crashed) == len(fleet.groups) - 1:
        survivors = [item for item in snapshot["ranks"] if item["group"] != report.target_group]
        report.steps_lost = max(report.steps_lost, best_step - _furthest(survivors))


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


def _judge(report: FaultReport, incidents: list[Row], keeper: bool) -> None:
    evicted = {
        group
        for item in incidents
        if item["milestones"].get("evict_asked_s") is not None
        for group in item["groups"]
    }
    problems = report.problems
    if report.to_firing is None:
        problems.append("not found")
    elif report.culprit_ranks != [report.target_rank]:
        problems.append(f"accused {', '.join(report.culprit_ranks)}, not {report.target_rank}")
    if evicted - {report.target_group}:
        problems.append(f"evicted the healthy {', '.join(sorted(evicted - {report.target_group}))}")
    report.correct = not problems
    report.training_went_on = report.to_survivor_commit is not None and not report.survivors_crashed
    if keeper and not report.training_went_on:
        problems.append("training did not go on")
    if keeper and report.kind not in _LEAVES_BY_ITSELF and report.evicted_group is None:
        problems.append(f"not evicted ({report.held or 'no decision'})")
    if keeper and report.to_rejoined is None:
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


def framed(out: Console, title: str, **how: Any) -> Table:
    """A table, with lines around its cells only on a terminal."""
    return Table(title=title, title_justify="left", box=HEAVY_HEAD if out.is_terminal else None,
                 **how)  # fmt: skip


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


def timeline(report: FaultReport, out: Console) -> Table:
    """The events of one fault, in order."""
    title = f"{report.kind} in {report.target_rank}: {'right' if report.correct else 'WRONG'}"
    style = "bold green" if report.correct else "bold red"
    table = framed(out, title, show_header=False, title_style=style)
    table.add_column(justify="right")
    table.add_column()
    rows = [
        (0.0, f"injected into {report.target_rank} on {report.left_host}"),
        (report.to_firing, f"firing: {report.reason or 'never'}"),
        (report.to_evict_asked, f"evict asked: {report.evicted_group or 'nobody'}"),
        (report.to_left_quorum, "left the quorum"),
        (report.to_survivors_crashed, f"survivors crashed: {', '.join(report.survivors_crashed)}"),
        (report.to_survivor_commit, "survivors' first commit"),
        (report.to_rejoined, f"{report.target_group} back and healed, on {report.rejoined_host}"),
    ]
    happened = [(seconds, text) for seconds, text in rows if seconds is not None]
    for seconds, text in sorted(happened, key=lambda row: row[0]):
        table.add_row(f"+{seconds:.1f} s", Text(text))
    if report.held and report.evicted_group is None:
        table.add_row("held", Text(report.held))
    for problem in report.problems:
        table.add_row("problem", Text(problem, style="red"))
    return table


def summary(reports: list[FaultReport], out: Console) -> Table:
    """All faults in one table; seconds after the injection."""
    table = framed(out, "summary (seconds after the injection)")
    for column in ("fault", "culprit", "evicted", "firing", "evict asked", "left quorum",
                   "survivors commit", "group back", "verdict"):  # fmt: skip
        table.add_column(column)
    for report in reports:
        times = (getattr(report, f"to_{name}") for name, _ in _MILESTONES)
        table.add_row(
            report.kind,
            ", ".join(report.culprit_ranks) or "-",
            report.evicted_group or "-",
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
            "keeper": options.keeper,
            "run_dir": str(run_dir),
            "ok": ok,
            "faults": [report.to_json() for report in reports],
        }
        print(json.dumps(result))
    else:
        out = console()
        out.print(summary(reports, out))
    return 1 if options.keeper and not ok else 0


def _run(options: DemoOptions, run_dir: Path) -> list[FaultReport]:
    if options.keeper:
        return _run_fleet(options, run_dir, options.faults)
    # Nobody repairs the fleet here: the effects of one fault would spoil the next.
    return [
        report
        for number, kind in enumerate(options.faults)
        for report in _run_fleet(options, run_dir / f"{number}-{kind}", (kind,))
    ]


def _run_fleet(options: DemoOptions, run_dir: Path, faults: tuple[str, ...]) -> list[FaultReport]:
    reports: list[FaultReport] = []
    view = DemoLog()
    with start_fleet(options, run_dir) as fleet, contextlib.closing(fleet.monitor()) as client:
        view.say(
            f"starting {options.groups} groups x {options.ranks_per_group} ranks, "
            f"{'with' if options.keeper else 'without'} keeper; logs in {run_dir}"
        )
        wait_for_lighthouse(fleet, START_LIMIT_S)
        wait_until_whole(fleet, client, view.show, START_LIMIT_S)
        view.say(f"whole: every rank commits. Monitor: {fleet.monitor_url}")
        for number, kind in enumerate(faults):
            if number and options.keeper:
                wait_until_whole(fleet, client, view.show, START_LIMIT_S)
            # Another group for each fault, and its last rank, which hosts no TorchFT manager.
            rank = f"rg_{(number + 1) % options.groups}.{options.ranks_per_group - 1}"
            view.say(f"injecting {kind} into {rank}")
            reports.append(run_fault(fleet, client, kind, rank, view.show))
            view.console.print(timeline(reports[-1], view.console))
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
