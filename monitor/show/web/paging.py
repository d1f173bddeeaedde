"""Routes of the pages for people.

The script of an open page asks for the whole page again, with the tag of the one it has.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from flask import Blueprint, Response, request
from markupsafe import Markup, escape

from lightkeeper.monitor.decide.accounts import WORDS, ChoiceError, find_incident
from lightkeeper.monitor.model.eviction import Scope
from lightkeeper.monitor.model.names import RankName
from lightkeeper.monitor.model.run import RESOLUTIONS
from lightkeeper.monitor.show.chart_svg import Chart, phase_chart
from lightkeeper.monitor.show.templating import Page, environment, path_of, render
from lightkeeper.monitor.show.web.answers import (
    AppContext,
    HttpRefusal,
    app_context,
    check_reader,
    chosen,
    the_view,
)
from lightkeeper.monitor.show.web.incident_page import incident_page, incidents_page
from lightkeeper.monitor.show.web.pages import (
    FLEET,
    GROUPS,
    HOSTS,
    RANKS,
    SOURCES,
    Context,
    PagePlace,
    make,
    runs_page,
)
from lightkeeper.monitor.show.web.reading import said_by, status_text
from lightkeeper.worker_server.plain_text import escaped
from lightkeeper.worker_server.wire import WireError, parse_steps

# -- the routes -----------------------------------------------------------------------------------

_TABLES: Final = ("steps", "flight_recorder", "last_words", "network")
_ROWS: Final = 200
"""Rows of a rank's table on a page, the newest."""
_STEPS: Final = 60
"""Most attempts in the picture of them."""
_SHOWN_CHARS: Final = 150_000
"""Characters of a rank's answer on a page; the raw text has the rest."""
_HTML: Final = "text/html; charset=utf-8"
ON_CALL: Final = Path(__file__).resolve().parents[3] / "docs" / "on-call.md"
"""A section for each alert; the same place in a checkout and in a wheel."""

paging = Blueprint("paging", __name__)
"""No token, as for the snapshot, but for what ranks said: `check_reader` decides that."""


def compile_templates() -> None:
    """Else the first page would count as slow to make (`Latest`)."""
    for name in ("document.html", "fleet.html", "crowd.html", "rank.html", "acts.html"):
        environment().get_template(name)


@paging.get("/")
def fleet() -> Response:
    """The fleet by replica group or `?by=host`, its past for `?span=24h` or `7d`; text for curl."""
    if "text/html" not in request.headers.get("Accept", "text/html"):
        return status_text()
    by_host, span = request.args.get("by") == "host", request.args.get("span", "")
    return _page(PagePlace(FLEET, by_host=by_host, span=span if span in RESOLUTIONS else "1h"))


@paging.get("/groups/<path:name>")
def group(name: str) -> Response:
    return _page(PagePlace(GROUPS, name))


@paging.get("/hosts/<path:name>")
def host(name: str) -> Response:
    return _page(PagePlace(HOSTS, name))


@paging.get("/ranks/<path:name>")
def rank(name: str) -> Response:
    """One rank; with `?show=stacks` and the like its own answer."""
    what = request.args.get("show")
    return _page(PagePlace(RANKS, name)) if what is None else _says(name, what)


def _says(name: str, what: str) -> Response:
    rows = request.args.get("rows", str(_ROWS))
    text, why, status, steps = "", "", 200, None
    try:
        said = said_by(name, what, {"format": "text", "rows": rows})
    except HttpRefusal as exc:
        why, status = str(exc), exc.status
    else:
        text, status = escaped(said.get_data(as_text=True), "\n\t"), said.status_code
        steps = _last_steps(name) if what == "steps" and status == 200 else None
        why = "" if status == 200 else f"the rank's WorkerServer answers {status}: {text}"
    view = app_context().view()
    shown = text[:_SHOWN_CHARS].splitlines()
    html = render(
        "says.html", name=name, what=what, SOURCES=SOURCES, why=why, text=shown,
        cut=len(text) > _SHOWN_CHARS, raw=f"/v1{path_of(RANKS, name)}/{what}",
        json=what != "stacks", more=what in _TABLES and rows != "0",
        view=view, steps=steps,
    )  # fmt: skip
    return _html(html, status)


def _last_steps(name: str) -> Chart | None:
    """A picture of them; None: it cannot be had."""
    seen = the_view().snapshot.by_rank.get(RankName(name))
    attempt = 0 if seen is None or seen.step is None else seen.step.attempt
    try:
        said = said_by(name, "steps", {"since": str(max(0, attempt - _STEPS))})
        return phase_chart(parse_steps(said.get_json(silent=True)).rows)
    except (HttpRefusal, WireError):
        return None


def _page(place: PagePlace) -> Response:
    context = app_context()
    view = context.view()
    if view is None:
        starting = _html(render("starting.html"), 503)
        starting.headers["Retry-After"] = "2"
        return starting

    def made() -> Page:
        scope = {GROUPS: Scope.GROUP, HOSTS: Scope.HOST}.get(place.kind)
        events = () if scope is None else context.quarantine.history(place.name, scope)
        guarded = not (context.loopback or context.open_reads)
        return make(Context(view, place, guarded, why_not(context), events, context.tick_s))

    return _sent(context.pages.get(view, place, made))


def why_not(context: AppContext) -> str | None:
    """Why this monitor would refuse every change."""
    if context.fetcher.tokens.own is None:
        return "no token is configured (start the monitor with --token-file FILE)"
    standing = context.standing()
    return None if standing is None or standing.active else standing.sentence()


@paging.get("/incidents/<prefix>")
def incident_for_people(prefix: str) -> Response:
    """One incident, readable without JavaScript; the start of its id is enough."""
    view, context = the_view(), app_context()
    incident = find_incident(view.incidents, prefix)
    try:
        check_reader()
        stacks = context.stacks(incident.id)
    except HttpRefusal:
        stacks = None
    base = request.host_url.rstrip("/")

    def made() -> Page:
        report = view.report(incident)
        return Page(incident_page(view, report, stacks, base, why_not(context)))

    return _sent(context.pages.get(view, (incident.id, stacks, base), made))


@paging.get("/runs")
def runs_for_people() -> Response:
    """Every start of the job."""
    return _html(runs_page(the_view()))


@paging.get("/runbooks")
def runbooks_for_people() -> Response:
    """What to do about each alert: where the shipped ones lead."""
    _, *parts = re.split(r"(?m)^### (\w+)$", ON_CALL.read_text(encoding="utf-8"))
    books = [
        (name, [_prose(paragraph) for paragraph in text.strip().split("\n\n")])
        for name, text in zip(parts[::2], parts[1::2], strict=True)
    ]
    return _html(render("runbooks.html", books=books))


def _prose(text: str) -> Markup:
    """One paragraph; links to other pages of the manual are only their words."""
    html = re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(" ".join(text.split()))))
    html = re.sub(r"\[([^\]]*)\]\((#[\w-]*)\)", r'<a href="\2">\1</a>', html)
    return Markup(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", html))  # noqa: S704 - escaped above


@paging.get("/incidents")
def incidents_for_people() -> Response:
    """The latest of those chosen, each with a link to its page."""
    view, words = the_view(), request.args
    asked = {name: words[name] for name in WORDS if words.get(name)}
    wrong = ""
    try:
        incidents = chosen(view)
    except ChoiceError as exc:
        incidents, wrong = [], str(exc)
    return _html(incidents_page(view, incidents, asked, wrong), 400 if wrong else 200)


def _html(text: str, status: int = 200) -> Response:
    return _sent(Page(text, status))


def _sent(page: Page) -> Response:
    response = Response(status=page.status, content_type=_HTML)
    response.set_etag(page.tag)
    if page.tag in request.if_none_match:
        response.status_code = 304
    elif request.accept_encodings["gzip"]:
        response.data, response.content_encoding = page.compressed, "gzip"
    else:
        response.data = page.html
    return response
