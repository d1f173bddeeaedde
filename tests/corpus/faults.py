"""Faults, put into the programs of a healthy job.

Each function changes what one rank does (or what several do) in one training step, and says who did
it. Whether the job then hangs, and where, is the simulation's business.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.changed import replace
from tests.corpus.calls import SAME_WIDTH, Batch, Call, Compute, Halt, Programs, Step


class NotPossibleError(Exception):
    """This job has no place for such a fault."""


@dataclass(frozen=True)
class Fault:
    """What was done, and by whom."""

    kind: str
    mark: str
    culprits: tuple[int, ...]
    team: int | None = None
    """Of the collective that was changed; None where it was none."""


@dataclass
class Place:
    """Where in a job a fault goes."""

    job: Programs
    rank: int
    rng: random.Random
    mark: str
    step: int

    def window(self) -> range:
        """Indices of the rank's instructions in that training step."""
        starts = self.job.starts[self.rank]
        end = starts[self.step + 1] if self.step + 1 < len(starts) else len(self.steps)
        return range(starts[self.step], end)

    @property
    def steps(self) -> list[Step]:
        return self.job.steps[self.rank]

    def size(self, team: int) -> int:
        return len(self.job.teams[team].members)

    def pick(self, wanted: Callable[[Call], bool]) -> int:
        """Index of a call of that step that the predicate wants."""
        at = [i for i in self.window() if isinstance(c := self.steps[i], Call) and wanted(c)]
        if not at:
            raise NotPossibleError
        return self.rng.choice(at)

    def call(self, index: int) -> Call:
        step = self.steps[index]
        assert isinstance(step, Call)
        return step

    def same_call(self, rank: int, index: int) -> int:
        """Where `rank` makes the call that this rank makes at `index`."""
        team = self.call(index).team
        number = sum(_of(step, team) for step in self.steps[:index])
        for at, step in enumerate(self.job.steps[rank]):
            if _of(step, team):
                if number == 0:
                    return at
                number -= 1
        raise NotPossibleError


def _of(step: Step, team: int) -> bool:
    return isinstance(step, Call) and step.team == team and not step.p2p


def _plain(place: Place) -> Callable[[Call], bool]:
    """A collective whose members must bring the same size."""
    return lambda c: not c.p2p and c.op not in {"all_to_all", "barrier"} and place.size(c.team) > 1


def not_entered(place: Place) -> Fault:
    window = place.window()
    at = place.rng.randrange(window.start, window.stop)
    place.steps.insert(at, Halt(place.mark))
    return Fault("not_entered", place.mark, (place.rank,))


def most_absent(place: Place) -> Fault:
    """Most ranks do not come to the same collective, as when their storage hangs."""
    at = place.pick(lambda c: not c.p2p and c.team == 0)
    members = list(place.job.teams[0].members)
    place.rng.shuffle(members)
    halted = sorted(members[: len(members) * 3 // 4])
    for rank, where in [(rank, place.same_call(rank, at)) for rank in halted]:
        place.job.steps[rank].insert(where, Halt(place.mark))
    return Fault("most_absent", place.mark, tuple(halted))


def _broken_gpu(kind: str, fate: str) -> Callable[[Place], Fault]:
    def inject(place: Place) -> Fault:
        window = place.window()
        at = place.rng.randrange(window.start, window.stop)
        place.steps.insert(at, Compute(0.5, fate, place.mark))
        return Fault(kind, place.mark, (place.rank,))

    return inject


def stuck_inside(place: Place) -> Fault:
    """A link fails: all members are inside, all brought the same, and nothing moves."""
    at = place.pick(lambda c: not c.p2p and place.size(c.team) > 1)
    team = place.call(at).team
    for rank in place.job.teams[team].members:
        where = place.same_call(rank, at)
        call = place.job.steps[rank][where]
        assert isinstance(call, Call)
        stuck = replace(call, wire=(*call.wire, "stuck", rank), mark=place.mark)
        place.job.steps[rank][where] = stuck
    return Fault("stuck_inside", place.mark, (), team)


def _grown(size: tuple[int, ...]) -> tuple[int, ...]:
    return (size[0] + 8, *size[1:])


def _other_size(call: Call) -> Call:
    small = min(call.sizes_in + call.sizes_out, key=math.prod)
    factor = math.prod(_grown(small)) / math.prod(small)
    ins = tuple((int(s[0] * factor), *s[1:]) for s in call.sizes_in)
    outs = tuple((int(s[0] * factor), *s[1:]) for s in call.sizes_out)
    return replace(call, sizes_in=ins, sizes_out=outs, wire=(*call.wire, "larger"))


def _other_op(call: Call) -> Call:
    small = min(call.sizes_in + call.sizes_out, key=math.prod)
    op = "broadcast" if call.op == "all_reduce" else "all_reduce"
    return replace(call, op=op, sizes_in=(small,), sizes_out=(small,), wire=(op, call.wire[1], 0),
                   root=0 if op == "broadcast" else None)  # fmt: skip


def _other_dtype(call: Call) -> Call:
    return call.with_dtype("Double" if call.dtype != "Double" else "Float")


def _same_width(call: Call) -> Call:
    return replace(call, dtype=SAME_WIDTH[call.dtype])


def _other_root(call: Call) -> Call:
    return replace(call, root=1, wire=(*call.wire[:2], 1))


def _changed(kind: str, change: Callable[[Call], Call], op: str = "") -> Callable[[Place], Fault]:
    def inject(place: Place) -> Fault:
        plain = _plain(place)
        at = place.pick(lambda c: plain(c) and (not op or c.op == op))
        call = place.call(at)
        place.steps[at] = replace(change(call), mark=place.mark)
        return Fault(kind, place.mark, (place.rank,), call.team)

    return inject


def tie(place: Place) -> Fault:
    """Half of the members bring something else: nobody can say which half is right."""
    plain = _plain(place)
    at = place.pick(lambda c: plain(c) and place.size(c.team) % 2 == 0)
    change = place.rng.choice([_other_op, _other_size, _other_dtype])
    team = place.call(at).team
    members = list(place.job.teams[team].members)
    place.rng.shuffle(members)
    half = sorted(members[: len(members) // 2])
    for rank in half:
        where = place.same_call(rank, at)
        call = place.job.steps[rank][where]
        assert isinstance(call, Call)
        place.job.steps[rank][where] = replace(change(call), mark=place.mark)
    return Fault("tie", place.mark, tuple(half), team)


def skipped(place: Place) -> Fault:
    at = place.pick(_plain(place))
    team = place.call(at).team
    place.steps[at] = Compute(0.01, mark=place.mark)
    return Fault("skipped", place.mark, (place.rank,), team)


def extra(place: Place) -> Fault:
    at = place.pick(_plain(place))
    call = place.call(at)
    again = replace(call, mark=place.mark, site="debug.py:9 check" if at % 2 else call.site)
    place.steps.insert(at + 1, again)
    return Fault("extra", place.mark, (place.rank,), call.team)


def extra_last(place: Place) -> Fault:
    """Its peers come through the whole program; only the one that called too often waits."""
    place.step = len(place.job.starts[place.rank]) - 1
    plain = _plain(place)
    at = [i for i in place.window() if isinstance(c := place.steps[i], Call) and plain(c)][-1]
    call = place.call(at)
    place.steps.insert(at + 1, replace(call, mark=place.mark))
    return Fault("extra_last", place.mark, (place.rank,), call.team)


def _swap(place: Place, rank: int, at: int, two: int) -> None:
    steps = place.job.steps[rank]
    first, second = steps[at], steps[two]
    assert isinstance(first, Call)
    assert isinstance(second, Call)
    steps[at] = replace(second, mark=place.mark, waited=True)
    steps[two] = replace(first, mark=place.mark, waited=True)


def _neighbours(place: Place) -> tuple[int, int]:
    """Two collectives in a row, of different groups that share members beside this rank."""
    calls = [i for i in place.window() if isinstance(place.steps[i], Call)]
    pairs = []
    for earlier, two in itertools.pairwise(calls):
        a, b = place.call(earlier), place.call(two)
        if a.p2p or b.p2p or a.team == b.team:
            continue
        shared = set(place.job.teams[a.team].members) & set(place.job.teams[b.team].members)
        if len(shared) > 1:
            pairs.append((earlier, two))
    if not pairs:
        raise NotPossibleError
    return place.rng.choice(pairs)


def order_inversion(place: Place) -> Fault:
    earlier, two = _neighbours(place)
    a, b = place.call(earlier).team, place.call(two).team
    _swap(place, place.rank, earlier, two)
    smaller = min(a, b, key=place.size)
    return Fault("order_inversion", place.mark, (place.rank,), smaller)


def order_tie(place: Place) -> Fault:
    """Half of the members call A before B, the other half B before A."""
    earlier, two = _neighbours(place)
    a, b = place.call(earlier).team, place.call(two).team
    shared = set(place.job.teams[a].members) & set(place.job.teams[b].members)
    ranks = sorted(shared)
    if len(ranks) % 2:
        raise NotPossibleError
    half = sorted(place.rng.sample(ranks, len(ranks) // 2))
    where = {rank: (place.same_call(rank, earlier), place.same_call(rank, two)) for rank in half}
    for rank in half:
        _swap(place, rank, *where[rank])
    return Fault("order_tie", place.mark, tuple(half), min(a, b, key=place.size))


def _transfers(place: Place, *, sends: bool | None) -> list[int]:
    def wanted(step: Step) -> bool:
        call = step.calls[0] if isinstance(step, Batch) else step
        return isinstance(call, Call) and call.p2p and sends in {None, call.sends}

    at = [i for i in place.window() if wanted(place.steps[i])]
    if not at:
        raise NotPossibleError
    return at


def send_left_out(place: Place) -> Fault:
    at = place.rng.choice(_transfers(place, sends=True))
    place.steps[at] = Compute(0.01, mark=place.mark)
    return Fault("send_left_out", place.mark, (place.rank,))


def transfer_order(place: Place) -> Fault:
    """A stage asks for the gradients before it has sent all activations (or the other way)."""
    at = _transfers(place, sends=None)
    calls = [(i, place.steps[i]) for i in at]
    for (earlier, first), (two, second) in itertools.pairwise(calls):
        ways = [(s.calls[0] if isinstance(s, Batch) else s) for s in (first, second)]
        if ways[0].sends and not ways[1].sends:  # type: ignore[union-attr]
            place.steps[earlier], place.steps[two] = second, first
            place.steps.insert(earlier, Compute(0.01, mark=place.mark))
            return Fault("transfer_order", place.mark, (place.rank,))
    raise NotPossibleError


KINDS: dict[str, Callable[[Place], Fault]] = {
    "not_entered": not_entered,
    "most_absent": most_absent,
    "gpu_error": _broken_gpu("gpu_error", "error"),
    "gpu_hang": _broken_gpu("gpu_hang", "hang"),
    "stuck_inside": stuck_inside,
    "timed_out": stuck_inside,
    "wrong_size": _changed("wrong_size", _other_size),
    "wrong_op": _changed("wrong_op", _other_op),
    "wrong_dtype": _changed("wrong_dtype", _other_dtype),
    "wrong_root": _changed("wrong_root", _other_root, "broadcast"),
    "silent_dtype": _changed("silent_dtype", _same_width),
    "skipped": skipped,
    "extra": extra,
    "extra_last": extra_last,
    "order_inversion": order_inversion,
    "order_tie": order_tie,
    "tie": tie,
    "send_left_out": send_left_out,
    "transfer_order": transfer_order,
}
