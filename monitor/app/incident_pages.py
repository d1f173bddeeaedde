"""Pages of incidents for people: the list with its form, and one page each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from flask import Blueprint, Response, request

from monitor.app.answers import Refusal, check_reader
from monitor.app.desk import the_desk
from monitor.app.viewing import chosen, one_of, the_view
from monitor.audit.account import account
from monitor.audit.choose import Choice
from monitor.audit.totals import totals_to_json
from monitor.incident import Incident
from monitor.reports.incident import incident_page
from monitor.reports.incident_evidence import Access, Stacks
from monitor.reports.incident_list import Asked, incidents_page
from monitor.reports.incident_pieces import page_path
from monitor.view import View, bundle_url, case_of, incident_json

_LISTED: Final = 100
"""On the page of all."""
_SIMILAR: Final = 8

incident_pages = Blueprint("incident_pages", __name__)
"""What anybody may read, but for what ranks said: that, `check_reader` rules."""


@incident_pages.get("/incidents/<prefix>")
def incident_for_people(prefix: str) -> Response:
    """One incident, readable without JavaScript."""
    view = the_view()
    one = one_of(view, prefix)
    body, access = incident_json(view, one), _access(one)
    stacks = the_desk().stacks(one.id) if access.allowed else Stacks()
    if request.args.get("have") == stacks.stamp != "":
        stacks = Stacks(stamp=stacks.stamp, kept=True)
    text = incident_page(
        body,
        now_s=view.snapshot.now_s,
        stacks=stacks,
        access=access,
        earlier=_earlier(view, one),
    )
    return _html(text)


@incident_pages.get("/incidents")
def incidents_for_people() -> Response:
    """The latest of those asked for, each with a link to its page."""
    view, words = the_view(), request.args
    asked = Asked(*(words.get(name, "") for name in ("kind", "group", "state", "since")))
    wrong = ""
    try:
        choice = chosen(view)
    except Refusal as exc:
        choice, wrong = Choice(), str(exc)
    found = [] if wrong else choice.among(view.incidents)
    page = incidents_page(
        [incident_json(view, one) for one in found[:_LISTED]],
        now_s=view.snapshot.now_s,
        asked=asked,
        total=len(found),
        remembered=len(view.incidents),
        totals=_totals(view, choice, found) if found else None,
        wrong=wrong,
    )
    return _html(page, 400 if wrong else 200)


def _totals(view: View, choice: Choice, found: Sequence[Incident]) -> dict[str, Any]:
    """As `GET /v1/audit` for the same question."""
    fired = [case_of(view, one) for one in found if one.milestones.firing_s is not None]
    return totals_to_json(fired, choice.since_s, view.snapshot.now_s)


def _access(one: Incident) -> Access:
    """Whether this request may see what ranks said, by the rule of their own pages."""
    root = request.host_url.rstrip("/")
    url, page = root + bundle_url(one.id), root + page_path(one.id)
    try:
        check_reader()
    except Refusal as exc:
        token = "They are shown with the monitor's token."  # noqa: S105 - a sentence
        return Access(False, token if exc.status == 401 else f"Here {exc}.", url, page)
    return Access(True, url=url, page=page)


def _earlier(view: View, one: Incident) -> list[dict[str, Any]]:
    """The latest before it on one of its hosts, or in one of its groups."""
    found = []
    for other in view.incidents:
        if other.milestones.first_seen_s >= one.milestones.first_seen_s or other.id == one.id:
            continue
        hosts = set(one.hosts) & set(other.hosts)
        groups = set(one.groups) & set(other.groups)
        if hosts or groups:
            same = [f"host {name}" for name in sorted(hosts)[:2]]
            same += [f"group {name}" for name in sorted(groups)[:2]]
            found.append(_told(view, other, ", ".join(same)))
        if len(found) == _SIMILAR:
            break
    return found


def _told(view: View, other: Incident, same: str) -> dict[str, Any]:
    return {
        "id": other.id,
        "kind": str(other.kind),
        "first_seen_s": other.milestones.first_seen_s,
        "what": f"{account(case_of(view, other)).outcome}, {other.state}: {other.verdict.reason}",
        "same": same,
    }


def _html(text: str, status: int = 200) -> Response:
    body = text.encode(errors="replace")
    return Response(body, status, content_type="text/html; charset=utf-8")
