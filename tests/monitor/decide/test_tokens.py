"""Tokens by group: never fewer than before, whoever restarts or does not answer."""

from __future__ import annotations

from monitor.decide.rank_seconds import TempoBook
from monitor.model.names import GroupName
from monitor.model.observation import Failure, LighthouseAway, Observation, Snapshot, Unreachable
from tests.changed import replace
from tests.monitor.samples import seen

RG_0 = GroupName("rg_0")


def trained(number: int, tokens: int, incarnation: str = "one") -> Observation:
    one = seen("rg_0", number, incarnation=incarnation)
    assert one.report is not None
    assert one.report.step is not None
    return replace(one, outcome=replace(one.report, step=replace(one.report.step, tokens=tokens)))


def silent(number: int) -> Observation:
    return replace(trained(number, 0), outcome=Unreachable(Failure.TIMEOUT, "late"))


def tokens(book: TempoBook, *observations: Observation) -> int | None:
    book.push(Snapshot(1.0, 1, 0.0, observations, LighthouseAway("none")))
    return book.tokens.get(RG_0)


def test_it_counts_what_every_rank_adds_from_the_first_look_on():
    book = TempoBook()
    assert tokens(book, trained(0, 500), trained(1, 700)) == 0
    assert tokens(book, trained(0, 600), trained(1, 750)) == 150


def test_a_rank_that_does_not_answer_takes_nothing_away():
    book = TempoBook()
    tokens(book, trained(0, 500), trained(1, 700))
    assert tokens(book, trained(0, 600), silent(1)) == 100
    assert tokens(book, trained(0, 700), trained(1, 900)) == 400


def test_a_restarted_rank_counts_from_nought():
    book = TempoBook()
    tokens(book, trained(0, 500))
    assert tokens(book, trained(0, 40, "two")) == 40


def test_who_reports_no_tokens_has_no_counter_and_a_group_that_is_gone_neither():
    book = TempoBook()
    assert tokens(book, trained(0, 0)) is None
    tokens(book, trained(0, 10))
    assert tokens(book) is None
