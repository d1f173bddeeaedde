"""Whatever happens in whatever order: an eviction ends, and presses the kill once an attempt."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightkeeper.monitor.decide.escalation import handle
from lightkeeper.monitor.model.escalation import (
    Answered,
    Begin,
    Cleared,
    DecidedAgain,
    Event,
    EvictionDeps,
    HandedOver,
    Instruction,
    Interrupted,
    LighthouseSeen,
    Liveness,
    Probe,
    Probed,
    ProbeResult,
    Reviewed,
    Revoked,
    Timeouts,
)
from lightkeeper.monitor.model.eviction import Eviction, EvictionState, Rung
from lightkeeper.monitor.model.names import Host
from lightkeeper.monitor.model.observation import LighthouseAway, LighthouseView, Snapshot
from lightkeeper.monitor.model.plain import from_plain, to_plain
from tests.deep import DEEP, EXPLORES
from tests.monitor.decide.escalations import (
    ALL,
    EVICT,
    ID,
    RANKS,
    START_S,
    VIEW,
    accused,
    asked_of,
    fresh,
)

pytestmark = pytest.mark.integration  # no processes, but 4 s of CPU

AWAY = LighthouseAway("refused")
NOBODY = Snapshot(START_S, 1, 0.0, (), AWAY)
TIMES = Timeouts()
ENDS = (EvictionState.CONFIRMED, EvictionState.FAILED, EvictionState.ABANDONED)

lighthouses = st.sampled_from([
    VIEW, AWAY, replace(VIEW, members=VIEW.members[1:]), replace(VIEW, heartbeat_ages_s={ID: 60.0}),
    LighthouseView(0, (), {}, ""),
])  # fmt: skip
some = st.frozensets(st.sampled_from(RANKS))
sights = st.builds(LighthouseSeen, lighthouses, st.sampled_from([None, 0.0, 60.0]))
looks = st.builds(
    ProbeResult,
    lives=st.fixed_dictionaries({rank: st.sampled_from(Liveness) for rank in RANKS}),
    details=st.just(dict.fromkeys(RANKS, "seen")),
    lighthouse=sights,
    progress=st.dictionaries(st.sampled_from(RANKS), st.integers(0, 3)),
    current=some,
    superseded=some,
    gate_trouble=st.sampled_from([None, "away"]),
)
answers = st.builds(
    Answered,
    rung=st.sampled_from([Rung.GATE, Rung.LIGHTHOUSE_KILL, Rung.WORKER_EVICT, Rung.SCHEDULER]),
    whom=st.sampled_from(["", "slurm", *RANKS]),
    said=st.just("said"),
    done=st.sampled_from([None, True, False]),
)
saved = st.builds(
    Answered,
    rung=st.sampled_from([Rung.EVIDENCE, Rung.QUARANTINE]),
    whom=st.just(""),
    said=st.sampled_from(["", "said"]),
    done=st.booleans(),
)
events = st.one_of(
    st.just(DecidedAgain(replace(EVICT, accused=accused(), epoch=2))),
    st.builds(
        HandedOver, st.just(START_S), st.just(accused()),
        st.dictionaries(st.sampled_from(RANKS), st.integers(0, 3)),
        st.sampled_from([None, None, "it has restarted"]),
    ),
    st.just(Interrupted()),
    st.just(Reviewed(NOBODY, None, None, 30.0, 10.0)),
    st.builds(Cleared, st.booleans()),
    saved,
    st.builds(Probed, looks, st.booleans()),
    st.builds(Probed, looks),
    answers,
    st.just(Revoked("paused")),
    sights,
)  # fmt: skip
going_on = st.one_of(
    st.builds(HandedOver, st.just(START_S), st.just(accused())),
    st.just(Cleared(True)),
    saved,
    st.builds(Probed, looks),
    answers,
)
"""What leads far into an eviction."""
histories = st.lists(
    st.tuples(st.one_of(going_on, going_on, events), st.floats(0.0, 6.0)), min_size=15, max_size=60
)
STATES = (
    {}, {"keep_out": ("rg_1",), "quarantine": ()}, {"replica_id": None},
    {"author": "a person"},
    {"state": EvictionState.PREPARING, "taken_up": True, "stood": {RANKS[0]: 1}},
    {"state": EvictionState.ASKING, "taken_up": True, "asking_s": START_S},
    {"state": EvictionState.INTERRUPTED, "taken_up": True, "interrupted_s": START_S},
    {"state": EvictionState.CONFIRMED, "taken_up": True, "gone_s": START_S, "ended_s": START_S},
    {"state": EvictionState.FAILED, "taken_up": True, "failed": "late", "ended_s": START_S},
)  # fmt: skip
LOST = ({}, {Host("node1"): True})
starts = st.sampled_from([fresh(**state, lost=lost) for state in STATES for lost in LOST])
deps = st.sampled_from([ALL, EvictionDeps()])


LONG = settings(max_examples=50 * DEEP if EXPLORES else 15)


class Account:
    """Everything that an eviction asked for, and at which attempt. Whatever comes: never two kills
    in one attempt, and what has ended has ended.
    """

    def __init__(self, eviction: Eviction, having: EvictionDeps) -> None:
        self.eviction = eviction
        self.having = having
        self.now_s = START_S
        self.asked: list[tuple[int, Rung, str]] = []

    def post(self, event: Event) -> tuple[Instruction, ...]:
        before = self.eviction
        self.eviction, instructions = handle(before, event, self.now_s, self.having)
        asked = [asking for asking in map(asked_of, instructions) if asking is not None]
        self.asked += [(before.attempt, *asking) for asking in asked]
        kills = [attempt for attempt, rung, _ in self.asked if rung is Rung.LIGHTHOUSE_KILL]
        assert len(kills) == len(set(kills))
        if before.state in ENDS:  # one that was confirmed may prove a failure: somebody beats on
            after = self.eviction.state
            assert after is before.state or (before.state, after) == ("confirmed", "failed")
        # who asks was shown who lives, in this very event, and may
        assert not asked or (isinstance(event, Probed) and event.may)
        for rung, whom in asked:
            self._named_by_a_look(event, rung, whom)
        # what is not under way asks for nothing, and what is goes on
        assert bool(instructions) <= self.eviction.under_way
        if instructions:
            assert isinstance(instructions[-1], Begin | Probe) or len(instructions) == 1
        return instructions

    def _named_by_a_look(self, event: Event, rung: Rung, whom: str) -> None:
        assert isinstance(event, Probed)
        look = event.look
        if rung is Rung.LIGHTHOUSE_KILL:
            assert isinstance(look.lighthouse.view, LighthouseView)
            assert self.eviction.replica_id in look.lighthouse.view.ids
        if rung is Rung.WORKER_EVICT:
            life = next(life for rank, life in look.lives.items() if rank == whom)
            assert life in (Liveness.ALIVE, Liveness.STUCK) or (
                life is Liveness.UNSEEN and whom in look.current
            )
        if rung is Rung.SCHEDULER:
            assert not look.superseded


def played(eviction: Eviction, having: EvictionDeps, history) -> Account:
    account = Account(eviction, having)
    for event, later_s in history:
        account.post(event)
        account.now_s += later_s
    return account


@LONG
@given(starts, deps, histories, histories)
def test_nobody_is_asked_after_it_is_revoked(eviction, having, before, after) -> None:
    account = played(eviction, having, before)
    account.post(Revoked("paused"))
    assert not account.eviction.open
    asked = len(account.asked)
    for event, later_s in after:
        account.now_s += later_s
        assert account.post(event) == ()
    assert len(account.asked) == asked


@LONG
@given(starts, deps, histories, looks, st.booleans())
def test_it_ends_in_time_whatever_the_looks_show(eviction, having, history, look, may) -> None:
    account = played(eviction, having, history)
    end_s = account.now_s + 2 * (having.given_s(eviction) + TIMES.confirm_s) + 60.0
    while account.eviction.open:
        assert account.now_s <= end_s, account.eviction
        match account.eviction.state:
            case EvictionState.DECIDED | EvictionState.INTERRUPTED:
                account.post(Reviewed(NOBODY, None, None, 30.0, 10.0))
            case EvictionState.PREPARING:
                account.post(Cleared(may))
                account.post(Probed(look, may))
            case _:
                account.post(Probed(look, may))
        account.now_s += 1.0


@LONG
@given(starts, deps, histories)
def test_a_lost_event_adds_no_kill(eviction, having, history) -> None:
    """Dropping any single event may delay it, and adds nothing but what the others call for."""
    for lost in range(len(history)):
        played(eviction, having, [*history[:lost], *history[lost + 1 :]])


@LONG
@given(starts, deps, histories, histories)
def test_what_was_stored_goes_on_as_if_nothing_had_happened(eviction, having, before, two) -> None:
    first = played(eviction, having, before)
    read = Account(from_plain(Eviction, to_plain(first.eviction)), having)
    read.now_s = first.now_s
    for event, later_s in two:
        assert read.post(event) == first.post(event)
        assert read.eviction == first.eviction
        first.now_s = read.now_s = first.now_s + later_s
