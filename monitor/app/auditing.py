"""Routes of the audit: one incident, all as a sheet, totals; and what a person says of one."""

from __future__ import annotations

from flask import Blueprint, Response

from monitor.app.answers import Refusal, answer, json_body, text_of
from monitor.app.changing import guard
from monitor.app.desk import the_desk
from monitor.app.viewing import chosen, one_of, the_view
from monitor.audit.review import Judgement, Review, review_to_json
from monitor.audit.sheet import sheet
from monitor.audit.totals import totals_to_json
from monitor.view import SCHEMA, NotPossible, case_of, incident_json

_BY_MAX_CHARS = 100

auditing = Blueprint("auditing", __name__)
"""What anybody may read."""
reviewing = Blueprint("reviewing", __name__)
"""What needs the token."""
reviewing.before_request(guard)


@auditing.get("/v1/incidents/<prefix>")
def incident(prefix: str) -> Response:
    """One incident with its story; the beginning of its id will do."""
    view = the_view()
    journal = the_desk().journal
    more = {"journal": None if journal is None else str(journal)}
    return answer({"schema": SCHEMA, **incident_json(view, one_of(view, prefix)), **more})


@auditing.get("/v1/incidents.csv")
def incidents_csv() -> Response:
    """One line an incident, newest first, for a spreadsheet."""
    view = the_view()
    choice = chosen(view)
    text = sheet(case_of(view, one) for one in choice.among(view.incidents))
    made = Response(text.encode(errors="replace"), content_type="text/csv; charset=utf-8")
    made.headers["Content-Disposition"] = 'attachment; filename="incidents.csv"'
    return made


@auditing.get("/v1/audit")
def audit() -> Response:
    """What incidents and evictions came to, over a span."""
    view = the_view()
    choice = chosen(view)
    cases = [case_of(view, one) for one in choice.among(view.incidents)]
    cases = [case for case in cases if case.incident.milestones.firing_s is not None]
    body = totals_to_json(cases, choice.since_s, view.snapshot.now_s)
    return answer({"schema": SCHEMA, **body})


@reviewing.post("/v1/incidents/<prefix>/review")
def review(prefix: str) -> Response:
    """A person judges an incident, and the eviction if there was one.

    `author` and `reason`, as other changes call them, will do for `by` and `note`.
    """
    body = json_body()
    said, words = body.get("verdict"), ", ".join(Judgement)
    if not isinstance(said, str) or said not in list(Judgement):
        raise Refusal(400, f"'verdict' is {str(said)[:60]!r}, expected one of {words}")
    told = {"by": body.get("by", body.get("author")),
            "note": body.get("note") or body.get("reason")}  # fmt: skip
    note = text_of(told, "note") if told["note"] else ""
    judged = Review(
        Judgement(said), text_of(told, "by", _BY_MAX_CHARS), note, the_desk().clock.now_s()
    )
    one = one_of(the_view(), prefix)
    try:
        the_desk().review(one.id, judged)
    except NotPossible as exc:
        raise Refusal(404, str(exc)) from exc
    shown = review_to_json(judged)
    return answer({"schema": SCHEMA, "incident": one.id, "review": shown})
