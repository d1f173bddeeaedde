"""A real rank, ill in every way, and what its WorkerServer still answers."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

from tests.worker_server.ranks import TOKEN, eventually
from worker_server import wire
from worker_server.run_dir import start_ticks

pytestmark = pytest.mark.integration


def test_a_healthy_rank_reports_its_steps_and_moves_on(start_rank):
    rank = start_rank("steps", RANK="1", WORLD_SIZE="2", LIGHTKEEPER_HOST="host-7")
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


def test_a_rank_that_never_reported_has_no_step(start_rank):
    rank = start_rank("silent")
    rank.says("ready")
    assert rank.state().step is None


def test_a_hanging_rank_names_its_phase_and_its_line(start_rank):
    rank = start_rank("hang")
    rank.says("ready")
    eventually(lambda: rank.state().step.phase == "forward", "the rank is in forward")
    before = rank.state().step
    eventually(lambda: rank.state().step.phase_age_s > before.phase_age_s + 0.2, "the age grows")
    assert rank.state().step.progress == before.progress
    assert rank.state().process.interpreter_age_s < 3
    status, stacks = rank.ask(wire.PATH_STACKS)
    assert status == 200
    assert "main (" in stacks
    assert "rank_script.py" in stacks


def test_a_rank_that_holds_the_gil_still_answers_and_its_interpreter_ages(start_rank):
    rank = start_rank("gil")
    rank.says("ready")
    state = eventually(
        lambda: (now := rank.state()).process.interpreter_age_s > 2 and now, "beats stop"
    )
    assert state.process.alive
    assert state.step.phase == "backward"
    status, stacks = rank.ask(wire.PATH_STACKS)
    assert status == 200
    assert "rank_script.py" in stacks


def test_a_stopped_rank_still_answers_with_stacks(start_rank):
    rank = start_rank("steps")
    rank.says("ready")
    rank.kill(signal.SIGSTOP)
    eventually(lambda: rank.state().process.state == "T", "the process is stopped")
    assert rank.state().process.alive
    status, stacks = rank.ask(wire.PATH_STACKS)
    assert status == 200
    assert "rank_script.py" in stacks


def test_a_killed_rank_is_reported_dead_with_its_last_state_and_stacks(start_rank):
    rank = start_rank("hang")
    rank.says("ready")
    eventually(lambda: rank.state().step.phase == "forward", "the rank is in forward")
    assert rank.ask(wire.PATH_STACKS)[0] == 200
    rank.kill(signal.SIGKILL)
    rank.process.wait(10)
    state = eventually(lambda: not (now := rank.state()).process.alive and now, "death is seen")
    assert state.process.state is None
    assert state.process.dead_age_s < 10
    assert state.step.phase == "forward"
    assert state.step.commits == 3
    status, stacks = rank.ask(wire.PATH_STACKS)
    assert status == 200
    assert "before the rank died" in stacks
    assert not rank.record().alive
    assert (
        'lightkeeper_rank_alive{job_id="job",rank="0",replica_group="rg_1"} 0.0'
        in (rank.ask(wire.PATH_METRICS)[1])
    )


def test_a_zombie_counts_as_dead(start_rank):
    rank = start_rank("hang")
    rank.says("ready")
    assert rank.state().process.alive
    os.kill(rank.pid, signal.SIGKILL)  # and nobody waits for it
    state = eventually(lambda: not (now := rank.state()).process.alive and now, "death is seen")
    assert state.process.state == "Z"


def test_a_dead_rank_that_nobody_looked_at_left_the_stacks_of_its_last_beat(start_rank):
    rank = start_rank("hang")
    rank.says("ready")
    eventually(lambda: rank.state().step.phase_age_s > 1.2, "a beat inside of the phase")
    rank.kill()
    eventually(lambda: not rank.state().process.alive, "death is seen")
    status, text = rank.ask(wire.PATH_STACKS)
    assert status == 200
    head, thread, call, *_ = text.splitlines()
    age_s = float(re.search(r"([\d.]+) s before", head).group(1))
    assert age_s <= 1.5  # a second, and what a busy machine adds
    assert thread.endswith('"MainThread"')
    assert call.startswith("    main (rank_script.py:")


def test_eviction_of_a_rank_that_listens_takes_one_sigterm(start_rank):
    rank = start_rank("hang")
    rank.says("ready")
    nobody = {"started_gone": 0, "started_left": 0}
    assert rank.evict() == {"schema": 1, "signalled": ["SIGTERM"], "gone": True, **nobody}
    assert rank.process.wait(10) == -signal.SIGTERM
    assert rank.evict() == {"schema": 1, "signalled": [], "gone": True, **nobody}


def test_eviction_of_a_rank_that_ignores_sigterm_ends_in_sigkill(start_rank):
    rank = start_rank("deaf_to_term")
    rank.says("deaf")
    assert rank.evict(grace_s=0.2)["signalled"] == ["SIGTERM", "SIGKILL"]
    assert rank.process.wait(10) == -signal.SIGKILL


@pytest.mark.parametrize("illness", ["stopped", "gil"])
def test_eviction_of_a_rank_that_cannot_hear_is_sigkill_at_once(start_rank, illness):
    rank = start_rank("gil" if illness == "gil" else "hang")
    rank.says("ready")
    if illness == "gil":
        eventually(lambda: rank.state().process.interpreter_age_s > 3, "beats stop")
    else:
        rank.kill(signal.SIGSTOP)
        eventually(lambda: rank.state().process.state == "T", "the process is stopped")
    assert rank.evict(grace_s=30)["signalled"] == ["SIGKILL"]
    assert rank.process.wait(10) == -signal.SIGKILL


def test_a_forked_child_does_not_report_as_the_rank(start_rank):
    rank = start_rank("fork")
    rank.says("forked")
    step = rank.state().step
    assert (step.step, step.commits, step.phase) == (3, 3, "other")


def test_the_sidecar_leaves_after_its_linger_and_takes_its_files_along(start_rank):
    rank = start_rank("hang", LIGHTKEEPER_LINGER_S="0.1")
    rank.says("ready")
    sidecar = rank.endpoint["sidecar_pid"]
    rank.kill()
    eventually(lambda: start_ticks(sidecar) is None, "the sidecar leaves")
    assert {path.suffix for path in rank.run_dir.iterdir()} == {".log"}


def test_the_rank_has_no_child_to_wait_for(start_rank):
    rank = start_rank("hang")
    rank.says("ready")
    assert rank.endpoint
    children = Path(f"/proc/{rank.pid}/task/{rank.pid}/children")
    eventually(lambda: not children.read_text().split(), "the launcher is reaped")


def test_the_next_sidecar_sweeps_what_a_dead_pair_left_behind(start_rank):
    dead = start_rank("hang")
    dead.says("ready")
    page = next(dead.run_dir.glob("*.page"))
    os.kill(dead.endpoint["sidecar_pid"], signal.SIGKILL)
    dead.kill()
    dead.process.wait(10)
    eventually(lambda: start_ticks(dead.endpoint["sidecar_pid"]) is None, "the sidecar is gone")
    assert page.exists()
    alive = start_rank("hang")
    alive.says("ready")
    assert alive.endpoint
    eventually(lambda: not page.exists(), "the dead one's page is removed")
    assert len(list(alive.run_dir.glob("*.page"))) == 1


@pytest.mark.parametrize(
    ("method", "path", "body", "token", "status", "error"),
    [
        ("GET", "/nope", None, None, 404, "not found: /nope"),
        ("GET", wire.PATH_EVICT, None, None, 405, "method not allowed: /v1/evict"),
        ("POST", wire.PATH_EVICT, {"reason": "x"}, None, 401, "wrong or missing bearer token"),
        ("POST", wire.PATH_EVICT, {"reason": "x"}, "no", 401, "wrong or missing bearer token"),
        ("POST", wire.PATH_EVICT, {"reason": "x"}, "ä", 401, "wrong or missing bearer token"),
        ("POST", wire.PATH_EVICT, [], TOKEN, 400, "no order to evict: Expected `object`"),
        ("POST", wire.PATH_EVICT, {}, TOKEN, 400, "missing required field `reason`"),
        ("POST", wire.PATH_EVICT, {"reason": 1}, TOKEN, 400, "at `$.reason`"),
        ("POST", wire.PATH_EVICT, {"reason": " "}, TOKEN, 400, "at `$.reason`"),
        ("POST", wire.PATH_EVICT, {"reason": "x", "incarnation": None}, TOKEN, 400,
         "at `$.incarnation`"),
        ("POST", wire.PATH_EVICT, {"reason": "x", "grace_s": "1"}, TOKEN, 400,
         "got `str` - at `$.grace_s`"),
        ("POST", wire.PATH_EVICT, {"reason": "x", "grace_s": -1}, TOKEN, 400,
         ">= 0.0 - at `$.grace_s`"),
        ("POST", wire.PATH_EVICT, {"reason": "x", "grace_s": 1e9}, TOKEN, 400,
         "<= 60.0 - at `$.grace_s`"),
        ("POST", wire.PATH_EVICT, b'{"reason":"x","grace_s":' + b"9" * 400 + b"}", TOKEN, 400,
         "at `$.grace_s`"),
        ("POST", wire.PATH_EVICT, b'{"reason":"x","grace_s":NaN}', TOKEN, 400,
         "the body is not JSON"),
        ("POST", wire.PATH_EVICT, {"reason": "x", "incarnation": "older"}, TOKEN, 409,
         "meant for incarnation 'older'"),
        ("POST", wire.PATH_EVICT, b"{", TOKEN, 400, "the body is not JSON"),
        ("POST", wire.PATH_EVICT, b'{"new":' + b"[" * 9000, TOKEN, 400, "the body is not JSON"),
        ("POST", wire.PATH_EVICT, b"\xff", TOKEN, 400, "the body is not JSON"),
        ("POST", wire.PATH_EVICT, b"1" * 20_000, TOKEN, 413, "request entity too large"),
    ],
)  # fmt: skip
def test_a_bad_request_gets_one_line_of_json(shared_rank, method, path, body, token, status, error):
    headers = {} if token is None else {"Authorization": f"Bearer {token}".encode("latin-1")}
    answered, text = shared_rank.ask(path, method, body, headers)
    assert answered == status
    assert error in json.loads(text)["error"]
    assert text.count("\n") == 1
    assert shared_rank.state().process.alive


def test_without_a_token_eviction_is_forbidden_and_says_how_to_allow_it(start_rank):
    rank = start_rank("hang", LIGHTKEEPER_TOKEN="")
    status, text = rank.ask(wire.PATH_EVICT, "POST", {"reason": "x"}, {"Authorization": "Bearer "})
    assert status == 403
    assert "LIGHTKEEPER_TOKEN" in json.loads(text)["error"]


def test_the_root_page_offers_lines_for_curl(shared_rank):
    status, text = shared_rank.ask("/")
    assert status == 200
    assert f"curl '{shared_rank.endpoint['url']}/v1/state?format=text'" in text


@pytest.fixture(scope="module")
def shared_rank(tmp_path_factory):
    """One healthy rank for the tests that leave it as it is."""
    from tests.worker_server.ranks import RankUnderTest

    folder = tmp_path_factory.mktemp("run")
    folder.chmod(0o700)
    rank = RankUnderTest("steps", folder, {})
    rank.process.stdout.readline()
    yield rank
    rank.end()
