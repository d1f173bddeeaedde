"""Nothing of a snapshot is lost, rounded or reordered on its way through the journal."""

from __future__ import annotations

import json
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from math import inf
from typing import Any

import pytest
from hypothesis import given
from msgspec import Struct, structs

from lightkeeper.monitor.journal.entries import TickOutcome, tick_from_json, tick_text
from lightkeeper.monitor.journal.memory import Reader, Writer
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import Eviction, Rung, RungOutcome
from lightkeeper.monitor.model.names import GroupName, IncidentId, RankName, ReplicaId
from lightkeeper.monitor.model.observation import (
    Failure,
    LighthouseAway,
    LighthouseView,
    Member,
    Observation,
    Snapshot,
    Unreachable,
)
from lightkeeper.worker_server.wire import (
    FlightRecord,
    GroupHead,
    Identity,
    Process,
    RingEntry,
    StateReport,
    StepLog,
    StepState,
    Took,
)
from tests.changed import replace
from tests.worker_server.wire_values import values


def filled(hint: Any) -> Any:
    """A value of a type that is nobody's default."""
    plain = {bool: True, int: 1, float: 1 / 3, str: "x", Any: "x"}
    if hint in plain:
        return plain[hint]
    if isinstance(hint, typing.NewType):
        return filled(hint.__supertype__)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return list(hint)[-1]
    if is_dataclass(hint) or (isinstance(hint, type) and issubclass(hint, Struct)):
        return hint(**{name: filled(of) for name, of in typing.get_type_hints(hint).items()})
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return tuple(filled(of) for of in args if of is not ...)
    if origin is Mapping:
        return {"k": filled(args[1])}
    return filled(next(of for of in args if of is not type(None)))


def usual(value: Any) -> dict[str, Any]:
    """The fields of its class, each with its default; with nothing that a value equals, if none."""
    described = structs.fields(value) if isinstance(value, Struct) else fields(value)
    factories = {part.name: part.default_factory for part in described}
    return {
        part.name: factories[part.name]() if callable(factories[part.name]) else part.default
        for part in described
    }


def with_the_rest(value: Any) -> Any:
    """The same with a value in every field that the wire has since these tests were written."""
    hints = typing.get_type_hints(type(value))
    rest = [name for name, default in usual(value).items() if getattr(value, name) == default]
    return replace(value, **{n: filled(hints[n]) for n in rest if n != "committed_step"})


IDENTITY = with_the_rest(Identity("job", GroupName("rg_1"), 1, 2, "node1", 4711, "two"))
PROCESS = with_the_rest(Process(True, "S", 40, 2_000_000_001, 0.1234567, 3, "SIGKILL", 1 / 3))
STEP = StepState(
    step=7, attempt=9, progress=31, phase="forward", phase_age_s=1 / 7, commits=8,
    last_commit_age_s=0.1 + 0.2, replica_id=ReplicaId("rg_1:u"), quorum_id=4, participants=2,
    healing=True, errored=True, loss=1e-9 / 3, loss_finite=False, tokens=1 << 60,
    seconds={"z": 1 / 3, "a": 2 / 3}, committed_step=None, commit_failures=1,
    tags=("evaluation", "ü"), counters={"images": 0.1}, source="lightning",
    times={"load": Took(2, 1 / 3, 1 / 7, 1 << 40, 9), "reconfigure": Took(3, 0.1, 0.1 + 0.2)},
)  # fmt: skip
STEP = with_the_rest(STEP)
HEADS = (
    GroupHead("intra", 2, 12, 2, "all_reduce", 1 / 3, held=11),
    GroupHead("torchft:0", 4, 3, 0, "barrier", 0.25),
    GroupHead("nccl:default_pg", 2, 7, 2, "barrier", 0.5, held=6, started=6, read_age_s=1 / 7),
)
REPORT = with_the_rest(StateReport(IDENTITY, PROCESS, STEP, HEADS))
ENTRY = RingEntry(
    "intra", 12, "all_reduce", ((2, 3),), ((4,),), "float32", "sum", 1, 7, 9, 2, "train.py:4",
    1 / 9, "timeout", True, 99, (5, 6), 4, enter_age_s=1 / 3,
)  # fmt: skip
ENTRY = with_the_rest(ENTRY)
RECORD = FlightRecord(
    IDENTITY, True, {"intra": (0, 1)}, (ENTRY,), 3, {"entries": [{"x": None}]}, 1 / 7, "none",
    (8,),
)  # fmt: skip
RECORD = with_the_rest(RECORD)


@pytest.mark.parametrize(
    "value",
    [IDENTITY, PROCESS, STEP, HEADS[2], REPORT, ENTRY, RECORD],
    ids=lambda v: type(v).__name__,
)
def test_the_examples_have_a_value_of_their_own_in_every_field(value: Any) -> None:
    """A field that the wire adds is filled by itself, and survives the journal or is noticed."""
    odd = [name for name, default in usual(value).items() if getattr(value, name) == default]
    assert set(odd) <= {"committed_step"}  # None is the odd value: another one is expected


class Journal:
    """The ticks of a file as their lines give them back."""

    def __init__(self) -> None:
        self.writer, self.reader = Writer(KeeperConfig()), Reader(KeeperConfig())

    def through(self, snapshot: Snapshot) -> Snapshot:
        self.line = b"".join(tick_text(snapshot, TickOutcome(), self.writer))
        return tick_from_json(json.loads(self.line), self.reader).snapshot


def ticked(snapshot: Snapshot) -> Snapshot:
    return Journal().through(snapshot)


def again(report: StateReport) -> StateReport:
    report = ticked(Snapshot(1.0, 1, 0.0, (observation(report),), VIEW)).observations[0].report
    assert report is not None
    return report


def test_a_report_comes_back_whole() -> None:
    assert again(REPORT) == REPORT
    assert again(replace(REPORT, step=None, witness=None)) == replace(
        REPORT, step=None, witness=None
    )


@pytest.mark.parametrize("name", StepState.__struct_fields__)
def test_every_field_of_a_step_comes_back(name: str) -> None:
    before = StepState(0, 0, 0, "data", 0.0, 0, committed_step=3)
    report = StateReport(IDENTITY, PROCESS, replace(before, **{name: getattr(STEP, name)}))
    assert again(report) == report


def test_the_order_of_phases_is_kept_for_sums_depend_on_it() -> None:
    seconds = {"b": 1.0, "a": 3.0, "0": 1.0}
    step = again(StateReport(IDENTITY, PROCESS, replace(STEP, seconds=seconds))).step
    assert step is not None
    assert list(step.seconds.items()) == list(seconds.items())


@pytest.mark.parametrize("odd", ["\ud800", inf, 1 << 99], ids=ascii)
def test_what_only_torchs_own_records_may_hold_is_journalled_too(odd: Any) -> None:
    record = replace(RECORD, torch={"x": odd})
    given = Snapshot(1.0, 1, 0.0, (), VIEW, {IDENTITY.rank: record})
    assert ticked(given) == given


def test_a_fleet_whose_text_comes_in_pieces() -> None:
    looks = tuple(observation(pid=pid) for pid in range(1, 300))
    given = Snapshot(1.0, 1, 0.0, looks, VIEW)
    assert len(tick_text(given, TickOutcome(), Writer(KeeperConfig()))) > 4
    assert ticked(given) == given


def test_a_reason_that_is_no_text_costs_no_tick() -> None:
    looks = observation(), observation(Unreachable(Failure.GARBAGE, "\ud800")), observation(AWAY)
    given = Snapshot(1.0, 1, 0.0, looks, VIEW)
    assert ticked(given) == given


@pytest.mark.parametrize(
    "heads",
    [
        (),
        HEADS[:1],
        HEADS[::-1],
        (HEADS[0], structs.replace(HEADS[1], enqueued=4, age_s=9.0)),
        (*HEADS[:2], structs.replace(HEADS[2], started=7, read_age_s=0.1)),
        (HEADS[0], structs.replace(HEADS[2], name=HEADS[1].name, size=4), HEADS[1]),
    ],
)
def test_heads_come_back(heads: tuple[GroupHead, ...]) -> None:
    assert again(replace(REPORT, heads=heads)).heads == heads


def test_a_flight_record_comes_back_whole() -> None:
    given = Snapshot(1.0, 1, 0.0, (), VIEW, records={IDENTITY.rank: RECORD})
    assert ticked(given) == given


def test_what_was_there_a_tick_ago_is_written_as_a_number() -> None:
    seen, other = observation(), observation(replace(REPORT, identity=replace(IDENTITY, pid=9)))
    journal, lines = Journal(), []
    for looks in ((seen,), (seen, other), (other,), (seen,)):
        given = Snapshot(1.0, 1, 0.0, looks, VIEW)
        assert journal.through(given) == given
        lines.append(IDENTITY.incarnation.encode() in journal.line)
    assert lines == [True, True, False, True]  # of two ticks ago: whole again


def observation(outcome: Any = REPORT, **changes: Any) -> Observation:
    return Observation(replace(IDENTITY, **changes), "http://node1:1", outcome, 0.0123)


AWAY = Unreachable(Failure.TIMEOUT, "no answer")
VIEW = LighthouseView(
    3, (Member(ReplicaId("rg_1:u"), 7),), {ReplicaId("rg_1:u"): 1 / 3, ReplicaId("old"): 9e5}, "ok"
)
EVICTION = Eviction(
    IncidentId("i"), GroupName("rg_1"), None, 5.0, (RungOutcome(Rung.QUARANTINE, 5.0, 5.1, "ok"),),
    6.0, None, "why",
)  # fmt: skip


def test_whatever_a_fleet_goes_through_comes_back_as_it_was() -> None:
    other = observation(group=GroupName("rg_2"))
    told_otherwise = observation(replace(REPORT, identity=replace(IDENTITY, host="elsewhere")))
    looks: list[dict[str, Any]] = [
        {"observations": (observation(), other)},
        {"observations": (observation(AWAY), other), "lighthouse": LighthouseAway("refused")},
        {"observations": (told_otherwise, other), "records": {RankName("rg_1.1"): RECORD}},
        {"observations": (other,), "records": {RankName("rg_1.1"): AWAY}},
        {"observations": (observation(incarnation="three"), other), "evictions": (EVICTION,)},
        {"observations": (), "lighthouse": replace(VIEW, members=(), status="x")},
        {
            "observations": (observation(replace(REPORT, step=None)),),
            "lighthouse": replace(VIEW, heartbeat_ages_s={ReplicaId("old"): 1.0}),
        },
        {"observations": (observation(),), "lighthouse": replace(VIEW, quorum_id=4)},
    ]
    journal = Journal()
    for number, look in enumerate(looks):
        plain = {"lighthouse": VIEW, "lateness_s": 1 / 3, "now_s": 1e9 / 7, "tick": number}
        given = Snapshot(**{**plain, **look})
        assert journal.through(given) == given


@given(values(StateReport), values(FlightRecord), values(StepLog))
def test_whatever_the_wire_carries_comes_back_in_a_snapshot(
    report: StateReport, record: FlightRecord, steps: StepLog
) -> None:
    rank = IDENTITY.rank
    seen = Observation(IDENTITY, "http://node1:1", report, 0.1)
    snapshot = Snapshot(1.0, 1, 0.0, (seen,), VIEW, {rank: record}, steps={rank: steps})
    read = ticked(snapshot)
    assert read == snapshot
    assert repr(read) == repr(snapshot)


def test_a_clock_that_jumped_is_told_as_it_was_seen() -> None:
    journal = Journal()
    for now_s in (1e9, 1e9 - 86_400.0, 2e9, 0.0):
        given = Snapshot(now_s, 1, 0.0, (), VIEW)
        assert journal.through(given).now_s == now_s
