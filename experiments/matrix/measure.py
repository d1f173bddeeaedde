"""One run as seconds after the fault. Pure.

What training did is read from the trainers' own status files, with and without lightkeeper
alike; what lightkeeper did from its incidents.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any, Final

from experiments.matrix.cases import Case

Event = Mapping[str, Any]
Row = dict[str, Any]

PACE: Final = 2.0
"""Commits at most this many usual step times apart are at the old pace."""
IN_A_ROW: Final = 3
"""So many of them in a row: training goes on."""
BASELINE: Final = 20
"""Commits before the fault that tell the usual step time."""
NOBODY_ENDS_IT_S: Final = 60.0
"""Alone, a stopped group whose survivors train on is waited for no longer."""
SETTLE_S: Final = 0.5
"""A step that was under way when the fault struck still commits."""


def group_of(rank: str) -> str:
    """Of `rg_1.0`: `rg_1`."""
    return rank.rpartition(".")[0]


def commits_of(group: str, steps: Iterable[Event]) -> list[float]:
    """When group rank 0 of a group committed."""
    return [
        line["time"]
        for line in steps
        if line["event"] == "step" and line["committed"] and line["rank"] == f"{group}.0"
    ]


def usual_s(commits: Sequence[float], before_s: float) -> float:
    """The usual time between two commits before the fault."""
    old = [at_s for at_s in commits if at_s < before_s][-BASELINE:]
    return median(b - a for a, b in pairwise(old)) if len(old) > 2 else 1.0


def resumed_s(commits: Sequence[float], struck_s: float) -> float | None:
    """When the first of some commits in a row at the old pace was made, after the fault."""
    pace_s = PACE * usual_s(commits, struck_s)
    late = [at_s for at_s in commits if at_s > struck_s + SETTLE_S]
    for first in range(len(late) - IN_A_ROW + 1):
        some = late[first : first + IN_A_ROW]
        if all(b - a <= pace_s for a, b in pairwise(some)):
            return some[0]
    return None


AWAY_S: Final = 3.0
"""Without a commit for longer, and then with one: the link of a living process came back."""


def back_s(group: str, steps: Sequence[Event], struck_s: float) -> tuple[float, str] | None:
    """First commit of the group after the fault, by a process that started since or was away for
    long, and on which host.
    """
    own = [line for line in steps if line["rank"] == f"{group}.0"]
    started = {line["pid"]: line for line in own if line["event"] == "started"}
    last_s = struck_s
    for line in own:
        if line["event"] != "step" or not line["committed"] or line["time"] <= struck_s:
            continue
        process = started.get(line["pid"])
        away = line["time"] - last_s > AWAY_S
        if process is not None and (away or process["time"] > struck_s):
            return line["time"], process["host"]
        last_s = line["time"]
    return None


def measure(
    case: Case,
    *,
    group: str,
    host: str,
    struck_s: float,
    steps: Sequence[Event],
    exits: Mapping[str, Sequence[Event]],
    incidents: Sequence[Event],
    watched_s: float,
) -> Row:
    """The row of a run.

    Args:
        case: the run.
        group: that fell ill, on `host`.
        host: see above.
        struck_s: unix time.
        steps: the trainers' status lines, whole fleet.
        exits: group -> what its launcher noted.
        incidents: of this run, as the monitor told them last.
        watched_s: for how long it was watched.
    """
    others = [name for name in exits if name != group]
    resumed = [resumed_s(commits_of(name, steps), struck_s) for name in others]
    survivors = min((at_s for at_s in resumed if at_s is not None), default=None)
    back = back_s(group, steps, struck_s)
    crashed = {
        name: round(lines[0]["time"] - struck_s, 1)
        for name in others
        if (lines := [e for e in exits[name] if e["event"] == "left" and e["time"] > struck_s])
    }
    started = [e["host"] for e in exits[group] if e["event"] == "started" and e["time"] > struck_s]
    decided = [
        incident
        for incident in incidents
        if incident["milestones"].get("evict_asked_s") is not None
    ]
    evicted = sorted({name for incident in decided for name in incident["groups"]})

    def after(at_s: float | None) -> float | None:
        return None if at_s is None else round(at_s - struck_s, 2)

    def first(name: str, among: Iterable[Event]) -> float | None:
        times = [incident["milestones"].get(name) for incident in among]
        return after(min((at_s for at_s in times if at_s is not None), default=None))

    mine = [incident for incident in incidents if group in incident["groups"]]
    left = [e["time"] for e in exits[group] if e["event"] == "left" and e["time"] > struck_s]
    return {
        "key": case.key,
        "fault": case.fault,
        "lighthouse": "down" if case.lighthouse_down else "up",
        "timeouts": case.setting.timeouts,
        "shape": case.setting.shape,
        "keeper": case.setting.keeper,
        "gate": case.setting.gate,
        "group": group,
        "to_firing": first("firing_s", mine),
        "to_decided": first("evict_asked_s", decided),
        "to_gone": after(min(left, default=None)),
        "to_left_quorum": first("left_quorum_s", mine),
        "to_survivors": after(survivors),
        "to_back": after(None if back is None else back[0]),
        "host": host,
        "host_back": None if back is None else back[1],
        "hosts_tried": started,
        "crashed": crashed,
        "evicted": evicted,
        "holds": sorted({hold for incident in mine for hold in _holds(incident)}),
        "wrong": sorted(set(evicted) - {group}),
        "watched_s": round(watched_s, 1),
    }


def _holds(incident: Event) -> list[str]:
    return [
        str(line["guard"]) for line in incident.get("decisions", []) if line["action"] == "hold"
    ]


def over(case: Case, row: Row) -> bool:
    """Whether there is nothing more to wait for."""
    if not case.setting.keeper and case.fault == "slow":
        return False
    resumed = row["to_survivors"] is not None and row["to_back"] is not None
    if not case.setting.keeper and row["to_survivors"] is not None and case.fault != "cut":
        return resumed or row["watched_s"] - row["to_survivors"] > NOBODY_ENDS_IT_S
    return resumed and (row["to_decided"] is None or row["to_left_quorum"] is not None)


_OF_PROGRAMS: Final = ("hang", "mismatch")
"""The first on a host does not quarantine it: a line of the program tells them."""


def problems(row: Row) -> list[str]:
    """What is not as it should be with lightkeeper beside the job."""
    if not row["keeper"]:
        return []
    lines = []
    if row["fault"] == "rogue":
        return _rogue(row)
    if row["wrong"]:
        lines.append(f"evicted {', '.join(row['wrong'])}")
    if row["to_survivors"] is None:
        lines.append("survivors do not commit")
    if row["crashed"]:
        lines.append(f"{', '.join(row['crashed'])} ended as well")
    if row["to_back"] is None:
        lines.append("the group is not back")
    elif row["evicted"] and row["fault"] not in _OF_PROGRAMS and row["host"] in row["hosts_tried"]:
        lines.append(f"started again on {row['host']}")
    if row["fault"] not in ("crash", "cut") and row["group"] not in row["evicted"]:
        held = f" (held: {', '.join(row['holds'])})" if row["holds"] else ""
        lines.append(f"not evicted{held}")
    return lines


def _rogue(row: Row) -> list[str]:
    """A launcher that asks nobody: only a gate keeps its group out, and tells it why."""
    if not row["gate"]:
        return []
    if row["to_back"] is not None:
        return [f"back on the quarantined {row['host_back']} after {row['to_back']} s"]
    return [] if row["told"] else ["kept out, and not told why"]
