"""What the ranks of the simulated fleet do, up to the barrier of all groups."""

from __future__ import annotations

from tests.monitor.fleet.rank import ACROSS, HELD, WAITS, WORK, SimRank
from tests.monitor.fleet.state import FleetState


class Program(FleetState):
    """Ranks step, wait for each other, and pause."""

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        for rank in self.ranks():
            self._begin(rank)

    def _begin(self, rank: SimRank) -> None:
        if self.vote_every == 1:  # else the vote begins it
            self._attempt(rank)
        rank.begun_s = self.now_s
        self._work(rank, "data")

    def _attempt(self, rank: SimRank) -> None:
        rank.attempt += 1
        rank.nth = 0

    def _work(self, rank: SimRank, phase: str) -> None:
        rank.place = phase
        rank.enter_phase(phase, self.now_s)
        factor = rank.slow if phase in ("forward", "backward") else 1.0
        rank.left_s = WORK[phase] * factor * self.pace
        if self.noise:
            rank.left_s *= 1 + self.noise * self.random.uniform(-1, 1)
        rank.left_s += rank.extra_s.get(phase, 0.0)
        if rank.hang_in == phase:
            rank.hung = True

    def _frozen(self, rank: SimRank) -> bool:
        return (
            not rank.alive
            or rank.stopped
            or rank.tracer is not None
            or rank.hung
            or rank.gil_since_s is not None
            or self.now_s < rank.stalled_until_s
        )

    def _advance(self, rank: SimRank) -> None:
        while rank.left_s <= 0 and rank.place not in WAITS:
            spare_s = rank.left_s
            self._next(rank)
            rank.left_s += spare_s
            if rank.hung:
                return

    def _next(self, rank: SimRank) -> None:
        match rank.place:
            case "data":
                self._work(rank, "forward")
            case "forward" if rank.world_size > 1:
                rank.place = "gather"
                rank.enter_collective("all_gather", self.now_s)
            case "forward":
                self._work(rank, "backward")
            case "backward" if rank.world_size > 1:
                self._reduce(rank)
            case "start" if self.vote_every > 1:
                self._begin(rank)
            case "backward" | "start":
                self._meet(rank)
            case "optimizer" | "pause":
                if rank.place == "optimizer":
                    rank.pauses += [
                        (phase, for_s * (1 + self.noise * self.random.uniform(-1, 1)))
                        for every, phase, for_s in rank.habits
                        if rank.step % every == 0
                    ]
                if rank.pauses:
                    phase, for_s = rank.pauses.pop(0)
                    rank.place, rank.left_s = "pause", for_s
                    rank.enter_phase(phase, self.now_s)
                else:
                    self._begin(rank)

    def _reduce(self, rank: SimRank) -> None:
        rank.place = "reduce"
        match rank.odd:
            case "op" | "abort":
                rank.enter_collective("all_to_all", self.now_s)
            case "size":
                rank.enter_collective("all_reduce", self.now_s, size=2000)
            case "dtype":
                rank.odd = None
                rank.enter_collective("all_reduce", self.now_s, dtype="torch.int32")
            case _:
                rank.enter_collective("all_reduce", self.now_s)
        if rank.odd == "abort":
            self.kill(rank)

    def _collectives(self, ranks: list[SimRank]) -> bool:
        """A collective is released once every member is in it, with the same signature. True if
        it was, for one of them at least."""
        name = ranks[0].group
        leaves = False
        for place in HELD:
            inside = [r for r in ranks if r.place == place and r.enqueued > r.completed]
            if not inside:
                continue
            whole = len(inside) == len(ranks) and all(r.alive for r in ranks)
            whole = whole and self.now_s >= self.jammed_until_s.get(name, 0.0)
            if whole and self._since(inside) >= self.link_s.get(name, 0.0):
                calls = {(r.enqueued, r.ring[-1]["op"], r.ring[-1]["sizes_in"]) for r in inside}
                if len(calls) == 1:
                    self.released[name] = inside[0].enqueued
            for rank in inside:
                if rank.enqueued <= self.released.get(name, 0) and not self._frozen(rank):
                    self._released(rank, place)
                    leaves = True
        return leaves

    def _since(self, inside: list[SimRank]) -> float:
        """Seconds since the last of them came in."""
        return self.now_s - max((rank.head_since_s for rank in inside), default=self.now_s) + 1e-9

    def _released(self, rank: SimRank, place: str) -> None:
        rank.leave_collective(self.now_s)
        if place == "gather":
            self._work(rank, "backward")
        elif rank.odd == "extra":
            rank.place = "extra"
            rank.enter_collective("all_reduce", self.now_s)
        else:
            self._meet(rank)

    def _meet(self, rank: SimRank) -> None:
        """The step's exchange across groups, if it is not a local one."""
        if rank.since_vote + 1 < self.vote_every:
            rank.since_vote += 1
            rank.local_steps += 1
            self._work(rank, "optimizer")
            return
        rank.since_vote = 0
        if self.vote_every > 1:
            self._attempt(rank)
            rank.begun_s = self.now_s
        self._cross(rank)

    def _cross(self, rank: SimRank) -> None:
        rank.place = "cross"
        rank.enter_phase("communication", self.now_s)
        rank.across += 1
        rank.across_since_s = self.now_s
        if self.across:
            rank.across_ring.append(
                {
                    "group": ACROSS,
                    "seq": rank.across,
                    "op": "all_reduce",
                    "sizes_in": ((rank.gives_across,),),
                    "step": rank.step,
                    "attempt": rank.attempt,
                    "nth": 0,
                    "enter_s": self.now_s,
                    "exit_s": None,
                }
            )
