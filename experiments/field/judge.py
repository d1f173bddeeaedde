"""What a record is worth. Pure: unit tests hold it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final

Record = Mapping[str, Any]

RANKING: Final = ["unsure", "likely", "certain"]
AGAIN_S: Final = 40.0
"""What is left of a run for the monitor to name a culprit once more."""
END_TOLD_WITHIN_S: Final = 20.0
"""How long after a job's end an incident may take to say so."""
_LIFE: Final = re.compile(r"~[0-9a-f]+")
"""A second life of a group, as the monitor tells it from the first."""
_SCRIPTS_NAMES: Final = re.compile(r"^(?:train_ddp_|train_|fsdp_|my_|rg_|diloco_)(?=\d)")
_MARK: Final = re.compile(r"@(\w+)")


class Verdict(StrEnum):
    """From the worst to the best; a record gets the first that holds."""

    INVALID = "invalid"
    """The bug did not strike, or a deed failed: to be run again."""
    EVICTED = "healthy evicted"
    ACCUSED = "healthy accused"
    MISLED = "misleading"
    """It says, or shows, what is not so."""
    SILENT = "silent"
    """The job stood for long, or ended, and no incident said so."""
    MISSED = "missed"
    """A culprit was not named, or only among others, as unsure."""
    LATE = "late"
    """Named, or said, when it was of less use."""
    NOT_OUT = "not out"
    """Named, but its group was not put out, and the others did not train on."""
    POOR = "poor words"
    """The right one, without what a person needs to hear."""
    EXACT = "exact"


def group_of(name: str) -> str:
    """The number of a rank's or a group's name, whatever the script calls its groups."""
    return _plain(name.partition(":")[0]).partition(".")[0]


def rank_of(name: str) -> str:
    """`GROUP.RANK` of a rank's name."""
    plain = _plain(name)
    group, _, rank = plain.rpartition(".")
    return f"{group.partition(':')[0]}.{rank}" if group else plain.partition(":")[0]


def _plain(name: str) -> str:
    return _LIFE.sub("", _SCRIPTS_NAMES.sub("", name))


def is_(truth: str, name: str) -> bool:
    """Whether the monitor's `name` is meant by a rank, or a bare group, of the table."""
    return truth in (rank_of(name), group_of(name)) or rank_of(name) == group_of(truth)


def judge(record: Record) -> tuple[str, str]:
    """The verdict, and why in a few words."""
    for verdict, reason_of in (
        (Verdict.INVALID, _invalid),
        (Verdict.EVICTED, _evicted),
        (Verdict.ACCUSED, _accused),
        (Verdict.MISLED, _misled),
        (Verdict.SILENT, _silent),
        (Verdict.MISSED, _missed),
        (Verdict.LATE, _late),
        (Verdict.NOT_OUT, _not_out),
        (Verdict.POOR, _poor),
    ):
        if because := reason_of(record):
            return verdict, because
    return Verdict.EXACT, ""


def said(record: Record) -> bool | None:
    """Whether sentences of fired incidents name the cause; None where none is asked for."""
    patterns = _patterns(record, "says")
    if not patterns:
        return None
    texts = _sentences(record)
    return all(_in_any(pattern, texts) for pattern in patterns)


def _patterns(record: Record, key: str) -> list[str]:
    """Those of the truth, with the lines, ports and pids of that run."""
    asked = record["truth"].get(key) or []
    patterns = [asked] if isinstance(asked, str) else asked
    marks = record.get("marks", {})
    return [_MARK.sub(lambda mark: _literally(marks.get(mark[1])), text) for text in patterns]


def _literally(text: str | None) -> str:
    """As a pattern; one that nothing matches for a line that the scripts did not have then."""
    return "(?!)" if text is None else rf"\b{re.escape(text)}\b"


def _in_any(pattern: str, texts: Iterable[str]) -> bool:
    return any(re.search(pattern, text, re.IGNORECASE | re.DOTALL) for text in texts)


def _fired(record: Record) -> list[Mapping[str, Any]]:
    return [incident for incident in record["incidents"] if "firing_s" in incident["milestones"]]


def _sentences(record: Record) -> list[str]:
    return [text for incident in _fired(record) for _, text in incident["sentences"]]


def _telling(record: Record) -> list[Mapping[str, Any]]:
    """Fired incidents that name a culprit; all that fired, where there is none."""
    truth = record["truth"]["culprits"]
    return [
        incident
        for incident in _fired(record)
        if not truth or any(is_(culprit, name) for culprit in truth for name in incident["accused"])
    ]


def main_incident(record: Record) -> Mapping[str, Any] | None:
    """The incident that tells it: fired, naming a culprit if possible, and of those the first."""
    truth = record["truth"]["culprits"]
    return min(
        (incident for incident in record["incidents"] if "firing_s" in incident["milestones"]),
        key=lambda incident: (
            not any(is_(culprit, rank) for culprit in truth for rank in incident["culprits"]),
            incident["milestones"]["firing_s"],
        ),
        default=None,
    )


def _invalid(record: Record) -> str:
    if record["failed"]:
        return "; ".join(record["failed"])
    if record.get("bug") and not record["struck"]:
        return "the bug did not strike"
    status, at_s = record.get("exit") or (None, 0.0)
    if record["truth"].get("ends"):
        return "" if status else "the job did not end with an error"
    return f"the job ended with {status} at {at_s} s" if status else ""


def _guilty(record: Record) -> list[str]:
    return [*record["truth"]["culprits"], *record["truth"]["also"]]


def _evicted(record: Record) -> str:
    truth = record["truth"]
    guilty = set() if truth["fate"] == "stay" else {group_of(name) for name in _guilty(record)}
    return ", ".join(
        f"{group} at {at_s} s"
        for group, at_s in record["evicted"].items()
        if group_of(group) not in guilty
    )  # fmt: skip


def _accused(record: Record) -> str:
    truth = record["truth"]
    if truth.get("nobody"):
        return ", ".join(
            f"{rank} ({confidence}, {kind})"
            for rank, confidence, kind, _ in record["accused"]
            if confidence != "pending"
        )
    wrong = []
    for rank, confidence, kind, says in record["accused"]:
        if confidence not in ("likely", "certain"):
            continue
        if any(is_(culprit, rank) for culprit in truth["culprits"]):
            continue
        if any(is_(name, rank) for name in truth["also"]):
            pattern = truth["also_if"]
            if not pattern or re.search(pattern, says, re.IGNORECASE):
                continue
        wrong.append(f"{rank} ({confidence}, {kind})")
    return ", ".join(wrong)


def _misled(record: Record) -> str:
    truth = record["truth"]
    last = _last_headline(record)
    texts = [*_sentences(record), last]
    wrong = [
        f"says {pattern!r}" for pattern in _patterns(record, "says_not") if _in_any(pattern, texts)
    ]
    health = record.get("health", {})
    wrong += [
        f"calls {rank} {health[rank]}"
        for rank, pattern in truth.get("health_not", {}).items()
        if re.fullmatch(pattern, health.get(rank, ""))
    ]
    if pattern := truth.get("headline_not"):
        wrong += [
            f"headline at {at_s} s: {text}"
            for at_s, text in record["headlines"]
            if _in_any(pattern, [text])
        ][:1]
    if truth.get("strict") and record["hosts"]:
        wrong.append(f"quarantined: {', '.join(record['hosts'])}")
    return "; ".join(wrong)


def _headlines(record: Record) -> list[str]:
    """Those that a person finds who comes later: the last, or any where an eviction helped."""
    headlines = [text for _, text in record.get("headlines", ())]
    return headlines if record.get("evicted") else headlines[-1:]


def _last_headline(record: Record) -> str:
    headlines = record.get("headlines")
    return headlines[-1][1] if headlines else ""


def _silent(record: Record) -> str:
    if record["stood_untold"]:
        return ", ".join(f"from {a} to {b} s" for a, b in record["stood_untold"])
    if not record["truth"].get("ends"):
        return ""
    end_s = record["exit"][1]
    told_s = min(
        (incident["milestones"]["firing_s"] for incident in _fired(record)), default=float("inf")
    )
    return "" if told_s <= end_s + END_TOLD_WITHIN_S else f"it ended at {end_s} s"


def _missed(record: Record) -> str:
    culprits = record["truth"]["culprits"]
    if not culprits and said(record) is False:
        return "its cause was not said"
    if again := _unnamed_strikes(record):
        return again
    named = {name: _sureness(name, record) for name in culprits}
    missed = [name for name in culprits if named[name] not in ("likely", "certain")]
    if missed and record["truth"]["also"]:
        # where the evidence cannot tell, to say so of them all is exact, too
        sure_ranks = {rank_of(rank) for rank, sure, _, _ in record["accused"] if sure != "pending"}
        if set(culprits) <= sure_ranks <= {*culprits, *record["truth"]["also"]}:
            return ""
    return ", ".join(f"{name} ({named[name]})" for name in missed)


def _unnamed_strikes(record: Record) -> str:
    """A culprit that the same bug strikes again has to be named again."""
    again = []
    for index, (bug, rank, at_s) in enumerate(record["struck"]):
        before = [strike for strike in record["struck"][:index] if strike[:2] == [bug, rank]]
        if not before or f"{bug}@" not in record["bug"] or "always" in record["bug"]:
            continue
        fired = [
            incident["milestones"].get("firing_s", -1.0)
            for incident in record["incidents"]
            for name, sure in incident["accused"].items()
            if is_(rank, name) and sure != RANKING[0]
        ]
        if record["took_s"] - at_s > AGAIN_S and not any(when >= at_s for when in fired):
            again.append(f"{rank} (not named again after {at_s} s)")
    return ", ".join(again)


def _sureness(culprit: str, record: Record) -> str:
    """The best confidence with which an incident that fired has named it."""
    sure = [how for rank, how, _, _ in record["accused"] if how in RANKING and is_(culprit, rank)]
    return max(sure, key=RANKING.index, default="not named")


def _late(record: Record) -> str:
    within_s = record["truth"].get("within_s")
    if within_s is None:
        return ""
    culprits = record["truth"]["culprits"]
    times = {name: _named_s(record, name) for name in culprits} or {"it": _said_s(record)}
    return ", ".join(
        f"{name} at {at_s} s of {within_s} s" for name, at_s in times.items() if at_s > within_s
    )


def _named_s(record: Record, culprit: str) -> float:
    return min(
        (
            incident["milestones"]["firing_s"]
            for incident in _fired(record)
            for name, sure in incident["accused"].items()
            if is_(culprit, name) and sure != RANKING[0]
        ),
        default=float("inf"),
    )


def _said_s(record: Record) -> float:
    """When sentences had all that is asked for."""
    times = [
        min(
            (
                max(at_s, incident["milestones"]["firing_s"])
                for incident in _fired(record)
                for at_s, text in incident["sentences"]
                if _in_any(pattern, [text])
            ),
            default=float("inf"),
        )
        for pattern in _patterns(record, "says") or [""]
    ]
    return max(times)


def _not_out(record: Record) -> str:
    if record["truth"]["fate"] != "out" or record["to_commit"] is not None:
        return ""
    return "the others do not train again"


def _poor(record: Record) -> str:
    """What a person would miss; asked only where the truth says so."""
    truth, telling = record["truth"], _telling(record)
    sentences = _sentences(record)
    evidence = [text for incident in _fired(record) for text in incident.get("evidence", ())]
    missing = []
    if truth.get("strict"):
        asked = [("said", pattern, sentences) for pattern in _patterns(record, "says")]
        asked += [("shown", pattern, [*sentences, *evidence])
                  for pattern in _patterns(record, "shows")]  # fmt: skip
        asked += [("in the headline", pattern, _headlines(record))
                  for pattern in _patterns(record, "headline")]  # fmt: skip
        missing = [
            f"{pattern!r} is not {where}"
            for where, pattern, texts in asked
            if not _in_any(pattern, texts)
        ]
    for key in ("kind", "severity"):
        if not truth.get(key):
            continue
        have = sorted({incident[key] for incident in telling})
        if not any(re.fullmatch(truth[key], word) for word in have):
            missing.append(f"{key}: {', '.join(have) or 'none'}")
    if truth.get("kept") and all(incident["state"] == "resolved" for incident in telling):
        missing.append("its incident is closed")
    if truth.get("bundle") and not any(incident.get("bundle") for incident in telling):
        missing.append("no bundle of evidence")
    return "; ".join(missing)
