"""Who was not finite first, as the rank remembers it."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from lightkeeper.worker_server.rank.null_reporter import NullReporter
from tests.worker_server.pages import NOW

NAN = float("nan")


@pytest.fixture
def spoilt(reader):
    return lambda: reader.step_state(NOW).spoilt


def attempt(reporter, step, *, committed=True, loss=1.0, **seen):
    reporter.begin_step(step)
    answer = reporter.finite(loss=loss, **seen)
    reporter.end_step(step, committed=committed, loss=loss)
    return answer


def test_while_all_is_finite_nothing_is_said(reporter, spoilt):
    assert all(attempt(reporter, step, grad_norm=1.0) for step in range(3))
    assert spoilt() is None


@pytest.mark.parametrize("bad", [NAN, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize("name", ["loss", "grad_norm"])
def test_a_figure_that_is_not_finite_is_a_vote_against_the_commit(reporter, spoilt, name, bad):
    reporter.begin_step(7)
    assert reporter.finite(**{name: bad}) is False
    spell = spoilt()
    assert (spell.first_step, spell.where, spell.run, spell.attempts) == (7, "local", 1, 1)


def test_what_is_seen_later_in_the_same_attempt_moves_neither_step_nor_place(reporter, spoilt):
    reporter.begin_step(7)
    reporter.finite(grad_norm=NAN)
    reporter.finite(grad_norm=NAN, where="group")
    reporter.end_step(7, committed=False, loss=NAN)
    assert (spoilt().where, spoilt().run, spoilt().attempts) == ("local", 1, 1)


@pytest.mark.parametrize("where", ["local", "group", "exchanged"])
def test_where_it_was_seen_first_is_told(reporter, spoilt, where):
    reporter.begin_step(7)
    reporter.finite(grad_norm=NAN, where=where)
    assert spoilt().where == where


def test_a_spell_keeps_its_first_step_and_counts_its_attempts(reporter, spoilt):
    attempt(reporter, 6)
    for step in (7, 7, 8):
        attempt(reporter, step, committed=False, loss=NAN)
    spell = spoilt()
    assert (spell.first_step, spell.run, spell.attempts) == (7, 3, 3)


def test_a_finite_attempt_ends_the_spell_and_the_next_one_begins_anew(reporter, spoilt):
    attempt(reporter, 7, loss=NAN)
    attempt(reporter, 8)
    assert (spoilt().first_step, spoilt().run) == (7, 0)
    attempt(reporter, 9, loss=NAN)
    assert (spoilt().first_step, spoilt().run, spoilt().attempts) == (9, 1, 2)


def test_an_attempt_of_which_nothing_was_looked_at_ends_no_spell(reporter, spoilt):
    attempt(reporter, 7, loss=NAN)
    reporter.begin_step(8)
    reporter.end_step(8)
    assert spoilt().run == 1


def test_a_loop_that_only_hands_in_its_loss_is_watched_as_well(reporter, spoilt):
    reporter.step(4, loss=1.0)
    reporter.step(5, loss=NAN)
    assert (spoilt().first_step, spoilt().where, spoilt().run) == (5, "local", 1)


def test_a_gradient_may_be_judged_before_anything_was_said_of_steps(reporter, spoilt):
    assert reporter.finite(grad_norm=NAN) is False
    reporter.end_step(0)
    assert (spoilt().first_step, spoilt().run) == (0, 1)


def test_after_a_heal_ahead_of_the_forward_pass_the_step_is_that_of_the_new_weights(
    reporter, spoilt
):
    manager = SimpleNamespace(_step=0)
    reporter.observe_manager(manager)
    reporter.begin_step(0)
    manager._step = 41  # use_async_quorum=False: healed within start_quorum
    reporter.finite(loss=NAN)
    assert spoilt().first_step == 41


def test_a_loss_that_is_seen_only_at_the_end_of_a_committed_step_has_that_step(reporter, spoilt):
    manager = SimpleNamespace(_step=7)
    reporter.observe_manager(manager)
    reporter.begin_step(7)
    manager._step = 8
    reporter.end_step(7, loss=NAN)
    assert spoilt().first_step == 7


class OnAnAccelerator:
    device = SimpleNamespace(type="cuda")

    def __float__(self):
        raise AssertionError("reading it would have made the rank wait")


def test_what_lies_on_an_accelerator_is_not_read_and_no_vote(reporter, spoilt):
    reporter.begin_step(1)
    with pytest.warns(RuntimeWarning, match="without waiting"):
        assert reporter.finite(grad_norm=OnAnAccelerator()) is True
    assert spoilt() is None


def test_without_an_attach_the_vote_is_the_same():
    nobody = NullReporter()
    assert nobody.finite(loss=1.0, grad_norm=2.0)
    assert not nobody.finite(loss=1.0, grad_norm=NAN)
    assert nobody.finite(grad_norm=OnAnAccelerator())


def test_a_reporter_that_is_switched_off_still_votes(reporter, spoilt):
    reporter.begin_step(1)
    with pytest.warns(RuntimeWarning, match="stopped reporting"):
        reporter.disable(OSError("gone"))
    assert reporter.finite(loss=NAN) is False
    assert spoilt() is None
