"""What a person can do from a page: a button each, and the same from a shell. Pure.

A button names the request, says what will happen and what must be typed first; the dialog that
asks for reason and token is the script's (`static/page-acts.js`), and the server checks the token.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from monitor.model.eviction import QuarantineEntry
from monitor.model.observation import Pause
from monitor.show.pages import FleetIndex
from monitor.show.wording import counted


@dataclass(frozen=True, slots=True)
class Act:
    """One thing that can be done."""

    label: str
    method: str
    path: str
    what: str
    """What exactly will happen."""
    command: str
    typed: str = ""
    """What a person types to confirm; empty: a click is enough."""
    hours: bool = False
    """Whether it may be for a time."""
    needs_reason: bool = True
    grave: bool = False


def evict(fleet: FleetIndex, group: str) -> Act:
    """Put a replica group out now."""
    ranks = fleet.by_group.get(group, ())
    hosts = sorted({one.identity.host for one in ranks})
    others = sum(one.group != group and one.in_quorum is not False for one in fleet.view.groups)
    left = f"{counted(others, 'other group')} can go on. " if others else "No other group is left! "
    path = f"/v1/groups/{quote(group, safe='')}/evict"
    return Act(
        label="Evict this group",
        method="POST",
        path=path,
        what=f"Puts {group} out of the quorum and ends its {counted(len(ranks), 'rank')}"
        f"{' on ' + ', '.join(hosts[:4]) if hosts else ''}. {left}"
        "No guard stands in the way: not the budget, not the least number of groups, not a pause. "
        "Its hosts are not quarantined: a launcher may start it again at once.",
        command=f"lightkeeper evict {_quoted(group)} --reason 'why' --token-file token "
        "--monitor $MONITOR",
        typed=group,
        grave=True,
    )


def hold_out(name: str, *, group: bool) -> Act:
    """Quarantine a host or a group."""
    path = f"/v1/quarantine/groups/{quote(name, safe='')}" if group else (
        f"/v1/quarantine/{quote(name, safe='')}")  # fmt: skip
    what = (
        f"Launchers are told not to start {name} anywhere. Its ranks that run now go on until they "
        "end."
        if group
        else f"Launchers are told to start no group on {name}. Ranks that run there now go on "
        "until they end."
    )
    return Act(
        label="Quarantine this group" if group else "Quarantine this host",
        method="PUT",
        path=path,
        what=what,
        command=_quarantine("add", name, group=group),
        hours=True,
    )


def let_in(entry: QuarantineEntry, *, group: bool) -> Act:
    """End a quarantine."""
    path = f"/v1/quarantine/groups/{quote(entry.name, safe='')}" if group else (
        f"/v1/quarantine/{quote(entry.name, safe='')}")  # fmt: skip
    more = "" if group else " It counts as repaired: what its record held against it is forgotten."
    return Act(
        label="Release from quarantine",
        method="DELETE",
        path=path,
        what=f"Lets {entry.name} in again, which {entry.author} kept out: {entry.reason}.{more}",
        command=_quarantine("release", entry.name, group=group),
    )


def _quarantine(verb: str, name: str, *, group: bool) -> str:
    who = f"--group {_quoted(name)}" if group else _quoted(name)
    return (
        f"lightkeeper quarantine {verb} {who} --reason 'why' --token-file token --monitor $MONITOR"
    )


def _quoted(name: str) -> str:
    """For a shell."""
    return "'" + name.replace("'", "'\\''") + "'"


def switch(pause: Pause | None) -> Act:
    """The big red switch."""
    more = "--token-file token --monitor $MONITOR"
    if pause is None:
        return Act(
            label="Pause evictions",
            method="POST",
            path="/v1/pause",
            what="Nobody is evicted any more but by hand, in the whole job, until somebody resumes "
            "or the time is over. Faults are still found and told.",
            command=f"lightkeeper pause --reason 'why' {more}",
            hours=True,
            grave=True,
        )
    return Act(
        label="Resume evictions",
        method="DELETE",
        path="/v1/pause",
        what=f"Ends the pause by {pause.author} ({pause.reason}). Faults that are open now may "
        "lead to evictions in the next second.",
        command=f"lightkeeper resume {more}",
        needs_reason=False,
    )
