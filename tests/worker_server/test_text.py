"""Answers for people with curl, compared whole."""

from __future__ import annotations

import pytest

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.sidecar.text import answer_text
from tests.changed import replace
from tests.worker_server.boxes import PROCESS, FakeBox, host_report
from tests.worker_server.pages import identity


def record(ring=(), **kwargs):
    return wire.FlightRecord(
        identity(pid=7),
        **{"alive": True, "members": {}, "dropped": 0, "torch": None, **kwargs},
        ring=ring,
    )


def row(number, stamp_ns, **kwargs):
    return {"record_id": number, "process_group": ["0", "default_pg"], "retired": True,
            "profiling_name": "gloo:all_reduce", "collective_seq_id": number + 1,
            "input_sizes": [[20]], "input_dtypes": ["Float"], "time_created_ns": stamp_ns,
            **kwargs}  # fmt: skip


CALLS = (
    wire.RingEntry("default", 7, "all_reduce", ((4, 128), (7,)), ((4, 128),), "float32", step=3,
                   site="app/train.py:41", enter_age_s=12.5, exit_age_s=12.4999, torch_ids=(0,)),
    wire.RingEntry("torchft", 1, "all_reduce", ((),), (), "float32", step=3, is_async=True,
                   site="app/train.py:50", enter_age_s=8, exit_age_s=5.5, quorum=12,
                   error="RuntimeError: peer is gone"),
    wire.RingEntry("tp", 2, "broadcast", ((8,),), root=1, step=4, site="app/train.py:55",
                   enter_age_s=3.25),
)  # fmt: skip

WHOLE = """\
rank rg_1.0 of job job on h, pid 7, dead
torch's own record: taken 2.0 s ago
the ring has overwritten 6 older entries
unfinished: broadcast 2 of tp, root 1, inside for 3.2 s at app/train.py:55
   age group       seq op         sizes    dtype   root step state     took from  call site
 3.2 s tp            2 broadcast  8                   1    4 inside         ring  app/train.py:55
 8.0 s torchft q12   1 all_reduce scalar   float32         3 failed   2.5 s ring  app/train.py:50 \
RuntimeError: peer is gone
11.5 s default       2 all_reduce 20       float32           retired        torch
12.5 s default       7 all_reduce 4x128 +1 float32         3 done    100 us both  app/train.py:41
"""


def test_a_record_reads_from_what_is_unfinished_to_the_oldest():
    torch = {"entries": [row(0, 1_000), row(1, 10**9 + 1_000), "odd", {"record_id": "x"}]}
    text = answer_text(
        record(CALLS, alive=False, dropped=6, torch=torch, torch_age_s=2.0, torch_only=(1,)), 20
    )
    assert text == WHOLE


def test_what_torch_alone_knows_to_be_open_is_told_as_unfinished():
    text = answer_text(record(torch={"entries": [row(4, 5, retired=False)]}, torch_age_s=1.5,
                         torch_only=(4,)), 20)  # fmt: skip
    assert text.splitlines()[2] == "unfinished: all_reduce 5 of default, open for 1.5 s"


def test_without_a_call_that_both_know_the_age_of_torchs_youngest_entry_dates_the_others():
    torch = {"entries": [row(3, 10**9), row(4, 3 * 10**9, retired=False)]}
    text = answer_text(
        record(torch=torch, torch_age_s=0.1, torch_last_age_s=50.0, torch_only=(3, 4)), 20
    )
    assert text.splitlines()[2].endswith("open for 50.0 s")
    assert text.splitlines()[-1].startswith("52.0 s default")


def test_an_empty_record_says_so_and_why_torch_is_silent():
    assert answer_text(
        record(torch_error="fr_trace_json: no answer within 2 s"), 20
    ).splitlines() == [
        "rank rg_1.0 of job job on h, pid 7, alive",
        "torch's own record: none (fr_trace_json: no answer within 2 s)",
        "unfinished: nothing",
        "no collectives",
    ]


def test_long_names_keep_the_end_of_the_call_site_and_the_line_short():
    call = wire.RingEntry("a" * 60, 10**9, "all_gather_into_tensor_coalesced", ((10**9,) * 5,),
                          dtype="float8_e4m3fn", site="folder/" + "x" * 200 + ".py:77",
                          enter_age_s=1e5, exit_age_s=0)  # fmt: skip
    line = answer_text(record((call,)), 20).splitlines()[-1]
    assert line.endswith("x.py:77")
    assert len(line) <= 120 + 40


# -- the other answers ---------------------------------------------------------------------------


def test_a_record_shows_the_newest_and_says_how_many_are_left():
    ring = tuple(
        wire.RingEntry("default", n, "all_reduce", enter_age_s=100.0 - n, exit_age_s=99.0 - n)
        for n in range(50)
    )
    lines = answer_text(record(ring), 20).splitlines()
    assert lines[-1] == "and 30 more: &rows=0"
    assert [line.split()[3] for line in lines[4:-1]] == [str(n) for n in range(49, 29, -1)]
    assert len(answer_text(record(ring), 0).splitlines()) == 50 + 4


STATE = """\
rank rg_1.0 of job job on node7, pid 77, alive (S)
step         7; phase communication; phase_age 500.0 ms; commits 6; last_commit_age 1.5 s; \
commit_failures 2;
             local_steps 0; quorum_id 2; participants 3; replica_id rg_1:uuid; healing yes; loss \
2.5; loss_finite yes;
             tokens 4096; seconds forward 3.2 s, communication 1.0 s; tags warmup
forming      new_group; nth 3; ranks 0, 1; age 12.2 s; site app/train.py:9; store 10.0.0.1:29500
process      S; threads 9; rss_bytes 0.2 GiB; interpreter_age 250.0 ms
heads
name    size enqueued unfinished op         inside      age
intra      2        8          2 all_gather      7    1.2 s
default    2        5          0 all_reduce      0 250.0 ms
transfers
group   peer tag sends posted unfinished held   age
default   -1   7     0      3          2    2 1.5 s
default    1   0     1      4          0    0 2.0 s
connections
peer            local          use    trouble             for queued retries   rate    rtt busy
10.0.0.8:29500  10.0.0.7:4711  across unacknowledged    6.2 s    192       4 125000 4.0 ms    0
[fd00::8]:29510 [fd00::7]:4712                       500.0 ms      0       0      0   0 us    0
machine
witness    weight    age    for count text
kernel log broken 60.0 s 60.0 s     1 GPU 3: Xid 79, fallen off the bus
"""
MACHINE = """\
host node7, 1.5 s ago
witness    weight    age    for count text
kernel log broken 60.0 s 60.0 s     1 GPU 3: Xid 79, fallen off the bus
kernel log ended   5.0 s  5.0 s     1 the OOM killer ended pid 78 (python)

witness    cannot read
kernel log
NVIDIA     there is no library
"""
NETWORK = """\
rank rg_1.0 of job job on node7, pid 77, alive
addresses    10.0.0.7, fd00::7
the kernel cannot be asked: late
peer           local         use    trouble          for queued retries   rate    rtt busy
10.0.0.8:29500 10.0.0.7:4711 across unacknowledged 6.2 s    192       4 125000 4.0 ms    0
and 1 more: &rows=0

name  up changes errors
eth0 yes       3      1
and 1 more: &rows=0
"""


def test_a_state_reads_from_who_it_is_to_what_it_uses():
    assert answer_text(FakeBox().state(), 20) == STATE


def test_a_machine_reads_from_what_is_said_to_who_can_say_nothing():
    assert answer_text(FakeBox().report(), 20) == MACHINE


def test_a_network_reads_from_what_is_odd_to_the_interfaces():
    assert answer_text(FakeBox().network_report(), 1) == NETWORK


def test_of_many_transfers_the_unfinished_and_the_newest_are_shown():
    rows = (*(wire.TransferHead("default", peer, 0, 1, 1, 0, 9.0 - peer) for peer in range(9)),
            wire.TransferHead("default", 9, 0, 0, 1, 1, 100.0, 1))  # fmt: skip
    lines = answer_text(
        replace(FakeBox().state(), transfers=rows, connections=(), machine=()), 8
    ).splitlines()
    assert [line.split()[1] for line in lines[-9:-1]] == list("98765432")
    assert lines[-1] == "and 2 more: &rows=0"


def test_a_transfer_that_is_open_is_told_with_its_peer():
    calls = (
        wire.RingEntry("default", 3, "irecv", root=2, tag=0, is_async=True, enter_age_s=4.0),
        wire.RingEntry("default", 5, "send", root=1, tag=0, enter_age_s=3.0, site="train.py:4"),
    )
    assert answer_text(record(calls), 20).splitlines()[2] == (
        "unfinished: send 5 of default, root 1, inside for 3.0 s at train.py:4; "
        "irecv 3 of default, root 2, open for 4.0 s"
    )


def test_a_rank_of_which_little_is_known_has_no_empty_facts():
    state = replace(FakeBox().state(), process=wire.Process(alive=True), step=None, forming=None,
                    heads=(), transfers=(), connections=(), machine=(),
                    unhooked=("Manager.start_quorum",))  # fmt: skip
    assert answer_text(state, 20) == (
        "rank rg_1.0 of job job on node7, pid 77, alive\nunhooked     Manager.start_quorum\n"
    )
    state = replace(state, process=wire.Process(alive=True, threads=9), unhooked=())
    assert answer_text(state, 20).splitlines()[1] == "process      threads 9"


def test_the_state_of_a_dead_rank_says_how_it_ended():
    state = replace(
        FakeBox().state(),
        process=wire.Process(alive=False, dead_age_s=12.0, exit_signal="SIGKILL"),
        ending=wire.Ending("CUDA out of memory."),
    )
    lines = answer_text(state, 20).splitlines()
    assert lines[0].endswith("pid 77, dead for 12.0 s: SIGKILL")
    assert lines[1] == "ending       CUDA out of memory."
    assert not any(line.startswith("process") for line in lines)


def test_steps_are_a_table_with_the_newest_first():
    rows = tuple(
        wire.StepRow(
            n, n, int(n != 2), 10.0 - n, 1.5, {"forward": 1.0, **({"data": 0.5} if n else {})}
        )
        for n in range(4)
    )
    text = answer_text(wire.StepLog(identity(pid=7), True, rows), 3)
    assert (
        text
        == """\
rank rg_1.0 of job job on h, pid 7, alive
attempt step committed end_age duration     data forward
      3    3       yes   7.0 s    1.5 s 500.0 ms   1.0 s
      2    2        no   8.0 s    1.5 s 500.0 ms   1.0 s
      1    1       yes   9.0 s    1.5 s 500.0 ms   1.0 s
and 1 more: &rows=0
"""
    )
    assert "no step is over yet" in answer_text(wire.StepLog(identity(pid=7), True, ()), 3)


def test_last_words_end_with_the_end_of_stderr():
    words = wire.LastWords(
        identity(pid=7), wire.Process(alive=False, exit_code=1), "It ended with ValueError.",
        exception=wire.Trace("Traceback:\nValueError: no", "the rank's own note"),
        stderr=wire.Trace("\n".join(f"line {n}" for n in range(30)), "launcher's file"),
    )  # fmt: skip
    lines = answer_text(words, 2).splitlines()
    assert lines[:2] == [
        "rank rg_1.0 of job job on h, pid 7, dead: exit code 1",
        "It ended with ValueError.",
    ]
    assert lines[-3:] == [
        "stderr (launcher's file), the last 2 of 30 lines (&rows=0: all):", "line 28", "line 29",
    ]  # fmt: skip
    assert "exception (the rank's own note):" in lines


def test_a_host_is_a_table_of_its_ranks():
    lines = answer_text(host_report(), 20).splitlines()
    assert lines[0] == "host node7"
    assert lines[1].split() == [
        "rank", "step", "phase", "phase_age", "last_commit_age", "process", "url",
    ]  # fmt: skip
    assert len(lines) == 2 + len(host_report().entries)
    assert "alive (S)" in lines[2]
    assert PROCESS.alive


def test_what_cannot_be_written_as_text_is_a_mistake_of_ours():
    with pytest.raises(NotImplementedError):
        answer_text(object(), 20)
