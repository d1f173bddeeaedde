"""What a record is worth. Pure: unit tests hold it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

Record = Mapping[str, Any]

RANKING: Final = ["unsure", "likely", "certain"]
AGAIN_S: Final = 40.0
"""What is left of a run for the monitor to name a culprit once more."""
_LIFE: Final = re.compile(r"~[0-9a-f]+")
"""A second life of a group, as the monitor tells it from the first."""
_SCRIPTS_NAMES: Final = re.compile(r"^(?:train_ddp_|fsdp_|my_|rg_)(?=\d)")


class Verdict(StrEnum):
    """From the worst to the best; a record gets the first that holds."""

    INVALID = "invalid"
    """The bug did not strike, or a deed failed: to be run again."""
    EVICTED = "healthy evicted"
    ACCUSED = "healthy accused"
    SILENT = "silent"
    """The job stood for over a minute and no incident said so."""
    MISSED = "missed"
    """A culprit was not named, or only among others, as unsure."""
    NOT_OUT = "not out"
    """Named, but its group was not put out, and the others did not train on."""
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
    for verdict, because in (
        (Verdict.INVALID, _invalid(record)),
        (Verdict.EVICTED, _evicted(record)),
        (Verdict.ACCUSED, _accused(record)),
        (Verdict.SILENT, _silent(record)),
        (Verdict.MISSED, _missed(record)),
        (Verdict.NOT_OUT, _not_out(record)),
    ):
        if because:
            return verdict, because
    return Verdict.EXACT, ""


def said(record: Record) -> bool | None:
    """Whether a sentence of a fired incident names the cause; None where none is asked for."""
    pattern = record["truth"]["says"]
    if not pattern:
        return None
    texts = [
        text
        for incident in record["incidents"]
        if "firing_s" in incident["milestones"]
        for _, text in incident["sentences"]
    ]
    return any(re.search(pattern, text, re.IGNORECASE | re.DOTALL) for text in texts)


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
    return "" if record["struck"] or not record.get("bug") else "the bug did not strike"


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


def _silent(record: Record) -> str:
    return ", ".join(f"from {a} to {b} s" for a, b in record["stood_untold"])


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


def _not_out(record: Record) -> str:
    if record["truth"]["fate"] != "out" or record["to_commit"] is not None:
        return ""
    return "the others do not train again"
