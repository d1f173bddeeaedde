"""The report for programs: schema 1, to which keys may be added and from which none goes."""

from __future__ import annotations

from typing import Any, Final

from monitor.analysis.finding import Analysis, Finding
from monitor.flight_recorder.job import Job
from monitor.reports.online import Online, culprits, to_json

SCHEMA: Final = 1


def report(job: Job, analysis: Analysis, told: Online | None = None) -> dict[str, Any]:
    """What `--format json` prints. Text from records stands as it was; JSON's escapes guard it."""
    body: dict[str, Any] = {
        "schema": SCHEMA,
        "ranks_expected": len({*job.expected, *job.ranks}),
        "ranks_read": sorted(job.ranks),
        "ranks_silent": list(job.silent),
        "verdicts": [_verdict(job, one) for one in analysis.findings],
        "culprits": list(culprits(analysis, told)),
        "problems": [
            {"path": one.path, "rank": one.rank, "reason": one.reason} for one in job.problems
        ],
        "notes": list(analysis.notes),
    }
    if job.names:
        body["names"] = {str(rank): job.names[rank] for rank in sorted(job.names)}
    if told is not None:
        body["monitor"] = to_json(told)
    if job.hosts:
        body["hosts"] = {str(rank): job.hosts[rank] for rank in sorted(job.hosts)}
    return body


def _verdict(job: Job, finding: Finding) -> dict[str, Any]:
    group = None if finding.group is None else job.groups[finding.group]
    return {
        "kind": str(finding.kind),
        "culprits": list(finding.culprits),
        "cannot_tell_between": [list(side) for side in finding.between],
        "victims": list(finding.victims),
        "group": None if group is None else group.name,
        "group_label": None if group is None else group.label,
        "sequence": finding.sequence,
        "op": finding.op,
        "confidence": str(finding.confidence),
        "reason": finding.reason,
        "evidence": dict(finding.evidence),
    }
