"""Words for people: short, and harmless whatever a record holds."""

import dataclasses

import pytest

from lightkeeper.monitor.model.units import clean, sentence
from lightkeeper.monitor.model.verdict import Confidence
from lightkeeper.monitor.records.findings import Analysis, Fault, Finding
from lightkeeper.monitor.show.report import (
    MEANINGS,
    TITLES,
    Report,
    finding_words,
    rank_list,
    rank_word,
    shows_at,
    with_hosts,
)
from tests.monitor.show.jobs import hang, healthy, job_of, tie

JOB = job_of([])


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ((0,), "rank 0"),
        ((9, 14), "ranks 9 and 14"),
        ((0, 1), "ranks 0-1"),
        ((3, 1, 2, 9), "ranks 1-3 and 9"),
        ((0, 2, 4), "ranks 0, 2 and 4"),
        ((), "ranks "),
    ],
    ids=str,
)
def test_ranks_are_named_as_runs(ranks, words):
    assert rank_word(JOB, ranks) == words


def test_ranks_are_called_what_people_call_them():
    job = job_of([], names={0: "rg_0.0", 1: "rg_0.1", 2: "rg_1.0", 3: "loader"})
    assert rank_list(job, range(4)) == "loader, rg_0.0-1, rg_1.0"
    assert rank_list(job, [7]) == "7"


def test_a_long_list_of_ranks_says_how_many_more():
    assert rank_list(JOB, range(0, 100, 2), 4) == "0, 2, 4, 6 and 46 more"


@pytest.mark.parametrize(
    ("text", "harmless"),
    [
        ("train.py:12 step", "train.py:12 step"),
        ("\x1b[31mred\x1b[0m", "[31mred[0m"),
        ("two\nlines\tand\rmore", "two lines and more"),
        ("moc.\u202egpj.exe", "moc.gpj.exe"),
        ("a\u200bb\ufeffc", "abc"),
        ("lone \ud800 surrogate", "lone surrogate"),
        ("\x9b31mC1", "31mC1"),
        ("größe µ 日本", "größe µ 日本"),
    ],
    ids=ascii,
)
def test_other_peoples_text_cannot_steer_a_terminal(text, harmless):
    assert clean(text) == harmless


def test_a_megabyte_of_name_is_cut():
    assert len(clean("x" * 1_000_000)) == 2000
    assert len(clean("ü" * 1_000_000, 50)) == 50
    assert clean("a" + "\u200b" * 1_000_000 + "b", 50) == "a…"


def test_every_kind_and_every_confidence_has_words():
    assert set(TITLES) == set(Fault)
    assert set(MEANINGS) == set(Confidence)


def test_no_fault_in_half_of_the_records_is_not_no_fault():
    job = job_of([], ranks=(0, 2), expected=range(4))
    assert Report(job, Analysis((), ())).answer == "no fault found in the records of 2 of 4 ranks"


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("ranks 9 and 14 stopped.", "Ranks 9 and 14 stopped."),
        ("rg_1.0 stopped.", "rg_1.0 stopped."),
        ("In all_reduce 3 rank 1 differs.", "In all_reduce 3 rank 1 differs."),
        ("", ""),
    ],
)
def test_a_reason_begins_as_a_sentence_and_a_name_stays_as_it_is(reason, expected):
    assert sentence(reason) == expected


def test_the_headline_counts_what_the_records_do_not_tell():
    job, analysis = hang()
    both = dataclasses.replace(analysis, findings=analysis.findings + tie()[1].findings)
    assert Report(job, both).answer == (
        "2 faults found, caused by rank 1; the records do not tell who caused 1 of them"
    )


def test_a_fault_without_a_rank_says_so():
    job, _ = healthy()
    finding = Finding(Fault.STUCK_INSIDE, "All are inside.")
    words = finding_words(job, finding)
    assert words.who == "no rank to accuse"
    assert words.what == "a whole group is stuck inside a collective"
    assert shows_at(job, finding) == "-"


def test_hosts_stand_with_the_ranks_on_them():
    job = job_of([], hosts={0: "node1", 1: "node1", 2: "node\x1b2"})
    assert with_hosts(job, (0, 1, 2, 3)) == "0-1 on node1 and 2 on node2"
    assert with_hosts(job, (3,)) == ""


def test_a_process_that_was_seen_to_be_gone_is_said():
    job = job_of([])
    ranks = {rank: dataclasses.replace(job.ranks[rank], alive=rank != 2) for rank in range(3)}
    finding = Finding(Fault.SILENT, "", (1, 2))
    words = finding_words(dataclasses.replace(job, ranks=ranks), finding)
    assert dict(words.facts)["process"] == "rank 2 had ended"
    assert dict(finding_words(job, finding).facts)["process"] == ""
