"""Routes of the audit: one incident, and totals."""

from __future__ import annotations

from flask import Blueprint, Response

from monitor.app.answers import answer
from monitor.app.desk import the_desk
from monitor.app.viewing import chosen, one_of, the_view
from monitor.audit.totals import totals_to_json
from monitor.view import SCHEMA, case_of, incident_json

auditing = Blueprint("auditing", __name__)


@auditing.get("/v1/incidents/<prefix>")
def incident(prefix: str) -> Response:
    """One incident with its story; the beginning of its id will do."""
    view = the_view()
    journal = the_desk().journal
    more = {"journal": None if journal is None else str(journal)}
    return answer({"schema": SCHEMA, **incident_json(view, one_of(view, prefix)), **more})


@auditing.get("/v1/audit")
def audit() -> Response:
    """What incidents and evictions came to, over a span."""
    view = the_view()
    choice = chosen(view)
    cases = [case_of(view, one) for one in choice.among(view.incidents)]
    cases = [case for case in cases if case.incident.milestones.firing_s is not None]
    body = totals_to_json(cases, choice.since_s, view.snapshot.now_s)
    return answer({"schema": SCHEMA, **body})
