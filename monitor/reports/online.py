"""What the monitor had said when it saved a bundle, beside what its flight records say alone.

The monitor had seen more than flight records hold: phases, processes, many ticks. So its verdict
stands first; the analysis of the records is a second look, and the report says whether both agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from monitor.analysis.finding import Analysis, Confidence
from monitor.dumps.bundle import Bundle
from monitor.flight_recorder.job import Job
from monitor.incident import Incident, IncidentError, incident_from_json
from monitor.reports.text import moment
from monitor.reports.wording import clean, rank_list, sentence


@dataclass(frozen=True, slots=True)
class Online:
    """The verdict of one bundle's incident."""

    path: str
    incident: Incident
    asked: str
    """The moment whose flight records were read, or why none was."""
    agreement: str
    """One of `same`, `none` (the records show no fault), `unsure`, `other`."""
    culprits: tuple[int, ...]
    """Numbers in the job of those culprits that have one."""

    @property
    def sure(self) -> bool:
        """Whether it accuses anybody."""
        return self.incident.verdict.confidence is not Confidence.UNSURE


def online(job: Job, analysis: Analysis, bundle: Bundle | None) -> Online | None:
    """The verdict of this bundle; None where there is no incident, as of an eviction by hand."""
    try:
        incident = None if bundle is None else incident_from_json(bundle.manifest.incident)
    except IncidentError:
        incident = None
    if bundle is None or incident is None:
        return None
    number = {name: rank for rank, name in job.names.items()}
    asked = "no flight record was to be had"
    if bundle.moment is not None:
        asked = f"{bundle.moment.name}, {moment(int(bundle.moment.began_s * 1e9))} UTC"
    known = sorted(number[name] for name in incident.culprits if name in number)
    agreement = _agreement(job, analysis, incident)
    return Online(bundle.path, incident, asked, agreement, tuple(known))


def culprits(analysis: Analysis, told: Online | None) -> tuple[int, ...]:
    """Whom the report accuses: the monitor's culprits where it was sure, else the records'."""
    return told.culprits if told is not None and told.sure else analysis.culprits


def _agreement(job: Job, analysis: Analysis, incident: Incident) -> str:
    named = {job.name(rank) for rank in analysis.culprits}
    sure = incident.verdict.confidence is not Confidence.UNSURE
    if not analysis.findings:
        return "none"
    if not named:
        return "unsure" if sure else "same"
    return "same" if sure and named == set(incident.culprits) else "other"


_SAID = {
    "same": "the flight records by themselves say the same",
    "none": "the flight records by themselves show no fault: whoever works slowly, has died, or "
    "waits outside of collectives leaves none in them",
    "unsure": "the flight records by themselves do not tell who it was",
    "other": "the flight records by themselves name others: read both",
}


def lines(job: Job, one: Online) -> tuple[str, list[tuple[str, str]]]:
    """A heading and facts, for people."""
    incident = one.incident
    who = clean(", ".join(incident.culprits), 300) or "nobody"
    between = "" if one.sure else "cannot tell between "
    heading = (
        f"the monitor's verdict: {between}{who} ({incident.kind}, {incident.verdict.confidence})"
    )
    facts = [
        ("", sentence(incident.verdict.reason)),
        ("incident", f"{clean(incident.id, 200)}, {incident.state}"),
        ("records of", one.asked),
        ("second look", _SAID[one.agreement]),
    ]
    if one.culprits and not one.sure:
        facts.insert(1, ("ranks", rank_list(job, one.culprits)))
    return heading, facts


def to_json(one: Online) -> dict[str, Any]:
    """The same for programs."""
    incident = one.incident
    return {
        "bundle": one.path,
        "incident": incident.id,
        "kind": str(incident.kind),
        "state": str(incident.state),
        "culprits": list(incident.culprits),
        "culprit_ranks": list(one.culprits),
        "groups": list(incident.groups),
        "confidence": str(incident.verdict.confidence),
        "reason": incident.verdict.reason,
        "records_of": one.asked,
        "records_say": one.agreement,
    }
