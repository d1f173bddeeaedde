"""evidence/field.md, from the records. Pure but for `made`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from experiments import harness
from experiments.field.cases import CASES, Case, Family
from experiments.field.judge import Verdict, judge, main_incident, said
from experiments.pages import codes, middle, share, table

Record = Mapping[str, Any]

_HEAD: Final = """\
# Field suite

Written by `make field`; do not edit. Scripts after TorchFT's, torchtitan's and PyTorch's own
examples (`experiments/field/scripts`), with nothing of ours but `lightkeeper.attach()`, or not even
that: no phases, no reports. Bugs as people write them, made by the script or from outside (signals,
gdb, strace, cgroups). Each run is a job of its own on loopback. With TorchFT it has a Lighthouse
and a monitor with their defaults, and each replica group is a real torchrun in a shell's `until`
loop behind `lightkeeper run`; TorchFT's timeouts are its defaults (60 s), too. Without TorchFT it
is one torchrun behind `lightkeeper run`. The cases with their truth: `experiments/field/table`.
"""

_LEGEND: Final = """\
*Exact*: who caused it was named by an incident that fired, as likely or certain (where the evidence
cannot tell between two, both); nobody else was; no other group was evicted; no stand of over a
minute went untold; where the group has to go, the others train on. In public reports sentences,
evidence and headline held the lines of the script as well, and no stand of over half a minute and
no end went untold. *Cause*: a sentence held the function, the exception or the signal. *Firing* and
*trains*: seconds from the bug to the first incident that fired, and to the next step of any group
(0: it never stood for 5 s), medians. What was said is of the latest run."""


def made(out: Path) -> str:
    """Judge all records again; the page."""
    return render(
        [{**line, **_judged(line)} for line in harness.read(out) if line["case"] in CASES]
    )


def _judged(record: Record) -> dict[str, Any]:
    case = CASES[record["case"]]
    fresh = {**record, "truth": case.truth(), "bug": case.bug}
    verdict, because = judge(fresh)
    return {"truth": case.truth(), "verdict": verdict, "because": because}


def render(records: Sequence[Record]) -> str:
    """The whole page."""
    parts = [_HEAD, _summary(records), _best(records)]
    for family in Family:
        mine = [case for case in CASES.values() if case.family is family]
        if rows := [_row(case, _of(case, records)) for case in mine if _of(case, records)]:
            parts.append(f"## {family[0].upper()}{family[1:]}\n\n{table(_HEAD_ROW, rows)}")
    return "\n".join([*parts, _LEGEND, "", _misses(records)])


def _summary(records: Sequence[Record]) -> str:
    bugs = [
        record
        for record in records
        if not record["healthy"] and record["verdict"] != Verdict.INVALID
    ]
    healthy = [
        record for record in records if record["healthy"] and record["verdict"] != Verdict.INVALID
    ]
    asked = [record for record in bugs if said(record) is not None]
    stood = [record for record in records if any(b - a > 60 for a, b in record["stands"])]
    exact, silent = _count(bugs, Verdict.EXACT), _count(healthy, Verdict.EXACT)
    untold = sum(bool(record["stood_untold"]) for record in stood)
    lines = [
        (
            f"{len(records)} runs of {len({record['case'] for record in records})} cases; "
            f"of the code at {codes(records)}"
        ),
        "",
        f"- bugs, culprits exact: {share(exact, len(bugs))} (target at least 95 %)",
        f"- healthy habits, silent: {share(silent, len(healthy))}",
        (
            "- runs in which a healthy rank stood accused as likely or certain: "
            f"{_accused(records)}; a healthy group was evicted: "
            f"{_count(records, Verdict.EVICTED)} (target none)"
        ),
        f"- the job stood for over 60 s: {len(stood)} runs, untold in {untold} (target none)",
        f"- the cause in a sentence: {share(sum(map(_said, asked)), len(asked))}",
    ]
    return "\n".join([*lines, ""])


def _said(record: Record) -> bool:
    return said(record) is True


def _accused(records: Sequence[Record]) -> int:
    return _count(records, Verdict.EVICTED) + _count(records, Verdict.ACCUSED)


_CHOSEN: Final = (
    "lock", "both-ranks-dead-disk", "worker-killed", "other-shape", "skips-allreduce",
    "swallowed-in-group", "gdb-90s", "throttled", "nan", "all-of-three",
)  # fmt: skip
"""Read and chosen by hand: one of each way to name somebody, and one of nobody."""


def _best(records: Sequence[Record]) -> str:
    """Ten sentences, of runs that were exact."""
    good = {record["case"]: record for record in records if record["verdict"] == Verdict.EXACT}
    rows = [
        f"- {CASES[name].what}: *{_sentence(good[name])}*"
        for name in _CHOSEN
        if name in good and _sentence(good[name])
    ]
    return "\n".join(["## Ten sentences", "", *rows, ""]) if rows else ""


_HEAD_ROW: Final = (
    "case", "truth", "exact", "cause", "firing", "trains", "evicted", "what was said",
)  # fmt: skip


def _row(case: Case, mine: Sequence[Record]) -> list[str]:
    causes = [cause for record in mine if (cause := said(record)) is not None]
    out = Counter(", ".join(record["evicted"]) or "-" for record in mine)
    return [
        f"`{case.name}` {case.shape} {case.script}: {case.what}",
        ", ".join(case.culprits) or "nobody",
        share(_count(mine, Verdict.EXACT), len(mine)),
        f"{sum(causes)}/{len(causes)}" if causes else "-",
        middle(record["to_firing"] for record in mine),
        middle(record["to_commit"] for record in mine),
        "; ".join(f"{who}" if n == len(mine) else f"{who} ({n})" for who, n in out.items()),
        _sentence(mine[-1]) or "-",
    ]


def _sentence(record: Record) -> str:
    """The last of the incident that names the culprits, while it had fired."""
    incident = main_incident(record)
    return "" if incident is None else str(incident["sentences"][-1][1])


def _misses(records: Sequence[Record]) -> str:
    order = list(Verdict)
    missed = sorted(
        (missed_record for missed_record in records if missed_record["verdict"] != Verdict.EXACT),
        key=lambda missed_record: (
            order.index(Verdict(missed_record["verdict"])),
            missed_record["key"],
        ),
    )
    text = ["## Every miss", ""]
    for record in missed:
        what = CASES[record["case"]].what
        text.append(f"- `{record['key']}` ({what}): **{record['verdict']}**: {record['because']}")
        text += [
            f"  - {incident['kind']} of {', '.join(incident['culprits'])} "
            f"({incident['confidence']}): {incident['sentences'][-1][1]}"
            for incident in record["incidents"]
            if "firing_s" in incident["milestones"]
        ]
    return "\n".join([*text, *(() if missed else ("None.",)), ""])


def _of(case: Case, records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record["case"] == case.name]


def _count(records: Iterable[Record], verdict: Verdict) -> int:
    return sum(record["verdict"] == verdict for record in records)
