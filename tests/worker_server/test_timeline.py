"""The table for people with curl, compared whole."""

from __future__ import annotations

from tests.worker_server.pages import identity
from worker_server import wire
from worker_server.sidecar.timeline import render


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
   age group       seq op         sizes    dtype   root step state      took from  call site
12.5 s default       7 all_reduce 4x128 +1 float32         3 done     100 us both  app/train.py:41
11.5 s default       2 all_reduce 20       float             retired         torch
 8.0 s torchft q12   1 all_reduce scalar   float32         3 failed    2.5 s ring  app/train.py:50
      RuntimeError: peer is gone
 3.2 s tp            2 broadcast  8                   1    4 in 3.2 s        ring  app/train.py:55
unfinished: broadcast 2 of tp, inside for 3.2 s at app/train.py:55
"""


def test_a_record_reads_from_the_oldest_to_what_is_unfinished():
    torch = {"entries": [row(0, 1_000), row(1, 10**9 + 1_000), "odd", {"record_id": "x"}]}
    text = render(
        record(CALLS, alive=False, dropped=6, torch=torch, torch_age_s=2.0, torch_only=(1,))
    )
    assert text == WHOLE


def test_what_torch_alone_knows_to_be_open_is_told_as_unfinished():
    text = render(record(torch={"entries": [row(4, 5, retired=False)]}, torch_age_s=1.5,
                         torch_only=(4,)))  # fmt: skip
    assert text.splitlines()[-1] == (
        "unfinished: all_reduce 5 of default, seen by torch alone, 1.5 s ago"
    )


def test_without_a_call_that_both_know_the_age_of_torchs_youngest_entry_dates_the_others():
    torch = {"entries": [row(3, 10**9), row(4, 3 * 10**9, retired=False)]}
    text = render(record(torch=torch, torch_age_s=0.1, torch_last_age_s=50.0, torch_only=(3, 4)))
    assert text.splitlines()[-1].endswith("seen by torch alone, 50.0 s ago")
    assert text.splitlines()[3].startswith("52.0 s default")


def test_an_empty_record_says_so_and_why_torch_is_silent():
    assert render(record(torch_error="fr_trace_json: no answer within 2 s")).splitlines() == [
        "rank rg_1.0 of job job on h, pid 7, alive",
        "torch's own record: none (fr_trace_json: no answer within 2 s)",
        "no collectives",
        "unfinished: nothing",
    ]


def test_long_names_keep_the_end_of_the_call_site_and_the_line_short():
    call = wire.RingEntry("a" * 60, 10**9, "all_gather_into_tensor_coalesced", ((10**9,) * 5,),
                          dtype="float8_e4m3fn", site="folder/" + "x" * 200 + ".py:77",
                          enter_age_s=1e5, exit_age_s=0)  # fmt: skip
    line = render(record((call,))).splitlines()[3]
    assert line.endswith("x.py:77")
    assert len(line) <= 120 + 16
