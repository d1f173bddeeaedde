"""Routes that change something: registration, quarantine, eviction by hand, the policy, the pause
switch. They need a token, no foreign page.
"""

from __future__ import annotations

import fnmatch
import math
import re
import time
from collections.abc import Mapping
from typing import Any, Final

from flask import Blueprint, Response, request

from lightkeeper.monitor.act.targets import ALOUD, NEW_A_MINUTE, RANKS_MOST, Registered
from lightkeeper.monitor.decide.accounts import find_incident
from lightkeeper.monitor.decide.rules import PolicyError
from lightkeeper.monitor.decide.view import SCHEMA
from lightkeeper.monitor.model.eviction import KEEPER, QuarantineEntry, Scope
from lightkeeper.monitor.model.names import GroupName, IncidentId, RankName
from lightkeeper.monitor.model.plain import to_plain
from lightkeeper.monitor.model.units import no_such
from lightkeeper.monitor.model.verdict import Kind
from lightkeeper.monitor.model.wording import listed
from lightkeeper.monitor.model.work import MATCHERS, WorkAction, WorkRow
from lightkeeper.monitor.show.web.answers import (
    HttpRefusal,
    answer,
    app_context,
    asked_host,
    bearer,
    check_origin,
    check_token,
    json_body,
    text_of,
    the_view,
)
from lightkeeper.monitor.show.web.reading import policy
from lightkeeper.worker_server.http_server import names_us
from lightkeeper.worker_server.wire import Identity, WireError, parse_registration

HOURS_MAX: Final = 24.0 * 366
_AUTHOR_MAX_CHARS: Final = 80
_NAME: Final = re.compile(r"(?![-=])[^\x00-\x20\x7f/\\<>\"'\ud800-\udfff]{1,128}")
"""Names travel into URLs, labels, shells and sheets: no blanks, slashes, quotes or control
characters, no option of a command and no formula."""


_REFUSED: Final = {
    Registered.SUPERSEDED: "a newer incarnation bears the name {0.rank}",
    Registered.WAIT: "who has the name {0.rank} is asked whether it still lives",
    Registered.TAKEN: ALOUD[Registered.TAKEN],
    Registered.OTHER_JOB: ALOUD[Registered.OTHER_JOB],
    Registered.OVER: "its run is over here: a later one began, or all of it is dead",
    Registered.FULL: "as many ranks are registered as this monitor takes",
    Registered.HASTY: f"{{1}} brings more than {NEW_A_MINUTE:,} new ranks a minute, or than "
    f"{RANKS_MOST // 2:,} in all: try again in a minute; ranks behind a proxy better go past it",
    Registered.REFUSED: "its TorchFT Manager calls this replica group {0.group}, which is the name "
    "of another group that lives: it goes on as {0.launched_as}, its launcher's name; give each "
    "group's Manager a replica_id of its own",
}
_STATUS: Final = {Registered.FULL: 503, Registered.HASTY: 429}
"""Others: 409, a conflict."""


changing = Blueprint("changing", __name__)


@changing.before_request
def guard() -> None:
    """Refuse foreign pages, wrong tokens, and every change while no token is configured."""
    check_origin()
    tokens = app_context().fetcher.tokens
    if tokens.own is None and not names_us(asked_host()):
        why = "without a token a change must name this machine, by a name or address of it"
        raise HttpRefusal(403, f"{why}, not {request.host!r}")
    if not request.path.startswith("/v1/register"):
        check_token()
        standing = app_context().standing()
        if standing is not None and (not standing.active or standing.problem is not None):
            more = {"role": standing.role, "active": standing.url}
            raise HttpRefusal(409, standing.sentence(), more)
    elif tokens.own is not None and not tokens.groups(bearer()):
        try:
            check_token()  # ranks register with every monitor
        except HttpRefusal:
            if request.method == "POST":
                app_context().registry.refuse(request.remote_addr or "nowhere")
            raise


@changing.post("/v1/register")
def register() -> Response:
    try:
        registration = parse_registration(json_body())
        _check_names(registration.identity)
    except WireError as exc:
        raise HttpRefusal(400, str(exc)) from exc
    identity, registry = registration.identity, app_context().registry
    _check_group(identity.group)
    _check_group(identity.launched_as or identity.group)
    if app_context().is_own(registration.url):
        raise HttpRefusal(400, f"'url' is {registration.url}, which is this monitor's own address")
    standing = registry.register(registration, request.remote_addr or "")
    if standing is not Registered.CURRENT:
        more: dict[str, object] = {"soon": True} if standing is Registered.WAIT else {}
        if standing is Registered.REFUSED:
            more = {"refused_name": identity.group}
        why = _REFUSED[standing].format(identity, request.remote_addr)
        raise HttpRefusal(_STATUS.get(standing, 409), why, more)
    known_as = registry.known_as(identity)
    lease = app_context().standing()
    acts = lease is None or lease.active
    body = {"schema": SCHEMA, "known_as": known_as, "renew_s": registry.renew_s,
            "asks_again": not _held() if acts else None}  # fmt: skip
    return answer({key: value for key, value in body.items() if value is not None})


def _held() -> bool:
    """True if nothing may be done: in observe mode, or while paused."""
    context = app_context()
    return context.rules.current.config.observe or context.pause.current() is not None


def _check_group(group: str) -> None:
    """Check that the token is for this group."""
    tokens, token = app_context().fetcher.tokens, bearer()
    if tokens.own is not None and not tokens.is_own(token) and group not in tokens.groups(token):
        raise HttpRefusal(403, f"this token is not for ranks of {group}", {"refused_name": group})


@changing.delete("/v1/register/<rank>")
def unregister(rank: str) -> Response:
    incarnation = request.args.get("incarnation", "")
    if not incarnation:
        raise HttpRefusal(400, f"say which: DELETE /v1/register/{rank}?incarnation=...")
    _check_group(rank.rpartition(".")[0])
    secret = text_of(json_body(), "secret") if request.data else ""
    removed = app_context().registry.unregister(RankName(rank), incarnation, secret)
    return answer({"schema": SCHEMA, "removed": removed})


@changing.put("/v1/quarantine/<name>", defaults={"scope": Scope.HOST})
@changing.put("/v1/quarantine/groups/<name>", defaults={"scope": Scope.GROUP})
def put_quarantine(name: str, scope: Scope) -> Response:
    """Refuse a host to launchers, or keep a replica group out wherever it starts."""
    _name(scope, name)
    body, now_s = json_body(), app_context().clock.now_s()
    hours, incident = hours_of(body), body.get("incident_id")
    entry = app_context().quarantine.add(
        QuarantineEntry(
            name=name,
            reason=text_of(body, "reason"),
            author=author_of(body),
            since_s=now_s,
            until_s=None if hours is None else now_s + hours * 3600.0,
            incident_id=None if incident is None else IncidentId(text_of(body, "incident_id")),
            scope=scope,
        )
    )
    return _kept({str(scope): name, "until_s": entry.until_s})


@changing.delete("/v1/quarantine/<name>", defaults={"scope": Scope.HOST})
@changing.delete("/v1/quarantine/groups/<name>", defaults={"scope": Scope.GROUP})
def delete_quarantine(name: str, scope: Scope) -> Response:
    body = json_body()
    reason = text_of(body, "reason") if body.get("reason") is not None else ""
    said = app_context().quarantine.release(name, scope, author=author_of(body), reason=reason)
    if said is None:
        raise HttpRefusal(404, f"{name} is not quarantined")
    return _kept({str(scope): name, "reset": said})


def _kept(body: Mapping[str, Any]) -> Response:
    """The answer to a change, if it is in the store.

    Raises:
        HttpRefusal: it is not.
    """
    if (why := app_context().unsaved()) is not None:
        done = "this monitor does so, and forgets it when it ends"
        raise HttpRefusal(409, f"{done}: its store takes no writes: {why}")
    return answer({"schema": SCHEMA, **body})


def author_of(body: Mapping[str, Any]) -> str:
    """Who the client says it is: shown, never trusted."""
    if body.get("author") is None:
        return "a person"
    author = text_of(body, "author", _AUTHOR_MAX_CHARS)
    return f"{author} (by hand)" if author.casefold() == KEEPER else author


@changing.post("/v1/groups/<group>/evict")
def post_eviction(group: str) -> Response:
    body = json_body()
    reason = text_of(body, "reason")
    incident_id = app_context().evict(GroupName(group), reason, author_of(body))
    pause = app_context().pause.current()
    if pause is None:
        return answer({"schema": SCHEMA, "incident_id": incident_id})
    why = f"evictions are paused by {pause.author} ({pause.reason}): this one, by hand, is not"
    return answer({"schema": SCHEMA, "incident_id": incident_id, "note": why})


def _check_names(identity: Identity) -> None:
    for key in ("job", "group", "host", "incarnation"):
        _name(key, getattr(identity, key))
    if ":" in identity.group:  # a replica id's name ends there
        raise HttpRefusal(400, f"'group' is not a name without a colon: {identity.group[:60]!r}")
    if identity.launched_as is not None:
        _name("launched_as", identity.launched_as)


def _name(key: str, value: str) -> None:
    if _NAME.fullmatch(value) is None or not value.isprintable():
        raise HttpRefusal(
            400, f"'{key}' is not a name of 1 to 128 plain characters: {value[:60]!r}"
        )


def hours_of(body: Mapping[str, Any]) -> float | None:
    """Hours that the request asks for; None if it does not say.

    Raises:
        HttpRefusal: not a valid time.
    """
    hours = body.get("hours")
    if hours is None:
        return None
    plain = isinstance(hours, int | float) and not isinstance(hours, bool)
    if not plain or not math.isfinite(hours) or not 0 < hours <= HOURS_MAX:
        raise HttpRefusal(
            400, f"'hours' is {hours!r}, expected more than 0 and at most {HOURS_MAX:g}"
        )
    return float(hours)


# The work on incidents, and silences.

_COMMENT_MAX_CHARS: Final = 1000
_MATCHER_MAX_CHARS: Final = 128


@changing.post("/v1/incidents/<prefix>/ack", defaults={"action": WorkAction.ACK})
@changing.post("/v1/incidents/<prefix>/assign", defaults={"action": WorkAction.ASSIGN})
@changing.post("/v1/incidents/<prefix>/comment", defaults={"action": WorkAction.COMMENT})
@changing.post("/v1/incidents/<prefix>/resolve", defaults={"action": WorkAction.RESOLVE})
@changing.post("/v1/incidents/<prefix>/label", defaults={"action": WorkAction.LABEL})
def post_work(prefix: str, action: WorkAction) -> Response:
    """What a person did about an incident; the start of its id is enough."""
    body = json_body()
    incident = find_incident(the_view().incidents, prefix)
    right = body.get("right") if action is WorkAction.LABEL else None
    if action is WorkAction.LABEL and not isinstance(right, bool):
        raise HttpRefusal(400, f"'right' is {str(right)[:60]!r}, expected true or false")
    text = ""
    if action is WorkAction.COMMENT:
        text = text_of(body, "text", _COMMENT_MAX_CHARS)
    elif action is WorkAction.RESOLVE or body.get("reason") is not None:
        text = text_of(body, "reason")
    to = text_of(body, "to", _AUTHOR_MAX_CHARS) if action is WorkAction.ASSIGN else ""
    author, now_s = author_of(body), app_context().clock.now_s()
    row = WorkRow(
        action, author, now_s, incident.id, text, to, right, str(incident.kind),
        fingerprint=incident.fingerprint,
    )  # fmt: skip
    return _kept({"incident_id": incident.id, "work": to_plain(app_context().work(row))})


@changing.post("/v1/silences")
def post_silence() -> Response:
    """Send no messages about what matches, for a time."""
    body = json_body()
    hours, match = hours_of(body), {}
    for key in body.keys() - {"hours", "reason", "author"}:
        if key not in MATCHERS:  # without it the silence would cover more than was meant
            raise HttpRefusal(400, f"'{key[:60]}' is nothing to match: {', '.join(MATCHERS)}")
        match[key] = text_of(body, key, _MATCHER_MAX_CHARS)
    if hours is None or not match:
        names = listed(MATCHERS, len(MATCHERS), "or")
        lacks = "'hours': a silence ends by itself" if match else f"what: {names}"
        raise HttpRefusal(400, f"say {lacks}")
    if "kind" in match and not fnmatch.filter(Kind, match["kind"]):
        raise HttpRefusal(400, no_such("kind", match["kind"], Kind))
    author, reason, now_s = author_of(body), text_of(body, "reason"), app_context().clock.now_s()
    row = WorkRow(
        WorkAction.SILENCE, author, now_s, text=reason, match=match, until_s=now_s + hours * 3600.0
    )
    return _kept({"silence": to_plain(app_context().work(row))})


@changing.delete("/v1/silences/<name>")
def delete_silence(name: str) -> Response:
    now_s = app_context().clock.now_s()
    if name not in (row.id for row in the_view().work.silences(now_s)):
        raise HttpRefusal(404, f"no such silence holds: {name}")
    row = WorkRow(WorkAction.UNSILENCE, author_of(json_body()), now_s, about=name)
    return _kept({"ended": to_plain(app_context().work(row))})


# The policy, and the pause switch.


@changing.post("/v1/policy/reload")
def post_reload() -> Response:
    """Read the policy file again; in force from the next tick."""
    try:
        app_context().rules.reload(time.time(), author_of(json_body()))
    except PolicyError as exc:
        body = {"error": "nothing has changed: " + "; ".join(exc.problems)}
        return answer({**body, "problems": list(exc.problems)}, 400)
    return policy()


@changing.post("/v1/pause")
def post_pause() -> Response:
    body = json_body()
    pause = app_context().pause.press(text_of(body, "reason"), author_of(body), hours_of(body))
    return _kept({"pause": to_plain(pause)})


@changing.delete("/v1/pause")
def delete_pause() -> Response:
    ended = app_context().pause.release(author_of(json_body()))
    if ended is None:
        raise HttpRefusal(404, "nothing is paused")
    return _kept({"ended": to_plain(ended)})
