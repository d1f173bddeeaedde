"""What one sidecar lets its neighbours know of its rank: they answer `/v1/host` for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from worker_server import run_dir, wire


def write(path: Path, report: wire.StateReport, now_s: float) -> None:
    """Keep witness and ending of a report in a file; none where there is neither.

    Raises:
        OSError: it cannot be written.
    """
    if report.witness is None and report.ending is None:
        path.unlink(missing_ok=True)
        return
    told = wire.to_json(replace(report, step=None, heads=()))
    run_dir.write_json(path, {"written_s": now_s, "report": told})


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
    witness = kept.witness
    if witness is None:
        return report
    return replace(
        report, witness=replace(witness, age_s=witness.age_s + max(0.0, now_s - written_s))
    )
