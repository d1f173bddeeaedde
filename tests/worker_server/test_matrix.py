"""Every fate of a rank against every endpoint, for real, on gloo: who asks gets the right answer.

Rank 1 of a pair meets its fate in the forward pass; rank 0 then waits for it.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from lightkeeper.worker_server import wire
from tests import sidecars
from tests.worker_server.fates import DEAD, FATES
from tests.worker_server.pairs import Pairs
from tests.worker_server.ranks import TOKEN, eventually
from tests.worker_server.wire_values import parse_last_words

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def pairs():
    folder = Path(tempfile.mkdtemp(prefix="lk-", dir="/tmp"))
    pairs = Pairs(folder, **sidecars.forked())
    yield pairs
    pairs.close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("fate", FATES)
def test_whoever_asks_is_answered_rightly_and_the_culprit_is_put_out(pairs, fate):
    victim, culprit = pairs.start(fate)
    check_state(culprit, fate)
    check_the_one_who_needs_it(victim, culprit, fate)
    check_record(culprit, fate)
    check_stacks(culprit, fate)
    check_last_words(culprit, fate)
    check_steps(culprit)
    check_eviction(culprit, fate)


def check_state(culprit, fate):
    state = culprit.state()
    head, step = state.heads[0], state.step
    assert state.identity.group_rank == 1
    assert state.process.alive is (fate not in DEAD)
    assert (head.size, head.op) == (2, "all_reduce")
    if fate != "healthy":
        assert (step.step, step.attempt) == (step.commits, step.commits + 1)
        assert step.phase == ("other" if fate == "exception" else "forward")  # it left the phase
        assert head.enqueued == head.completed == step.commits
        assert head.inside == 0
    ended = state.process.exit_signal or state.process.exit_code
    assert ended == {"sigkill": "SIGKILL", "segfault": "SIGSEGV", "exception": 1}.get(fate)
    assert (state.ending is not None) is (fate in DEAD)


def check_the_one_who_needs_it(victim, culprit, fate):
    """Waits, or is told by gloo that its peer is gone and dies of that."""
    if fate in DEAD:
        eventually(lambda: not victim.state().process.alive, "rank 0 ends")
        assert "RuntimeError" in last_words(victim).ended
        assert "by peer" in victim.record().ring[-1].error  # closed, or reset
    elif fate != "healthy":
        state = victim.state()
        assert state.step.phase == "communication"
        assert state.heads[0].inside == culprit.state().heads[0].enqueued + 1


def check_record(culprit, fate):
    record = culprit.record()
    assert record.alive is (fate not in DEAD)
    assert len(record.ring) >= 3
    assert {entry.op for entry in record.ring} == {"all_reduce"}
    assert all(entry.sizes_in == ((8,),) and entry.dtype == "float32" for entry in record.ring)
    assert all(entry.exit_age_s is not None for entry in record.ring[:-1])
    assert record.ring[0].site.startswith("worker_server/gloo_parent.py:")
    assert record.torch is not None, record.torch_error
    assert set(record.recorders) <= {"dump_nccl_trace_json"}  # CUDA builds
    assert record.ring[0].torch_ids == (0,)
    if fate in ("hung", "gil"):  # torch's part is asked for again once it is a second old
        eventually(lambda: all(e.torch_ids for e in culprit.record().ring), "both parts agree")


def check_stacks(culprit, fate):
    status, text = culprit.ask(wire.PATH_STACKS)
    if status == 410 and fate in ("sigkill", "exception") and sys.version_info < (3, 12):
        assert "no stacks were taken before it died" in text  # it moved: see test_thread_race.py
        return
    assert status == 200, text
    assert "gloo_parent.py" in text
    if fate in ("hung", "gil", "sigstop", "segfault"):
        assert "forward_of_the_culprit" in text
    assert ("before" in text.splitlines()[0]) is (fate in DEAD)


def last_words(rank):
    status, text = rank.ask(wire.PATH_LAST_WORDS)
    assert status == 200, text
    return parse_last_words(json.loads(text))


def check_last_words(culprit, fate):
    words = last_words(culprit)
    expected = {"sigkill": "SIGKILL", "segfault": "SIGSEGV", "exception": "ValueError"}
    assert expected.get(fate, "It lives.") in words.ended
    if fate == "exception":
        assert "as training does" in words.exception.text
    if fate == "segfault":
        assert "forward_of_the_culprit" in words.crash.text
    if fate in ("exception", "segfault"):  # its sidecar reads what is left in a thread of its own
        ending = eventually(lambda: (now := culprit.state().ending).frame and now, "it is known")
        assert ending.frame.file == "gloo_parent.py"
        assert fate == "segfault" or ending.exception.startswith("ValueError: ")


def check_steps(culprit):
    status, text = culprit.ask(wire.PATH_STEPS)
    assert status == 200, text
    rows = wire.parse_steps(json.loads(text)).rows
    assert [row.step for row in rows] == list(range(rows[0].step, rows[0].step + len(rows)))
    assert len(rows) >= 3
    assert all(row.committed and 0.01 <= row.seconds["forward"] <= row.duration_s for row in rows)


def check_eviction(culprit, fate):
    status, _ = culprit.ask(wire.PATH_EVICT, "POST", {"reason": "test"})
    assert status == 401
    answer = culprit.evict(grace_s=1.0)
    assert answer["gone"] is True
    signals = {"healthy": ["SIGTERM"], "hung": ["SIGTERM"], "gil": ["SIGKILL"],
               "sigstop": ["SIGKILL"]}  # fmt: skip
    assert answer["signalled"] == signals.get(fate, [])
    state = culprit.state()
    assert not state.process.alive
    if fate not in DEAD:
        assert state.process.exit_signal == signals[fate][0]
    headers = {"Authorization": f"Bearer {TOKEN}"}
    status, text = culprit.ask(wire.PATH_EVICT, "POST", {"reason": "again"}, headers)
    assert (status, json.loads(text)["gone"]) == (200, True)
