"""What a training loop says, and what reaches the page."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from tests.worker_server.test_page import NOW, identity
from worker_server.page.reader import PageReader
from worker_server.page.writer import PageWriter
from worker_server.reporter import NullReporter, Reporter


@pytest.fixture
def page(tmp_path):
    return PageWriter.create(tmp_path / "a.page", identity(), 1)


@pytest.fixture
def reporter(page):
    return Reporter(page)


@pytest.fixture
def read(page, tmp_path):
    reader = PageReader(tmp_path / "a.page")
    return lambda: reader.step_state(NOW)


def test_before_the_first_step_a_rank_is_in_init_and_then_in_other(reporter, read):
    with reporter.phase("data"):
        assert read().phase == "data"
    assert read().phase == "init"
    reporter.begin_step(0)
    assert read().phase == "other"


def test_an_inner_phase_pauses_the_outer_one(reporter, read):
    reporter.begin_step(0)
    with reporter.phase("forward"):
        with reporter.phase("communication"):
            assert read().phase == "communication"
        assert read().phase == "forward"
    assert read().phase == "other"


def test_a_phase_ends_when_its_body_raises(reporter, read):
    reporter.begin_step(0)
    with pytest.raises(ZeroDivisionError), reporter.phase("data"):
        raise ZeroDivisionError
    assert read().phase == "other"


def test_a_first_step_begun_inside_of_a_phase_leaves_to_other(reporter, read):
    with reporter.phase("init"):
        reporter.begin_step(0)
    assert read().phase == "other"


def test_attempts_count_retries_and_commits_count_commits(reporter, read):
    for step, committed in ((4, False), (4, True), (5, True)):
        reporter.begin_step(step)
        reporter.end_step(step, committed=committed, loss=1.5, tokens=10)
    state = read()
    assert (state.step, state.attempt, state.commits, state.tokens) == (5, 3, 2, 20)
    assert state.loss == 1.5


@pytest.mark.parametrize("loss", [float("nan"), float("inf")], ids=["nan", "inf"])
def test_a_loss_that_is_not_finite_is_said_so(reporter, read, loss):
    reporter.begin_step(0)
    reporter.end_step(0, committed=True, loss=loss)
    assert (read().loss, read().loss_finite) == (None, False)


def test_a_manager_is_read_by_its_plain_attributes(reporter, read):
    manager = SimpleNamespace(
        _quorum_id=7, _participating_replica_world_size=3, _healing=True, _errored=ValueError(),
        _logger=SimpleNamespace(_replica_id="rg_1:uuid"),
    )  # fmt: skip
    reporter.observe_manager(manager)
    reporter.begin_step(0)
    state = read()
    assert (state.quorum_id, state.participants, state.replica_id) == (7, 3, "rg_1:uuid")
    assert (state.healing, state.errored) == (True, True)


@pytest.mark.parametrize(
    "manager",
    [object(), SimpleNamespace(_quorum_id=-1, _participating_replica_world_size=0),
     SimpleNamespace(_quorum_id="x", _logger=None)],
    ids=["bare", "before the first quorum", "strange"],
)  # fmt: skip
def test_what_a_manager_does_not_have_is_unknown(reporter, read, manager):
    reporter.observe_manager(manager)
    reporter.begin_step(0)
    state = read()
    assert (state.quorum_id, state.participants, state.replica_id) == (None, None, None)
    assert (state.healing, state.errored) == (False, False)


def test_phases_of_another_thread_are_not_the_ranks(reporter, read):
    reporter.begin_step(0)

    def other():
        with reporter.phase("checkpoint"):
            seen.append(read().phase)
        reporter.begin_step(9)

    seen = []
    thread = threading.Thread(target=other)
    with reporter.phase("forward"):
        thread.start()
        thread.join()
        assert seen == ["forward"]
        assert read().phase == "forward"
    assert read().step == 0


def test_an_internal_failure_warns_once_and_training_goes_on(reporter, page):
    reporter.begin_step(0)
    page._words = None  # whatever breaks inside
    with pytest.warns(RuntimeWarning, match="lightkeeper stopped reporting") as seen:
        train_on(reporter)
    assert len(seen) == 1


def train_on(reporter):
    with reporter.phase("data"):
        reporter.begin_step(1)
    reporter.end_step(1, committed=True)
    with reporter.phase("forward"):
        pass


def test_a_loss_that_is_no_number_does_not_reach_training(reporter):
    reporter.begin_step(0)
    with pytest.warns(RuntimeWarning, match="lightkeeper stopped reporting"):
        reporter.end_step(0, committed=True, loss="x")


def test_a_null_reporter_takes_every_call():
    reporter = NullReporter()
    with reporter.phase("data"), reporter.phase("data"):
        reporter.begin_step(0)
        reporter.end_step(0, committed=True, loss=1.0, tokens=2)
    reporter.observe_manager(object())
    reporter.close()
    assert reporter.url is None
