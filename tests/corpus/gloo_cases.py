"""The cases of the gloo captures, and what their records can show. No torch here.

Two truths a case, because two kinds of records come out of it. The WorkerServer's answers hold
the ring, of the dead too. Torch's own dumps exist only of ranks whose interpreter could be asked,
and on gloo they say no roots, no point-to-point, no error and no completion but `retired`
(facts/torch_debug_plane.md section 2).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Truth:
    """What an analysis may say of one kind of record."""

    culprits: tuple[int, ...] = ()
    kinds: tuple[str, ...] = ()
    """Any of these will do; empty: no finding."""
    may_be_silent: bool = False
    """Whether saying nothing is right too: these records hardly show it."""
    may_be_unsure: bool = False
    """Whether accusing nobody is right too: those who do right are no majority of all members."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Case:
    """One fault in one program."""

    name: str
    program: str
    fault: str
    what: str
    ring: Truth
    torch: Truth
    """Of `pickle` and `json`."""
    json: Truth | None = None
    """Where it differs from the pickle's: JSON has no call sites."""
    timeout_s: float = 600.0
    settles: bool = True
    """Whether the job comes to rest; otherwise it is looked at in full run."""
    gone: tuple[int, ...] = field(default=())
    """Ranks whose interpreter cannot be asked: dead, stopped, or holding the GIL."""


ABSENT = ("not_entered", "not_enqueuing", "silent")
NONE = Truth()


def _absent(*ranks: int) -> Truth:
    return Truth(ranks, ABSENT)


def _by_habit(culprits: tuple[int, ...], *kinds: str) -> Truth:
    """Sides of equal weight: a tie, unless what the ranks did in the steps before is asked."""
    return Truth(culprits, kinds, may_be_unsure=True)


def _mismatch(*ranks: int, may_be_unsure: bool = False) -> Truth:
    return Truth(ranks, ("mismatch",), may_be_unsure=may_be_unsure)


CASES: tuple[Case, ...] = (
    Case("healthy", "running", "", "in full run, dumped one rank after the other", NONE, NONE,
         settles=False),
    Case("healthy_every_op", "every_op", "", "every op that gloo has, finished", NONE, NONE),
    Case("straggler", "running", "straggler", "rank 2 sleeps 0.4 s a step; nothing hangs",
         Truth((2,), ABSENT, may_be_silent=True), Truth((2,), ABSENT, may_be_silent=True),
         settles=False),
    Case("hung", "data_parallel", "hung", "rank 1 sleeps in forward", _absent(1), _absent(1)),
    Case("gil", "data_parallel", "gil", "rank 1 holds the GIL in forward", _absent(1), _absent(1),
         gone=(1,)),
    Case("sigkill", "data_parallel", "sigkill", "rank 2 is killed in forward",
         _absent(2), _absent(2), gone=(2,)),
    Case("sigstop", "data_parallel", "sigstop", "rank 2 is stopped in forward",
         _absent(2), _absent(2), gone=(2,)),
    Case("early_exit", "data_parallel", "early_exit", "rank 3 ends with status 0",
         _absent(3), _absent(3), gone=(3,)),
    Case("exception", "data_parallel", "exception", "rank 1 raises in forward and ends",
         _absent(1), _absent(1), gone=(1,)),
    Case("grid", "grid", "hung_in_grid", "rank 3 sleeps; 2 and 1 wait for it, 0 waits for 2",
         _absent(3), _absent(3)),
    Case("pile_up", "pile_up", "", "rank 2 sleeps, the others have eight reduces in flight",
         _absent(2), _absent(2)),
    Case("timeout", "data_parallel", "hung", "rank 1 sleeps; the others time out and say so",
         _absent(1), _absent(1), timeout_s=3.0),
    Case("op", "data_parallel", "op", "rank 1 gathers where the others reduce",
         _mismatch(1), _mismatch(1)),
    Case("size", "data_parallel", "size", "rank 1 reduces 2000 elements, the others 1000",
         _mismatch(1), _mismatch(1, may_be_unsure=True)),  # rank 0 dies of it
    Case("size_less", "data_parallel", "size_less", "rank 1 reduces 500 elements, the others 1000",
         _mismatch(1), Truth((1,), (*ABSENT, "mismatch"))),  # rank 1 dies of it
    Case("dtype", "data_parallel", "dtype", "rank 1 reduces float64, the others float32",
         _mismatch(1), _mismatch(1, may_be_unsure=True)),  # rank 0 dies of it
    Case("dtype_silent", "data_parallel", "dtype_silent", "rank 1 reduces int32 among float32",
         Truth((1,), ("silent_mismatch",)), Truth((1,), ("silent_mismatch",))),
    Case("reduce_op_silent", "data_parallel", "reduce_op", "rank 1 takes MAX, the others SUM",
         Truth((1,), ("silent_mismatch",)), NONE),
    Case("root", "data_parallel", "root", "rank 3 broadcasts from 1, the others from 0",
         _mismatch(3), Truth(may_be_silent=True)),
    Case("root_tie", "data_parallel", "root_tie", "ranks 2 and 3 broadcast from 1, 0 and 1 from 0",
         _by_habit((2, 3), "mismatch"), Truth(may_be_silent=True)),
    Case("order", "two_groups", "swap", "ranks 2 and 3 use two groups in the other order",
         _by_habit((2, 3), "order_inversion"), _by_habit((2, 3), "order_inversion")),
    Case("order_of_one", "two_groups", "swap_one", "rank 3 uses two groups in the other order",
         Truth((3,), ("order_inversion",)), Truth((3,), ("order_inversion",))),
    Case("extra", "equal_calls", "extra", "rank 1 makes one call more; it hangs at the end, alone",
         Truth((1,), ("extra_collective",)), Truth((1,), ("extra_collective",)),
         Truth((1,), ("extra_collective", *ABSENT), may_be_unsure=True)),
    Case("skip", "equal_calls", "skip", "rank 1 leaves one call out; the others hang at the end",
         Truth((1,), ("skipped_collective",)), Truth((1,), ("skipped_collective",)),
         Truth((1,), ("skipped_collective", *ABSENT))),
    Case("skip_distinct", "data_parallel", "skip_distinct", "rank 1 leaves a reduce out",
         Truth((1,), ("skipped_collective",)), Truth((1,), ("skipped_collective",))),
    Case("both_receive", "pipeline", "both_receive", "rank 0 receives from 1 where it always sent",
         _by_habit((0,), "point_to_point"), _absent(0, 1)),
    Case("no_send", "pipeline", "no_send", "rank 1 receives what rank 0 never sends",
         _by_habit((0,), "point_to_point", "skipped_collective"), _absent(1)),
)  # fmt: skip
