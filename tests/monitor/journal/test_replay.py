"""A replay decides as it was decided live; a what-if says what would have been otherwise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from lightkeeper.monitor.decide.pipeline import Pipeline
from lightkeeper.monitor.journal.entries import (
    Head,
    JournalError,
    JournalTick,
    head_from_json,
    head_text,
    outcome_of,
)
from lightkeeper.monitor.journal.replay import Account, Replay, first_difference, parted_s
from lightkeeper.monitor.model.config import ConfigError, KeeperConfig
from lightkeeper.monitor.model.eviction import Eviction
from lightkeeper.monitor.model.incident import State
from lightkeeper.monitor.model.names import GroupName, IncidentId
from tests.deep import DEEP
from tests.monitor.decide.test_properties import sick_fleets
from tests.monitor.fleet import At, Drive, SimFleet, at, hang, slow
from tests.monitor.journal.tape import Tape, replay_file

ROOT = Path(__file__).parents[3]


def taped(
    script: list[At], ticks: int, *, turn_every: int = 10_000, config=None, **options
) -> Tape:
    config = config or KeeperConfig()
    tape = Tape(Pipeline(config), config, turn_every=turn_every)
    Drive(SimFleet(3, 1, script, **options), config, pipeline=tape).run(ticks)
    return tape


def accounts(tape: Tape, number: int = 0, **changes) -> tuple[Account, Account]:
    """What was decided live, and what the replay decides."""
    live, now = Account(), Account()
    for replayed in replay_file(tape.files[number], **changes)[1]:
        live.take(replayed.tick.outcome, replayed.tick.snapshot.tick, replayed.now_s)
        now.take(replayed.again, replayed.tick.snapshot.tick, replayed.now_s)
    return live, now


@settings(max_examples=3 * DEEP, deadline=None,
          suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large,
                                 HealthCheck.large_base_example])  # fmt: skip
@given(sick_fleets())
def test_any_fault_script_gives_the_same_again_from_any_file(case) -> None:
    groups, size, script, _ = case
    tape = Tape(Pipeline(KeeperConfig()), KeeperConfig())
    Drive(SimFleet(groups, size, script, noise=0.2, seed=1), pipeline=tape).run(100)
    tape.check()


def test_files_that_follow_each_other_are_one_journey_and_a_missing_one_is_bridged() -> None:
    tape = taped([at(20, hang("rg_1.0"))], 60, turn_every=20)
    heads = [head_from_json(json.loads(texts[0])) for texts in tape.files]
    ticks = [
        JournalTick(*seen)
        for seen in zip(tape.snapshots, map(outcome_of, tape.results), strict=True)
    ]

    def follows(replay: Replay, number: int) -> bool:
        followed = replay.begin(heads[number])
        for tick in ticks[20 * number : 20 * number + 20]:
            assert replay.tick(tick).difference() is None
        return followed

    replay = Replay()
    assert [follows(replay, number) for number in (0, 1)] == [False, True]
    replay = Replay()
    assert [replay.begin(heads[0]), follows(replay, 2)] == [False, False]


def test_a_restarted_monitor_is_replayed_with_what_its_store_held() -> None:
    before = taped([at(20, hang("rg_1.0"))], 24, config=KeeperConfig(observe=True))
    kept = before.results[-1].incidents
    assert [incident.state for incident in kept] == [State.PENDING] or kept == ()
    head = Head(before.config, "1", "again", began_s=2.0, incidents=kept)
    again, live = Replay(), Pipeline(before.config, kept)
    again.begin(head)
    for snapshot in before.snapshots:
        result = live.tick(snapshot)
        assert again.tick(JournalTick(snapshot, outcome_of(result))).result == result


def test_a_head_comes_back_whole() -> None:
    evictions = (Eviction(IncidentId("dead-1"), GroupName("rg_1"), None, 12.5),)
    head = Head(KeeperConfig(observe=True), "1", "run", 3, 7.0, (), evictions, after_tick=9, lost=2)
    assert head_from_json(json.loads(head_text(head, None))) == head


def test_a_result_that_is_not_as_live_is_told_with_tick_and_path() -> None:
    tape = taped([at(20, hang("rg_1.0"))], 30)
    _, ticks = replay_file(tape.files[0])
    (evicted,) = [replayed for replayed in ticks if replayed.again.decisions]
    live = [{**dict(evicted.again.decisions[0]), "group": "rg_2"}]
    other = replace(
        evicted, tick=replace(evicted.tick, outcome=replace(evicted.tick.outcome, decisions=live))
    )
    assert other.difference() == "tick 28: decisions[0].group was 'rg_2' live and is 'rg_1' now"


@pytest.mark.parametrize(
    ("live", "again", "expected"),
    [
        ({"a": [1, 2]}, {"a": [1, 2]}, None),
        ({"a": [1, 2]}, {"a": [1, 3]}, ("a[1]", "2", "3")),
        ({"a": [1]}, {"a": []}, ("a[0]", "1", "nothing")),
        ({}, {"a": {"b": 1}}, ("a", "nothing", "{'b': 1}")),
        ({"a": [{"id": "x", "n": 1}]}, {}, ("a", "[{'id': 'x', 'n': 1}]", "nothing")),
    ],
)
def test_the_first_difference_is_named(live, again, expected) -> None:
    assert first_difference(live, again) == expected


def first(account: Account) -> tuple[float | None, list[tuple[str, str | None]]]:
    """When its one lasting incident fired, and what was decided: action and guard, once each."""
    (incident,) = account.lasting()
    decided = [(d["action"], d.get("guard")) for d in account.of(incident.id)]
    return incident.milestones.firing_s, list(dict.fromkeys(decided))


def test_a_longer_patience_would_have_accused_later() -> None:
    tape = taped([at(20, hang("rg_1.0"))], 60, config=KeeperConfig(observe=True))
    live, now = accounts(tape, stall_floor_s=12.0)
    assert (first(live)[0], first(now)[0]) == (1_000_027.0, 1_000_034.0)
    assert parted_s(live, now) is None


def test_where_evictions_part_is_told() -> None:
    live, now = accounts(taped([at(20, hang("rg_1.0"))], 60), stall_floor_s=12.0)
    assert now.evictions() == []  # that the group's processes ended is the live eviction's work
    assert parted_s(live, now) == 1_000_027.0


def test_observe_mode_would_have_held_it() -> None:
    live, now = accounts(taped([at(20, hang("rg_1.0"))], 60), observe=True)
    assert first(live)[1] == [("evict", None)]
    assert first(now)[1] == [("would_evict", "observe")]


def test_a_milder_ratio_would_have_accused_whom_nobody_accused() -> None:
    config = KeeperConfig(straggler_ratio=3.0, mild_ratio=3.0)
    tape = taped([at(40, slow("rg_1.0", 2.0))], 150, config=config)
    live, now = accounts(tape, straggler_ratio=1.5)
    assert live.lasting() == []
    assert [incident.culprits for incident in now.lasting()] == [("rg_1.0",)]


def test_a_change_that_is_out_of_range_is_refused() -> None:
    tape = taped([], 2)
    with pytest.raises(ConfigError, match="stall_floor_s is 0"):
        replay_file(tape.files[0], stall_floor_s=0.0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"memory": None, "no_memory": "x cannot be journalled"}, "needs those before: x cannot"),
        ({"memory": {"classes": [], "value": ["d"]}}, "written by lightkeeper 1.2.3: expected"),
        ({"memory": {"classes": [["monitor.detect.history", "RankTrack", ["a"]]], "value": 1}},
         "another version wrote this; give the files of the run from its first on"),
    ],
)  # fmt: skip
def test_a_file_from_the_middle_whose_memory_is_of_another_version_is_refused(
    change, words: str
) -> None:
    head = replace(head_from_json(json.loads(taped([], 2).files[0][0])), **change)
    with pytest.raises(JournalError, match=words):
        Replay().begin(head)


def test_a_pipeline_that_crashes_is_replayed_as_the_loop_does_it() -> None:
    tape = taped([], 3)
    replay = Replay()
    replay.begin(head_from_json(json.loads(tape.files[0][0])))
    assert replay.pipeline is not None
    replay.pipeline._tracker = None  # type: ignore[assignment]
    replayed = replay.tick(JournalTick(tape.snapshots[0], outcome_of(tape.results[0])))
    assert replayed.again.crash is not None
    assert replayed.result.decisions == ()
    assert "crash was nothing live" in (replayed.difference() or "")


@pytest.mark.integration
def test_another_process_with_another_hash_seed_gives_the_same(tmp_path: Path) -> None:
    """The order of sets must not matter."""
    tape = taped([at(20, hang("rg_1.0")), at(50, slow("rg_2.0", 4.0))], 120, noise=0.2)
    path = tmp_path / "journal-x.gz"
    path.write_bytes(tape.packed())
    done = subprocess.run(
        [sys.executable, "-m", "lightkeeper.monitor.cli", "replay", str(path), "--check",
         "--format", "json"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "77"},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    body = json.loads(done.stdout)
    assert (body["schema"], body["ticks"], body["same"]) == (1, 120, True)
    assert [decision["action"] for decision in body["decisions"]].count("evict") == len(
        [
            1
            for result in tape.results
            for decision in result.decisions
            if hasattr(decision, "quarantine")
        ]
    )
