"""`lightkeeper demo`."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rich.box import HEAVY_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainer.demo import scenario
from trainer.demo.fleet import (
    DemoFleet,
    DemoOptions,
    FleetError,
    MonitorAwayError,
    MonitorClient,
    parse,
    start_fleet,
    wait_for_lighthouse,
)
from trainer.demo.scenario import FaultReport

QUIET_LINE_S: Final = 10.0
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


# -- what people see -------------------------------------------------------------------------


def console(*, stderr: bool = False) -> Console:
    """As wide as the terminal; where there is none, wide enough for the tables."""
    made = Console(stderr=stderr, highlight=False)
    return made if made.is_terminal else Console(stderr=stderr, highlight=False, width=LOG_WIDTH)


def framed(out: Console, title: str, **how: Any) -> Table:
    """A table; lines around its cells on a terminal, none in a pipe."""
    return Table(title=title, title_justify="left", box=HEAVY_HEAD if out.is_terminal else None,
                 **how)  # fmt: skip


class DemoLog:
    """Tells how the demo goes on. Writes to stderr only: stdout is for results."""

    def __init__(self) -> None:
        self.console = console(stderr=True)
        self._began_s = time.monotonic()
        self._last_line = ""
        self._last_line_s = 0.0

    def say(self, text: str) -> None:
        """One line that stays."""
        self.console.print(f"[dim]{time.monotonic() - self._began_s:6.1f} s[/dim]  {text}")

    def show(self, snapshot: dict[str, Any], waiting_for: str) -> None:
        """The fleet as it is now: a line when it changes."""
        healths = [f"{rank['rank']} {rank['health']}" for rank in snapshot["ranks"]]
        line = f"{'  '.join(healths) or 'no ranks'} | {waiting_for}"
        since_s = time.monotonic() - self._last_line_s
        if (line != self._last_line and since_s > 1) or since_s > QUIET_LINE_S:
            self._last_line, self._last_line_s = line, time.monotonic()
            self.say(line)


def timeline(report: FaultReport, out: Console) -> Table:
    """What happened of one fault, in order."""
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
        times = (report.to_firing, report.to_evict_asked, report.to_left_quorum,
                 report.to_survivor_commit, report.to_rejoined)  # fmt: skip
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
    """Run the demo; gives the exit status."""
    options = parse(argv)
    run_dir = options.run_dir or Path(tempfile.mkdtemp(prefix="lightkeeper-demo-"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        reports = _run(options, run_dir.resolve())
    except OSError as exc:
        print(f"error: {exc.filename or run_dir}: {exc.strerror}", file=sys.stderr)
        return 1
    except (FleetError, MonitorAwayError) as exc:
        print(f"error: {exc}", file=sys.stderr)
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
    # Nobody heals the fleet here: what one fault left behind would spoil the next.
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
        wait_for_lighthouse(fleet, scenario.START_LIMIT_S)
        scenario.wait_until_whole(fleet, client, view.show, scenario.START_LIMIT_S)
        view.say(f"whole: every rank commits. Monitor: {fleet.monitor_url}")
        for number, kind in enumerate(faults):
            if number and options.keeper:
                scenario.wait_until_whole(fleet, client, view.show, scenario.START_LIMIT_S)
            # Another group for each fault; the last rank of it, which hosts no TorchFT manager.
            rank = f"rg_{(number + 1) % options.groups}.{options.ranks_per_group - 1}"
            view.say(f"injecting {kind} into {rank}")
            reports.append(scenario.run_fault(fleet, client, kind, rank, view.show))
            view.console.print(timeline(reports[-1], view.console))
        if options.keep_running:
            _keep_running(fleet, client, view)
    return reports


def _keep_running(fleet: DemoFleet, client: MonitorClient, view: DemoLog) -> None:
    url = client.snapshot()["ranks"][0]["url"]
    view.say(f"everything stays up until Ctrl-C; open {fleet.monitor_url}/ or try:")
    for line in _TRY:
        said = line.format(monitor=fleet.monitor_url, rank=url, token_file=fleet.token_file)
        view.console.print(f"  {said}", soft_wrap=True, markup=False)
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            fleet.check_alive()
            time.sleep(1)


if __name__ == "__main__":
    sys.exit(main())
