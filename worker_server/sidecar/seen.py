"""What one sidecar lets its neighbours know of its rank: they answer `/v1/host` for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from worker_server import run_dir, wire

_STALE_S: Final = 30.0
"""Heads that were written longer ago tell nothing any more."""


def write(path: Path, report: wire.StateReport, now_s: float) -> bool:
    """Keep witness, ending and heads by torch's recorders in a file; whether there was anything.

    Raises:
        OSError: it cannot be written.
    """
    heads = _recorded(report)
    if report.witness is None and report.ending is None and not heads:
        path.unlink(missing_ok=True)
        return False
    told = wire.to_json(replace(report, step=None, heads=heads))
    run_dir.write_json(path, {"written_s": now_s, "report": told})
    return True


def add(path: Path, report: wire.StateReport, now_s: float) -> wire.StateReport:
    """The report, with what the file says beside it."""
    told = run_dir.read_json(path)
    try:
        kept = wire.parse_state(told["report"]) if told else None
        written_s = float(told["written_s"]) if told else 0.0
    except (wire.WireError, ValueError, KeyError, TypeError):
        return report
    if kept is None or kept.identity.incarnation != report.identity.incarnation:
        return report
    if not report.process.alive:
        return replace(report, ending=kept.ending)
    late_s = max(0.0, now_s - written_s)
    heads = (
        replace(head, age_s=head.age_s + late_s, read_age_s=(head.read_age_s or 0.0) + late_s)
        for head in _recorded(kept)
        if late_s <= _STALE_S
    )
    witness = kept.witness
    if witness is not None:
        witness = replace(witness, age_s=witness.age_s + late_s)
    return replace(report, witness=witness, heads=(*report.heads, *heads))


def _recorded(report: wire.StateReport) -> tuple[wire.GroupHead, ...]:
    return tuple(head for head in report.heads if head.read_age_s is not None)
