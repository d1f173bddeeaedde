"""What a record is worth. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from experiments.field.judge import group_of

Record = Mapping[str, Any]
Truth = Mapping[str, Any]


class Verdict(StrEnum):
    """From the worst to the best; a record gets the first that holds."""

    EVICTED = "healthy evicted"
    """Or its host is quarantined."""
    ENDED = "healthy ended"
    """An exchange was ended that would have gone on."""
    ACCUSED = "healthy accused"
    MISSED = "missed"
    LATE = "late"
    STOOD = "stood"
    """Survivors went too long without a commit."""
    GOOD = "good"


def judge(record: Record, truth: Truth) -> tuple[Verdict, str]:
    """The verdict, and why in a few words; of TorchFT alone only how long it stood."""
    for verdict, reason_of in (
        (Verdict.EVICTED, _evicted),
        (Verdict.ENDED, _ended),
        (Verdict.ACCUSED, _accused),
        (Verdict.MISSED, _missed),
        (Verdict.LATE, _late),
    ):
        if not record["alone"] and (because := reason_of(record, truth)):
            return verdict, because
    because = _stood(record, truth)
    return (Verdict.STOOD, because) if because else (Verdict.GOOD, "")


def fired(record: Record) -> list[Mapping[str, Any]]:
    """Incidents that are not pending, or were more than that."""
    return [row for row in record["incidents"] if row["fired"] is not None]


def told_s(record: Record, truth: Truth) -> float | None:
    """When all culprits were named and the sentence was said; without either, when anything fired;
    None: never.
    """
    times: list[float | None] = [record["named"].get(culprit) for culprit in truth["culprits"]]
    if truth["says"]:
        said = [max(at_s, row["fired"]) for row in fired(record) for at_s, text in row["sentences"]
                if re.search(truth["says"], text, re.DOTALL)]  # fmt: skip
        times.append(min(said, default=None))
    times = times or [record["told"]]
    whole = [time_s for time_s in times if time_s is not None]
    return max(whole) if len(whole) == len(times) else None


def evicted(record: Record) -> list[str]:
    """Groups that were put out."""
    return sorted({group_of(group) for row in record["incidents"] for group in row["evicted"]})


def _evicted(record: Record, truth: Truth) -> str:
    groups = evicted(record)
    if wrong := [group for group in groups if group not in truth["evicted"]]:
        return f"groups {', '.join(wrong)}"
    if not truth["culprits"] and len(groups) > 1:
        return f"groups {', '.join(groups)}, where one is enough"
    hosts = [host for host in record["quarantined"] if host not in truth["hosts"]]
    return f"host {', '.join(hosts)} is in quarantine" if hosts else ""


def _ended(record: Record, truth: Truth) -> str:
    gone = [row["kind"] for row in record["incidents"] if row["released"]]
    return f"by {', '.join(gone)}" if truth["quiet"] and gone else ""


def _accused(record: Record, truth: Truth) -> str:
    right = {*truth["culprits"], *truth["also"]}
    return ", ".join(f"{rank} at {at_s} s" for rank, at_s in record["named"].items()
                     if rank not in right)  # fmt: skip


def _missed(record: Record, truth: Truth) -> str:
    if truth["told_s"] is None or told_s(record, truth) is not None:
        return ""
    missing = [name for name in truth["culprits"] if name not in record["named"]]
    return f"{', '.join(missing)} not named" if missing else f"nobody said {truth['says'] or 'it'}"


def _late(record: Record, truth: Truth) -> str:
    at_s = told_s(record, truth)
    late = truth["told_s"] is not None and at_s is not None and at_s > truth["told_s"]
    return f"told after {at_s} s, not {truth['told_s']}" if late else ""


def _stood(record: Record, truth: Truth) -> str:
    if truth["pause_s"] is None:
        return ""
    stood = [
        f"{rank} {row['pause']} s{' and more' if row['over'] is None else ''}"
        for rank, row in record["pauses"].items()
        if row["pause"] > truth["pause_s"]
    ]
    return f"{', '.join(stood)}, not {truth['pause_s']}" if stood else ""
