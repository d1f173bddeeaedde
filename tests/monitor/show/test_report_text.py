"""The report as a terminal shows it, whole."""

import io

import pytest
from rich.console import Console

from lightkeeper.monitor.records.job import Problem
from lightkeeper.monitor.show.report import Report, print_analysis
from lightkeeper.monitor.show.wording import moment
from tests.monitor.show.jobs import EPOCH_NS, hang, healthy, tie


def shown(job, analysis, width=100, **more):
    out = io.StringIO()
    console = Console(file=out, width=width, legacy_windows=False)
    print_analysis(console, Report(job, analysis), **more)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def test_a_healthy_job_is_two_lines():
    assert shown(*healthy()) == "no fault found\nrecords of 4 of 4 ranks, 20 entries"


def test_the_verdict_stands_first_and_who_waits_for_whom_after_it():
    assert (
        shown(*hang())
        == """\
1 fault found, caused by rank 1
records of 4 of 4 ranks, 11 entries

1. rank 1: did not come to a collective  (not_entered, likely)
   Rank 1 never came to all_reduce 12 of dp; ranks 0, 2 and 3 wait for it.
   shows at    all_reduce 12 of dp (3)
   victims     0, 2-3
   rank 1      last enqueued 11, nothing unfinished
   confidence  likely: a strict majority or the rank's own history says so, nothing contradicts

who waits for whom
┏━━━━━━━━┳━━━━━━━━━┳━━━━━━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━━━━━━━┳━━━━━━━━━━┳━━━━━━━━━━━━━━━━━━━┓
┃ ranks  ┃ are     ┃ in                      ┃ since        ┃ wait for ┃ called at         ┃
┡━━━━━━━━╇━━━━━━━━━╇━━━━━━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━━━━━━━╇━━━━━━━━━━╇━━━━━━━━━━━━━━━━━━━┩
│ 1      │ culprit │ nothing unfinished      │ -            │ -        │ -                 │
│ 0, 2-3 │ victim  │ all_reduce 12 of dp (3) │ 22:29:16.000 │ 1        │ train.py:160 step │
└────────┴─────────┴─────────────────────────┴──────────────┴──────────┴───────────────────┘

what limits this
  - Gloo does not record when collectives complete."""
    )


def test_who_waits_is_shown_without_a_fault_where_it_is_asked_for():
    job, analysis = hang()
    waits = type(analysis)((), analysis.waits)
    assert "who waits for whom" not in shown(job, waits)
    assert "who waits for whom" in shown(job, waits, details=True)


def test_a_tie_accuses_nobody():
    text = shown(*tie(), width=120)
    assert "1 fault found; the records do not tell who caused it" in text
    assert (
        "1. cannot tell between ranks 0-1 and ranks 2-3: called something else than its peers  "
        "(mismatch, unsure)"
    ) in text
    assert "culprit" not in text
    assert "│ 0-1   │ suspect │ all_reduce 12 of dp (3) │ -     │ 2-3 " in text


def test_what_could_not_be_read_is_said_with_the_rank_that_it_costs():
    problems = (Problem("dumps/rank_\x1b[2J4", "cut off at\nbyte 17", 4), Problem("notes.txt", "?"))
    job, analysis = hang(expected=(0, 1, 2, 3, 4, 6), problems=problems)
    text = shown(job, analysis)
    assert "records of 4 of 6 ranks, 11 entries; no record of ranks 4 and 6" in text
    assert "  - dumps/rank_[2J4: cut off at byte 17 (rank 4 has no record)" in text
    assert "  - notes.txt: ?\n" in text
    assert "│ 4, 6   │ silent  │ no record" in text


def test_nothing_from_a_record_reaches_the_terminal_raw():
    nasty = "\x1b]0;owned\x07[red]x[/red]\r\u202e"
    job, analysis = hang(sites=(nasty, nasty), names={1: nasty}, hosts={1: nasty})
    text = shown(job, analysis, width=200)
    assert not any(letter in text for letter in "\x1b\x07\r\u202e")
    assert "[red]x[/red]" in text


@pytest.mark.parametrize(
    ("at_ns", "text"), [(EPOCH_NS, "22:29:16.000"), (-1, "-"), (2**63 - 1, "23:47:16.854")]
)
def test_a_time_is_utc_and_any_number_is_survived(at_ns, text):
    assert moment(at_ns) == text
