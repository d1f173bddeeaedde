"""`lightkeeper replay`: stories first, what if, and one line when it cannot."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lightkeeper.monitor.cli import main
from lightkeeper.monitor.commands.replay import parse_time
from lightkeeper.monitor.decide.pipeline import Pipeline
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import Decision, Eviction, Release
from lightkeeper.monitor.model.observation import Snapshot
from tests.monitor.fleet import START_S, Drive, SimFleet, at, hang
from tests.monitor.journal.tape import Tape


def journal(folder: Path, *, observe: bool = False, files: int = 3) -> Path:
    """A hang at 20 s in 60 ticks, in three files."""
    config = KeeperConfig(observe=observe)
    tape = Tape(Pipeline(config), config, turn_every=60 // files)
    Drive(SimFleet(3, 1, [at(20, hang("rg_1.0"))]), config, pipeline=tape).run(60)
    for number in range(files):
        name = f"journal-20260101T00000{number}.000000Z-{number + 1:04d}.gz"
        (folder / name).write_bytes(tape.packed(number))
    return folder


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return journal(tmp_path_factory.mktemp("live"))


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return journal(tmp_path_factory.mktemp("observed"), observe=True)


def test_a_folder_is_replayed_with_every_story_and_decision(live: Path, capsys) -> None:
    assert main(["replay", str(live), "--check"]) == 0
    text = capsys.readouterr().out
    assert "60 ticks, " in text
    assert "decided as it was live" in text
    assert "not_entered-rg_1.0-1000026000: not_entered, resolved" in text
    assert "rank rg_1.0 hangs in phase 'forward'" in text
    assert "left_quorum" in text
    assert "evict" in text


def test_a_release_has_no_guard_and_is_told(live: Path, capsys, monkeypatch) -> None:
    decide = Pipeline._decide

    def releases(pipeline: Pipeline, snapshot: Snapshot) -> tuple[Decision, ...]:
        decisions = decide(pipeline, snapshot)
        evicted = (Release(d.incident_id, d.group, 3, (), (), "rg_1 is gone")
                   for d in decisions if isinstance(d, Eviction))  # fmt: skip
        return (*decisions, *evicted)

    monkeypatch.setattr(Pipeline, "_decide", releases)
    main(["replay", str(live)])
    assert re.search(r"release +rg_1 is gone", capsys.readouterr().out)
    assert main(["replay", str(live), "--set", "stall_floor_s=4.5"]) == 0


def test_as_json_it_is_for_programs(live: Path, capsys) -> None:
    assert main(["replay", str(live), "--format", "json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["schema"], body["ticks"], body["same"]) == (1, 60, True)
    assert [row["state"] for row in body["incidents"]] == ["resolved"]
    assert [(row["action"], row["group"], row["tick"]) for row in body["decisions"]] == [
        ("evict", "rg_1", 28)
    ]


def fired_s(account) -> float:
    (incident,) = (row for row in account["incidents"] if row["milestones"]["firing_s"])
    return incident["milestones"]["firing_s"]


def test_what_if_says_who_would_have_been_evicted(observed: Path, capsys) -> None:
    assert main(["replay", str(observed), "--set", "observe=false"]) == 0
    text = capsys.readouterr().out
    assert "what if: observe=False (was True)" in text
    assert "live:    1 incidents, evicted: nobody" in text
    assert "what if: 1 incidents, evicted: rg_1 " in text
    assert "an eviction in a what-if changes nothing of what was observed" in text
    assert main(["replay", str(observed), "--set", "stall_floor_s=12", "--format", "json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert fired_s(body) == fired_s(body["live"]) + 7
    assert body["changes"] == {"stall_floor_s": {"live": 5.0, "what_if": 12.0}}
    assert body["conjecture_from_s"] is None


def test_another_policy_is_a_what_if(observed: Path, tmp_path: Path, capsys) -> None:
    policy = tmp_path / "policy.toml"
    rules = "[actions]\nnot_entered = 'page'\n"
    policy.write_text(f"[policy]\nmode = 'act'\n[thresholds]\nstall_floor_s = 12\n{rules}")
    assert main(["replay", str(observed), "--policy", str(policy), "--format", "json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert fired_s(body) == START_S + 34
    assert {row["guard"] for row in body["decisions"]} == {"policy"}
    assert body["changes"]["stall_floor_s"] == {"live": 5.0, "what_if": 12}
    page = {"live": "evict_and_quarantine", "what_if": "page"}
    assert body["changes"]["actions.not_entered.critical"] == page


def test_a_span_shows_what_was_still_open_in_it(live: Path, capsys) -> None:
    span = ["--from", str(START_S + 30), "--to", str(START_S + 40)]
    assert main(["replay", str(live), *span, "--format", "json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["from_s"], body["to_s"], body["ticks"]) == (START_S + 30, START_S + 40, 11)
    assert [row["id"] for row in body["incidents"]] == ["not_entered-rg_1.0-1000026000"]
    assert body["decisions"] == []


def test_one_file_from_the_middle_stands_alone(live: Path, capsys) -> None:
    middle = sorted(live.iterdir())[1]
    assert main(["replay", str(middle), "--check", "--format", "json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["ticks"], len(body["incidents"])) == (20, 1)


def test_a_decision_that_is_not_as_live_is_status_1(
    live: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightkeeper.monitor.decide.guards.GUARDS", ())
    monkeypatch.setattr(
        "lightkeeper.monitor.decide.guards._quarantine", lambda case: ("host-rg_1",)
    )
    assert main(["replay", str(live), "--check"]) == 1
    out = capsys.readouterr().out
    assert "not as live: tick 28: decisions[0].quarantine[0] was" in out


def test_a_cut_file_is_replayed_up_to_the_cut(live: Path, tmp_path: Path, capsys) -> None:
    data = min(live.iterdir()).read_bytes()
    path = tmp_path / "journal-x.gz"
    path.write_bytes(data[:-30])
    assert main(["replay", str(path), "--check"]) == 0
    assert "was cut short" in capsys.readouterr().out


def test_damage_in_the_middle_is_status_2_after_what_came_before(
    live: Path, tmp_path: Path, capsys
) -> None:
    for path in live.iterdir():
        data = bytearray(path.read_bytes())
        if path == sorted(live.iterdir())[1]:
            data[-200] ^= 0x10
        (tmp_path / path.name).write_bytes(data)
    assert main(["replay", str(tmp_path), "--format", "json"]) == 2
    out, err = capsys.readouterr()
    body = json.loads(out)
    assert 40 <= body["ticks"] < 60
    assert body["same"] is True  # the third file goes on with the memory in its head
    assert err.count("\n") == 1
    assert "damaged" in err
    assert "(after tick " in err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["nowhere"], "nowhere: No such file or directory"),
        (["."], ".: no journal in this folder (journal-*.gz)"),
        (["LIVE", "--set", "hang_threshold=3"], "unknown option hang_threshold, "),
        (["LIVE", "--set", "stall_floor_s"], "--set is 'stall_floor_s', expected NAME=VALUE"),
        (["LIVE", "--set", "stall_floor_s=x"], "--set stall_floor_s is 'x', expected a number"),
        (["LIVE", "--set", "stall_floor_s=0"], "stall_floor_s is 0.0, expected 0.1 to 86400"),
        (["LIVE", "--set", "observe=1"], "--set observe is '1', expected true or false"),
        (["LIVE", "--set", "tick_s=2", "--check"], "--check compares with what was decided live"),
        (["LIVE", "--policy", "nowhere"], "nowhere: No such file or directory"),
        (["LIVE", "--policy", "x.toml"], "x.toml: thresholds.nonsense: unknown key, "),
        (["LIVE", "--from", "noon"], "'noon' is no time; expected 17:04"),
        (["LIVE", "--from", "20", "--to", "10"], "--from 20 is after --to 10"),
        (["LIVE", "--to", "10"], "no tick in this span"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_used_is_one_line_and_status_2(
    words: list[str], line: str, live: Path, tmp_path: Path, capsys, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.toml").write_text("[thresholds]\nnonsense = 1\n")
    assert main(["replay", *[str(live) if word == "LIVE" else word for word in words]]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {line}")
    assert err.count("\n") == 1


def test_times_are_read_in_every_usual_form() -> None:
    noon = parse_time("1970-01-12T12:00:00+00:00", START_S)
    assert noon == 993_600.0
    assert parse_time("993600", START_S) == noon
    assert parse_time("13:46:40", START_S) == START_S
    assert parse_time("1970-01-12 13:46:40", START_S) == START_S
    assert parse_time("1970-01-12 13:46:40Z", START_S) == START_S
