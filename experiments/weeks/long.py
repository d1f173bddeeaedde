"""A simulated fleet for weeks: hosts of eight, a launcher, and time that can be skipped.

`tests.monitor.fleet.SimFleet` in slices of a quarter second and steps of six seconds (405 B
parameters, 16 M tokens a step at 400 TFLOP/s a GPU: 5.9 s), with what it has not:

- **Hosts.** Eight ranks each. A host may break under one group and be given to another; where a
  group runs is the launcher's, which asks the quarantine.
- **A launcher.** It ends the rest of a group of which one rank died (torchrun does so within
  0.15 s), and starts a group again on its hosts, but for those in quarantine or gone.
- **Skipping.** `skip` moves a fleet that trains by whole steps: all counters go on as they did in
  the last steps, all times move along, and the phase within the step stays. Nothing happens in
  between: who calls it knows that no event lies there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Final

from lightkeeper.monitor.model.eviction import Eviction, EvictionState
from lightkeeper.monitor.model.names import Host
from lightkeeper.monitor.model.observation import Failure
from tests.changed import replace
from tests.monitor.fleet import SimFleet
from tests.monitor.fleet.rank import WAITS, SimRank

A_HOST: Final = 8
SLICE_S: Final = 0.25
PACE: Final = 20.0
"""Times the 0.3 s that `SimFleet` works a step."""
START_S: Final = 40.0
"""From the launcher's start of a group to its first quorum: processes, imports, NCCL. TorchFT's
17 to 20 s were measured on small models."""
_KILL_S: Final = {"well": 0.5, "stuck": 3.5, "kernel": 12.0, "gone": 6.5}
"""From the order to the last process gone: the Lighthouse's kill; the WorkerServer after it, where
the interpreter is stuck; a wait in the kernel that ends at last; a host out of sight, let go when
its heartbeat is dead (`monitor.model.escalation.Timeouts`)."""


class LongFleet(SimFleet):
    """See the module.

    Args:
        admit: whether the quarantine lets a group start on a host.
        restarted: told of each group that is started again, before its ranks run.
    """

    def __init__(
        self,
        groups: int,
        size: int,
        *,
        seed: int,
        admit: Callable[[Host, str], bool] = lambda _host, _group: True,
        restarted: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(groups, size, noise=0.1, seed=seed, pace=PACE, across=True)
        self.losses, self.fingerprint_every = True, 10
        self._admit, self._restarted = admit, restarted
        self._hosts = random.Random(seed + 1)
        self._spares = 0
        self.gone_hosts: set[str] = set()
        self.broken: set[str] = set()
        """Hosts that will fail again."""
        self.kernel: set[str] = set()
        """Ranks that no signal ends at once."""
        self.abandoned: set[str] = set()
        """Groups whose launcher does not notice that a rank died."""
        self.launching: dict[str, float] = {}
        self.held_start: set[str] = set()
        for name, ranks in self.groups.items():
            for rank in ranks:
                rank.host = f"{name}-h{rank.index // A_HOST}"

    # -- hosts and launcher ------------------------------------------------------------------

    def restart(self, group: str, start_s: float = START_S) -> None:
        """Processes anew. A group that was hit by what is over stands for another one of the real
        fleet from now on: its hosts have other names. One whose host is still broken comes back
        where it was, but for hosts that are gone or refused.
        """
        hosts = {rank.host for rank in self.groups[group]}
        for host in sorted(hosts):
            moved = host in self.gone_hosts or not self._admit(Host(host), group)
            if moved or not hosts & self.broken:
                self._spares += 1
                for rank in self.groups[group]:
                    if rank.host == host:
                        rank.host = f"s{self._spares}"
        names = {rank.name for rank in self.groups[group]}
        super().restart(group, start_s)
        self.kernel -= names
        self.abandoned.discard(group)
        self.jammed_until_s.pop(group, None)
        self.link_s.pop(group, None)
        for name in names:
            self.silent_until.pop(name, None)
        self._restarted(group)

    def host_goes(self, host: str) -> None:
        """A host without power: its ranks die, and nobody answers from there."""
        self.gone_hosts.add(host)
        for rank in self.ranks():
            if rank.host == host:
                self.kill(rank)
                self.silent_until[rank.name] = (self.now_s + 1e9, Failure.TIMEOUT)

    def evict(self, decision: Eviction) -> None:
        super().evict(decision)
        self.kept_out -= set(decision.keep_out)  # the quarantine has them

    def _launch(self) -> None:
        for name, ranks in self.groups.items():
            dead = [rank for rank in ranks if rank.died_s is not None]
            if not dead:
                continue
            seen = any(self._is_silent(rank) is None for rank in dead)
            if name not in self.abandoned and seen:
                first_s = min(rank.died_s or 0.0 for rank in dead)
                if self.now_s - first_s >= 0.1:
                    for rank in ranks:
                        self.kill(rank)
            if all(rank.died_s is not None for rank in ranks):
                at_s = self.launching.setdefault(name, self.now_s + 3.0)
                if self.now_s >= at_s and self._admitted(name):
                    del self.launching[name]
                    self.restart(name)

    def _admitted(self, name: str) -> bool:
        """A launcher that is refused for its group waits for a person."""
        self.held_start.discard(name)
        if not self._admit(Host(""), name):
            self.held_start.add(name)
        return name not in self.held_start

    def _evictor(self) -> None:
        for key, progress in list(self.evictions.items()):
            ranks = self.groups[progress.group]
            if progress.gone_s is None and progress.unseen_s is None:
                unseen = any(self._is_silent(rank) is not None for rank in ranks)
                kernel = any(rank.name in self.kernel for rank in ranks)
                stuck = any(rank.gil_since_s is not None or rank.stopped for rank in ranks)
                how = "gone" if unseen else "kernel" if kernel else "stuck" if stuck else "well"
                if self.now_s - progress.asked_s < _KILL_S[how]:
                    continue
                for rank in ranks:
                    self.kill(rank)
                end = {"unseen_s" if unseen else "gone_s": self.now_s}
                self.evictions[key] = replace(progress, state=EvictionState.CONFIRMED, **end)
            left = progress.left_quorum_s is None and progress.group not in self.quorum
            if left:
                self.evictions[key] = replace(
                    self.evictions[key], left_quorum_s=self.now_s, ended_s=self.now_s
                )

    # -- time --------------------------------------------------------------------------------

    def run_to(self, until_s: float) -> None:
        """In slices of a quarter second."""
        while self.now_s < until_s - 1e-9:
            self.now_s = min(until_s, round(self.now_s + SLICE_S, 6))
            for ranks in self.groups.values():
                for rank in ranks:
                    if rank.place not in WAITS and not self._frozen(rank):
                        rank.left_s -= SLICE_S
                        if rank.left_s <= 0:
                            self._advance(rank)
            for ranks in self.groups.values():
                self._collectives(ranks)
            self._barrier()
            self._lighthouse()
            self._evictor()
            self._launch()

    @property
    def trains(self) -> bool:
        """Whether every group is in the quorum, or waits for a person, and nothing is under way."""
        for name, ranks in self.groups.items():
            if name in self.held_start:
                continue
            if name not in self.quorum or not all(rank.alive for rank in ranks):
                return False
            if any(self._frozen(rank) or rank.pauses or rank.place in ("start", "pause")
                   for rank in ranks):  # fmt: skip
                return False
        return True

    def skip(self, seconds: float, step_s: float) -> float:
        """Go on by whole steps, at most so long; how long it was."""
        steps = int(seconds / step_s)
        by_s = steps * step_s
        if steps <= 0:
            return 0.0
        for ranks in self.groups.values():
            for rank in ranks:
                if rank.alive:
                    _go_on(rank, steps, by_s)
            self.released[ranks[0].group] = self.released.get(ranks[0].group, 0) + 2 * steps
        living = {ranks[0].replica_id for ranks in self.groups.values() if ranks[0].alive}
        self.heartbeat_s = {replica_id: at_s + by_s if replica_id in living else at_s
                            for replica_id, at_s in self.heartbeat_s.items()}  # fmt: skip
        self.evictions = {
            key: eviction for key, eviction in self.evictions.items() if eviction.ended_s is None
        }
        self.now_s = round(self.now_s + by_s, 6)
        self.tick += int(by_s)
        return by_s


def _go_on(rank: SimRank, steps: int, by_s: float) -> None:
    """A rank's counters and times so many steps later."""
    rank.log = rank.log[-4:]
    spent: Mapping[str, float] = {}
    if len(rank.log) > 1:
        first, last = rank.log[0], rank.log[-1]
        made = len(rank.log) - 1
        spent = {
            phase: (took_s - first[3].get(phase, 0.0)) / made for phase, took_s in last[3].items()
        }
    spent = {phase: took_s for phase, took_s in spent.items() if phase in _PHASES}
    known_s = sum(spent.values()) or 1.0
    for phase, took_s in spent.items():  # they fill the time exactly
        rank.seconds[phase] += took_s * by_s / known_s
    commits = max(1, rank.commits)
    rank.held_s += rank.held_s / commits * steps
    rank.waited_s += rank.waited_s / commits * steps
    rank.step += steps
    rank.attempt += steps
    rank.commits += steps
    rank.progress += len(_PHASES) * steps
    rank.across += steps
    rank.enqueued += 2 * steps
    rank.completed += 2 * steps
    if rank.committed is not None:
        rank.committed += steps
    rank.committed_s = None if rank.committed_s is None else rank.committed_s + by_s
    rank.phase_since_s += by_s
    rank.head_since_s += by_s
    rank.across_since_s += by_s
    rank.begun_s += by_s
    rank.healing_until_s, rank.spell = 0.0, None
    rank.prints = []
    for ring, calls in ((rank.ring, 2), (rank.across_ring, 1)):
        for entry in ring:
            entry["seq"] += calls * steps
            entry["step"] += steps
            entry["attempt"] += steps
            entry["enter_s"] += by_s
            entry["exit_s"] = None if entry["exit_s"] is None else entry["exit_s"] + by_s
    rank.log = [(a + steps, s + steps, end_s + by_s, dict(rank.seconds))
                for a, s, end_s, _ in rank.log[-1:]]  # fmt: skip


_PHASES: Final = ("data", "forward", "backward", "communication", "optimizer")
