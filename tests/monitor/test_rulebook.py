"""The policy file and the big red switch of a running monitor: HTTP, store, journal."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lightkeeper.monitor.act.quarantine import SWITCH, PauseSwitch
from lightkeeper.monitor.clock import Clock
from lightkeeper.monitor.decide.rules import GUARDS, PolicyAction, PolicyError
from lightkeeper.monitor.journal.entries import JournalTick
from lightkeeper.monitor.journal.replay import Event, Opened, Replay, find_journals, journal_events
from lightkeeper.monitor.rulebook import Rulebook, effective, read_policy
from lightkeeper.monitor.service import Service
from lightkeeper.monitor.show.wording import utc
from lightkeeper.monitor.store.store import Store
from tests.monitor.api import TOKEN, Api, options
from tests.monitor.doubles import HandClock
from tests.monitor.fakes import FakeFleet, FakeLighthouse, wait_until

POLICY = """
[policy]
mode = "observe"
[actions]
straggler = "page"
[guards]
budget_per_hour = 2
[thresholds]
stall_floor_s = 7
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text(POLICY)
    return path


def rulebook(path: Path, **given) -> Rulebook:
    return Rulebook(effective(path, given, loaded_s=1.0), given)


@pytest.fixture
def api(tmp_path: Path, lighthouse: FakeLighthouse, file: Path) -> Iterator[Api]:
    rules = rulebook(file, min_replicas=2)
    more = {"journal": tmp_path / "j"}
    config = rules.current.config
    with Service(options(tmp_path, lighthouse.url, config=config, rules=rules, **more)) as service:
        yield Api(service)


# -- the rulebook --------------------------------------------------------------------------------


def test_the_command_line_stands_above_the_file_and_the_file_above_the_default(file: Path) -> None:
    held = rulebook(file, budget_per_hour=9, observe=None).current
    config = held.config
    assert (config.budget_per_hour, config.stall_floor_s, config.observe) == (9, 7, True)
    assert held.said == {
        "budget_per_hour": "command line", "stall_floor_s": "file", "observe": "file",
    }  # fmt: skip


def test_a_bad_file_changes_nothing_and_is_told_until_a_good_one_comes(file: Path) -> None:
    rules = rulebook(file)
    before = rules.current
    file.write_text("[guards]\nbudget_per_hour = -1\nx = 2\n")
    with pytest.raises(PolicyError) as caught:
        rules.reload(2.0)
    assert caught.value.problems == (
        f"{file}: guards.budget_per_hour: is -1, expected 0 to 1e+06",
        f"{file}: guards.x: unknown key, expected {', '.join(GUARDS)}",
    )
    assert (rules.current, rules.take()) == (before, None)
    (trouble,) = rules.troubles()
    assert trouble.startswith("the policy was not reloaded, the one before holds: ")
    assert trouble.endswith("(and 1 more)")
    file.write_text("[guards]\nbudget_per_hour = 3\n")
    made = rules.reload(3.0)
    assert (made.config.budget_per_hour, made.loaded_s, made.number) == (3, 3.0, 2)
    assert (rules.take(), rules.take(), list(rules.troubles())) == (made, None, [])


def test_what_only_a_start_looks_at_keeps_its_value_and_is_told(file: Path) -> None:
    rules = rulebook(file)
    file.write_text("[thresholds]\ntick_s = 2.0\nnotify_hold_s = 10.0\nclear_s = 4.0\n")
    made = rules.reload(2.0)
    assert (made.config.tick_s, made.config.clear_s) == (1.0, 4.0)
    assert list(rules.troubles()) == [
        "the policy says tick_s = 2.0: 1.0 holds until the monitor is restarted"
    ]


BAD = {
    "nowhere": (None, "No such file or directory"),
    "no TOML": (b"a = [", "no TOML: "),
    "no text": (b"\xff\xfe", "no TOML: "),
    "too deep": (b"a = " + b"[" * 5000, "no TOML: "),
}


@pytest.mark.parametrize(("data", "said"), BAD.values(), ids=BAD.keys())
def test_a_file_that_cannot_be_read_is_one_line(data, said, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(PolicyError) as caught:
        effective(path, {}, loaded_s=1.0)
    (line,) = caught.value.problems
    assert line.startswith(f"{path}: {said}")
    assert "\n" not in line


def test_a_file_that_does_not_go_with_the_command_line_is_refused(file: Path) -> None:
    file.write_text("[thresholds]\nstraggler_windows = 4\n")
    with pytest.raises(PolicyError, match="together with the command line: straggler_slow_windows"):
        effective(file, {"straggler_slow_windows": 5, "straggler_windows": None}, loaded_s=1.0)


# -- over HTTP -----------------------------------------------------------------------------------


def test_the_policy_shows_what_holds_who_said_it_and_what_was_learned(api: Api, file: Path) -> None:
    api.tick()
    body = api.get("/v1/policy")
    assert (body["source"], body["loaded_s"], body["mode"]) == (str(file), 1.0, "observe")
    assert body["actions"]["straggler"] == dict.fromkeys(("info", "warning", "critical"), "page")
    assert body["guards"]["min_replicas"] == {
        "value": 2, "from": "command line", "change": "reload",
    }  # fmt: skip
    assert body["thresholds"]["stall_floor_s"]["from"] == "file"
    assert body["thresholds"]["tick_s"] == {"value": 1.0, "from": "default", "change": "restart"}
    assert body["learned"]["min_replicas"] == {"configured": 2, "lighthouse": None, "in_force": 2}
    assert (body["pause"], body["problems"]) == (None, [])


def test_a_reload_holds_from_the_next_tick_on_and_is_replayed(
    api: Api, file: Path, tmp_path: Path
) -> None:
    for _ in range(3):
        api.tick()
    file.write_text("[actions]\ndead = 'page'\n[guards]\nbudget_per_hour = 1\n")
    answer = api.call("POST", "/v1/policy/reload", headers=TOKEN)
    assert (answer.status_code, answer.json()["mode"]) == (200, "act")
    for _ in range(2):
        api.tick()
    assert api.get("/v1/snapshot")["observe"] is False
    assert api.components.judge._config.budget_per_hour == 1

    def journalled() -> list[Event]:
        return list(journal_events(find_journals([tmp_path / "j"])[0]))

    def ticks_on_disk() -> int:
        return sum(isinstance(event, JournalTick) for event in journalled())

    wait_until(lambda: ticks_on_disk() == 5, 5, "all ticks are on disk")
    replay, heads, follows, ticks = Replay(), [], [], []
    for event in journalled():
        if isinstance(event, Opened):
            head = event.head
            action = next(iter(head.policy.actions.values()))
            heads.append(
                (head.after_tick, head.config.budget_per_hour, head.config.observe, action)
            )
            follows.append(replay.begin(head))
        elif isinstance(event, JournalTick):
            assert replay.tick(event).difference() is None
            ticks.append(replay.pipeline._config.budget_per_hour)
    assert heads == [
        (None, 2, True, PolicyAction.EVICT_AND_QUARANTINE), (3, 1, False, PolicyAction.PAGE),
    ]  # fmt: skip
    assert (follows, ticks) == ([False, True], [2, 2, 2, 1, 1])


def test_a_bad_reload_is_400_with_every_problem_and_a_trouble_on_the_page(
    api: Api, file: Path
) -> None:
    file.write_text("[guards]\na = 1\nb = 1\n")
    answer = api.call("POST", "/v1/policy/reload", headers=TOKEN)
    assert (answer.status_code, len(answer.json()["problems"])) == (400, 2)
    assert answer.json()["error"].startswith("nothing has changed: ")
    api.tick()
    assert any("was not reloaded" in trouble for trouble in api.get("/v1/snapshot")["troubles"])
    assert api.get("/v1/policy")["mode"] == "observe"


def test_the_log_says_who_reloaded_the_policy_and_why_a_reload_was_refused(
    api: Api, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file.write_text(POLICY.replace("budget_per_hour = 2", "budget_per_hour = 5"))
    asked = api.call("POST", "/v1/policy/reload", headers=TOKEN, json={"author": "ann"})
    assert asked.status_code == 200
    file.write_text("[guards]\nbudget_per_hour = -1\n")
    api.service.reload()  # SIGHUP
    assert api.call("POST", "/v1/policy/reload").status_code == 401  # no reload at all
    refused = f"{file}: guards.budget_per_hour: is -1, expected 0 to 1e+06"
    assert [record.message for record in caplog.records if "reload" in record.message] == [
        f"ann has reloaded the policy {file} (load 2)",
        f"the policy is not reloaded, by SIGHUP: {refused}",
    ]


def test_a_monitor_without_a_file_has_nothing_to_reload(tmp_path: Path) -> None:
    with Service(options(tmp_path)) as service:
        api = Api(service)
        answer = api.call("POST", "/v1/policy/reload", headers=TOKEN)
        assert answer.status_code == 400
        assert "no policy file is given: start the monitor with --policy FILE" in answer.text
        assert api.get("/v1/policy")["source"] is None


def test_a_pause_shows_everywhere_and_by_hand_goes_on(
    api: Api, fleet: FakeFleet, lighthouse: FakeLighthouse
) -> None:
    rank = fleet.add("rg_1", replica_id="rg_1:a")
    lighthouse.form("rg_1:a")
    api.register(rank)
    body = {"reason": "rack 7", "author": "alice", "hours": 2}
    made = api.call("POST", "/v1/pause", json=body, headers=TOKEN).json()["pause"]
    assert made["until_s"] == made["since_s"] + 7200
    api.tick()
    assert api.get("/v1/snapshot")["pause"] == made == api.get("/v1/policy")["pause"]
    assert "lightkeeper_paused 1.0" in api.call("GET", "/metrics").text
    said = api.call("POST", "/v1/groups/rg_1/evict", json={"reason": "sick"}, headers=TOKEN)
    assert said.status_code == 200
    assert (
        said.json()["note"] == "evictions are paused by alice (rack 7): this one, by hand, is not"
    )
    wait_until(lambda: not rank.alive, 10, "the rank is evicted")
    resume = {"headers": TOKEN, "json": {"author": "bob"}}
    ended = api.call("DELETE", "/v1/pause", **resume).json()["ended"]
    assert ended == made | {"ended_by": "bob", "ended_s": ended["ended_s"]}
    assert ended["ended_s"] >= made["since_s"]
    assert api.call("DELETE", "/v1/pause", **resume).status_code == 404
    api.tick()
    assert api.get("/v1/policy")["last_pause"] == ended
    said = f"bob ended the pause by alice (rack 7) at {utc(ended['ended_s'])}"
    assert said in api.get("/v1/policy?width=0")["text"]
    assert api.get("/v1/snapshot")["pause"] is None


# -- the switch ----------------------------------------------------------------------------------


def test_a_pause_survives_a_restart_and_ends_with_its_hours(tmp_path: Path) -> None:
    clock = HandClock()
    store = Store(tmp_path / "m.db")
    made = PauseSwitch(clock, store).press("rack 7", "alice", 2.0)
    store.close()
    store = Store(tmp_path / "m.db")
    again = PauseSwitch(clock, store)
    again.take_over(store.remembered().switches.get(SWITCH))
    assert again.current() == made
    assert again.why() == "paused by alice: rack 7"
    clock.advance(7200.0)
    assert again.current() is None
    store.flush()
    again.take_over(store.remembered().switches.get(SWITCH))
    assert again.current() is None
    assert again.last == replace(made, ended_s=clock.now_s(), ended_by="its time")
    store.close()


@pytest.mark.parametrize("body", ["{", "[]", '{"reason": "x"}', json.dumps({"until_s": "x"})])
def test_a_saved_pause_that_cannot_be_read_pauses_all_the_same(body, tmp_path: Path) -> None:
    store = Store(tmp_path / "m.db")
    switch = PauseSwitch(Clock(), store)
    switch.take_over(body)
    assert switch.why() == "paused by lightkeeper: a saved pause cannot be read"
    store.close()


def test_a_pipe_is_no_policy_file_and_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PolicyError, match="a pipe or a device may never end"):
        read_policy(tmp_path / "pipe")
