"""From a network's bytes to the types, through which every value passes that came over one; and
back, short where it is polled every second.

What is right is what the annotations in `messages` say; msgspec holds an answer against them. Most
pass at once. One that does not is read once more without what this version need not know: nulls,
which mean that nothing was said, and cells by which a newer side made a row longer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from ipaddress import ip_address
from types import UnionType
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

from msgspec import ValidationError, convert, to_builtins

from worker_server.wire.messages import (
    SCHEMA,
    BackendRecord,
    FlightRecord,
    GroupHead,
    HeadCells,
    HostEntry,
    HostReport,
    Identity,
    LastWords,
    Registration,
    RingEntry,
    StateReport,
    StepCells,
    StepLog,
    StepRow,
    StepState,
    Took,
    WireError,
    expected_committed_step,
)

T = TypeVar("T")
_Object = Mapping[str, Any]


def _read(kind: type[T], data: Any, at: str = "") -> T:
    """`data` as this type; `at` names it where it is a part of something."""
    try:
        return convert(data, kind)
    except ValidationError:
        pass
    try:
        return convert(_known(kind, data), kind)
    except ValidationError as exc:
        raise WireError(" ".join(f"{at} {exc}".split())) from exc


def _known(kind: Any, data: Any) -> Any:
    """`data` without nulls where this type has a key, and no longer than it where it is a row."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Annotated, Union, UnionType):
        return _known(args[0], data)
    if isinstance(data, Mapping):
        if isinstance(kind, type) and is_dataclass(kind):
            hints: dict[str, Any] = _hints(kind)
            told = {name: data[name] for name in hints if data.get(name) is not None}
            return {name: _known(hints[name], value) for name, value in told.items()}
        if origin is Mapping:
            return {key: _known(args[1], value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        if origin is tuple and args[-1] is Ellipsis:
            return [_known(args[0], item) for item in data]
        return data[: len(args or getattr(kind, "_fields", data))]
    return data


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _object(data: Any, what: str) -> _Object:
    if not isinstance(data, Mapping):
        raise WireError(f"{what}: expected an object, got {type(data).__name__}")
    return data


def _answer(data: Any) -> _Object:
    """What is said in it, where it is of this schema."""
    said = {key: value for key, value in _object(data, "answer").items() if value is not None}
    schema = said.get("schema")
    if schema is None:
        raise WireError("missing key 'schema'")
    if type(schema) is not int or schema != SCHEMA:
        raise WireError(f"schema {schema!r:.20} is not {SCHEMA}: upgrade the older side")
    return said


def parse_identity(data: Any) -> Identity:
    """Who a rank is, checked.

    Raises:
        WireError: a key is missing or ill-typed, or the rank lies outside its world.
    """
    return _read(Identity, data)


def parse_state(data: Any) -> StateReport:
    """The answer of `GET /v1/state`, checked.

    Raises:
        WireError: not this schema; the message names the first key that is wrong.
    """
    return _report(_answer(data))


def _report(said: _Object) -> StateReport:
    heads = said.get("heads")
    if heads is not None:
        cells = _read(tuple[HeadCells, ...], heads, "heads:")
        said = {**said, "heads": tuple(one.head() for one in cells)}
    report = _read(StateReport, said)
    if report.step is None or "committed_step" in said["step"]:
        return report
    step = replace(report.step, committed_step=expected_committed_step(report.step))
    return replace(report, step=step)


def parse_steps(data: Any) -> StepLog:
    """The answer of `GET /v1/steps`, checked.

    Raises:
        WireError: not this schema; the message names the first key that is wrong.
    """
    said = _answer(data)
    cells = _read(tuple[StepCells, ...], said.get("rows"), "rows:")
    return _read(StepLog, {**said, "rows": tuple(one.row() for one in cells)})


def parse_last_words(data: Any) -> LastWords:
    """The answer of `GET /v1/last_words`, checked.

    Raises:
        WireError: not this schema; the message names the first key that is wrong.
    """
    return _read(LastWords, _answer(data))


def parse_host(data: Any) -> HostReport:
    """The answer of `GET /v1/host`, checked.

    Raises:
        WireError: not this schema; the message names the first key that is wrong.
    """
    said = _answer(data)
    entries = _read(tuple[dict[str, Any], ...], said.get("entries"), "entries:")
    return _read(HostReport, {**said, "entries": tuple(map(_parse_entry, entries))})


def _parse_entry(said: _Object) -> HostEntry:
    report = said.get("report")
    if report is not None:
        said = {**said, "report": _report(_object(report, "report"))}
    return _read(HostEntry, said)


def parse_flight_record(data: Any) -> FlightRecord:
    """The answer of `GET /v1/flight_recorder`, checked; torch's part is passed on untouched.

    Raises:
        WireError: not this schema; the message names the first key that is wrong.
    """
    return _read(FlightRecord, {"members": {}, "dropped": 0, "torch": None, **_answer(data)})


def parse_registration(data: Any) -> Registration:
    """The body of `POST /v1/register`, checked.

    Raises:
        WireError: not this schema, or a URL that has more than scheme, host and port (and the
            rank's name, where one server answers for many), or whose host is link-local: what is
            there is asked with the monitor's token.
    """
    told = _read(Registration, _answer(data))
    url = told.url.removesuffix("/")
    if not _is_server(url.removesuffix(f"/{told.identity.rank}")):
        raise WireError(f"'url' is {url[:200]!r}, expected http(s)://HOST:PORT of a WorkerServer")
    return replace(told, url=url)


_SERVER: Final = re.compile(
    r"https?://(?P<host>[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:(?P<port>[0-9]{1,5}))?"
)


def _is_server(url: str) -> bool:
    match = _SERVER.fullmatch(url)
    if match is None or not 0 < int(match["port"] or 80) < 2**16:
        return False
    host = match["host"].strip("[]")
    try:
        address = ip_address(host)
    except ValueError:  # a name; what ends in a number is an address that some resolver reads
        last = host.rstrip(".").rpartition(".")[2]
        number = last.isdigit() or last[:2].lower() == "0x"
        return "[" not in match["host"] and not number
    mapped = getattr(address, "ipv4_mapped", None) or address
    return not mapped.is_link_local


# -- and back ------------------------------------------------------------------------------------

Answer = StateReport | StepLog | FlightRecord | LastWords | HostReport | Registration

_ENTRY_KEYS: Final = tuple(one.name for one in fields(RingEntry))
_EXACT: Final = frozenset({str, int, bool})
_BARE: Final = StepState(0, 0, 0, "", 0.0, 0)
LEFT_OUT: Final[dict[type, tuple[str, ...]]] = {
    Identity: ("place",),
    StateReport: ("unhooked",),
    StepState: ("healing", "errored", "loss_finite", "commit_failures", "tags", "counters",
                "source", "times", "gradients_watched"),
}  # fmt: skip
"""What is left out where it is as usual, beside all that is None."""


def to_json(value: Answer) -> dict[str, Any]:
    """Plain JSON types with `"schema"`; what is None is left out.

    The state of a rank with 8 groups has to fit into 1 KiB: group heads travel as `HeadCells`,
    durations are cut to milliseconds (in heads to ten of them, in `times` to microseconds), and
    flags that have their usual value are left out, as is `committed_step` where it is the one to
    be expected. Other answers carry microseconds, and torch's records as they are.
    """
    match value:
        case StateReport():
            plain = _state(value)
        case StepLog():
            plain = _plain(replace(value, rows=()))
            plain["rows"] = [_step_row(row) for row in value.rows]
        case HostReport():
            plain = {"host": value.host, "entries": [_host_entry(one) for one in value.entries]}
        case FlightRecord():
            plain = _plain(replace(value, ring=(), torch=None, recorders={}))
            plain["ring"] = [_entry(entry) for entry in value.ring]
            if value.torch is not None:
                plain["torch"] = value.torch
            plain["recorders"] = {name: _recorder(one) for name, one in value.recorders.items()}
        case _:
            plain = _plain(value)
    return {"schema": SCHEMA, **plain}


def _plain(value: Any, digits: int = 6) -> dict[str, Any]:
    plain: dict[str, Any] = _rounded(to_builtins(value), digits)
    if "identity" in plain and not plain["identity"]["place"]:
        del plain["identity"]["place"]
    return plain


def _rounded(value: Any, digits: int) -> Any:
    if isinstance(value, dict):
        return {
            key: item if item.__class__ in _EXACT else _rounded(item, digits)
            for key, item in value.items()
            if item is not None
        }
    if isinstance(value, list | tuple):
        return [item if item.__class__ in _EXACT else _rounded(item, digits) for item in value]
    return round(value, digits) if isinstance(value, float) else value


def _host_entry(entry: HostEntry) -> dict[str, Any]:
    plain = _plain(replace(entry, report=None))
    return plain if entry.report is None else {**plain, "report": _state(entry.report)}


def _entry(entry: RingEntry) -> dict[str, Any]:
    """A thousand of them come at once: nothing in it is looked into but its floats."""
    return {
        key: round(item, 6) if item.__class__ is float else item
        for key in _ENTRY_KEYS
        if (item := getattr(entry, key)) is not None
    }


def _recorder(record: BackendRecord) -> dict[str, Any]:
    plain = _plain(replace(record, record=None))
    return plain if record.record is None else {**plain, "record": record.record}


def _state(value: StateReport) -> dict[str, Any]:
    plain = _plain(value, 3)
    plain["heads"] = [_head_row(head) for head in value.heads]
    if not value.unhooked:
        del plain["unhooked"]
    if value.step is not None:
        _shorten(plain["step"], value.step)
    return plain


def _shorten(plain: dict[str, Any], step: StepState) -> None:
    """What is as usual is left out of it, and what is small keeps its digits."""
    for name in LEFT_OUT[StepState]:
        if getattr(step, name) == getattr(_BARE, name):
            del plain[name]
    if step.committed_step == expected_committed_step(step):
        plain.pop("committed_step", None)
    elif step.committed_step is None:  # said, else the expected one would be taken for it
        plain["committed_step"] = None
    if step.times:
        plain["times"] = {name: _took_row(took) for name, took in step.times.items()}
    if step.loss is not None:
        plain["loss"] = float(f"{step.loss:.6g}")


def _took_row(took: Took) -> list[Any]:
    """In microseconds: a toy's state is staged within some; without bytes where there are none."""
    return list(_rounded(took if took.sum_bytes else took[:3], 6))


def _step_row(row: StepRow) -> list[Any]:
    return [row.attempt, row.step, int(row.committed), round(row.end_age_s, 6),
            round(row.duration_s, 6), _rounded(row.seconds, 6)]  # fmt: skip


def _head_row(head: GroupHead) -> list[Any]:
    unfinished = head.enqueued - head.completed
    row = [head.name, head.size, head.enqueued, unfinished, head.op, round(head.age_s, 2)]
    if head.read_age_s is not None:
        return [*row, head.inside, head.started, round(head.read_age_s, 2)]
    usual = head.enqueued if unfinished else 0
    return row if head.inside == usual else [*row, head.inside]
