"""Routes that change something: a token, and no foreign page."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from flask import Blueprint, Response, request

from monitor.app.answers import Refusal, answer, check_origin, check_token, json_body, text_of
from monitor.app.desk import the_desk
from monitor.names import GroupName, IncidentId, RankName
from monitor.store import KEEPER, QuarantineEntry, Scope
from monitor.targets import Standing
from monitor.view import SCHEMA, NotPossible
from worker_server.wire import Identity, WireError, parse_registration

HOURS_MAX: Final = 24.0 * 366
_AUTHOR_MAX_CHARS: Final = 80
_NAME: Final = re.compile(r"(?![-=])[^\x00-\x20\x7f/\\<>\"'\ud800-\udfff]{1,128}")
"""Names travel into URLs, labels, shells and sheets: no blanks, slashes, quotes or control
characters, no option of a command and no formula."""


changing = Blueprint("changing", __name__)
"""Registration, quarantine, eviction by hand."""


@changing.before_request
def guard() -> None:
    """Refuse foreign pages, wrong tokens, and every change while no token is configured."""
    check_origin()
    token, lease = the_desk().token, request.path.startswith("/v1/register")
    if token is not None:
        check_token(token)
    elif not lease:
        raise Refusal(403, "no token is configured: start the monitor with --token-file FILE")
    if not lease:  # ranks register with every monitor
        _check_active()


def _check_active() -> None:
    """Only the active monitor changes anything; who it is, is told."""
    standing = the_desk().standing
    seen = None if standing is None else standing()
    if seen is not None and not seen.active:
        raise Refusal(409, seen.sentence(), {"role": seen.role, "active": seen.url})


@changing.post("/v1/register")
def register() -> Response:
    """Register a WorkerServer, or renew its lease."""
    try:
        registration = parse_registration(json_body())
        _check_names(registration.identity)
    except WireError as exc:
        raise Refusal(400, str(exc)) from exc
    identity, registry = registration.identity, the_desk().registry
    standing = registry.register(registration)
    if standing is Standing.SUPERSEDED:
        raise Refusal(409, f"a newer incarnation bears the name {identity.rank}")
    if standing is Standing.REFUSED:
        raise Refusal(
            409,
            f"its TorchFT Manager calls this replica group {identity.group}, which is the name of "
            f"another group that lives: it goes on as {identity.launched_as}, its launcher's name; "
            "give each group's Manager a replica_id of its own",
            {"refused_name": identity.group},
        )
    known_as = registry.known_as(identity)
    told = {"schema": SCHEMA, "known_as": known_as, "renew_s": registry.renew_s}
    return answer({key: value for key, value in told.items() if value is not None})


@changing.delete("/v1/register/<rank>")
def unregister(rank: str) -> Response:
    """Give a lease back."""
    incarnation = request.args.get("incarnation", "")
    if not incarnation:
        raise Refusal(400, f"say which: DELETE /v1/register/{rank}?incarnation=...")
    removed = the_desk().registry.unregister(RankName(rank), incarnation)
    return answer({"schema": SCHEMA, "removed": removed})


@changing.put("/v1/quarantine/<host>")
def quarantine(host: str) -> Response:
    """Refuse a host to launchers."""
    return _hold_out(_name("host", host), Scope.HOST)


@changing.put("/v1/quarantine/groups/<group>")
def quarantine_group(group: str) -> Response:
    """Keep a replica group out, wherever it starts."""
    return _hold_out(_name("group", group), Scope.GROUP)


@changing.delete("/v1/quarantine/<host>")
def release(host: str) -> Response:
    """Let a host in again."""
    return _let_in(host, Scope.HOST)


@changing.delete("/v1/quarantine/groups/<group>")
def release_group(group: str) -> Response:
    """Let a replica group in again."""
    return _let_in(group, Scope.GROUP)


def _hold_out(name: str, scope: Scope) -> Response:
    body, now_s = json_body(), the_desk().clock.now_s()
    hours, incident = hours_of(body), body.get("incident_id")
    entry = the_desk().quarantine.add(
        QuarantineEntry(
            name=name,
            reason=text_of(body, "reason"),
            author=_author(body),
            since_s=now_s,
            until_s=None if hours is None else now_s + hours * 3600.0,
            incident_id=None if incident is None else IncidentId(text_of(body, "incident_id")),
            scope=scope,
        )
    )
    return answer({"schema": SCHEMA, str(scope): name, "until_s": entry.until_s})


def _let_in(name: str, scope: Scope) -> Response:
    body = json_body()
    reason = text_of(body, "reason") if body.get("reason") is not None else ""
    said = the_desk().quarantine.release(name, scope, author=_author(body), reason=reason)
    if said is None:
        raise Refusal(404, f"{name} is not quarantined")
    return answer({"schema": SCHEMA, str(scope): name, "reset": said})


def _author(body: Mapping[str, Any]) -> str:
    """Who says that they ask: shown, and trusted for nothing."""
    if body.get("author") is None:
        return "a person"
    author = text_of(body, "author", _AUTHOR_MAX_CHARS)
    return f"{author} (by hand)" if author.casefold() == KEEPER else author


@changing.post("/v1/groups/<group>/evict")
def evict(group: str) -> Response:
    """Evict a group because a person says so."""
    body = json_body()
    reason = text_of(body, "reason")
    try:
        incident_id = the_desk().evict(GroupName(group), reason, _author(body))
    except NotPossible as exc:
        raise Refusal(409, str(exc)) from exc
    switch = the_desk().pause
    pause = None if switch is None else switch.current()
    if pause is None:
        return answer({"schema": SCHEMA, "incident_id": incident_id})
    why = f"evictions are paused by {pause.author} ({pause.reason}): this one, by hand, is not"
    return answer({"schema": SCHEMA, "incident_id": incident_id, "note": why})


def _check_names(identity: Identity) -> None:
    for key, value in (
        ("job", identity.job),
        ("group", identity.group),
        ("host", identity.host),
        ("incarnation", identity.incarnation),
    ):
        _name(key, value)
    if ":" in identity.group:  # what follows it in a replica id is no part of the name
        raise Refusal(400, f"'group' is not a name without a colon: {identity.group[:60]!r}")
    if identity.launched_as is not None:
        _name("launched_as", identity.launched_as)


def _name(key: str, value: str) -> str:
    if _NAME.fullmatch(value) is None or not value.isprintable():
        raise Refusal(400, f"'{key}' is not a name of 1 to 128 plain characters: {value[:60]!r}")
    return value


def hours_of(body: Mapping[str, Any]) -> float | None:
    """For how long, in hours; None when that is not said.

    Raises:
        Refusal: no such time.
    """
    hours = body.get("hours")
    if hours is None:
        return None
    plain = isinstance(hours, int | float) and not isinstance(hours, bool)
    if not plain or not math.isfinite(hours) or not 0 < hours <= HOURS_MAX:
        raise Refusal(400, f"'hours' is {hours!r}, expected more than 0 and at most {HOURS_MAX:g}")
    return float(hours)
