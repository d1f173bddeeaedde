"""A real rank, and what its WorkerServer answers; `test_matrix` has every illness, with torch."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import jsonschema
import pytest

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.run_dir import process_state, start_ticks
from lightkeeper.worker_server.sidecar.stacks import _SYSCALLS
from tests.worker_server.ranks import eventually

pytestmark = pytest.mark.integration


def test_a_healthy_rank_moves_on_and_all_that_it_answers_follows_the_document(start_rank):
    own = {"RANK": "1", "WORLD_SIZE": "2", "LIGHTKEEPER_HOST": "host-7", "LIGHTKEEPER_MACHINE": "1"}
    rank = start_rank("steps", forked=False, **own)
    rank.says("ready")
    first = rank.state()
    assert first.identity.rank == "rg_1.1"
    assert first.identity.host == "host-7"
    assert first.process.alive
    assert first.step is not None
    assert first.step.loss == 2.5
    later = eventually(
        lambda: (now := rank.state()).step.progress > first.step.progress and now, "progress"
    )
    assert later.step.commits >= first.step.commits
    assert later.step.tokens == later.step.commits * 512
    assert {"init", "forward", "communication"} <= set(later.step.seconds)
    document = json.loads(rank.ask(wire.PATH_OPENAPI)[1])
    for path, item in document["paths"].items():
        if "get" not in item:
            continue
        status, text = rank.ask(path)
        described = item["get"]["responses"][str(status)]["content"]
        if "application/json" in described:
            schema = {**described["application/json"]["schema"],
                      "components": document["components"]}  # fmt: skip
            jsonschema.Draft202012Validator(schema).validate(json.loads(text))
        else:
            assert text
    sidecar = rank.endpoint["sidecar_pid"]
    assert os.getpgid(sidecar) != os.getpgid(rank.pid)  # Ctrl-C, Ctrl-Z
    assert os.getsid(sidecar) == os.getsid(rank.pid)  # autogroup shares cores out by session
    assert os.getpriority(os.PRIO_PROCESS, sidecar) > os.getpriority(os.PRIO_PROCESS, rank.pid)
    children = Path(f"/proc/{rank.pid}/task/{rank.pid}/children")
    eventually(lambda: not children.read_text().split(), "the launcher is reaped")


@pytest.mark.parametrize(
    ("action", "phase", "signum"),
    [("hang", "forward", signal.SIGTERM), ("gil", "backward", signal.SIGKILL)],
)
def test_where_a_rank_hangs_is_told_by_two_samples_also_after_its_death(
    start_rank, action, phase, signum
):
    rank = start_rank(action)
    rank.says("ready")
    eventually(lambda: rank.state().step.phase == phase, f"the rank is in {phase}")
    before = rank.state().step
    eventually(lambda: rank.state().step.phase_age_s > before.phase_age_s + 0.2, "the age grows")
    assert rank.state().step.progress == before.progress

    def stands():
        state = rank.state()
        return state.witness is not None and state.witness.samples >= 2 and state

    state = eventually(stands, "two samples agree", within_s=30)
    assert (state.process.interpreter_age_s > 2) is (action == "gil")
    frame = state.witness.frame
    assert (frame.function, frame.file) == ("main", "rank_script.py")
    assert state.witness.doing is (wire.Doing.SLEEP if _SYSCALLS else wire.Doing.UNKNOWN)
    status, stacks = rank.ask(wire.PATH_STACKS)
    assert (status, "main (" in stacks, "rank_script.py" in stacks) == (200, True, True)
    rank.kill(signum)
    rank.process.wait(10)
    state = eventually(lambda: not (now := rank.state()).process.alive and now, "death is seen")
    assert (state.witness.frame, state.witness.samples >= 2) == (frame, True)
    assert state.ending.of_peers is None
    assert state.process.state is None
    assert state.process.dead_age_s < 10
    assert (state.step.phase, state.step.commits) == (phase, 3)
    status, stacks = rank.ask(wire.PATH_STACKS)
    assert (status, "before the rank died" in stacks) == (200, True)


def test_a_zombie_is_dead_and_left_the_stacks_of_its_last_beat(start_rank):
    rank = start_rank("hang")
    rank.says("ready")
    eventually(lambda: rank.state().step.phase_age_s > 3.2, "a beat while it stands")
    rank.kill()  # and nobody waits for it
    state = eventually(lambda: not (now := rank.state()).process.alive and now, "death is seen")
    assert state.process.state == "Z"
    status, text = rank.ask(wire.PATH_STACKS)
    assert status == 200
    head, thread, call, *_ = text.splitlines()
    age_s = float(re.search(r"([\d.]+) s before", head).group(1))
    assert age_s <= 1.5  # a second, and what a busy machine adds
    assert thread.endswith('"MainThread"')
    assert re.match(r"    main \(.*\brank_script\.py:", call)


def test_who_is_deaf_to_sigterm_is_killed_once_its_grace_is_over(start_rank):
    rank = start_rank("deaf_to_term")
    rank.says("deaf")
    nobody = {"started_gone": 0, "started_left": 0, "way": ""}
    signalled = ["SIGTERM", "SIGKILL"]
    assert rank.evict(grace_s=0.2) == {"schema": 1, "signalled": signalled, "gone": True, **nobody}
    assert rank.process.wait(10) == -signal.SIGKILL
    assert rank.evict() == {"schema": 1, "signalled": [], "gone": True, **nobody}


def test_a_forked_child_does_not_report_as_the_rank(start_rank):
    rank = start_rank("fork")
    rank.says("forked")
    step = rank.state().step
    assert (step.step, step.commits, step.phase) == (3, 3, "other")


def test_a_sidecar_sweeps_what_a_dead_pair_left_and_takes_its_own_files_along(start_rank):
    dead = start_rank("hang")
    dead.says("ready")
    page = next(dead.run_dir.glob("*.page"))
    os.kill(dead.endpoint["sidecar_pid"], signal.SIGKILL)
    dead.kill()
    dead.process.wait(10)
    eventually(lambda: start_ticks(dead.endpoint["sidecar_pid"]) is None, "the sidecar is gone")
    assert page.exists()
    rank = start_rank("hang", LIGHTKEEPER_LINGER_S="0.1")
    rank.says("ready")
    sidecar = rank.endpoint["sidecar_pid"]
    eventually(lambda: not page.exists(), "the dead one's page is removed")
    assert len(list(rank.run_dir.glob("*.page"))) == 1
    rank.kill()
    eventually(lambda: start_ticks(sidecar) is None, "the sidecar leaves after its linger")
    assert {path.suffix for path in rank.run_dir.iterdir()} == {".log"}


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_sidecar_that_is_lost_is_replaced_and_answers_with_stacks(start_rank, signum):
    rank = start_rank("hang")
    rank.says("ready")
    first = rank.endpoint
    os.kill(first["sidecar_pid"], signum)

    def replaced():
        rank._endpoint = None
        return rank.endpoint["sidecar_pid"] != first["sidecar_pid"]

    eventually(replaced, "another sidecar publishes its URL")
    assert process_state(first["sidecar_pid"], first["sidecar_ticks"]) is None
    assert rank.state().step.commits == 3
    status, stacks = rank.ask(wire.PATH_STACKS)
    assert (status, "rank_script.py" in stacks) == (200, True)


def test_a_rank_that_dies_at_once_has_a_sidecar_that_tells_how(start_rank):
    rank = start_rank("die_at_once")
    assert rank.process.wait(20) == 7
    process = rank.state().process
    assert not process.alive
    assert process.exit_code in (7, None)  # None before Linux 6.15
    assert rank.ask(wire.PATH_STACKS)[0] in (200, 410)


def test_a_rank_that_closes_and_ends_at_once_leaves_a_log_in_json_if_that_is_wanted(start_rank):
    rank = start_rank("finish_at_once", LIGHTKEEPER_LOG_FORMAT="json")
    assert rank.process.wait(20) == 0
    eventually(
        lambda: {path.suffix for path in rank.run_dir.iterdir()} == {".log"}, "all is cleaned up"
    )
    (log,) = rank.run_dir.iterdir()
    eventually(lambda: "gone" in log.read_text(), "the sidecar has ended")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {(line["group"], line["rank"]) for line in lines} == {("rg_1", "rg_1.0")}
