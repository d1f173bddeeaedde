"""The table: bugs as people write them, and healthy habits, each with its truth.

Groups are numbers here, ranks `GROUP.RANK`; `acts` are the words of `acts.VERBS`, in seconds after the
job has trained steadily. Where nothing else is said, a job is three groups of one rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final


class Family(StrEnum):
    """Where people meet it."""

    DATA = "data loader"
    LOCKS = "locks and threads"
    PIPES = "pipes and file systems"
    FLOW = "control flow around collectives"
    PROCESSES = "process trees"
    LOOKING = "observation"
    SEVERAL = "several at once, one after another"
    SLOW = "stragglers"
    VALUES = "values and names"
    SHARDED = "FSDP2 inside the group"
    HEALTHY = "healthy habits"


class Fate(StrEnum):
    """What has to happen to the culprits' groups."""

    OUT = "out"
    """Evicted, or gone by itself; the others train on."""
    MAY = "may"
    """Evicted or not."""
    STAY = "stay"
    """Nobody is evicted."""


@dataclass(frozen=True, slots=True)
class Case:
    """One row."""

    name: str
    family: Family
    what: str
    """As its author would tell it, had he found it."""
    script: str = "manager"
    groups: int = 3
    ranks: int = 1
    bug: str = ""
    acts: tuple[str, ...] = ("0: arm",)
    culprits: tuple[str, ...] = ()
    """Ranks that an exact verdict names; a bare group stands for any of its ranks."""
    also: tuple[str, ...] = ()
    """Ranks that may be named beside them, or instead where the evidence cannot tell."""
    also_if: str = ""
    """Only in a sentence that matches: who is looked at may be named as looked at, not as hung."""
    says: str = ""
    """What some sentence must hold, as a pattern, in any case of letters."""
    fate: Fate = Fate.OUT
    watch_s: float = 90.0
    """Longest time from the first act."""
    least_s: float = 0.0
    """Shortest; a case ends earlier than `watch_s` when its truth is decided."""
    env: Mapping[str, str] = field(default_factory=dict)
    group_env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    late: tuple[int, ...] = ()
    terminal: bool = False
    """Ranks have a stdin that never ends."""
    monitor: tuple[str, ...] = ()
    steady: bool = True
    """Whether all groups have to train before the first act."""

    @property
    def healthy(self) -> bool:
        """Whether everybody has to be silent."""
        return self.family is Family.HEALTHY


def _data(name: str, what: str, bug: str, says: str, **more: object) -> Case:
    return Case(
        name, Family.DATA, what, **{"script": "ddp", "bug": f"{bug}@1.0" if bug else "", "culprits": ("1.0",), "says": says, **more}  # type: ignore[arg-type]
    )  # fmt: skip


def _lock(name: str, what: str, bug: str, says: str, **more: object) -> Case:
    return Case(
        name, Family.LOCKS, what, **{"bug": f"{bug}@1.0" if bug else "", "culprits": ("1.0",), "says": says, **more}  # type: ignore[arg-type]
    )  # fmt: skip


def _healthy(name: str, what: str, **more: object) -> Case:
    return Case(name, Family.HEALTHY, what, **{"fate": Fate.STAY, "watch_s": 50.0, **more})  # type: ignore[arg-type]


_NO_WORKERS: Final = {"WORKERS": "0"}
_ROWS: Final = (
    # -- data loader
    _data("loader-dead-disk", "a file system is dead: open() of a shard never returns", "dead_disk",
          r"read_shard", env=_NO_WORKERS),
    _data("worker-dead-disk", "the same in a worker of the DataLoader; the rank polls its queue",
          "dead_disk", r"read_shard|DataLoader|_try_get_data|train_ddp\.py"),
    _data("worker-killed", "the kernel kills a DataLoader worker, as when memory runs out", "",
          r"DataLoader worker .*(killed|signal)", acts=("0: KILL worker 1.0",)),
    _data("worker-stopped", "a DataLoader worker is stopped (kill -STOP) and forgotten", "",
          r"DataLoader|_try_get_data|train_ddp\.py", acts=("0: stop worker 1.0",)),
    _data("worker-exits", "a library calls exit() in a worker", "worker_exits",
          r"DataLoader worker .*exited"),
    _data("worker-segfault", "a codec's segmentation fault in a worker", "worker_segfault",
          r"DataLoader worker .*(signal|segmentation)"),
    _data("worker-fork-lock", "a worker waits for an event that its parent would have set",
          "fork_lock", r"wait_for_prefetch|DataLoader|_try_get_data|train_ddp\.py"),
    _data("corrupt-shard", "a shard is cut off; json raises in the worker", "corrupt_shard",
          r"ValueError.*shard-00017"),
    _data("cache-lock", "a cache's lock is taken twice by the same thread", "cache_lock",
          r"lookup", env=_NO_WORKERS),
    _data("regex", "a regular expression with nested quantifiers meets its line", "regex",
          r"\bclean\b", env=_NO_WORKERS),
    # -- locks and threads
    _lock("lock", "a lock is never released: an early return", "lock", r"log_step"),
    _lock("gil", "C code sleeps with the GIL", "gil", r"decode_with_c|GIL"),
    _lock("queue", "queue.get() with no timeout; the producer has ended", "queue", r"next_augmented"),
    _lock("join", "join() of a thread that waits for us", "join", r"finish_upload"),
    _lock("future", "a pool of one thread waits for a task of its own", "future", r"wait_for_upload"),
    _lock("async", "await of a future that nobody sets", "async", r"fetch_reward|after_backward"),
    _lock("spin", "while not ready: pass", "spin", r"until_ready"),
    _lock("logging-deadlock", "a thread holds the log handler's lock", "logging_deadlock",
          r"rotate|log_step|logging"),
    _lock("breakpoint", "breakpoint() was left in, on a terminal where nobody types", "breakpoint",
          r"pdb|breakpoint|after_backward", terminal=True),
    # -- pipes and file systems
    Case("full-pipe", Family.PIPES, "a pipe that nobody reads is full", bug="full_pipe@2.0",
         culprits=("2.0",), says=r"\btee\b"),
    Case("flock", Family.PIPES, "another process holds the file's lock", bug="flock@0.0",
         acts=("0: flock", "1: arm"), culprits=("0.0",), says=r"append_shared"),
    Case("frozen-disk", Family.PIPES, "a disk hangs in the kernel: state D", bug="frozen_disk@1.0*always",
         acts=("0: disk", "1: freeze", "2: arm"), culprits=("1.0",), says=r"append|state D|disk|uninterruptible"),
    Case("tracking-server", Family.PIPES, "an HTTP server accepts and never answers; no timeout was given",
         bug="tracking_server@2.0", culprits=("2.0",), says=r"\bsend\b"),
    Case("subprocess", Family.PIPES, "subprocess.run of an upload that hangs", bug="subprocess@0.0",
         culprits=("0.0",), says=r"sync_bucket"),
    # -- control flow
    Case("skips-allreduce", Family.FLOW, "a branch on data: no targets, no all-reduce",
         bug="skips_allreduce@1.0", culprits=("1.0",), fate=Fate.MAY, watch_s=100),
    Case("skips-backward", Family.FLOW, "TorchFT's DDP; one rank skips backward() for an empty batch",
         script="ddp", bug="skips_backward@1.0", culprits=("1.0",), fate=Fate.MAY, watch_s=100),
    Case("other-shape", Family.FLOW, "one group averages one tensor more", bug="other_shape@1.0",
         culprits=("1.0",), fate=Fate.MAY, watch_s=100),
    Case("swallowed", Family.FLOW, "except RuntimeError: continue, at every batch of one rank",
         script="ddp", bug="swallowed@1.0*always", culprits=("1.0",), watch_s=100),
    Case("uneven-batches", Family.FLOW, "one rank's shard is shorter: it is at the epoch's barrier",
         script="nested", groups=2, ranks=2, bug="short_epoch@0.1", culprits=("0.1",), also=("0.0",),
         fate=Fate.MAY, watch_s=100),
    Case("rank0-only", Family.FLOW, "if rank == 0: all_reduce of a metric", script="nested",
         groups=2, ranks=2, bug="rank0_only@1.0", culprits=("1.0",), also=("1.1",), fate=Fate.MAY, watch_s=100),
    Case("barrier-of-one", Family.FLOW, "a barrier that one rank alone runs into", script="nested",
         groups=2, ranks=2, bug="barrier_of_one@1.1", culprits=("1.1",), also=("1.0",), fate=Fate.MAY, watch_s=100),
    Case("other-order", Family.FLOW, "one rank averages its loss first, then the gradients",
         script="nested", groups=2, ranks=2, bug="other_order@0.1", culprits=("0.1",), also=("0.0",),
         fate=Fate.MAY, watch_s=100),
    Case("swallowed-in-group", Family.FLOW, "except RuntimeError: continue, once, inside a group of two",
         script="nested", groups=2, ranks=2, bug="swallowed@0.1", culprits=("0.1",), also=("0.0",),
         fate=Fate.MAY, watch_s=100),
    Case("long-evaluation", Family.FLOW, "if rank == 0: evaluate(), five minutes, all others wait",
         script="nested", groups=2, ranks=2, bug="long_evaluation@0.0", culprits=("0.0",),
         says=r"evaluate", fate=Fate.MAY, watch_s=110),
    Case("shapes", Family.FLOW, "RuntimeError: shapes do not fit; the rank ends", bug="shapes@1.0",
         culprits=("1.0",), says=r"RuntimeError.*(64x65|shapes)"),
    Case("assertion", Family.FLOW, "an assert on the vocabulary; the rank ends", bug="assertion@2.0",
         script="ddp", culprits=("2.0",), says=r"AssertionError.*tokenizer"),
    Case("out-of-memory", Family.FLOW, "CUDA out of memory; the rank ends", bug="out_of_memory@1.1",
         script="nested", groups=2, ranks=2, culprits=("1.1",), says=r"OutOfMemoryError|out of memory"),
    # -- process trees
    Case("oom-kill", Family.PROCESSES, "the kernel's OOM killer takes a rank", acts=("0: KILL rank 1.0",),
         culprits=("1.0",), says=r"SIGKILL|killed|signal 9"),
    Case("segfault", Family.PROCESSES, "a segmentation fault in a rank of TorchFT's DDP", script="ddp", bug="segfault@0.0",
         culprits=("0.0",), says=r"SIGSEGV|segmentation|signal 11"),
    Case("exit-3", Family.PROCESSES, "sys.exit(3) in a library", bug="exit@2.0", culprits=("2.0",),
         says=r"exit(ed)?\b.*\b3\b|status 3|code 3|SystemExit"),
    Case("orphans", Family.PROCESSES, "SIGKILL of torchrun: its rank lives on, and the loop starts the group again",
         acts=("0: KILL agent 1",), culprits=("1",), says=r"twice|second|orphan|two lives|older", watch_s=80, least_s=60),
    Case("orphan-hangs", Family.PROCESSES, "and then the orphan, which no torchrun owns, hangs in a lock",
         bug="lock@1.0", acts=("0: KILL agent 1", "40: arm orphan 1.0"), culprits=("1",), watch_s=150, least_s=60),
    Case("agent-stopped-rank-dies", Family.PROCESSES, "torchrun is stopped, then its rank is killed: nobody starts it again",
         acts=("0: stop agent 1", "5: KILL rank 1.0"), culprits=("1.0",), says=r"SIGKILL|killed|signal 9"),
    Case("fork-keeps-sockets", Family.PROCESSES, "a rank has forked a helper that inherits its sockets; the rank is killed",
         script="ddp", bug="forks@1.0", acts=("0: arm", "6: KILL rank 1.0"), culprits=("1.0",), says=r"SIGKILL|killed|signal 9"),
    Case("keeper-killed-first", Family.PROCESSES, "the WorkerServer is killed, then its rank hangs in a lock",
         bug="lock@1.0", acts=("0: KILL sidecar 1.0", "8: arm"), culprits=("1",), watch_s=100),
    Case("unattached", Family.PROCESSES, "a group without lightkeeper (LIGHTKEEPER=0) hangs in a lock",
         bug="lock@1.0", group_env={"1": {"LIGHTKEEPER": "0"}}, culprits=("1",), watch_s=110),
    Case("stopped", Family.PROCESSES, "kill -STOP of a rank, and lunch", acts=("0: stop rank 1.0",),
         culprits=("1.0",), says=r"stopped|SIGSTOP|state T"),
    Case("group-stopped", Family.PROCESSES, "a whole group is stopped, WorkerServers too: a suspended machine",
         acts=("0: stop group 1",), culprits=("1",), watch_s=80),
    Case("rank-of-two-killed", Family.PROCESSES, "one rank of a group of two is killed; torchrun ends the other", script="nested",
         groups=2, ranks=2, acts=("0: KILL rank 1.1",), culprits=("1.1",), says=r"SIGKILL|killed|signal 9"),
    # -- observation
    Case("gdb-10s", Family.LOOKING, "gdb is attached to a healthy rank for 10 s", acts=("0: gdb rank 1.0 for 10",),
         also=("1.0",), also_if=r"trac|gdb|debugger|looks", fate=Fate.STAY, watch_s=40, least_s=40),
    Case("gdb-90s", Family.LOOKING, "and forgotten there for 90 s: the job stands", acts=("0: gdb rank 1.0 for 90",),
         culprits=("1.0",), says=r"gdb|trac", fate=Fate.STAY, watch_s=110, least_s=100),
    Case("gdb-in-group", Family.LOOKING, "gdb on one rank of a group of two, 15 s", script="nested", groups=2, ranks=2,
         acts=("0: gdb rank 1.1 for 15",), also=("1.1",), also_if=r"trac|gdb|debugger|looks", fate=Fate.STAY, watch_s=40, least_s=40),
    Case("strace-hang", Family.LOOKING, "a rank hangs in a lock, and a person attaches strace to see why", bug="lock@1.0",
         acts=("0: arm", "2: strace rank 1.0 for 30"), culprits=("1.0",), says=r"log_step", watch_s=100),
    Case("stopped-25s", Family.LOOKING, "kill -STOP by hand, and -CONT after 25 s", acts=("0: stop rank 1.0 for 25",),
         culprits=("1.0",), says=r"stopped|SIGSTOP|state T", fate=Fate.MAY, watch_s=60, least_s=45),
    # -- several
    Case("both-ranks-dead-disk", Family.SEVERAL, "both ranks of a group in open() of a dead file system", script="nested",
         groups=2, ranks=2, bug="dead_disk@1.0,1.1", culprits=("1.0", "1.1"), says=r"read_shard", watch_s=110),
    Case("two-of-three", Family.SEVERAL, "two groups of three stuck in the same step: the majority is guilty", script="ddp",
         env=_NO_WORKERS, bug="dead_disk@1.0,2.0", culprits=("1.0", "2.0"), says=r"read_shard", fate=Fate.MAY, watch_s=120),
    Case("all-of-three", Family.SEVERAL, "the file system is dead for everybody: the job stands, nobody waits", script="ddp",
         env=_NO_WORKERS, bug="dead_disk@0.0,1.0,2.0", also=("0.0", "1.0", "2.0"), fate=Fate.STAY, watch_s=100, least_s=90),
    Case("dies-while-another-hangs", Family.SEVERAL, "one hangs in a lock; 4 s later another is killed", bug="lock@0.0",
         acts=("0: arm", "4: KILL rank 2.0"), culprits=("0.0", "2.0"), watch_s=110),
    Case("two-groups-two-bugs", Family.SEVERAL, "one group in a lock, another in a full pipe, at once", groups=4,
         bug="lock@1.0;full_pipe@3.0", acts=("0: arm", "0: arm"), culprits=("1.0", "3.0"), watch_s=110),
    Case("two-ranks-two-bugs", Family.SEVERAL, "both ranks of a group, each in a bug of its own", script="nested", groups=2, ranks=2,
         bug="lock@0.0;queue@0.1", acts=("0: arm", "0: arm"), culprits=("0.0", "0.1"), watch_s=110),
    Case("again-after-restart", Family.SEVERAL, "the program fails again where it failed, after its restart", bug="lock@1.0*2",
         culprits=("1.0",), says=r"log_step", watch_s=150, least_s=100),
    Case("two-bugs-in-turn", Family.SEVERAL, "one rank: an exception, and 60 s later a lock", bug="shapes@1.0;lock@1.0",
         acts=("0: arm", "60: arm"), culprits=("1.0",), says=r"log_step", watch_s=150, least_s=95),
    Case("second-group-later", Family.SEVERAL, "a lock in one group; when the job trains again, a queue in another", groups=4,
         bug="lock@1.0;queue@3.0", acts=("0: arm", "60: arm"), culprits=("1.0", "3.0"), watch_s=150, least_s=90),
    # -- stragglers
    Case("throttled", Family.SLOW, "a neighbour leaves a rank 6 % of a core", acts=("0: throttle 6 rank 1.0",), culprits=("1.0",),
         fate=Fate.MAY, watch_s=150),
    Case("slow-third", Family.SLOW, "0.7 s lost in every third step", bug="slow_third@2.0*always", culprits=("2.0",), fate=Fate.MAY, watch_s=150),
    Case("slow-gpu", Family.SLOW, "a device at a fifth of its pace, under TorchFT's DDP", script="ddp", bug="slow_gpu@0.0*always",
         culprits=("0.0",), fate=Fate.MAY, watch_s=150),
    Case("slow-loader", Family.SLOW, "a data set far away: each sample 0.5 s", script="ddp", bug="slow_loader@1.0*always",
         culprits=("1.0",), fate=Fate.MAY, watch_s=150),
    # -- values and names
    Case("nan", Family.VALUES, "NaN in one group's gradients; TorchFT commits it", bug="nan@1.0", culprits=("1.0",), says=r"nan|finite", fate=Fate.MAY, watch_s=60),
    Case("nan-ddp", Family.VALUES, "NaN in one group's loss, under TorchFT's DDP", script="ddp", bug="nan@2.0", culprits=("2.0",), says=r"nan|finite", fate=Fate.MAY, watch_s=60),
    Case("takes-anothers-name", Family.VALUES, "a rank reports another group's replica id, then hangs in a lock", script="ddp",
         bug="liar@1.0;lock@1.0", acts=("0: name 0", "1: arm", "8: arm"), culprits=("1.0",), watch_s=100),
    # -- FSDP2
    Case("fsdp-lock", Family.SHARDED, "one rank of a sharded group in a lock", script="fsdp", groups=2, ranks=2, bug="lock@1.1",
         culprits=("1.1",), says=r"log_step"),
    Case("fsdp-dead-disk", Family.SHARDED, "both ranks of a sharded group in open()", script="fsdp", groups=2, ranks=2,
         bug="dead_disk@0.0,0.1", culprits=("0.0", "0.1"), says=r"read_shard", watch_s=110),
    Case("fsdp-killed", Family.SHARDED, "a rank of a sharded group is killed", script="fsdp", groups=2, ranks=2, acts=("0: KILL rank 0.1",),
         culprits=("0.1",), says=r"SIGKILL|killed|signal 9"),
    Case("fsdp-skips-backward", Family.SHARDED, "one rank skips backward(), which gathers and scatters", script="fsdp", groups=2, ranks=2,
         bug="skips_backward@1.0", culprits=("1.0",), also=("1.1",), fate=Fate.MAY, watch_s=100),
    # -- healthy habits
    _healthy("compile", "a long first compile (torch.compile), and training after it", script="ddp", env={"COMPILE": "1"}, acts=("0: log",), steady=False, watch_s=120),
    _healthy("evaluation", "rank 0 evaluates for 10 s, the others wait at a barrier; twice", script="nested", groups=2, ranks=2,
             bug="evaluates@0.0,0.1,1.0,1.1*always", acts=("0: arm",), env={"EVALUATION_S": "10"}, watch_s=60),
    _healthy("evaluation-one-group", "one group evaluates for 8 s after a step, the others wait for it", bug="evaluates@0.0", watch_s=40),
    _healthy("checkpoint", "rank 0 of each group saves for 8 s every 50 steps", script="nested", groups=2, ranks=2,
             bug="checkpoint_pause@0.0,0.1,1.0,1.1*always", watch_s=60),
    _healthy("pause", "the whole job pauses for 25 s by itself", bug="pause@0.0,1.0,2.0", watch_s=50),
    _healthy("gc", "garbage collection of 4 s in one rank", bug="gc@1.0", watch_s=35),
    _healthy("slow-start", "one group loads its data for 40 s before it has a Manager", group_env={"2": {"SLOW_START_S": "40"}}, acts=("0: log",), steady=False, watch_s=80),
    _healthy("late-group", "a group joins 15 s after the others", late=(2,), acts=("0: launch 2",), watch_s=50),
    _healthy("clean-end", "a group has made its steps and ends with status 0", script="manager", group_env={"2": {"STEPS": "150"}}, acts=("0: log",), watch_s=60),
    _healthy("all-end", "the job is over: every group has made its steps", env={"STEPS": "200"}, acts=("0: log",), watch_s=60),
    _healthy("gdb-3s", "gdb looks for 3 s", acts=("0: gdb rank 1.0 for 3",), watch_s=30),
    _healthy("py-spy", "py-spy record for 20 s, then py-spy dump each second", acts=("0: pyspy rank 1.0 for 20", "25: dump rank 2.0 for 10"), watch_s=50),
    _healthy("strace", "strace -f for 15 s", acts=("0: strace rank 2.0 for 15",), watch_s=35),
    _healthy("stutter", "kill -STOP and -CONT within a second, five times", acts=("0: stutter rank 1.0 for 25",), watch_s=40),
    _healthy("hiccup", "the data loader takes 3 s now and then", script="ddp", env=_NO_WORKERS, bug="hiccup@1.0~3;hiccup@2.0~2", acts=("0: arm", "12: arm"), watch_s=40),
    _healthy("uneven-steps", "steps of 0.2 to 1.2 s, as documents have it", bug="uneven_steps@0.0,1.0,2.0*always", watch_s=60),
    _healthy("epoch-end", "small epochs: loaders and workers are made anew every few seconds", script="ddp", env={"SAMPLES": "600"}, acts=("0: log",), watch_s=50),
    _healthy("slow-disk", "rank 0's log is on a slow disk: 0.3 s a line", bug="slow_disk@0.0,1.0,2.0*always", watch_s=50),
    _healthy("restart", "an operator restarts a group: SIGTERM to its torchrun", acts=("0: TERM agent 1",), watch_s=60),
    _healthy("resize", "a fourth group joins, and is retired 45 s later", late=(3,), groups=4, acts=("0: launch 3", "45: retire 3"), watch_s=80),
    _healthy("agent-stopped", "torchrun is stopped for 25 s; its rank trains on", acts=("0: stop agent 1 for 25",), watch_s=40),
    _healthy("suspend", "everything is suspended for 20 s, the monitor too", acts=("0: stop all for 20",), watch_s=55),
    _healthy("hog", "other work takes both cores for 40 s", acts=("0: hog for 40",), watch_s=60),
    _healthy("keeper-killed", "a WorkerServer is killed; its rank trains on", acts=("0: KILL sidecar 1.0",), watch_s=45),
    _healthy("slower-batches", "longer sequences for all: steps take four times as long", bug="slower_batches@0.0,1.0,2.0*always", watch_s=50),
)  # fmt: skip

CASES: Final[Mapping[str, Case]] = {case.name: case for case in _ROWS}
