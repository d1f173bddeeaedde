"""What a rank is asked for, and what its answers are worth."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from monitor.dumps.manifest import RECORD
from monitor.names import RankName
from worker_server.wire import (
    PATH_FLIGHT_RECORDER,
    PATH_LAST_WORDS,
    PATH_STACKS,
    PATH_STATE,
    PATH_STEPS,
    Identity,
    parse_identity,
)

_MIB: Final = 1024 * 1024
_AGO: Final = re.compile(r"\A#[^\n]{0,300}?([0-9]{1,9}(?:\.[0-9]{1,6})?) s ago")
"""How a WorkerServer heads stacks that are not of this moment."""


class Status(StrEnum):
    """What became of one part."""

    OK = "ok"
    CUT = "cut"  # the whole answer was too large; a smaller one is there
    LATE = "late"  # no full answer within the deadline
    UNREACHABLE = "unreachable"  # nobody answers there
    REFUSED = "refused"  # answered with a status other than 200
    GARBAGE = "garbage"  # answered something that is not its schema
    STRANGER = "stranger"  # another incarnation answers: no evidence of this fault
    TOO_LARGE = "too_large"  # over the size of a part, or the bundle was full


@dataclass(frozen=True, slots=True)
class Kind:
    """One endpoint that is asked."""

    name: str
    path: str
    file: str
    max_bytes: int
    json: bool = True
    smaller: str = ""
    """Query for a smaller answer where the whole one is too large."""


KINDS: Final = (
    Kind("state", PATH_STATE, "state.json", _MIB // 16),
    # 2,000 entries of torch's record with stacks take about 2 MiB
    Kind(RECORD, PATH_FLIGHT_RECORDER, "flight_recorder.json", 8 * _MIB, smaller="?active=1"),
    Kind("stacks", PATH_STACKS, "stacks.txt", _MIB, json=False),
    Kind("last_words", PATH_LAST_WORDS, "last_words.json", _MIB),
    Kind("steps", PATH_STEPS, "steps.json", 2 * _MIB),
)


@dataclass(frozen=True, slots=True)
class Part:
    """One answer, or why there is none."""

    rank: RankName
    kind: Kind
    status: Status
    body: bytes | None = None
    taken_s: float | None = None
    """When the last byte came, Unix time by the monitor's clock."""
    seconds: float | None = None
    """From asking to the last byte."""
    age_s: float | None = None
    """How much older than `taken_s` the content is, where the WorkerServer says so."""
    error: str | None = None


def weigh(kind: Kind, identity: Identity, body: bytes) -> tuple[Status, float | None, str | None]:
    """What an answer of status 200 is worth: status, age of what it tells, what is wrong."""
    if not kind.json:
        found = _AGO.search(body[:400].decode(errors="replace"))
        return (Status.OK, None if found is None else float(found[1]), None)
    try:
        data = json.loads(body)
        told = parse_identity(data["identity"])
    except (KeyError, TypeError):
        return Status.GARBAGE, None, f"no identity: {_excerpt(body)}"
    except (ValueError, RecursionError) as exc:  # WireError is a ValueError
        return Status.GARBAGE, None, f"{_line(exc)}: {_excerpt(body)}"
    if (told.rank, told.incarnation) != (identity.rank, identity.incarnation):
        return Status.STRANGER, None, f"{told.rank} pid {told.pid} ({told.incarnation})"[:200]
    return Status.OK, _age_s(kind, data), None


def _age_s(kind: Kind, data: Mapping[str, Any]) -> float | None:
    """Of the black box: since the rank died, or since torch's record was read."""
    process = data.get("process")
    known = data.get("torch_age_s") if kind.name == RECORD else None
    if isinstance(process, dict):
        known = process.get("dead_age_s")
    if not isinstance(known, int | float) or isinstance(known, bool):
        return None
    return float(known) if 0 <= known < 1e9 else None


def _line(exc: BaseException) -> str:
    return " ".join(str(exc).split())[:160]


def _excerpt(body: bytes) -> str:
    return repr(body[:80].decode(errors="replace"))
