"""From a network's bytes to the types: every value that came over one passes through here.

What is right is what the annotations in `messages` say; msgspec holds an answer against them. Most
pass at once. One that does not is read once more without what this version need not know: nulls,
which mean that nothing was said, and cells by which a newer side made a row longer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from functools import cache
from ipaddress import ip_address
from types import UnionType
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

from msgspec import ValidationError, convert

from worker_server.wire.messages import (
    SCHEMA,
    FlightRecord,
    HeadCells,
    HostEntry,
    HostReport,
    Identity,
    LastWords,
    Registration,
    StateReport,
    StepCells,
    StepLog,
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
    return _read(HostReport, {**said, "entries": tuple(map(_host_entry, entries))})


def _host_entry(said: _Object) -> HostEntry:
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
