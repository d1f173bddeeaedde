"""What people see: one live table on a terminal, a line on change elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Final, Self, TextIO

from rich.box import HEAVY_HEAD, Box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from trainer.demo.scenario import FaultReport

QUIET_LINE_S: Final = 10.0
LOG_WIDTH: Final = 118
_COLOURS: Final = {
    "healthy": "green",
    "waiting": "yellow",
    "stalled": "red",
    "dead": "bold red",
    "unreachable": "magenta",
    "starting": "cyan",
    "late": "yellow",
    "slow": "red",
    "corrupt": "red",
    "traced": "magenta",
}


def console(*, stderr: bool = False) -> Console:
    """As wide as the terminal; where there is none, wide enough for the tables."""
    made = Console(stderr=stderr, highlight=False)
    return made if made.is_terminal else Console(stderr=stderr, highlight=False, width=LOG_WIDTH)


def frame(file: TextIO) -> Box | None:
    """Lines around the cells of a table that goes there: none in a pipe."""
    return HEAVY_HEAD if file.isatty() else None


class View:
    """Shows the fleet while the demo runs. Writes to stderr only: stdout is for results."""

    def __init__(self) -> None:
        self.console = console(stderr=True)
        self._live: Live | None = None
        self._began = time.monotonic()
        self._last_line = ""
        self._last_line_at = 0.0

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live = Live(console=self.console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, text: str) -> None:
        """One line that stays."""
        self.console.print(f"[dim]{time.monotonic() - self._began:6.1f} s[/dim]  {text}")

    def show(self, snapshot: dict[str, Any], waiting_for: str) -> None:
        """The fleet as it is now; on a terminal in place, elsewhere a line when it changes."""
        if self._live is not None:
            self._live.update(
                Group(_fleet_table(snapshot), *_incidents(snapshot), Text(waiting_for, style="dim"))
            )
            return
        line = f"{_fleet_line(snapshot)} | {waiting_for}"
        now = time.monotonic()
        if (line != self._last_line and now - self._last_line_at > 1) or (
            now - self._last_line_at > QUIET_LINE_S
        ):
            self._last_line, self._last_line_at = line, now
            self.say(line)


def _fleet_line(snapshot: dict[str, Any]) -> str:
    return "  ".join(f"{rank['rank']} {rank['health']}" for rank in snapshot["ranks"]) or "no ranks"


def _fleet_table(snapshot: dict[str, Any]) -> Table:
    lighthouse = snapshot["lighthouse"]
    quorum = f"quorum {lighthouse['quorum_id']}" if lighthouse.get("up") else "Lighthouse away"
    table = Table(title=f"fleet, {quorum}", title_justify="left", expand=False)
    for column in ("rank", "host", "health", "phase", "step", "commit", "busy/step"):
        table.add_column(column, justify="right" if column in ("step", "busy/step") else "left")
    for rank in snapshot["ranks"]:
        health = rank["health"]
        table.add_row(
            rank["rank"],
            rank["host"],
            Text(health, style=_COLOURS.get(health, "")),
            f"{rank.get('phase') or '-'} {_seconds(rank.get('phase_age_s'))}",
            str(rank["step"]) if rank.get("step") is not None else "-",
            f"{_seconds(rank.get('last_commit_age_s'))} ago",
            _seconds(rank.get("busy_s"), 3),
        )
    return table


def _incidents(snapshot: dict[str, Any]) -> list[Text]:
    return [
        Text.assemble(
            (f"{incident['state']} ", "bold red"),
            (f"{incident['kind']} ", "bold"),
            incident["reason"],
        )
        for incident in snapshot["incidents"]
    ]


def _seconds(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f} s"


def timeline(report: FaultReport) -> Table:
    """The timeline of one fault."""
    verdict = "right" if report.correct else "WRONG"
    table = Table(
        title=f"{report.kind} in {report.target_rank}: {verdict}",
        title_justify="left",
        show_header=False,
        box=frame(sys.stderr),
        title_style="bold green" if report.correct else "bold red",
    )
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


def summary(reports: list[FaultReport]) -> Table:
    """All faults in one table; seconds after the injection."""
    table = Table(
        title="summary (seconds after the injection)", title_justify="left", box=frame(sys.stdout)
    )
    for column in (
        "fault",
        "culprit",
        "evicted",
        "firing",
        "evict asked",
        "left quorum",
        "survivors commit",
        "group back",
        "verdict",
    ):
        table.add_column(column)
    for report in reports:
        table.add_row(
            report.kind,
            ", ".join(report.culprit_ranks) or "-",
            report.evicted_group or "-",
            *(
                _bare(value)
                for value in (
                    report.to_firing,
                    report.to_evict_asked,
                    report.to_left_quorum,
                    report.to_survivor_commit,
                    report.to_rejoined,
                )
            ),
            "right" if report.correct and not report.problems else "; ".join(report.problems),
        )
    return table


def _bare(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
