"""What a training loop says, and what reaches the page."""

from __future__ import annotations

import gc
import sys
import threading
from types import SimpleNamespace

import pytest

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.rank.attach import _complaining
from lightkeeper.worker_server.rank.null_reporter import NullReporter
from lightkeeper.worker_server.rank.page.reader import PageReader
from lightkeeper.worker_server.rank.page.writer import PageWriter
from lightkeeper.worker_server.rank.reporter import Reporter
from lightkeeper.worker_server.run_dir import RankFiles
from tests.worker_server.pages import NOW, identity


@pytest.fixture
def read(page, reader):
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


def test_an_optimizer_stepped_in_a_declared_init_is_no_step(reporter, read):
    guess = reporter.from_source("optimizer")
    with reporter.phase("init"):
        guess.step(0)
    assert (read().commits, read().phase) == (0, "init")

    with reporter.phase("forward"):
        pass
    guess.step(1)

    assert read().commits == 1


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
    with pytest.warns(RuntimeWarning, match="lightkeeper ignores a loss"):
        reporter.end_step(0, committed=True, loss="x")


def test_a_null_reporter_takes_every_call():
    reporter = NullReporter()
    for voice in (reporter, reporter.from_source("torchft")):
        with voice.phase("data"), voice.phase("data"), voice.tag("warmup"):
            voice.begin_step(0)
            voice.end_step(0, committed=True, loss=1.0, tokens=2)
            voice.step(1, loss=1.0)
            voice.count("skipped", 3)
    reporter.observe_manager(object())
    reporter.close()
    assert reporter.url is None


def test_failures_are_attempts_that_ended_without_a_commit(reporter, read):
    for step, committed in ((4, True), (5, False), (5, False)):
        reporter.begin_step(step)
        reporter.end_step(step, committed=committed)
    state = read()
    assert (state.commits, state.commit_failures, state.committed_step) == (1, 2, 4)


def test_the_last_committed_step_is_unknown_before_the_first(reporter, read):
    reporter.begin_step(7)
    assert (read().committed_step, read().commit_failures) == (None, 0)


# -- the one-call form ----------------------------------------------------------------------


@pytest.fixture
def rows(page, reader):

    def steps():
        step_rows, dropped = reader.steps(0, NOW)
        assert dropped == 0
        return step_rows

    return steps


def test_one_call_a_step_is_enough(reporter, read, rows):
    progress = []
    for step in range(3):
        reporter.step(step, loss=0.5, tokens=8)
        progress.append(read().progress)
    state = read()
    assert (state.step, state.attempt, state.commits, state.tokens) == (2, 3, 3, 24)
    assert (state.committed_step, state.loss, state.phase) == (2, 0.5, "other")
    assert progress == sorted(set(progress))
    first, second, third = rows()
    assert first.duration_s == 0.0  # nobody knows when it began
    assert second.duration_s == pytest.approx(first.end_age_s - second.end_age_s, abs=1e-8)
    assert third.duration_s == pytest.approx(sum(third.seconds.values()), abs=1e-8)


def test_after_one_call_the_next_attempt_begins_with_the_next_phase(reporter, read, rows):
    reporter.step(4)
    with reporter.phase("data"):
        assert (read().attempt, read().step) == (2, 5)
    with reporter.phase("forward"):
        assert read().attempt == 2
    reporter.step(5, committed=False)
    with reporter.phase("data"):
        assert (read().attempt, read().step) == (3, 5)  # the same again
    assert [(row.attempt, row.step, row.committed) for row in rows()] == [
        (1, 4, True), (2, 5, False),
    ]  # fmt: skip


def test_phases_between_an_end_and_a_beginning_begin_nothing(reporter, read):
    reporter.begin_step(0)
    reporter.end_step(0)
    with reporter.phase("evaluation"):
        assert read().attempt == 1
    reporter.begin_step(1)
    assert read().attempt == 2


def test_a_step_that_is_begun_and_then_told_in_one_call_is_one_attempt(reporter, rows):
    reporter.begin_step(0)
    reporter.step(0)
    assert [row.attempt for row in rows()] == [1]


def test_an_attempt_that_is_given_up_ends_when_the_next_begins(reporter, read, rows):
    for step in (0, 0, 1):
        reporter.begin_step(step)
    reporter.end_step(1)
    assert [(row.attempt, row.committed) for row in rows()] == [(1, False), (2, False), (3, True)]
    assert read().commit_failures == 0  # nobody tried to commit


def test_an_end_without_a_beginning_is_an_attempt(reporter, read, rows):
    reporter.end_step(3)
    reporter.end_step(4)
    assert [row.step for row in rows()] == [3, 4]
    assert read().attempt == 2


def test_steps_inside_of_one_long_phase_are_progress(reporter, read):
    with reporter.phase("forward"):
        before = read()
        reporter.begin_step(0)
        assert (read().phase, read().progress) == ("forward", before.progress + 1)


# -- steps between two votes: LocalSGD, DiLoCo --------------------------------------------------


def local_steps(reporter, count):
    """Steps of the optimizer, as its hook reports them."""
    for _ in range(count):
        reporter.from_source("optimizer").count_step(0)


def vote(reporter, step, *, committed=True):
    torchft = reporter.from_source("torchft")
    torchft.begin_step(step)
    torchft.end_step(step, committed=committed)


@pytest.fixture
def managed(reporter):
    """A reporter whose rank has a TorchFT Manager."""
    manager = SimpleNamespace(_step=7, _replica_id="rg_1:x", _quorum_id=-1)
    reporter.observe_manager(manager)
    return reporter


def test_an_optimizers_steps_are_commits_unless_a_manager_votes(reporter, read):
    local_steps(reporter, 3)
    assert (read().commits, read().local_steps, read().source) == (3, 0, "optimizer")


def test_a_vote_is_a_commit_and_the_steps_before_it_are_local(managed, read):
    for step in (7, 8):
        local_steps(managed, 3)
        vote(managed, step)
        local_steps(managed, 1)  # in whose hook the vote was
    state = read()
    assert (state.attempt, state.commits, state.local_steps, state.steps) == (2, 2, 6, 8)
    assert (state.step, state.committed_step, state.source) == (8, 8, "torchft")


def test_before_the_first_vote_a_rank_steps_and_has_committed_nothing(managed, read):
    progress = []
    for _ in range(3):
        local_steps(managed, 1)
        progress.append(read().progress)
    state = read()
    assert (state.attempt, state.commits, state.local_steps) == (0, 0, 3)
    assert (state.last_commit_age_s, state.phase) == (None, "other")
    assert (state.step, state.replica_id, state.source) == (7, "rg_1:x", "torchft")
    assert progress == [1, 2, 3]


def test_a_job_that_votes_in_every_step_has_no_local_ones(managed, read):
    for step, committed in ((7, True), (8, False), (8, False), (8, True)):
        vote(managed, step, committed=committed)
        local_steps(managed, committed)
    state = read()
    assert (state.attempt, state.commits, state.local_steps) == (4, 2, 0)


def test_a_step_after_a_vote_that_failed_is_the_votes_own(managed, read):
    """The inner optimizer's, in whose hook DiLoCo votes."""
    local_steps(managed, 3)
    vote(managed, 7, committed=False)
    local_steps(managed, 1)
    assert (read().commit_failures, read().local_steps) == (1, 3)


def test_steps_while_the_groups_exchange_are_local_too(managed, read):
    """DiLoCo asks for the quorum some steps before it votes."""
    torchft = managed.from_source("torchft")
    local_steps(managed, 3)
    torchft.begin_step(7)
    local_steps(managed, 2)
    torchft.end_step(7)
    local_steps(managed, 1)
    assert (read().commits, read().local_steps) == (1, 5)


def test_a_heal_is_over_with_the_first_local_step(managed, read):
    managed.loop.manager._healing = True
    vote(managed, 7)
    local_steps(managed, 1)
    assert read().healing
    local_steps(managed, 1)
    assert not read().healing


def test_a_round_lasts_from_vote_to_vote(managed, rows):
    for step in (7, 8):
        vote(managed, step)
        local_steps(managed, 3)
    vote(managed, 9)
    first, second, third = rows()
    for before, row in ((first, second), (second, third)):
        assert row.duration_s == pytest.approx(before.end_age_s - row.end_age_s, abs=1e-8)


def test_local_steps_inside_of_the_loops_own_phases_end_init(managed, read):
    for _ in range(2):
        with managed.phase("optimizer"):
            local_steps(managed, 1)
            assert read().phase == "optimizer"
        assert read().phase == "other"


def test_a_loop_that_reports_its_own_steps_has_no_local_ones(managed, read):
    managed.step(1)
    local_steps(managed, 3)
    assert (read().commits, read().local_steps, read().progress) == (1, 0, 1)


# -- tags and counters ------------------------------------------------------------------------


def test_a_tag_lasts_as_long_as_its_outermost_block(reporter, read):
    reporter.begin_step(0)
    with reporter.tag("warmup"):
        with reporter.tag("profiled"), reporter.tag("warmup"):
            assert read().tags == ("warmup", "profiled")
        assert read().tags == ("warmup",)
    assert read().tags == ()


def test_counters_only_grow(reporter, read):
    reporter.begin_step(0)
    reporter.count("skipped")
    reporter.count("skipped", 3)
    reporter.count("seen", 0.5)
    assert read().counters == {"skipped": 4.0, "seen": 0.5}


def again(times, call):
    for n in range(times):
        call(n)


@pytest.mark.parametrize(
    "amount", [-1, float("nan"), float("inf"), "x", None], ids=["negative", "nan", "inf", "text",
    "none"],
)  # fmt: skip
def test_what_cannot_be_counted_is_ignored_with_one_warning(reporter, read, amount):
    reporter.begin_step(0)
    reporter.count("seen", 2)
    with pytest.warns(RuntimeWarning, match="seen") as seen:
        again(5, lambda _: reporter.count("seen", amount))
    assert len(seen) == 1
    reporter.count("seen", 1)
    assert read().counters == {"seen": 3.0}


@pytest.mark.parametrize("what", ["counters", "tags"])
def test_the_seventeenth_is_dropped_with_one_warning(reporter, read, what):
    def use(name):
        if what == "counters":
            reporter.count(name)
        else:
            with reporter.tag(name):
                pass

    reporter.begin_step(0)
    for n in range(16):
        use(f"name {n}")
    with pytest.warns(RuntimeWarning, match=f"keeps 16 {what}") as seen:
        again(24, lambda n: use(f"one more {n}"))
    assert len(seen) == 1
    assert len(read().counters) == (16 if what == "counters" else 0)


def test_counting_in_many_threads_loses_nothing(reporter, read):
    def count():
        for _ in range(2000):
            reporter.count("seen")

    reporter.begin_step(0)
    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read().counters == {"seen": 8000.0}


@pytest.mark.parametrize("name", [None, ["x"], "a\0b", "\udc80", "", "x" * 500])
def test_no_name_reaches_training_as_an_error(reporter, name, recwarn):
    with reporter.phase(name), reporter.tag(name):
        reporter.count(name)
    assert all(warning.category is RuntimeWarning for warning in recwarn)


def test_names_that_are_new_in_every_step_do_not_fill_the_memory(reporter):
    for n in range(1000):
        with reporter.phase(f"step {n}"):
            pass
    assert len(reporter._phases) <= 64


# -- who is heard -----------------------------------------------------------------------------


def test_whoever_is_nearer_to_the_loop_takes_the_word_for_good(reporter, read):
    optimizer, torchft = reporter.from_source("optimizer"), reporter.from_source("torchft")
    optimizer.step(1)
    assert (read().step, read().source) == (1, "optimizer")
    torchft.step(20)
    optimizer.step(2)
    assert (read().step, read().source) == (20, "torchft")
    reporter.step(300)
    for lower in (torchft, optimizer, reporter.from_source("lightning")):
        lower.begin_step(9)
        lower.end_step(9)
        lower.step(9)
    assert (read().step, read().attempt, read().commits) == (300, 3, 3)


def test_steps_and_phases_are_heard_apart(reporter, read):
    lightning, torchft = reporter.from_source("lightning"), reporter.from_source("torchft")
    lightning.begin_step(1)
    with torchft.phase("communication"):
        torchft.begin_step(99)
        assert (read().step, read().phase, read().source) == (1, "communication", "torchft")
        with lightning.phase("forward"):
            assert (read().phase, read().source) == ("forward", "lightning")
        assert read().phase == "other"
    assert read().phase == "other"  # the end of a phase that is not heard any more


def test_of_two_with_the_same_rank_the_first_is_heard(reporter, read):
    reporter.from_source("torchtitan").step(1)
    reporter.from_source("lightning").step(2)
    assert read().step == 1


def test_a_loss_that_is_told_apart_counts_for_the_attempt_that_is_open_or_ended_last(
    reporter, read
):
    torchft, titan = reporter.from_source("torchft"), reporter.from_source("torchtitan")
    torchft.begin_step(3)
    torchft.end_step(3, committed=True)
    titan.note_loss(2.5)
    assert (read().loss, read().step, read().commits, read().source) == (2.5, 3, 1, "torchft")
    torchft.begin_step(4)
    titan.note_loss(2.25)
    torchft.end_step(4, committed=True)
    assert (read().loss, read().commits) == (2.25, 2)


def test_a_shared_loss_that_is_not_finite_accuses_nobody(reporter, read):
    titan = reporter.from_source("torchtitan")
    titan.begin_step(3)
    titan.note_loss(float("nan"))
    titan.end_step(3, committed=True)
    assert (read().loss, read().loss_finite) == (None, False)
    assert (read().spoilt.where, read().spoilt.first_step, read().spoilt.run) == ("exchanged", 3, 1)
    titan.begin_step(4)
    titan.note_loss(1.5)
    titan.end_step(4, committed=True)
    assert (read().loss, read().spoilt.run) == (1.5, 0)


def test_the_loss_of_the_loop_itself_is_not_overwritten(reporter, read):
    reporter.step(3, loss=1.5)
    reporter.from_source("torchtitan").note_loss(2.5)
    assert read().loss == 1.5


def test_a_loss_from_another_thread_or_of_an_odd_kind_is_left_alone(reporter, read):
    titan = reporter.from_source("torchtitan")
    titan.step(3)
    thread = threading.Thread(target=titan.note_loss, args=(2.5,))
    thread.start()
    thread.join()
    assert read().loss is None
    with pytest.warns(RuntimeWarning, match="ignores a loss"):
        titan.note_loss("odd")
    assert read().loss is None


def test_an_unknown_source_is_heard_until_anybody_else_speaks(reporter, read):
    reporter.from_source("my hook").step(1)
    assert (read().step, read().source) == (1, "my hook")
    reporter.from_source("optimizer").step(2)
    reporter.from_source("my hook").step(3)
    assert (read().step, read().source) == (2, "optimizer")


def test_a_source_in_another_thread_does_not_lock_the_loop_out(reporter, read):
    thread = threading.Thread(target=lambda: reporter.from_source("torchft").step(1))
    thread.start()
    thread.join()
    assert read().step == 1
    reporter.begin_step(2)
    assert read().step == 2


def test_tags_and_counters_are_taken_from_everybody(reporter, read):
    reporter.begin_step(0)
    source = reporter.from_source("optimizer")
    with source.tag("warmup"):
        source.count("seen")
        assert (read().tags, read().counters) == (("warmup",), {"seen": 1.0})


def test_a_loop_that_never_says_where_it_waits_is_partial_after_its_first_attempt(reporter, read):
    reporter.begin_step(0)
    with reporter.phase("forward"):
        pass
    assert read().source == "reporter"
    reporter.end_step(0)
    assert read().source == "partial"
    reporter.begin_step(1)
    with reporter.phase("communication"):
        assert read().source == "reporter"
    assert read().source == "reporter"


def test_what_a_hook_calls_communication_is_not_the_loops_declaration(reporter, read):
    with reporter.from_source("torchft").phase("communication"):
        pass
    reporter.step(0)
    assert read().source == "torchft"
    with reporter.phase("forward"):
        assert read().source == "partial"


def test_after_a_failure_no_source_is_heard(reporter, page, read):
    torchft = reporter.from_source("torchft")
    reporter.begin_step(0)
    words, page._words = page._words, None
    with pytest.warns(RuntimeWarning, match="lightkeeper stopped reporting"):
        reporter.end_step(0)
    page._words = words
    torchft.step(5)
    reporter.from_source("lightning").step(6)
    assert read().step == 0


# -- what it keeps ------------------------------------------------------------------------------


def test_thousands_of_steps_keep_no_memory(reporter):
    def steps(count):
        for n in range(count):
            reporter.begin_step(n)
            with reporter.phase("data"), reporter.tag("warmup"):
                reporter.count("seen")
            with reporter.phase("communication"):
                pass
            reporter.end_step(n, committed=True, loss=0.5, tokens=512)

    steps(1000)
    gc.collect()
    before = sys.getallocatedblocks()
    steps(3000)
    gc.collect()
    assert sys.getallocatedblocks() - before < 100


class OnADevice:
    """A number that is not on this host."""

    device = SimpleNamespace(type="cuda")
    read = False

    def __float__(self):
        self.read = True
        return 1.0

    __int__ = __float__


def test_a_loss_on_a_device_is_not_read_for_the_rank_would_wait(reporter, read):
    loss = OnADevice()
    why = "a loss .* on cuda, and reading it would make the rank wait"
    with pytest.warns(RuntimeWarning, match=why) as seen:  # noqa: PT031
        for step in range(3):
            reporter.step(step, loss=loss)
    assert not loss.read
    assert len(seen) == 1
    assert (read().step, read().commits, read().loss) == (2, 3, None)


@pytest.mark.parametrize(
    "tokens", [-5, 2**70, "many", OnADevice()], ids=["negative", "huge", "text", "on a device"]
)
def test_tokens_that_cannot_be_added_up_are_left_out(reporter, read, tokens):
    reporter.step(0, tokens=7)
    with pytest.warns(RuntimeWarning, match="ignores tokens"):
        reporter.step(1, tokens=tokens)
    reporter.step(2, tokens=7)
    assert (read().step, read().tokens) == (2, 14)


@pytest.mark.parametrize("step", [2**70, -(2**70), float("inf"), "first"])
def test_a_step_that_no_page_can_hold_is_left_out_and_the_next_is_not(reporter, read, step):
    with pytest.warns(RuntimeWarning, match="ignores a step") as seen:  # noqa: PT031
        reporter.begin_step(step)
        reporter.end_step(step)
    assert len(seen) == 1
    reporter.begin_step(1)
    reporter.end_step(1)
    assert (read().committed_step, read().commits) == (1, 1)


@pytest.mark.integration  # torch
def test_scalars_of_torch_are_numbers_even_with_a_gradient(reporter, read):
    torch = pytest.importorskip("torch")
    loss = torch.tensor([2.5], requires_grad=True) * 2
    reporter.step(torch.tensor(3), loss=loss, tokens=torch.tensor(9))
    assert (read().step, read().loss, read().tokens) == (3, 5.0, 9)


def manager_called(name):
    return SimpleNamespace(
        _logger=SimpleNamespace(_replica_id=f"{name}:6c1d3f0e-7f3c-4f6e-8a5e-0a4b8a3a0001")
    )


def test_a_manager_names_the_group_before_any_step_without_a_word(reporter, reader):
    """As in the quickstart: `replica_id="train_0"` of the launcher's group 0."""
    reporter.observe_manager(manager_called("my_0"))
    assert reader.identity.rank == "my_0.0"
    assert reader.step_state(NOW) is None


def test_a_manager_that_agrees_with_the_launcher_needs_no_word(reporter, reader):
    reporter.observe_manager(manager_called("rg_1"))
    assert reader.identity.launched_as is None


def test_a_group_that_no_launcher_names_is_named_without_a_word(tmp_path):
    page = PageWriter.create(tmp_path / "b.page", identity(group=wire.GroupName("job")), 1)
    Reporter(page).observe_manager(manager_called("my_0"))
    assert PageReader(tmp_path / "b.page").identity.rank == "my_0.0"


def test_a_name_that_is_refused_is_said_once(tmp_path):
    files = RankFiles(tmp_path / "a.page")
    look = _complaining(files)
    look()
    files.write_endpoint({"refused": "my_0", "complaint": "my_0 is another group's name"})
    with pytest.warns(RuntimeWarning, match="lightkeeper: my_0 is another group's name"):
        look()
    files.write_endpoint({"refused": "my_0", "complaint": "my_0 is another group's name"})
    look()
