"""The report as a terminal shows it, whole."""

import io

import pytest
from rich.console import Console

from lightkeeper.monitor.records.job import GroupStatus, Problem
from lightkeeper.monitor.show.report import print_report, report_words
from lightkeeper.monitor.show.wording import moment
from tests.monitor.show.jobs import EPOCH_NS, OPEN, PP, entry, hang, healthy, job_of, tie


def shown(job, analysis, groups=(), width=100):
    out = io.StringIO()
    console = Console(file=out, width=width, legacy_windows=False)
    print_report(console, report_words(job, analysis, groups))
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


def test_detail_of_a_group_shows_how_far_each_member_got_and_what_it_gave():
    _, detail = shown(*tie(), groups=(0,)).split("\nprocess group ")
    assert (
        detail
        == """\
dp (3): ranks 0-3
┏━━━━━━━┳━━━━━━━━━┳━━━━━━━━━━┳━━━━━━━━━━━┳━━━━━━━━━━━━━━━━━━┳━━━━━━━━━━━━┓
┃ ranks ┃ are     ┃ enqueued ┃ completed ┃ first unfinished ┃ unfinished ┃
┡━━━━━━━╇━━━━━━━━━╇━━━━━━━━━━╇━━━━━━━━━━━╇━━━━━━━━━━━━━━━━━━╇━━━━━━━━━━━━┩
│ 0-3   │ suspect │ 12       │ -         │ 12               │ 1          │
└───────┴─────────┴──────────┴───────────┴──────────────────┴────────────┘
at collective 12
┏━━━━━━━┳━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━━━━┳━━━━━━━━━━━━━━━━━━━┓
┃ ranks ┃ gave                                 ┃ state     ┃ called at         ┃
┡━━━━━━━╇━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━━━━╇━━━━━━━━━━━━━━━━━━━┩
│ 0-1   │ all_reduce float32[4]                │ scheduled │ train.py:158 step │
│ 2-3   │ all_gather float32[4] -> float32[16] │ scheduled │ train.py:160 step │
└───────┴──────────────────────────────────────┴───────────┴───────────────────┘"""
    )


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
    text = shown(job, analysis, groups=(0,), width=200)
    assert not any(letter in text for letter in "\x1b\x07\r\u202e")
    assert "[red]x[/red]" in text


def test_a_silent_member_of_a_group_has_no_numbers():
    job, analysis = hang(expected=range(5))
    quiet = job_of([entry(0, 1, OPEN, group=1)], ranks=(0,), expected=(0, 2))
    assert "│ 2     │ silent │ -        │ -         │ -                │ 0 " in shown(
        quiet, type(analysis)((), ()), groups=(1,)
    )
    assert "no record of this rank" not in shown(job, analysis, groups=(0,))


def test_numbers_of_sends_do_not_pass_for_numbers_of_collectives():
    """pg_status counts both in one: rank 0 completed send 40, and collective 2 is its last."""
    rows = [entry(rank, 3, OPEN, group=1) for rank in (0, 2)]
    rows += [entry(0, 41, OPEN, group=1, p2p=True, peer=2, payload=2)]
    status = {0: {1: GroupStatus(41, 40, 40)}, 2: {1: GroupStatus(3, 2, 2)}}
    job = job_of(rows, ranks=(0, 2), status=status)
    text = shown(job, healthy()[1], groups=(1,))
    assert "│ 0, 2  │ free │ 3        │ -         │ 3                │ 1 " in text


@pytest.mark.parametrize(
    ("at_ns", "text"), [(EPOCH_NS, "22:29:16.000"), (-1, "-"), (2**63 - 1, "23:47:16.854")]
)
def test_a_time_is_utc_and_any_number_is_survived(at_ns, text):
    assert moment(at_ns) == text


def test_members_that_are_only_inferred_are_called_so():
    group = type(PP)("", "", (), inferred=True)
    job = job_of([entry(1, 1)], groups=(group,))
    assert "process group : rank 1, as far as its entries tell" in shown(
        job, healthy()[1], groups=(0,)
    )
