"""Faults of a rank process."""

from __future__ import annotations

from collections.abc import Iterable

from lightkeeper.worker_server.wire import WAIT_COMMIT, WAIT_QUORUM, Doing, Ending, Frame, Tracer
from tests.monitor.fleet.fleet import SimFleet
from tests.monitor.fleet.script import Fault


def sets(rank: str, *, dies: bool = False, **attributes: object) -> Fault:
    """The rank has these from then on (`SimRank`), and dies of it."""

    def do(fleet: SimFleet) -> None:
        vars(fleet.rank(rank)).update(attributes)
        if dies:
            fleet.kill(fleet.rank(rank))

    return do


def hang(rank: str, phase: str = "forward") -> Fault:
    """The rank sleeps for ever the next time it is in `phase`."""
    return sets(rank, hang_in=phase)


def recover(rank: str) -> Fault:
    return sets(rank, hung=False, hang_in=None, stopped=False, gil_since_s=None)


def gil(rank: str) -> Fault:
    """A C call holds the GIL for ever; the Rust heartbeat goes on."""
    return lambda fleet: vars(fleet.rank(rank)).update(gil_since_s=fleet.now_s)


def stop(rank: str) -> Fault:
    """SIGSTOP."""
    return sets(rank, stopped=True)


def crash(rank: str) -> Fault:
    """SIGKILL, and its sidecar knows."""
    return ended_by(rank, "SIGKILL")


def ended_by(rank: str, signal: str) -> Fault:
    """A signal ends the rank, and its sidecar knows which."""
    return sets(rank, dies=True, exit_signal=signal)


def leaves(rank: str) -> Fault:
    """It ends with exit code 0, and has not said that its training is over."""
    return sets(rank, dies=True, exit_code=0)


def stands(rank: str, function: str, line: int, doing: Doing = Doing.LOCK) -> Fault:
    """Hangs at a place that stacks from outside show."""
    return sets(rank, hung=True, place_of_code=(Frame(function, "train.py", line), doing))


def leaves_vote(*ranks: str) -> Fault:
    """These go on to the next quorum without a vote; the others of their group vote in vain."""

    def do(fleet: SimFleet) -> None:
        group = fleet.rank(ranks[0]).group
        for rank in fleet.ranks():
            if rank.group == group:
                rank.hung = True
                rank.waits_in = WAIT_QUORUM if rank.name in ranks else WAIT_COMMIT

    return do


def leaves_out(*ranks: str) -> Fault:
    """These go on to the next quorum without the collective across groups."""

    def do(fleet: SimFleet) -> None:
        for name in ranks:
            rank = fleet.rank(name)
            rank.hung, rank.waits_in = True, WAIT_QUORUM

    return do


def traced(rank: str, name: str = "gdb") -> Fault:
    """Somebody attaches to it, and holds it."""
    return sets(rank, tracer=Tracer(4711, name))


def let_go(rank: str) -> Fault:
    return sets(rank, tracer=None)


def raises(
    rank: str,
    exception: str,
    line: int = 88,
    *,
    of_peers: bool | None = False,
    detail: str | None = None,
) -> Fault:
    """An exception that nobody caught ends it, and its sidecar knows which and whose."""
    frame = Frame("train_step", "train.py", line)
    ending = Ending(f"Raised {exception}.", exception, frame, of_peers, detail)
    return sets(rank, dies=True, ending=ending)


def gives_across(rank: str, numbers: int) -> Fault:
    """Averages so many numbers with the other groups from then on."""
    return sets(rank, gives_across=numbers)


def slow(rank: str, factor: float) -> Fault:
    return sets(rank, slow=factor)


def mismatch(rank: str, how: str = "op") -> Fault:
    """The rank's next all_reduce is another one: op, size, extra, abort (op, then SIGABRT), dtype
    (the same bytes, which hangs nothing)."""
    return sets(rank, odd=how)


def slow_in(rank: str, phase: str, extra_s: float) -> Fault:
    """The rank spends so many seconds more in this phase of each step."""
    return lambda fleet: fleet.rank(rank).extra_s.update({phase: extra_s})


def tokens(rank: str, count: int) -> Fault:
    """The rank reports so many tokens a step from now on."""
    return sets(rank, tokens_a_step=count)


def cpu_stall(rank: str, for_s: float) -> Fault:
    return lambda fleet: vars(fleet.rank(rank)).update(stalled_until_s=fleet.now_s + for_s)


def pause(ranks: Iterable[str], phase: str, for_s: float) -> Fault:
    """A declared long phase before the next step."""
    named = tuple(ranks)

    def do(fleet: SimFleet) -> None:
        for rank in named:
            fleet.rank(rank).pauses.append((phase, for_s))

    return do


def habit(ranks: Iterable[str], every: int, phase: str, for_s: float) -> Fault:
    """From now on a pause after every so many steps."""
    named = tuple(ranks)

    def do(fleet: SimFleet) -> None:
        for rank in named:
            fleet.rank(rank).habits.append((every, phase, for_s))

    return do


def runs(rank: str, state: str = "R") -> Fault:
    """The main thread is seen running from now on, whatever it does."""
    return sets(rank, state=state)


def trains_alone(rank: str, steps: int) -> Fault:
    """So many more local steps before its next vote."""

    def do(fleet: SimFleet) -> None:
        fleet.rank(rank).since_vote -= steps

    return do
