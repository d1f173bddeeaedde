"""The runs of a job: when each began, how far it came, how fast it was, what went wrong. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from lightkeeper.monitor.decide.view import View
from lightkeeper.monitor.model.plain import to_plain
from lightkeeper.monitor.show.pages import pace_line
from lightkeeper.monitor.show.templating import render


def runs_to_json(view: View) -> Iterator[dict[str, Any]]:
    """Newest first; the first is that of the ranks that are registered now."""
    fired = Counter(i.run for i in view.incidents if i.milestones.firing_s is not None)
    for run in view.runs:
        plain = to_plain(run)
        del plain["trend"], plain["bringer"], plain["lost"]
        yield {**plain, "lasted_s": max(0.0, run.seen_s - run.began_s), "incidents": fired[run.id]}


def runs_page(view: View) -> str:
    paces = [pace_line(run.trend) for run in view.runs]
    rows = zip(runs_to_json(view), paces, strict=True)
    return render("runs.html", rows=list(rows), now_s=view.snapshot.now_s, view=view)
