"""Routes that only read: what the monitor knows (no token), and what a rank answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from flask import Blueprint, Response, request, send_file

from lightkeeper.monitor.act.http import FetchError, Question
from lightkeeper.monitor.act.launches import Target
from lightkeeper.monitor.act.poller import describe_status
from lightkeeper.monitor.decide.accounts import WORDS, find_incident
from lightkeeper.monitor.decide.view import SCHEMA, View
from lightkeeper.monitor.decide.view_json import (
    degraded,
    effective_to_json,
    entry_to_json,
    host_to_json,
    learned_to_json,
    ranks_to_json,
    report_to_json,
    runs_to_json,
    scoped_to_json,
    self_health_to_json,
    snapshot_to_json,
)
from lightkeeper.monitor.model.eviction import QuarantineEntry, Scope
from lightkeeper.monitor.model.names import GroupName, Host, IncidentId, RankName
from lightkeeper.monitor.model.plain import to_plain
from lightkeeper.monitor.model.quarantine import HostRecord
from lightkeeper.monitor.model.units import grouped, natural, no_such
from lightkeeper.monitor.show.terminal.status import (
    rows_to_json,
    screen,
    status_to_json,
    top_screen,
)
from lightkeeper.monitor.show.terminal.tables import (
    GROUP_ORDERS,
    RANK_ORDERS,
    Row,
    RowsAsked,
    badness,
)
from lightkeeper.monitor.show.web.answers import (
    PLAIN,
    HttpRefusal,
    answer,
    app_context,
    check_reader,
    chosen,
    dump,
    the_view,
)
from lightkeeper.monitor.show.web.incident_page import incident_text
from lightkeeper.worker_server.http_server import metrics_page

_DOCUMENT: Final = Path(__file__).with_name("openapi.json")
_STALE_TICKS = 5.0
_STALE_LEAST_S = 10.0
_STUCK_TICKS = 30.0
_STUCK_LEAST_S = 120.0
"""`/readyz` fails early; `/healthz` when only a restart helps."""


reading = Blueprint("reading", __name__)
"""What people, launchers and Prometheus read."""

_SHOWN: Final = ("format", "width", "raw")
_ROWS: Final = ("group", "host", "unhealthy", "sort", "limit", "wide", *_SHOWN)
PARAMETERS: Final[Mapping[str, tuple[str, ...]]] = {
    "/v1/snapshot": ("raw",),
    **dict.fromkeys(("/v1/groups", "/v1/ranks"), _ROWS),
    "/v1/hosts": ("host", "unhealthy", "limit", *_SHOWN),
    "/v1/top": (*_ROWS, "height"),
    "/v1/incidents": (*WORDS, "limit", *_SHOWN),
    **dict.fromkeys(
        ("/v1/status", "/v1/runs", "/v1/policy", "/v1/silences", "/v1/incidents/<prefix>",
         "/v1/quarantine", "/v1/quarantine/<name>", "/v1/quarantine/groups/<name>"), _SHOWN
    ),
}  # fmt: skip
"""Route -> its parameters, where others are refused; a launcher's question is always answered."""


_WORDS: Final = {
    "format": ("json", "text"), **dict.fromkeys(("raw", "unhealthy", "wide"), ("0", "1"))
}  # fmt: skip


@reading.before_request
def check_parameters() -> None:
    """Refuse what would be ignored: a typo must not seem to be obeyed."""
    rule, of_rank = request.url_rule, (request.view_args or {}).get("what")
    allowed = PARAMETERS.get("" if rule is None else rule.rule, ())
    if of_rank in _PAGES:
        allowed = _PAGES[of_rank].parameters
    for name, value in request.args.items() if request.method == "GET" and allowed else ():
        words = _WORDS.get(name, (value,)) if name in allowed else ()
        if value not in words:
            said = f"{name} is {value!r:.80}" if words else f"no such parameter: {name!r:.80}"
            raise HttpRefusal(400, f"{said}, expected {', '.join(words or allowed)}")


@reading.get("/v1/snapshot")
def snapshot() -> Response:
    return _rendered("snapshot", snapshot_to_json)


@reading.get("/v1/groups")
def get_groups() -> Response:
    rows: list[Row] = msgspec.to_builtins(the_view().groups)
    return _rows("groups", rows)


@reading.get("/v1/ranks")
def get_ranks() -> Response:
    return _rows("ranks", ranks_to_json(the_view()))


_ORDERS: Final = {"ranks": RANK_ORDERS, "groups": GROUP_ORDERS, "hosts": ()}
_MOST: Final = 10_000_000


def _rows(what: str, rows: Sequence[Row]) -> Response:
    """Those that are asked for, as objects or, with `width`, as lines of text."""
    view = app_context().view()
    width = _width()
    alone = view is not None and view.snapshot.alone
    return answer(rows_to_json(what, rows, _asked(what, rows), width, watch_only=alone))


def _asked(what: str, rows: Sequence[Row]) -> RowsAsked:
    """Refuse unknown names: an empty table would look like good news."""
    words, sort = request.args, request.args.get("sort", "")
    if sort and sort not in _ORDERS[what]:
        raise HttpRefusal(400, f"sort is {sort!r}, expected {', '.join(_ORDERS[what])}")
    groups, hosts = map(words.getlist, ("group", "host"))
    for kind, names in (("group", groups), ("host", hosts)):
        existing = {row[kind] for row in rows if row.get(kind)} if names else ()
        for name in names:
            if name not in existing:
                raise HttpRefusal(404, no_such(kind, name, existing))
    unhealthy, wide = (words.get(name) == "1" for name in ("unhealthy", "wide"))
    return RowsAsked(groups, hosts, unhealthy, sort, _number("limit"), wide)


@reading.get("/v1/top")
def get_top() -> Response:
    """The screen of `lightkeeper top`."""
    rows = ranks_to_json(the_view())
    asked = _asked("ranks", rows)
    width, height = _number("width") or 100, _number("height") or 30
    text = top_screen(_status(), rows, asked, width, height)
    return answer({"schema": SCHEMA, "text": text})


@reading.get("/v1/runs")
def get_runs() -> Response:
    return _texted("runs", {"runs": list(runs_to_json(the_view()))})


@reading.get("/v1/incidents")
def get_incidents() -> Response:
    """Open and resolved incidents, newest first."""
    limit = _number("limit", most=10_000) or 100

    def body(view: View) -> dict[str, Any]:
        incidents = chosen(view)
        return {
            "schema": SCHEMA,
            "incidents": [report_to_json(view.report(incident)) for incident in incidents[:limit]],
            "totals": to_plain(view.totals(incidents)),
        }

    if any(request.args.get(word) for word in (*WORDS, "width", "format")):
        return _texted("incidents", body(the_view()))
    return _rendered(f"incidents {limit}", body)


@reading.get("/v1/incidents/<prefix>")
def incident(prefix: str) -> Response:
    """One incident with its story, as `text` too; the start of its id is enough."""
    view, journal = the_view(), app_context().journal
    report = view.report(find_incident(view.incidents, prefix))
    text = incident_text(report, request.host_url.rstrip("/"), journal)
    more = {"journal": None if journal is None else str(journal), "text": text.splitlines()}
    return answer({"schema": SCHEMA, **report_to_json(report), **more})


_INDEX: Final = """
as JSON: /v1/status /v1/snapshot /v1/groups /v1/ranks /v1/incidents /v1/quarantine
more:    /metrics /healthz /readyz, of a rank /v1/ranks/RANK/stacks
on a terminal: lightkeeper status --monitor {url}; in a browser: {url}
"""


@reading.get("/v1/status")
def get_status() -> Response:
    """What `lightkeeper status` prints."""
    return _texted("status", _status())


def _texted(name: str, body: Mapping[str, Any]) -> Response:
    """With `width` also as lines of text of at most so many cells (0: of any length)."""
    width = _width()
    more = {} if width is None else {"text": _screen(name, body, width or None)}
    return answer({"schema": SCHEMA, **body, **more})


def _screen(name: str, body: Row, width: int | None = None) -> list[str]:
    return screen(name, body, width, base=request.host_url.rstrip("/"))


def _status() -> dict[str, Any]:
    view = the_view()
    age_s = app_context().clock.now_s() - view.snapshot.now_s
    return status_to_json(view, age_s, _not_ready(view, age_s))


def status_text() -> Response:
    """The status as text, for clients without HTML such as curl."""
    lines = [*_screen("status", _status()), _INDEX.format(url=request.host_url.rstrip("/"))]
    return Response("\n".join(lines), content_type=PLAIN)


@reading.get("/v1/admission")
def admission() -> Response:
    """May a launcher start this group on this host?"""
    host, group = request.args.get("host", ""), request.args.get("group", "")
    if not host:
        raise HttpRefusal(400, "say which host: /v1/admission?host=HOST&group=GROUP")
    verdict = app_context().quarantine.admission(Host(host), GroupName(group) if group else None)
    body: dict[str, Any] = {"admit": verdict.admit, "reason": verdict.reason}
    if not verdict.admit:
        body["until_s"] = verdict.until_s
        body["refused"] = [_entry(entry) for entry in verdict.entries]
    return answer(body)


@reading.get("/v1/quarantine")
def get_quarantine() -> Response:
    listed = app_context().quarantine
    body = {
        "quarantine": list(map(_entry, listed.active())),
        "groups": list(map(_entry, listed.groups())),
    }
    return _texted("quarantine", body)


@reading.get("/v1/quarantine/<name>", defaults={"scope": Scope.HOST})
@reading.get("/v1/quarantine/groups/<name>", defaults={"scope": Scope.GROUP})
def quarantined(name: str, scope: Scope) -> Response:
    """One host or group: its entry, a host's record, and its history, newest first."""
    listed, host = app_context().quarantine, Host(name)
    entry = listed.get(name, scope)
    body: dict[str, Any] = {
        str(scope): name,
        "entry": None if entry is None else _entry(entry),
        "history": list(map(scoped_to_json, listed.history(name, scope))),
    }
    if scope is Scope.HOST:
        record = listed.records().get(host, HostRecord(host))
        body["record"] = host_to_json(record, entry, _ranks_by_host().get(host, ()))
    return _texted("history", body)


@reading.get("/v1/hosts")
def get_hosts() -> Response:
    """Every host that runs a rank or has a history: lemons first, then those in quarantine, then
    the worst; those without ranks last.
    """
    listed, ranks, view = app_context().quarantine, _ranks_by_host(), app_context().view()
    machines = {} if view is None else view.snapshot.machines
    records = {**{host: HostRecord(host) for host in ranks}, **listed.records()}
    rows = [
        host_to_json(record, listed.get(host), ranks.get(host, ()), machines.get(host, ()))
        for host, record in records.items()
    ]
    healths, tempos = ({}, {}) if view is None else (view.result.rank_health, view.tempos)
    for row in rows:
        busy_s = [tempos[rank].busy_s for rank in row["ranks"] if rank in tempos]
        states = [str(healths[rank]) for rank in row["ranks"] if rank in healths]
        row["health"] = min(states, key=badness, default=None)
        row["busy_s"] = max(busy_s, default=None)
    rows.sort(key=lambda host: (host["lemon"] is None, not host["quarantined"], not host["ranks"],
                                badness(host["health"]), natural(host["host"])))  # fmt: skip
    return _rows("hosts", rows)


def _entry(entry: QuarantineEntry) -> dict[str, Any]:
    has_bundle = (
        entry.incident_id is not None and app_context().bundle(entry.incident_id) is not None
    )
    return entry_to_json(entry, app_context().quarantine.records(), has_bundle)


def _ranks_by_host() -> dict[Host, list[RankName]]:
    targets = app_context().registry.targets()
    return grouped((target.identity.host, target.rank) for target in targets)


@reading.get("/v1/silences")
def get_silences() -> Response:
    """Those that hold."""
    rows = the_view().work.silences(app_context().clock.now_s())
    return _texted("silences", {"silences": [to_plain(row) for row in rows]})


@reading.get("/v1/policy")
def policy() -> Response:
    """The policy in force, where it comes from, and what was learned."""
    context, view = app_context(), app_context().view()
    pause, last, effective = context.pause.current(), context.pause.last, context.rules.current
    learned = {} if view is None else learned_to_json(effective.config, view.result.learned)
    body = {
        "watch_only": view is not None and view.snapshot.alone,
        **effective_to_json(effective),
        "problems": list(context.rules.problems),
        "pause": None if pause is None else to_plain(pause),
        "last_pause": None if last is None or pause is not None else to_plain(last),
        "learned": learned,
    }
    return _texted("policy", body)


@reading.get("/v1/sd")
def service_discovery() -> Response:
    """Prometheus' `http_sd`: always all targets, so that evicted ones vanish there too."""
    entries, run = [], app_context().registry.run
    for target in app_context().registry.targets():
        identity = target.identity
        scheme, _, address = target.url.partition("://")
        labels = {
            "__scheme__": scheme,
            "job_id": identity.job,
            "run": "" if run is None else run.id,
            "replica_group": identity.group,
            "rank": str(identity.group_rank),
        }
        entries.append({"targets": [address.partition("/")[0]], "labels": labels})
    return Response(dump(entries), content_type="application/json")


@reading.get("/openapi.json")
def openapi() -> Response:
    return Response(_DOCUMENT.read_bytes(), content_type="application/json")


@reading.get("/metrics")
def metrics() -> Response:
    body, content_type = metrics_page(app_context().metrics, request.headers.get("Accept", ""))
    return Response(body, content_type=content_type)


@reading.get("/healthz")
def healthz() -> Response:
    """Alive. A crashed detector is listed, but the status stays 200: a restart does not fix it, and
    a supervisor would restart forever. It is 503 when the loop stands still or a part of the
    process has ended: a restart fixes that.
    """
    view = app_context().view()
    troubles = () if view is None else degraded(view)
    if (ended := app_context().ended()) is not None:
        raise HttpRefusal(503, f"{ended} has ended: this process ends, and is to be started again")
    stood_s = 0.0 if view is None else app_context().clock.now_s() - view.snapshot.now_s
    if stood_s > max(_STUCK_TICKS * app_context().tick_s, _STUCK_LEAST_S):
        raise HttpRefusal(503, f"the last tick was {stood_s:.0f} s ago: the loop stands still")
    body = {
        "ok": True,
        "version": app_context().version,
        "status": "degraded" if troubles else "ok",
        "degraded": list(troubles),
    }
    if view is not None:
        body["self_health"] = self_health_to_json(view)
    return answer({**body, **_standing()})


@reading.get("/readyz")
def readyz() -> Response:
    """Ready: the loop has ticked lately, and at least one kind of fault is looked for.

    With one crashed detector it stays ready: else it would get no requests, but ranks renew
    leases and launchers ask for admission here. A standby is ready too, except for
    `?role=active`, by which a load balancer finds the monitor that accepts changes.
    """
    view = the_view()
    age_s = app_context().clock.now_s() - view.snapshot.now_s
    if why := _not_ready(view, age_s):
        raise HttpRefusal(503, why)
    body = {"ready": True, "last_tick_age_s": round(age_s, 3), "degraded": list(degraded(view))}
    seen = app_context().standing()
    if request.args.get("role") == "active" and seen is not None and not seen.active:
        raise HttpRefusal(503, seen.sentence(), {"role": seen.role, "active": seen.url})
    return answer({**body, **_standing()})


def _not_ready(view: View, age_s: float) -> str:
    """Why; empty: it is ready. `age_s`: of the last tick."""
    if age_s > max(_STALE_TICKS * app_context().tick_s, _STALE_LEAST_S):
        return f"the last tick was {age_s:.0f} s ago: the loop stands still"
    return "nothing is judged: every kind of fault is unknown" if view.result.blind else ""


def _standing() -> dict[str, Any]:
    """`role`: active or standby; `lease`: its holder, and since when."""
    seen = app_context().standing()
    lease = None if seen is None else seen.to_json()
    return {"role": "active" if lease is None else lease["role"], "lease": lease}


def _width() -> int | None:
    """Cells of a line of text (0: any number); None: no text is asked for."""
    usual = 0 if request.args.get("format") == "text" else None
    return _number("width", least=0, usual=usual)


def _number(
    name: str, *, least: int = 1, most: int = _MOST, usual: int | None = None
) -> int | None:
    """A whole number that the request brings, or the usual one.

    Raises:
        HttpRefusal: it is none, or not within these bounds.
    """
    text = request.args.get(name)
    if text is None:
        return usual
    if not text.isascii() or not text.isdigit() or not least <= int(text[:9]) <= most:
        raise HttpRefusal(400, f"{name} is {text!r}, expected {least} to {most}")
    return int(text)


def _rendered(name: str, render: Callable[[View], Mapping[str, Any]]) -> Response:
    view = the_view()
    body = app_context().bodies.get(view, name, lambda: dump(render(view)))
    return Response(body, content_type="application/json")


# -- A rank's own endpoints, for browsers that can reach the monitor but not the rank -------------
# The monitor asks with its token, so it asks only for clients that may read the rank: on loopback
# all, bound to anything else those with the token, unless it was started with --open-reads.
# (What the monitor itself says of ranks, on its page and in its snapshot, needs none: launchers
# and Prometheus read that.)

_MIB: Final = 1024 * 1024
_QUERY_MAX_CHARS: Final = 200
_AT_ONCE: Final = 3
"""Each holds a server thread; the others stay free for the page and the leases."""


@dataclass(frozen=True, slots=True)
class _Page:
    timeout_s: float
    max_bytes: int
    parameters: tuple[str, ...] = ()
    """Passed on; the WorkerServer validates them."""


_TEXT: Final = ("format", "rows", "raw")
_PAGES: Final = {  # `/v1/NAME` of its WorkerServer
    "state": _Page(3.0, _MIB // 16, _TEXT),
    "steps": _Page(5.0, 4 * _MIB, ("since", *_TEXT)),
    "flight_recorder": _Page(10.0, 16 * _MIB, ("active", *_TEXT)),
    "stacks": _Page(20.0, 4 * _MIB, ("native", "raw")),
    "last_words": _Page(5.0, _MIB, _TEXT),
    "network": _Page(5.0, _MIB, _TEXT),
    "machine": _Page(5.0, _MIB, _TEXT),
}

_places = threading.BoundedSemaphore(_AT_ONCE)


@reading.get("/v1/incidents/<incident_id>/bundle")
def bundle(incident_id: str) -> Response:
    """Ranks' answers when the incident began and before the eviction, as a zip."""
    check_reader()
    path = app_context().bundle(IncidentId(incident_id))
    if path is None:
        raise HttpRefusal(404, f"no evidence of {incident_id}: too old, or none was taken")
    try:
        response = send_file(path, "application/zip", as_attachment=True)
    except OSError as exc:
        raise HttpRefusal(404, f"the evidence of {incident_id} is gone: {exc.strerror}") from exc
    response.headers["Cache-Control"] = "no-store"
    return response


@reading.get("/v1/ranks/<rank>/<what>")
def passed(rank: str, what: str) -> Response:
    return said_by(rank, what, request.args)


def said_by(rank: str, what: str, parameters: Mapping[str, str]) -> Response:
    """The rank's answer, if this request may read it."""
    check_reader()
    if what not in _PAGES:
        raise HttpRefusal(404, f"no such page of a rank: {what}, expected {', '.join(_PAGES)}")
    target = app_context().registry.get(RankName(rank))
    if target is None:
        raise HttpRefusal(404, f"no such rank: {rank}")
    if not _places.acquire(blocking=False):
        raise HttpRefusal(503, f"{_AT_ONCE} such requests are under way: try again")
    try:
        return _pass(target, what, parameters)
    finally:
        _places.release()


def _pass(target: Target, what: str, parameters: Mapping[str, str]) -> Response:
    page = _PAGES[what]
    passed_on = {name: parameters[name] for name in page.parameters if name in parameters}
    if any(len(value) > _QUERY_MAX_CHARS for value in passed_on.values()):
        raise HttpRefusal(400, f"a parameter has more than {_QUERY_MAX_CHARS} characters")
    query = f"?{urlencode(passed_on)}" if passed_on else ""
    url, group = f"{target.url}/v1/{what}{query}", target.identity.group
    question = Question(url, page.timeout_s, page.max_bytes, group=group)
    try:
        said = app_context().fetcher.ask(question)
    except FetchError as exc:
        raise HttpRefusal(502, f"the rank's WorkerServer gave no answer: {exc}") from exc
    if said.status in (401, 403):  # not the client's fault
        raise HttpRefusal(502, f"the rank's WorkerServer answers {describe_status(said.status)}")
    plain = said.content_type.startswith(("application/json", "text/plain"))
    kind = said.content_type if plain else "text/plain; charset=utf-8"
    status = said.status if 200 <= said.status < 600 and said.status // 100 != 3 else 502
    return Response(said.body, status, content_type=kind)
