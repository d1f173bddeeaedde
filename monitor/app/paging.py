"""Routes of the pages for people, and of what keeps an open page up to date."""

from __future__ import annotations

from typing import Final

from flask import Blueprint, Flask, Response, current_app, request

from monitor.app.answers import Refusal
from monitor.app.desk import Desk, the_desk
from monitor.app.frames import Frames, Tagged
from monitor.app.streams import unread_of
from monitor.app.viewing import the_view
from monitor.names import GroupName, Host
from monitor.pages import Context, Frame, Place, make, news, state_of_all, whole
from monitor.pages.context import FLEET, GROUPS, HOSTS, RANKS
from monitor.reports.document import document
from monitor.reports.markup import element, words
from monitor.store import Scope
from monitor.view import SCHEMA, View

_FRAMES: Final = "lightkeeper.frames"
_RETRY_S: Final = 30
_HTML: Final = "text/html; charset=utf-8"

paging = Blueprint("paging", __name__)
"""Pages, and their streams: no token, as for the snapshot."""


def open_frames(app: Flask, desk: Desk) -> None:
    """Give the routes of this application the pages of its desk's views."""
    app.extensions[_FRAMES] = Frames(lambda view, place: _frame(desk, view, place))


@paging.get("/")
def fleet() -> Response:
    """The whole fleet, by replica group or `?by=host`."""
    return _page(Place(FLEET, by_host=request.args.get("by") == "host"))


@paging.get("/groups/<path:name>")
def group(name: str) -> Response:
    """One replica group."""
    return _page(Place(GROUPS, name))


@paging.get("/hosts/<path:name>")
def host(name: str) -> Response:
    """One host."""
    return _page(Place(HOSTS, name))


@paging.get("/ranks/<path:name>")
def rank(name: str) -> Response:
    """One rank."""
    return _page(Place(RANKS, name))


@paging.get("/v1/fleet")
def state() -> Response:
    """What a page shows, as JSON; with `?since=TAG` only what has changed since."""
    place, view = _asked(), the_view()
    found = _frames().latest(view, place)
    body = _told(found, _frames().earlier(place, request.args.get("since", "")))
    return Response(body, content_type="application/json")


@paging.get("/v1/events")
def events() -> Response:
    """The same as a stream: first all, or what has changed since; then the changes of each tick."""
    place, desk = _asked(), the_desk()
    give_back = desk.streams.take()
    if give_back is None:
        refused = Refusal(503, "as many streams are open as there may be: poll /v1/fleet")
        refused.headers["Retry-After"] = str(_RETRY_S)
        raise refused
    since = request.headers.get("Last-Event-ID") or request.args.get("since", "")
    follower = _Follower(_frames(), place, since)
    stream = desk.streams.run(lambda: follower.news(desk.view()), unread_of(request.environ))
    response = Response(stream, content_type="text/event-stream; charset=utf-8")
    response.call_on_close(give_back)
    response.headers["X-Accel-Buffering"] = "no"  # a proxy that collects would hold it back
    return response


class _Follower:
    """One open page: what it has been told, and what is new."""

    def __init__(self, frames: Frames, place: Place, since: str) -> None:
        self._frames = frames
        self._place = place
        self._tag = since
        self._view: View | None = None
        self._frame = frames.earlier(place, since)

    def news(self, view: View | None) -> bytes | None:
        """One event; None: there is no later view."""
        if view is None or view is self._view:
            return None
        self._view = view
        found = self._frames.latest(view, self._place)
        if found.tag == self._tag:
            return None
        body = _told(found, self._frame)
        self._tag, self._frame = found.tag, found.frame
        return b"id: " + found.tag.encode() + b"\nevent: page\ndata: " + body + b"\n\n"


def _told(found: Tagged, before: Frame | None) -> bytes:
    inside = state_of_all(found.frame) if before is None else news(before, found.frame)
    return f'{{"schema":{SCHEMA},"tag":"{found.tag}",{inside}}}'.encode(errors="replace")


def _page(place: Place) -> Response:
    desk = the_desk()
    view = desk.view()
    if view is None:
        return Response(_not_yet(), 503, {"Retry-After": "2"}, content_type=_HTML)
    found = _frames().latest(view, place)
    text = whole(found.frame, place.path, found.tag, desk.tick_s)
    return Response(text.encode(errors="replace"), 200 if found.frame.found else 404,
                    content_type=_HTML)  # fmt: skip


def _not_yet() -> str:
    said = "The monitor has just started and has not looked at the fleet yet."
    inside = element("section", words("h1", "Starting"), words("p", said))
    return document("Starting", inside, again_s=2)


def _asked() -> Place:
    path = request.args.get("page", "/")
    place = Place.of(path)
    if place is None:
        raise Refusal(400, f"page is {path[:60]!r}, expected /, /groups/G, /hosts/H or /ranks/R")
    return place


def _frames() -> Frames:
    frames: Frames = current_app.extensions[_FRAMES]
    return frames


def _frame(desk: Desk, view: View, place: Place) -> Frame:
    """Also made for streams, which outlive their request."""
    history = desk.quarantine.history
    events = (
        history(GroupName(place.name), Scope.GROUP)
        if place.kind == GROUPS
        else history(Host(place.name))
        if place.kind == HOSTS
        else ()
    )
    return make(
        Context(
            view,
            place,
            guarded=not (desk.loopback or desk.open_reads),
            why_not=why_not(desk),
            history=events,
        )
    )


def why_not(desk: Desk) -> str | None:
    """Why this monitor would refuse every change."""
    if desk.token is None:
        return "no token is configured (start the monitor with --token-file FILE)"
    standing = None if desk.standing is None else desk.standing()
    return None if standing is None or standing.active else standing.sentence()
