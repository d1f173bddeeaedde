"""Routes of the pages for people, and what keeps an open page up to date. Also JSON of one
incident, and of the totals.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from flask import Blueprint, Flask, Response, current_app, request

from lightkeeper.monitor.decide.accounts import WORDS, ChoiceError, find
from lightkeeper.monitor.decide.view import SCHEMA, View, bundle_url
from lightkeeper.monitor.decide.view_json import report_to_json
from lightkeeper.monitor.model.eviction import Scope
from lightkeeper.monitor.model.incident import Incident
from lightkeeper.monitor.show.answers import (
    AppContext,
    HttpRefusal,
    answer,
    app_context,
    check_reader,
    chosen,
    dump,
    the_view,
)
from lightkeeper.monitor.show.incident_page import (
    Access,
    BundleStacks,
    Earlier,
    incident_page,
    incident_text,
    incidents_page,
)
from lightkeeper.monitor.show.latest import Latest
from lightkeeper.monitor.show.pages import (
    FLEET,
    GROUPS,
    HOSTS,
    ITEMS,
    RANKS,
    SOURCES,
    Context,
    FleetIndex,
    Page,
    PagePlace,
    fleet_page,
    group_page,
    host_page,
    job_of,
    rank_page,
)
from lightkeeper.monitor.show.reading import said_by, status_text
from lightkeeper.monitor.show.runbooks import runbooks_page
from lightkeeper.monitor.show.runs_page import runs_page
from lightkeeper.monitor.show.templating import document, sections, template
from lightkeeper.monitor.show.wording import path_of
from lightkeeper.worker_server.plain_text import escaped

# -- The pages of the latest view, and what of them is new to an open page ------------------------
# For pages of earlier views each section's hash is kept: an open page is sent the sections whose
# hash differs.

_EARLIER: Final = 8
"""Versions of each page whose hashes are kept: a page further behind is sent everything."""


def make(context: Context) -> Page:
    of_kind = {GROUPS: group_page, HOSTS: host_page, RANKS: rank_page}
    return of_kind.get(context.place.kind, fleet_page)(context)


def whole(page: Page, path: str, tag: str, tick_s: float) -> str:
    """HTML that works without a script; with one it asks what is new since `tag`."""
    items = "".join(page.items.values())
    parts = {key: markup.replace(ITEMS, items) for key, markup in page.sections.items()}
    chips = parts.pop("chips")
    return document(
        page.title,
        '<div id="away" role="status"></div>',
        *parts.values(),
        script="/static/page.js",
        here="/" if path.startswith("/?") else path,
        chips=chips,
        job=page.job,
        data={"place": path, "tag": tag, "tick": f"{tick_s:g}"},
    )


class PageVersion:
    """A page, and how it differs from earlier versions; `tag` names this one."""

    def __init__(
        self, number: int, tag: str, page: Page, before: PageVersion | None = None
    ) -> None:
        self.number = number
        self.tag = tag
        self.page = page
        self._sections = {key: hash(markup) for key, markup in page.sections.items()}
        self._items = {key: hash(markup) for key, markup in page.items.items()}
        earlier = {} if before is None else before._earlier
        self._earlier: dict[str, tuple[Hashes, Hashes]] = {
            **dict(list(earlier.items())[1 - _EARLIER :]),
            tag: (self._sections, self._items),
        }
        self._html: bytes | None = None
        self._news: dict[str, bytes] = {}

    def html(self, path: str, tick_s: float) -> bytes:
        """The whole document; made once."""
        if self._html is None:
            self._html = whole(self.page, path, self.tag, tick_s).encode(errors="replace")
        return self._html

    def news(self, since: str) -> bytes:
        """What is new since that tag, as JSON; everything if the tag is unknown."""
        since = since if since in self._earlier else ""
        if since not in self._news:
            self._news[since] = dump(self._differences(since)).rstrip()
        return self._news[since]

    def _differences(self, since: str) -> dict[str, Any]:
        """Sections and items that differ; `order` only if items came or went."""
        page = self.page
        sections, items = self._earlier.get(since, ({}, {}))
        full = list(sections) != list(self._sections)
        if full:
            sections, items = {}, {}
        body: dict[str, Any] = {
            "schema": SCHEMA,
            "tag": self.tag,
            "full": full,
            "title": page.title,
            "facts": page.facts,
            "parts": _differing(page.sections, self._sections, sections),
            "items": _differing(page.items, self._items, items),
        }
        if full or list(items) != list(page.items):
            body["order"] = list(page.items)
        return body


Hashes = Mapping[str, int]
"""Of sections or items, in their order."""


def _differing(markup: Mapping[str, str], now: Hashes, before: Hashes) -> dict[str, str]:
    return {key: text for key, text in markup.items() if before.get(key) != now[key]}


class Pages:
    """Safe to use from any thread."""

    def __init__(self, context: Callable[[FleetIndex, PagePlace], Context]) -> None:
        for name in ("document.html", "fleet.html", "crowd.html", "rank.html", "acts.html"):
            template(name)  # else the first page would count as slow (`latest`)
        self._context = context
        self._latest: Latest[PageVersion] = Latest()
        self._boot = secrets.token_hex(4)
        """A restarted monitor counts from 0; its tags must differ."""
        self._fleet: FleetIndex | None = None

    def latest(self, view: View, place: PagePlace) -> PageVersion:
        """The page in this view, or in the one before while this one's is being made."""
        return self._latest.get(view, place, partial(self._make, view, place))

    def _make(
        self, view: View, place: PagePlace, number: int, before: PageVersion | None
    ) -> PageVersion:
        fleet = self._fleet
        if fleet is None or fleet.view is not view:
            fleet = self._fleet = FleetIndex(view)
        page = make(self._context(fleet, place))
        return PageVersion(number, f"{self._boot}-{number}", page, before)


# -- the routes -----------------------------------------------------------------------------------

_PAGES: Final = "lightkeeper.pages"
_TABLES: Final = ("steps", "flight_recorder", "last_words", "network")
_ROWS: Final = 200
"""Of a rank's table on a page, the newest."""
_SHOWN_CHARS: Final = 150_000
"""Of a rank's answer on a page; the raw text has the rest."""
_HTML: Final = "text/html; charset=utf-8"

paging = Blueprint("paging", __name__)
"""Pages, and what is new to open ones: no token, as for the snapshot."""


def open_pages(app: Flask, context: AppContext) -> None:
    app.extensions[_PAGES] = Pages(lambda fleet, place: _page_context(context, fleet, place))


@paging.get("/")
def fleet() -> Response:
    """The fleet, by replica group or `?by=host`; text for clients without HTML (curl)."""
    if "text/html" not in request.headers.get("Accept", "text/html"):
        return status_text()
    return _page(PagePlace(FLEET, by_host=request.args.get("by") == "host"))


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
    text, why, status = "", "", 200
    try:
        said = said_by(name, what, {"format": "text", "rows": rows})
    except HttpRefusal as exc:
        why, status = str(exc), exc.status
    else:
        text, status = escaped(said.get_data(as_text=True), "\n\t"), said.status_code
        why = "" if status == 200 else f"the rank's WorkerServer answers {status}: {text}"
    view = app_context().view()
    shown = text[:_SHOWN_CHARS].splitlines()
    inside = sections(
        "says.html", name=name, what=what, SOURCES=SOURCES, why=why, text=shown,
        cut=len(text) > _SHOWN_CHARS, raw=f"/v1{path_of(RANKS, name)}/{what}",
        json=what != "stacks", more=what in _TABLES and rows != "0",
    )  # fmt: skip
    html = document(
        f"{what.replace('_', ' ')} of {name}", *inside.values(), script="/static/page.js",
        job="" if view is None else job_of(view),
    )  # fmt: skip
    return _html(html, status)


@paging.get("/v1/fleet")
def state() -> Response:
    """What a page shows, as JSON; with `?since=TAG` only what has changed since.

    Its ETag is the tag: with `If-None-Match` the answer is 304 until there is another version.
    """
    version = _pages().latest(the_view(), _asked())
    if version.tag in request.if_none_match:
        response = Response(status=304)
    else:
        body = version.news(request.args.get("since", ""))
        response = Response(body, content_type="application/json")
    response.set_etag(version.tag)
    return response


def _page(place: PagePlace) -> Response:
    context = app_context()
    view = context.view()
    if view is None:
        said = "The monitor has just started and has not looked at the fleet yet."
        inside = f"<section><h1>Starting</h1><p>{said}</p></section>"
        starting = document("Starting", inside, again_s=2)
        return Response(starting, 503, {"Retry-After": "2"}, content_type=_HTML)
    version = _pages().latest(view, place)
    html = version.html(place.path, context.tick_s)
    return Response(html, 200 if version.page.exists else 404, content_type=_HTML)


def _asked() -> PagePlace:
    path = request.args.get("page", "/")
    place = PagePlace.of(path)
    if place is None:
        raise HttpRefusal(
            400, f"page is {path[:60]!r}, expected /, /groups/G, /hosts/H or /ranks/R"
        )
    return place


def _pages() -> Pages:
    pages: Pages = current_app.extensions[_PAGES]
    return pages


def _page_context(context: AppContext, fleet: FleetIndex, place: PagePlace) -> Context:
    """Uses no request: a page may be made after the one that asked for it."""
    scope = {GROUPS: Scope.GROUP, HOSTS: Scope.HOST}.get(place.kind)
    events = () if scope is None else context.quarantine.history(place.name, scope)
    guarded = not (context.loopback or context.open_reads)
    return Context(fleet, place, guarded, why_not(context), events)


def why_not(context: AppContext) -> str | None:
    """Why this monitor would refuse every change."""
    if context.tokens.own is None:
        return "no token is configured (start the monitor with --token-file FILE)"
    standing = context.standing()
    return None if standing is None or standing.active else standing.sentence()


# Incidents.

_LISTED: Final = 100
"""Most incidents listed."""
_SIMILAR: Final = 8

incident_pages = Blueprint("incident_pages", __name__)
"""Open to anybody, but for what ranks said: `check_reader` decides that."""


@incident_pages.get("/v1/incidents/<prefix>")
def incident(prefix: str) -> Response:
    """One incident with its story, as `text` too; the start of its id is enough."""
    view, journal = the_view(), app_context().journal
    report = view.report(find(view.incidents, prefix))
    text = incident_text(report, request.host_url.rstrip("/"), journal)
    more = {"journal": None if journal is None else str(journal), "text": text.splitlines()}
    return answer({"schema": SCHEMA, **report_to_json(report), **more})


@incident_pages.get("/incidents/<prefix>")
def incident_for_people(prefix: str) -> Response:
    """One incident, readable without JavaScript."""
    view = the_view()
    incident = find(view.incidents, prefix)
    access = _access(incident)
    stacks = app_context().stacks(incident.id) if access.allowed else BundleStacks()
    if request.args.get("have") == stacks.stamp != "":
        stacks = BundleStacks(stamp=stacks.stamp, kept=True)
    text = incident_page(
        view.report(incident),
        now_s=view.snapshot.now_s,
        stacks=stacks,
        access=access,
        earlier=_earlier(view, incident),
        job=job_of(view),
    )
    return _html(text)


@incident_pages.get("/runs")
def runs_for_people() -> Response:
    """Every start of the job."""
    return _html(runs_page(the_view()))


@incident_pages.get("/runbooks")
def runbooks_for_people() -> Response:
    """What to do about each alert."""
    return _html(runbooks_page())


@incident_pages.get("/incidents")
def incidents_for_people() -> Response:
    """The latest of those chosen, each with a link to its page."""
    view, words = the_view(), request.args
    asked = {name: words[name] for name in WORDS if words.get(name)}
    wrong = ""
    try:
        incidents = chosen(view)
    except ChoiceError as exc:
        incidents, wrong = [], str(exc)
    page = incidents_page(
        [view.report(incident) for incident in incidents[:_LISTED]],
        now_s=view.snapshot.now_s,
        asked=asked,
        total=len(incidents),
        remembered=len(view.incidents),
        totals=view.totals(incidents) if incidents else None,
        wrong=wrong,
        job=job_of(view),
        runs=[run.id for run in view.runs],
        alone=view.alone,
    )
    return _html(page, 400 if wrong else 200)


def _access(incident: Incident) -> Access:
    """Whether this request may see what ranks said, by the same rule as their pages."""
    root = request.host_url.rstrip("/")
    url, page = root + bundle_url(incident.id), root + path_of("incidents", incident.id)
    try:
        check_reader()
    except HttpRefusal:
        return Access(False, "They are shown with the monitor's token.", url, page)
    return Access(True, url=url, page=page)


def _earlier(view: View, incident: Incident) -> list[Earlier]:
    """The latest earlier incidents that share a host or a group with it."""
    earlier: list[Earlier] = []
    for other in view.incidents:
        before = other.milestones.first_seen_s < incident.milestones.first_seen_s
        same = [f"host {name}" for name in sorted({*incident.hosts} & {*other.hosts})[:2]]
        same += [f"group {name}" for name in sorted({*incident.groups} & {*other.groups})[:2]]
        if before and same and len(earlier) < _SIMILAR:
            earlier.append(Earlier(other, view.account(other).outcome, ", ".join(same)))
    return earlier


def _html(text: str, status: int = 200) -> Response:
    body = text.encode(errors="replace")
    return Response(body, status, content_type=_HTML)
