"""`lightkeeper get runs`: every start of the job that the monitor saw."""

from __future__ import annotations

from lightkeeper.monitor.commands.ask import Monitor, asking
from lightkeeper.monitor.commands.command import as_json, command
from lightkeeper.monitor.commands.printing import console, print_json, show_table
from lightkeeper.monitor.show.terminal import moment


@command()
@as_json
@asking
def runs(*, monitor: Monitor, as_json: bool) -> None:
    """Every start of the job that the monitor saw, newest first.

    examples:
      lightkeeper get runs
      lightkeeper incidents list --run 20261127-164512     what went wrong in one of them

    a run begins when a rank starts and nobody of the last run lives

    exit status: 0 done, 1 no monitor answers, 2 wrong arguments
    """
    body = monitor.ask("/v1/runs")
    if as_json:
        print_json(body)
        return
    rows = [
        (run["id"], moment(run["began_s"]), run["job"], f"{run['lasted_s']:.0f} s", run["ranks"],
         run["step"], run["incidents"])
        for run in body["runs"]
    ]  # fmt: skip
    columns = ("run", "began", "job", "lasted", "ranks", "step", "incidents")
    show_table(console(), "runs", columns, rows)
