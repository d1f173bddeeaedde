"""The table of a lab's results. Pure but for `made`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Final

from experiments import harness
from experiments.netlab.cases import CASES, Case
from experiments.netlab.judge import Record, Verdict, evicted, fired, judge, told_s
from experiments.pages import codes, numbers, table

_HEAD: Final = """\
# When the network breaks

Written by `make netlab`; do not edit. A job on hosts of its own (network namespaces on one switch:
each with an address, a name and pids; the Lighthouse, the monitor and a data server have theirs),
a script that knows nothing of lightkeeper, gloo, TorchFT and the Lighthouse at their defaults where
nothing else is said; nobody restarts a group. Seconds after the fault, medians (the largest in
brackets where it differs):

- **pause**: the longest time that any survivor went without a commit; *alone*: of TorchFT without
  lightkeeper, in the same run; `+`: it still stood at the end.
- **told**: until the truth was told: culprits named as likely or certain, and the sentence that the
  case asks for. **step**: seconds a step before the fault and in the last half minute.
- **good**: nobody healthy evicted, ended or accused, told in time, and nobody stood too long.
- A host that is away for 8 s and longer may be called lost: it is.
"""
_COLUMNS: Final = (
    "case", "truth", "good", "pause", "alone", "told", "step", "evicted", "released",
    "what was said",
)  # fmt: skip


def made(results: Path) -> str:
    """Judge all records; the page."""
    return render([row for row in harness.read(results) if row["case"] in CASES])


def render(records: Sequence[Record]) -> str:
    """The whole page."""
    rows = [_row(case, mine) for case in CASES.values()
            if (mine := [record for record in records if record["case"] == case.name])]  # fmt: skip
    return "\n".join([
        _HEAD, f"{len(records)} runs, of the code at {codes(records)}.\n", table(_COLUMNS, rows),
        "## Not good", "", *_misses(records), "",
    ])  # fmt: skip


def _row(case: Case, records: Sequence[Record]) -> list[str]:
    ours = [record for record in records if not record["alone"]]
    alone = [record for record in records if record["alone"]]
    truth = case.truth()
    good = sum(judge(record, truth)[0] is Verdict.GOOD for record in ours)
    out = Counter(", ".join(evicted(record)) or "-" for record in ours)
    released = sum(any(row["released"] for row in record["incidents"]) for record in ours)
    return [
        f"`{case.name}` {case.shape}: {case.what}",
        ", ".join(case.culprits) or "nobody",
        f"{good}/{len(ours)}",
        _pauses(ours),
        _pauses(alone),
        numbers(told_s(record, truth) for record in ours),
        _paces(ours),
        "; ".join(f"{who} ({count})" if len(out) > 1 else who for who, count in out.items()),
        f"{released}/{len(ours)}",
        "; ".join(_said(ours[-1])) if ours else "-",
    ]


def _pauses(records: Iterable[Record]) -> str:
    rows = [max(record["pauses"].values(), key=lambda row: row["pause"]) for record in records]
    open_end = any(row["over"] is None for row in rows)
    return numbers(row["pause"] for row in rows) + "+" * open_end


def _paces(records: Iterable[Record]) -> str:
    pairs = [pair for record in records for pair in record["pace"].values() if None not in pair]
    if not pairs:
        return "-"
    return " -> ".join(f"{median(values):.2f}" for values in zip(*pairs, strict=True))


def _said(record: Record) -> list[str]:
    """What each incident said last, with kind, severity, confidence and suspects."""
    return [
        f"{row['kind']} {row['severity']} {row['confidence']} after {row['fired']} s"
        f" ({', '.join(row['accused']) or 'nobody'}): *{row['sentences'][-1][1]}*"
        for row in fired(record)
    ] or ["-"]  # fmt: skip


def _misses(records: Sequence[Record]) -> list[str]:
    missed = [
        f"- `{record['key']}`: **{verdict}**: {because}"
        for record in records if not record["alone"]
        for verdict, because in [judge(record, CASES[record["case"]].truth())]
        if verdict is not Verdict.GOOD
    ]  # fmt: skip
    return missed or ["None."]
