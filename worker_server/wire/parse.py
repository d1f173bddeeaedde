"""From a network's bytes to the types: every value that came over one passes through here."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_address
from typing import Any, Final

from worker_server.wire.messages import (
    ACCELERATORS_MAX,
    LINE_MAX_CHARS,
    PLACE_KEY_MAX_CHARS,
    PLACE_KEYS_MAX,
    PLACE_VALUE_MAX_CHARS,
    SCHEMA,
    SOURCE_REPORTER,
    BackendRecord,
    Doing,
    Ending,
    FlightRecord,
    Frame,
    GroupHead,
    GroupName,
    Host,
    HostEntry,
    HostReport,
    Identity,
    LastWords,
    Prints,
    Process,
    RankName,
    Registration,
    ReplicaId,
    RingEntry,
    Spoilt,
    StateReport,
    StepLog,
    StepRow,
    StepState,
    Took,
    Trace,
    Tracer,
    WireError,
    Witness,
    expected_committed_step,
    split_rank_name,
)

_MISSING: Final = object()
_HEAD_KEYS: Final = ("name", "size", "enqueued", "unfinished", "op", "age_s")
_HEAD_MORE: Final = ("inside", "started", "read_age_s")


def _get(data: Any, key: str, kinds: tuple[type, ...], default: Any = _MISSING) -> Any:
    if not isinstance(data, Mapping):
        raise WireError(f"expected an object around {key!r}, got {type(data).__name__}")
    value = data.get(key)
    if value is None:
        if default is _MISSING:
            raise WireError(f"missing key {key!r}")
        return default
    if isinstance(value, bool) and bool not in kinds:
        raise WireError(f"{key!r} is a bool, expected {kinds[0].__name__}")
    if not isinstance(value, kinds):
        raise WireError(f"{key!r} is {type(value).__name__}, expected {kinds[0].__name__}")
    return value


def _str(data: Any, key: str, default: Any = _MISSING) -> Any:
    return _get(data, key, (str,), default)


def _int(data: Any, key: str, default: Any = _MISSING) -> Any:
    return _get(data, key, (int,), default)


def _bool(data: Any, key: str, default: Any = _MISSING) -> Any:
    return _get(data, key, (bool,), default)


def _float(data: Any, key: str, default: Any = _MISSING) -> Any:
    value = _get(data, key, (float, int), default)
    if value is default:
        return value
    try:
        number = float(value)
    except OverflowError as exc:
        raise WireError(f"{key!r} is a number of more than 300 digits") from exc
    if not math.isfinite(number):
        raise WireError(f"{key!r} is {number}, expected a finite number")
    return number


def _seconds(data: Any, key: str, default: Any = _MISSING) -> Any:
    value = _float(data, key, default)
    if value is not default and value < 0:
        raise WireError(f"{key!r} is {value}, expected seconds >= 0")
    return value


_SERVER: Final = re.compile(
    r"https?://(?P<host>[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:(?P<port>[0-9]{1,5}))?"
)


def _check_schema(data: Any) -> None:
    schema = _int(data, "schema")
    if schema != SCHEMA:
        raise WireError(f"schema {schema} is not {SCHEMA}: upgrade the older side")


def parse_identity(data: Any) -> Identity:
    """Who a rank is, checked.

    Raises:
        WireError: a key is missing or ill-typed, or the rank lies outside its world.
    """
    group_rank, world_size = _int(data, "group_rank"), _int(data, "world_size")
    if not 0 <= group_rank < world_size:
        raise WireError(f"group_rank {group_rank} is outside a world of {world_size}")
    return Identity(
        job=_str(data, "job"),
        group=GroupName(_str(data, "group")),
        group_rank=group_rank,
        world_size=world_size,
        host=Host(_str(data, "host")),
        pid=_int(data, "pid"),
        incarnation=_str(data, "incarnation"),
        place=_place(data),
        accelerators=_accelerators(data),
        launched_as=_str(data, "launched_as", None),
    )


def _accelerators(data: Any) -> int | None:
    count = _int(data, "accelerators", None)
    if count is not None and not 0 <= count <= ACCELERATORS_MAX:
        raise WireError(f"'accelerators' is {count}, expected 0 to {ACCELERATORS_MAX}")
    return None if count is None else int(count)


def _place(data: Any) -> dict[str, str]:
    place = _get(data, "place", (Mapping,), {})
    if len(place) > PLACE_KEYS_MAX:
        raise WireError(f"'place' has {len(place)} keys, at most {PLACE_KEYS_MAX}")
    for key in place:
        value = _str(place, key)
        if len(key) > PLACE_KEY_MAX_CHARS or len(value) > PLACE_VALUE_MAX_CHARS:
            raise WireError(f"'place' is too long at {key[:PLACE_KEY_MAX_CHARS]!r}")
        if not key.isprintable() or not value.isprintable():
            raise WireError(f"'place' is no plain text at {key!r}")
    return dict(place)


def _parse_process(data: Any) -> Process:
    return Process(
        alive=_bool(data, "alive"),
        state=_str(data, "state", None),
        threads=_int(data, "threads", None),
        rss_bytes=_int(data, "rss_bytes", None),
        dead_age_s=_seconds(data, "dead_age_s", None),
        exit_code=_int(data, "exit_code", None),
        exit_signal=_str(data, "exit_signal", None),
        interpreter_age_s=_seconds(data, "interpreter_age_s", None),
        tracer=_parse_tracer(data),
        cores=_seconds(data, "cores", None),
        starved=_seconds(data, "starved", None),
        bytes_s=_seconds(data, "bytes_s", None),
    )


def _parse_tracer(data: Any) -> Tracer | None:
    tracer = _get(data, "tracer", (Mapping,), None)
    return None if tracer is None else Tracer(_int(tracer, "pid"), _line(tracer, "name"))


def _parse_frame(data: Any) -> Frame:
    return Frame(_line(data, "function"), _line(data, "file"), _int(data, "line"))


def _parse_witness(data: Any) -> Witness | None:
    witness = _get(data, "witness", (Mapping,), None)
    if witness is None:
        return None
    doing = _str(witness, "doing", "")
    return Witness(
        frame=_parse_frame(_get(witness, "frame", (Mapping,))),
        doing=Doing(doing) if doing in frozenset(Doing) else Doing.UNKNOWN,
        samples=_count(witness, "samples"),
        same_s=_seconds(witness, "same_s"),
        age_s=_seconds(witness, "age_s"),
    )


def _parse_ending(data: Any) -> Ending | None:
    ending = _get(data, "ending", (Mapping,), None)
    if ending is None:
        return None
    frame = _get(ending, "frame", (Mapping,), None)
    exception = _line(ending, "exception", None)
    return Ending(
        sentence=_line(ending, "sentence"),
        exception=exception,
        frame=None if frame is None else _parse_frame(frame),
    )


def _line(data: Any, key: str, default: Any = _MISSING) -> Any:
    """A short text for a sentence: one line, without what would control a terminal."""
    text = _str(data, key, default)
    if text is default:
        return text
    plain = "".join(char if char.isprintable() else " " for char in text[:LINE_MAX_CHARS])
    return plain.strip() or "?"


def _parse_step(data: Any) -> StepState:
    counters = _get(data, "counters", (Mapping,), {})
    replica_id = _str(data, "replica_id", None)
    step = StepState(
        step=_int(data, "step"),
        attempt=_int(data, "attempt"),
        progress=_int(data, "progress"),
        phase=_str(data, "phase"),
        phase_age_s=_seconds(data, "phase_age_s"),
        commits=_int(data, "commits"),
        last_commit_age_s=_seconds(data, "last_commit_age_s", None),
        replica_id=None if replica_id is None else ReplicaId(replica_id),
        quorum_id=_int(data, "quorum_id", None),
        participants=_int(data, "participants", None),
        healing=_bool(data, "healing", False),
        errored=_bool(data, "errored", False),
        loss=_float(data, "loss", None),
        loss_finite=_bool(data, "loss_finite", True),
        tokens=_int(data, "tokens", 0),
        seconds=_parse_seconds(data),
        committed_step=_int(data, "committed_step", None),
        commit_failures=_int(data, "commit_failures", 0),
        held_s=_seconds(data, "held_s", None),
        tags=_texts(data, "tags"),
        counters={str(name): _float(counters, name) for name in counters},
        source=_str(data, "source", SOURCE_REPORTER),
        spoilt=_parse_spoilt(data),
        prints=_parse_prints(data),
        times=_parse_times(data),
        waits_in=_str(data, "waits_in", None),
        waits_s=_seconds(data, "waits_s", None),
        waited_s=_seconds(data, "waited_s", None),
        gradients_watched=_bool(data, "gradients_watched", False),
    )
    if "committed_step" in data:
        return step
    return replace(step, committed_step=expected_committed_step(step))


def _parse_spoilt(data: Any) -> Spoilt | None:
    spoilt = _get(data, "spoilt", (Mapping,), None)
    if spoilt is None:
        return None
    return Spoilt(
        first_step=_int(spoilt, "first_step"),
        where=_str(spoilt, "where"),
        age_s=_seconds(spoilt, "age_s"),
        run=_int(spoilt, "run"),
        attempts=_int(spoilt, "attempts"),
    )


def _parse_prints(data: Any) -> Prints | None:
    prints = _get(data, "prints", (Mapping,), None)
    if prints is None:
        return None
    rows = _get(prints, "rows", (list, tuple))
    for row in rows:
        if not isinstance(row, list | tuple) or [type(n) for n in row[:3]] != [int, int, int]:
            raise WireError("'rows' is not a list of rows of three whole numbers")
    return Prints(
        lane=_int(prints, "lane"),
        lineage=_int(prints, "lineage"),
        rows=tuple((row[0], row[1], row[2]) for row in rows),
    )


def _parse_seconds(data: Any) -> dict[str, float]:
    seconds = _get(data, "seconds", (Mapping,), {})
    return {str(name): _seconds(seconds, name) for name in seconds}


def _parse_times(data: Any) -> dict[str, Took]:
    times = _get(data, "times", (Mapping,), {})
    return {str(name): _parse_took(_get(times, name, (list, tuple))) for name in times}


def _parse_took(row: Any) -> Took:
    told = dict(zip(Took._fields, row, strict=False))
    return Took(
        _count(told, "done"),
        _seconds(told, "sum_s", 0.0),
        _seconds(told, "last_s", 0.0),
        _count(told, "sum_bytes", 0),
        _count(told, "last_bytes", 0),
    )


def _count(data: Any, key: str, default: Any = _MISSING) -> int:
    value = int(_int(data, key, default))
    if value < 0:
        raise WireError(f"{key!r} is {value}, expected 0 or more")
    return value


def _texts(data: Any, key: str) -> tuple[str, ...]:
    texts = _get(data, key, (list, tuple), ())
    if not all(isinstance(text, str) for text in texts):
        raise WireError(f"{key!r} is not a list of texts")
    return tuple(texts)


def _numbers(data: Any, key: str) -> tuple[int, ...]:
    numbers = _get(data, key, (list, tuple), ())
    if not all(type(number) is int for number in numbers):
        raise WireError(f"{key!r} is not a list of whole numbers")
    return tuple(numbers)


def _parse_head(row: Any) -> GroupHead:
    if not isinstance(row, list | tuple) or len(row) < len(_HEAD_KEYS):
        raise WireError(f"a head is not a row of {len(_HEAD_KEYS)} values")
    data = dict(zip((*_HEAD_KEYS, *_HEAD_MORE), row, strict=False))
    enqueued, unfinished = _int(data, "enqueued"), _int(data, "unfinished")
    inside = _int(data, "inside", enqueued if unfinished else 0)
    if not 0 <= inside <= enqueued:
        raise WireError(f"'inside' is {inside}, expected 0 to {enqueued}")
    return GroupHead(
        name=_str(data, "name"),
        size=_int(data, "size"),
        enqueued=enqueued,
        completed=enqueued - unfinished,
        op=_str(data, "op"),
        age_s=_seconds(data, "age_s"),
        inside=inside,
        started=_int(data, "started", None),
        read_age_s=_seconds(data, "read_age_s", None),
    )


def parse_state(data: Any) -> StateReport:
    """The answer of `GET /v1/state`, checked.

    Raises:
        WireError: not this schema; the message names the first key that is wrong.
    """
    _check_schema(data)
    return _parse_report(data)


def _parse_report(data: Any) -> StateReport:
    step = _get(data, "step", (Mapping,), None)
    return StateReport(
        identity=parse_identity(_get(data, "identity", (Mapping,))),
        process=_parse_process(_get(data, "process", (Mapping,))),
        step=None if step is None else _parse_step(step),
        heads=tuple(_parse_head(head) for head in _get(data, "heads", (list, tuple), ())),
        witness=_parse_witness(data),
        ending=_parse_ending(data),
        unhooked=_texts(data, "unhooked"),
    )


_STEP_KEYS: Final = ("attempt", "step", "committed", "end_age_s", "duration_s", "seconds")


def _parse_step_row(row: Any) -> StepRow:
    if not isinstance(row, list | tuple) or len(row) < len(_STEP_KEYS):
        raise WireError(f"a step is not a row of {len(_STEP_KEYS)} values")
    data = dict(zip(_STEP_KEYS, row, strict=False))
    return StepRow(
        attempt=_int(data, "attempt"),
        step=_int(data, "step"),
        committed=bool(_int(data, "committed")),
        end_age_s=_seconds(data, "end_age_s"),
        duration_s=_seconds(data, "duration_s"),
        seconds=_parse_seconds(data),
    )


def parse_steps(data: Any) -> StepLog:
    """The answer of `GET /v1/steps`, checked.

    Raises:
        WireError: not this schema; the message names the first key that is wrong.
    """
    _check_schema(data)
    return StepLog(
        identity=parse_identity(_get(data, "identity", (Mapping,))),
        alive=_bool(data, "alive"),
        rows=tuple(_parse_step_row(row) for row in _get(data, "rows", (list, tuple))),
        dropped=_int(data, "dropped", 0),
    )


def _parse_trace(data: Any, key: str) -> Trace | None:
    trace = _get(data, key, (Mapping,), None)
    if trace is None:
        return None
    return Trace(_str(trace, "text"), _seconds(trace, "age_s", None), _str(trace, "source"))


def parse_last_words(data: Any) -> LastWords:
    """The answer of `GET /v1/last_words`, checked.

    Raises:
        WireError: not this schema; the message names the first key that is wrong.
    """
    _check_schema(data)
    return LastWords(
        identity=parse_identity(_get(data, "identity", (Mapping,))),
        process=_parse_process(_get(data, "process", (Mapping,))),
        ended=_str(data, "ended"),
        exception=_parse_trace(data, "exception"),
        crash=_parse_trace(data, "crash"),
        error_file=_parse_trace(data, "error_file"),
        stderr=_parse_trace(data, "stderr"),
        stderr_error=_str(data, "stderr_error", None),
    )


def _parse_host_entry(data: Any) -> HostEntry:
    name = _str(data, "rank")
    split_rank_name(name)
    report = _get(data, "report", (Mapping,), None)
    return HostEntry(
        rank=RankName(name),
        url=_str(data, "url", None),
        report=None if report is None else _parse_report(report),
        error=_str(data, "error", None),
    )


def parse_host(data: Any) -> HostReport:
    """The answer of `GET /v1/host`, checked.

    Raises:
        WireError: not this schema; the message names the first key that is wrong.
    """
    _check_schema(data)
    entries = _get(data, "entries", (list, tuple))
    return HostReport(
        host=Host(_str(data, "host")),
        entries=tuple(_parse_host_entry(entry) for entry in entries),
    )


def _shapes(data: Any, key: str) -> tuple[tuple[int, ...], ...]:
    shapes = _get(data, key, (list, tuple), ())
    for shape in shapes:
        if not isinstance(shape, list | tuple) or not all(type(n) is int for n in shape):
            raise WireError(f"{key!r} is not a list of lists of numbers")
    return tuple(tuple(shape) for shape in shapes)


def _parse_entry(data: Any) -> RingEntry:
    return RingEntry(
        group=_str(data, "group"),
        seq=_int(data, "seq"),
        op=_str(data, "op"),
        sizes_in=_shapes(data, "sizes_in"),
        sizes_out=_shapes(data, "sizes_out"),
        dtype=_str(data, "dtype", None),
        reduce_op=_str(data, "reduce_op", None),
        root=_int(data, "root", None),
        step=_int(data, "step", None),
        attempt=_int(data, "attempt", None),
        nth=_int(data, "nth", None),
        site=_str(data, "site", None),
        enter_age_s=_seconds(data, "enter_age_s"),
        exit_age_s=_seconds(data, "exit_age_s", None),
        error=_str(data, "error", None),
        is_async=_bool(data, "is_async", False),
        id=_int(data, "id", None),
        torch_ids=_numbers(data, "torch_ids"),
        recorder=_str(data, "recorder", None),
        quorum=_int(data, "quorum", None),
    )


def _parse_recorder(data: Any) -> BackendRecord:
    return BackendRecord(
        record=_get(data, "record", (Mapping,), None),
        age_s=_seconds(data, "age_s", None),
        error=_str(data, "error", None),
        only=_numbers(data, "only"),
    )


def parse_flight_record(data: Any) -> FlightRecord:
    """The answer of `GET /v1/flight_recorder`, checked; torch's part is passed on untouched.

    Raises:
        WireError: not this schema; the message names the first key that is wrong.
    """
    _check_schema(data)
    sources = _get(data, "sources", (Mapping,), {})
    members = _get(data, "members", (Mapping,), {})
    recorders = _get(data, "recorders", (Mapping,), {})
    for name in members:
        _shapes({name: [members[name]]}, name)
    return FlightRecord(
        identity=parse_identity(_get(data, "identity", (Mapping,))),
        alive=_bool(data, "alive"),
        members={str(name): tuple(ranks) for name, ranks in members.items()},
        ring=tuple(_parse_entry(entry) for entry in _get(data, "ring", (list, tuple))),
        dropped=_int(data, "dropped", 0),
        torch=_get(data, "torch", (Mapping,), None),
        torch_age_s=_seconds(data, "torch_age_s", None),
        torch_error=_str(data, "torch_error", None),
        torch_last_age_s=_seconds(data, "torch_last_age_s", None),
        torch_only=_numbers(data, "torch_only"),
        recorders={str(name): _parse_recorder(one) for name, one in recorders.items()},
        cursor=_str(data, "cursor", None),
        sources={str(part): _str(sources, part) for part in sources},
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


def parse_registration(data: Any) -> Registration:
    """The body of `POST /v1/register`, checked.

    Raises:
        WireError: not this schema, or a URL that has more than scheme, host and port (and the
            rank's name, where one server answers for many), or whose host is link-local: what is
            there is asked with the monitor's token.
    """
    _check_schema(data)
    url = _str(data, "url").removesuffix("/")
    identity = parse_identity(_get(data, "identity", (Mapping,)))
    if not _is_server(url.removesuffix(f"/{identity.rank}")):
        raise WireError(f"'url' is {url[:200]!r}, expected http(s)://HOST:PORT of a WorkerServer")
    return Registration(
        identity=identity,
        url=url,
        lease_s=_seconds(data, "lease_s"),
        age_s=_seconds(data, "age_s", None),
    )
