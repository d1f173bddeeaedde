"""What was done about an incident, what held it back, and what came of it. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from monitor.audit.amounts import bounds
from monitor.reports.incident_course import RUNGS
from monitor.reports.incident_pieces import (
    chip,
    host_link,
    lasting,
    listed,
    page_path,
    plain,
    seconds,
    table,
    utc,
)
from monitor.reports.incident_words import began_s
from monitor.reports.markup import element, escaped, words
from monitor.reports.wording import sentence

_ALWAYS: Final = ("gate", "lighthouse_kill", "worker_evict", "scheduler", "page")
"""Shown where they were not climbed too: that is news to a person."""
_ACTIONS: Final = {"evict": "evict", "would_evict": "would evict", "hold": "hold"}
_PARTS: Final = {
    "seen": "seen", "firing": "sure", "decided": "decided", "asked": "asked",
    "gone": "its processes were gone", "left": "it left the quorum",
    "survivors": "the others committed", "rejoined": "it was back",
}  # fmt: skip
_ANSWER: Final = re.compile(
    r"(?:\A|; )([^\s;]{1,300}) answered ([0-9]{3}): (\{.{0,400}?\})(?=; |\Z)"
)
"""What a WorkerServer said, as `evictors.rungs.worker` writes it."""
_KILLED: Final = "answered 500, as the Lighthouse does where the group's manager ends at once"
"""Instead of the error that TorchFT 0.2.0 says of a kill that has worked (facts/torchft.md)."""
_ROWS: Final = 100
_LINKS: Final = 12


def decided(body: Mapping[str, Any]) -> Iterator[str]:
    """Who decided, and each decision."""
    account = body["account"]
    yield words("p", f"Decided by {account['decided_by']}: {account['why']}")
    first_s = began_s(body)
    rows = [
        (
            escaped(f"+{row['at_s'] - first_s:.1f} s"),
            escaped(_ACTIONS.get(row["action"], row["action"])),
            escaped(plain(row["guard"] or "")),
            escaped(row["author"]),
            escaped(row["reason"]),
            escaped(f"{row['state']}: {row['outcome']}" if row["outcome"] else row["state"]),
        )
        for row in body["decisions"][-_ROWS:]
    ]
    if rows:
        yield table(("when", "decision", "guard", "by", "why", "what came of it"), rows)


def evictions(body: Mapping[str, Any]) -> Iterator[str]:
    """Each eviction with its rungs."""
    if not body["evictions"]:
        yield words("p", "Nobody was evicted.", class_="none")
    first_s = began_s(body)
    for one in body["evictions"]:
        how = one["failed"] or one["confirmed"] or "under way"
        word = "failed" if one["failed"] else "out" if one["confirmed"] else "not out yet"
        asked = f"Eviction of {one['group']}, asked at +{one['asked_s'] - first_s:.1f} s"
        yield words("p", f"{asked}, {word}: {how}")
        heads = ("rung", "result", "began", "took", "deadline", "what it says")
        yield table(heads, [_rung(row, first_s) for row in rungs_of(one)])


def rungs_of(eviction: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Every rung in the order of the ladder; `started_s` is None where it was not climbed."""
    climbed = {row["rung"]: row for row in eviction["rungs"]}
    for name in (*RUNGS, *(other for other in climbed if other not in RUNGS)):
        if name in climbed:
            yield climbed[name]
        elif name in _ALWAYS:
            yield {"rung": name, "started_s": None}


def _rung(row: Mapping[str, Any], first_s: float) -> tuple[str, ...]:
    name = escaped(RUNGS.get(row["rung"], row["rung"]))
    if row["started_s"] is None:
        return name, chip("not climbed"), "", "", "", ""
    over = row["finished_s"] is not None
    took_s = max(0.0, row["finished_s"] - row["started_s"]) if over else None
    result = row["result"] or ("ended" if over else "under way")
    return (
        name,
        chip(result),
        escaped(f"+{row['started_s'] - first_s:.1f} s"),
        escaped(seconds(took_s)),
        escaped(seconds(row["deadline_s"])),
        escaped(rung_words(row).removeprefix(f"{result}: ")),
    )


def rung_words(row: Mapping[str, Any]) -> str:
    """What a rung says, for people: answers of WorkerServers are JSON, and one of the Lighthouse
    says that something went wrong where all went well.
    """
    said = str(row["detail"])
    worked = row["rung"] == "lighthouse_kill" and row.get("result") == "worked"
    if worked and said.removeprefix("worked: ").startswith("answered 500"):
        return _KILLED
    return _ANSWER.sub(_answered, said)


def _answered(found: re.Match[str]) -> str:
    start = "; " if found[0].startswith("; ") else ""
    try:
        said = json.loads(found[3])
    except (ValueError, RecursionError):
        return found[0]
    if not isinstance(said, dict):
        return found[0]
    if found[2] != "200":
        told = said.get("error")
        return f"{start}{found[1]} refused ({found[2]}): {told}" if told else found[0]
    signals, gone = said.get("signalled"), said.get("gone")
    if not isinstance(signals, list) or not isinstance(gone, bool):
        return found[0]
    how = " and then ".join(str(one)[:20] for one in signals[:4])
    if not signals:
        return f"{start}{found[1]} was gone already" if gone else f"{start}{found[1]} got no signal"
    started = said.get("started_gone")
    told = f", with {started} of its own" if type(started) is int and started > 0 else ""
    return f"{start}{found[1]} got {how} and is {'gone' if gone else 'not gone yet'}{told}"


def holds(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Guards that held."""
    if not found:
        yield words("p", "No guard held.", class_="none")
        return
    rows = [
        (
            escaped(plain(one["guard"])),
            escaped("still" if one["end_s"] is None else seconds(one["seconds"])),
            escaped(one["reason"]),
            escaped(one["release"] or "nothing is said"),
            escaped(plain(one["ended_by"] or "it holds")),
        )
        for one in found[-_ROWS:]
    ]
    yield table(("guard", "held for", "why", "would be released by", "what released it"), rows)


def intervals(parts: Sequence[Mapping[str, Any]]) -> str:
    """How long each part took."""
    rows = [
        (
            escaped(f"until {_PARTS.get(part['until'], part['until'])}"),
            escaped(seconds(part["seconds"]) + (" (the clock jumped)" if part["jumped"] else "")),
        )
        for part in parts
    ]
    return table(("part", "took"), rows)


def outcome(body: Mapping[str, Any]) -> Iterator[str]:
    """What came of it, and what it cost."""
    account = body["account"]
    if body["resolution"]:
        yield words("p", f"Over: {body['resolution']}")
    back = [host_link(host) for host in account["back_on"][:_LINKS]]
    if back:
        yield element("p", "Back on ", listed(back, len(account["back_on"])), ".")
    names = {"lost_by_others": "the others lost", "lost_by_own": "it was away itself",
             "eviction_cost": "the eviction cost", "without_us": "without us",
             "saved": "saved"}  # fmt: skip
    rows = [
        (
            escaped(name),
            escaped(bounds(account[key])),
            escaped(sentence(account[key]["words"].removeprefix("cannot tell: "))),
        )
        for key, name in names.items()
    ]
    yield table(("amount", "rank-seconds", "which is"), rows)


def similar(found: Sequence[Mapping[str, Any]], now_s: float) -> Iterator[str]:
    """Earlier ones on the same hosts or in the same groups."""
    if not found:
        yield words("p", "None is remembered on these hosts or in these groups.", class_="none")
        return
    rows = [
        (
            element("a", escaped(plain(one["kind"])), href=page_path(one["id"])),
            escaped(f"{lasting(max(0.0, now_s - one['first_seen_s']))} ago"),
            escaped(utc(one["first_seen_s"])),
            escaped(one["what"]),
            escaped(one["same"]),
        )
        for one in found
    ]
    yield table(("kind", "when", "first seen", "what", "the same"), rows)
