"""One incident as a page without JavaScript: who decided, on what, each rung and hold. Pure.

Made from the incident's JSON, as `GET /v1/incidents/ID` answers it. What comes from ranks, the
Lighthouse and people is text and never markup (`markup`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from monitor.audit.amounts import bounds
from monitor.reports.document import document
from monitor.reports.markup import element, escaped, words
from monitor.reports.wording import sentence

RUNGS: Final = {
    "evidence": "evidence saved",
    "quarantine": "quarantine",
    "gate": "gate refuses it",
    "lighthouse_kill": "Lighthouse kill",
    "worker_evict": "WorkerServers",
    "scheduler": "scheduler",
    "page": "page a person",
}
"""In the order in which they are climbed."""
_ALWAYS: Final = ("gate", "lighthouse_kill", "worker_evict", "scheduler", "page")
"""Shown where they were not climbed too: that is news to a person."""
TONES: Final = {
    "worked": "good", "failed": "bad", "skipped": "start", "unknown": "away",
    "resolved": "good", "firing": "bad", "evicting": "wait", "pending": "wait",
    "critical": "bad", "warning": "wait", "info": "start",
}  # fmt: skip
_TAG: Final = re.compile("<[^>]*>")
_SHORT: Final = 18
"""Characters of a cell that is not broken into lines."""
_ACTIONS: Final = {"evict": "evict", "would_evict": "would evict", "hold": "hold"}
_PARTS: Final = {
    "seen": "seen", "firing": "sure", "decided": "decided", "asked": "asked",
    "gone": "its processes were gone", "left": "it left the quorum",
    "survivors": "the others committed", "rejoined": "it was back",
}  # fmt: skip


def incident_page(body: Mapping[str, Any], *, guarded: bool) -> str:
    """The whole document. `guarded`: its evidence needs the token, so there is no link to it."""
    account = body["account"]
    groups = ", ".join(body["groups"]) or "nobody's fault"
    title = f"{_plain(body['kind'])} in {groups}: {account['outcome']}, {body['state']}"
    return document(
        title,
        element(
            "section",
            words("h1", title),
            element(
                "p",
                _chip(body["state"]), " ", _chip(body["severity"]), " ",
                escaped(f"{body['id']}, {utc(body['milestones']['first_seen_s'])}"),
                class_="meta",
            ),
            words("p", sentence(str(body["reason"]))),
        ),
        _section("Who decided, and on what evidence", *_decided(body)),
        _section("What was done: the rungs", *_evictions(body)),
        _section("What held it back", *_holds(account["holds"])),
        _section("How long each part took", _intervals(account["intervals"])),
        _section("What it cost, by lightkeeper's own account", *_cost(body)),
        _section("More", element("p", *_links(body, guarded=guarded))),
    )  # fmt: skip


def incidents_page(bodies: Sequence[Mapping[str, Any]]) -> str:
    """All of them, newest first, each with a link."""
    rows = [
        (
            element("a", escaped(one["id"]), href=page_path(one["id"])),
            escaped(utc(one["milestones"]["first_seen_s"])),
            escaped(_plain(one["kind"])),
            _chip(one["state"]),
            escaped(one["account"]["outcome"]),
            escaped(one["account"]["decided_by"]),
            escaped(sentence(str(one["reason"]))),
        )
        for one in bodies
    ]
    heads = ("incident", "first seen (UTC)", "kind", "state", "outcome", "decided by", "what")
    shown = _table(heads, rows) if rows else words("p", "None so far.", class_="none")
    return document("Incidents", element("section", words("h1", "Incidents"), shown))


def page_path(incident_id: str) -> str:
    """Where its page is."""
    return f"/incidents/{quote(incident_id, safe='')}"


# -- parts ---------------------------------------------------------------------------------------


def _decided(body: Mapping[str, Any]) -> Iterator[str]:
    account = body["account"]
    yield words("p", f"Decided by {account['decided_by']}: {account['why']}")
    facts = [
        ("accused", ", ".join(body["culprits"]) or "nobody"),
        ("ran on", ", ".join(account["ran_on"]) or "not known"),
        ("waited for it", ", ".join(body["victims"]) or "nobody"),
    ]
    if body["culprits"]:
        facts.append(("confidence", body["confidence"]))
    facts += list(body["evidence"].items()) or [("evidence", "none: a person asked")]
    yield element("dl", *(words("dt", name) + words("dd", seen) for name, seen in facts),
                  class_="evidence")  # fmt: skip
    began_s = body["milestones"]["first_seen_s"]
    rows = [
        (
            escaped(f"+{row['at_s'] - began_s:.1f} s"),
            escaped(_ACTIONS.get(row["action"], row["action"])),
            escaped(row["guard"] or ""),
            escaped(row["author"]),
            escaped(row["reason"]),
            escaped(_end(row)),
        )
        for row in body["decisions"]
    ]
    if rows:
        yield _table(("when", "decision", "guard", "by", "why", "what came of it"), rows)


def _end(row: Mapping[str, Any]) -> str:
    return f"{row['state']}: {row['outcome']}" if row["outcome"] else str(row["state"])


def _evictions(body: Mapping[str, Any]) -> Iterator[str]:
    if not body["evictions"]:
        yield words("p", "Nobody was evicted.", class_="none")
    began_s = body["milestones"]["first_seen_s"]
    for one in body["evictions"]:
        how = one["failed"] or one["confirmed"] or "under way"
        word = "failed" if one["failed"] else "out" if one["confirmed"] else "not out yet"
        asked = f"Eviction of {one['group']}, asked at +{one['asked_s'] - began_s:.1f} s"
        yield words("p", f"{asked}, {word}: {how}")
        heads = ("rung", "result", "began", "took", "deadline", "what it says")
        yield _table(heads, [_rung(row, began_s) for row in rungs_of(one)])


def rungs_of(eviction: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Every rung in the order of the ladder; `started_s` is None where it was not climbed."""
    climbed = {row["rung"]: row for row in eviction["rungs"]}
    for name in (*RUNGS, *(other for other in climbed if other not in RUNGS)):
        if name in climbed:
            yield climbed[name]
        elif name in _ALWAYS:
            yield {"rung": name, "started_s": None}


def _rung(row: Mapping[str, Any], began_s: float) -> tuple[str, ...]:
    name = escaped(RUNGS.get(row["rung"], row["rung"]))
    if row["started_s"] is None:
        return name, _chip("not climbed"), "", "", "", ""
    over = row["finished_s"] is not None
    took_s = max(0.0, row["finished_s"] - row["started_s"]) if over else None
    result = row["result"] or ("ended" if over else "under way")
    return (
        name,
        _chip(result),
        escaped(f"+{row['started_s'] - began_s:.1f} s"),
        escaped(seconds(took_s)),
        escaped(seconds(row["deadline_s"])),
        escaped(row["detail"].removeprefix(f"{result}: ")),
    )


def _holds(holds: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not holds:
        yield words("p", "No guard held.", class_="none")
        return
    rows = [
        (
            escaped(one["guard"]),
            escaped("still" if one["end_s"] is None else seconds(one["seconds"])),
            escaped(one["reason"]),
            escaped(one["release"] or "nothing is said"),
            escaped(one["ended_by"] or "it holds"),
        )
        for one in holds
    ]
    yield _table(("guard", "held for", "why", "would be released by", "what released it"), rows)


def _intervals(parts: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            escaped(f"until {_PARTS.get(part['until'], part['until'])}"),
            escaped(seconds(part["seconds"]) + (" (the clock jumped)" if part["jumped"] else "")),
        )
        for part in parts
    ]
    return _table(("part", "took"), rows)


def _cost(body: Mapping[str, Any]) -> Iterator[str]:
    account, review = body["account"], body["review"]
    names = {"lost": "lost", "eviction_cost": "the eviction cost", "without_us": "without us",
             "saved": "saved"}  # fmt: skip
    rows = [
        (
            escaped(name),
            escaped(bounds(account[key])),
            escaped(account[key]["words"].removeprefix("cannot tell: ")),
        )
        for key, name in names.items()
    ]
    yield _table(("", account["unit"], "which is"), rows)
    back = ", ".join(account["back_on"])
    if back:
        yield words("p", f"Back on {back}.")
    if body["resolution"]:
        yield words("p", f"Over: {body['resolution']}")
    if review is not None:
        note = f": {review['note']}" if review["note"] else ""
        yield words("p", f"Judged {review['judgement']} by {review['by']}{note}")


def _links(body: Mapping[str, Any], *, guarded: bool) -> Iterator[str]:
    yield element("a", "as JSON", href=f"/v1{page_path(body['id'])}")
    bundle = body["bundle"]
    if bundle is not None and not guarded:
        yield ", " + element("a", "its evidence (zip)", href=bundle["url"])
    elif bundle is not None:
        yield escaped(f", its evidence: {bundle['url']} (needs the token)")


# -- pieces --------------------------------------------------------------------------------------


def _section(title: str, *inside: str) -> str:
    return element("section", words("h2", title), *inside)


def _table(heads: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are markup already. On a phone each cell stands on a line of its own, with its head."""
    names = list(heads)
    head = element("thead", element("tr", *(words("th", text) for text in names)))
    body = element("tbody", *(element("tr", *map(_cell, names, row)) for row in rows))
    return element("div", element("table", head, body), class_="wide")


def _cell(head: str, markup: str) -> str:
    short = len(_TAG.sub("", markup)) <= _SHORT
    return element("td", markup, data_label=head, class_="short" if short else None)


def _chip(word: str) -> str:
    return words("span", word, class_=f"chip {TONES.get(word, 'idle')}")


def _plain(name: object) -> str:
    return str(name).replace("_", " ")


def seconds(value: float | None) -> str:
    """Short; what is not known is a dash."""
    return "-" if value is None else f"{value:.1f} s"


def utc(at_s: float) -> str:
    """A moment for people anywhere."""
    try:
        return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return "an unknown time"
