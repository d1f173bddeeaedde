"""Who came to the quorums: heals, failed commits and re-entries of each replica group. Pure.

Theory of operation. Counters that only grow are compared from tick to tick, so that a missed poll
loses nothing but the moment. A heal shows as the Manager's flag in the last attempt that ended, or
as a committed step that ran ahead of the commits of the same process (many attempts may end between
two ticks, and the flag covers only the last one). Neither counts before the first commit of a
process: every process heals once when it joins. An entry is a group that enters the quorum again,
after it was seen outside or under another replica id; its first does not count. While any group
starts without an error, no failed commit counts: with fewer groups than `min_replica_size` none
succeeds. Events older than the window are forgotten; so are those that another fault explains,
when the pipeline says so.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import Final

from msgspec import Struct

from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.names import GroupName, RankName, ReplicaId, group_of_replica
from lightkeeper.monitor.model.observation import LighthouseView

_OF_A_HEAL_S: Final = 10.0
"""Quorums within this time of a heal or a failed commit follow from it."""


class Turn(Struct, frozen=True, gc=False):
    """One rank's report of its attempts, in one tick."""

    rank: RankName
    group: GroupName
    incarnation: str
    commits: int
    failures: int
    """Attempts that ended without a commit."""
    committed_step: int | None
    healing: bool
    """True if the last completed attempt had healed."""
    errored: bool
    """True if TorchFT met an error in it."""
    fresh: bool = False
    """True if its process has not made its first commits yet."""

    @property
    def ended(self) -> int:
        return self.commits + self.failures


class _Tally(Struct, gc=False):
    """Activity of the ranks of one group since the previous tick."""

    commits: int = 0
    """The highest of any rank; so for failures."""
    failures: int = 0
    jumped: bool = False
    """True if a rank's committed step ran ahead of its commits: it healed."""
    flagged: bool = False
    """True if a Manager reports a heal, in an attempt not counted yet."""
    errored: bool = False
    fresh: bool = False
    """True if a process has not made its first commits yet, and met no error."""
    turns: list[Turn] = []


@dataclass(frozen=True, slots=True)
class FailedCommits:
    """Commits that failed between two ticks."""

    at_s: float
    count: int
    errored: bool


@dataclass(slots=True)
class Attended:
    """One replica group, over the window."""

    heals: list[float] = field(default_factory=list)
    failures: list[FailedCommits] = field(default_factory=list)
    commits: list[tuple[float, int]] = field(default_factory=list)
    """Time of a tick, commits since the previous one."""
    entries: list[float] = field(default_factory=list)
    replica_id: ReplicaId | None = None
    """Its last one in the quorum."""
    inside: bool = False
    restarted_s: float | None = None
    """When one of its ranks was last seen to be another process."""
    absent_since_s: float | None = None
    """Since when it could take part but does not; None while it does, or is excused."""
    others_commits: int = 0
    """Commits of the others since then."""

    def failed(self, since_s: float = 0.0) -> int:
        """Attempts without a commit since then."""
        return sum(failure.count for failure in self.failures if failure.at_s >= since_s)

    def committed(self, since_s: float = 0.0) -> int:
        """Commits since then."""
        return sum(count for at_s, count in self.commits if at_s >= since_s)

    def errored(self) -> int:
        """Ticks that saw a failed commit with an error of its own."""
        return sum(failure.errored for failure in self.failures)

    def forgive(self) -> None:
        """Another fault explains what was seen so far."""
        self.heals, self.failures, self.entries = [], [], []
        self.absent_since_s, self.others_commits = None, 0

    def forget(self, before_s: float) -> None:
        """Drop older events; each list is in order of time, and mostly nothing has aged."""
        del self.heals[: bisect_left(self.heals, before_s)]
        del self.failures[: bisect_left(self.failures, before_s, key=attrgetter("at_s"))]
        del self.commits[: bisect_left(self.commits, before_s, key=itemgetter(0))]
        del self.entries[: bisect_left(self.entries, before_s)]


@dataclass(slots=True)
class Attendance:
    """Every replica group's record of attendance."""

    config: KeeperConfig
    groups: dict[GroupName, Attended] = field(default_factory=dict)
    advances: list[tuple[float, int]] = field(default_factory=list)
    """Time of a tick, and the growth of the quorum id in it beyond groups coming and leaving, with
    no heal or failed commit near it."""
    _quorum_id: int | None = None
    _busy_s: float = float("-inf")
    """When a heal or a failed commit was last seen: TorchFT requests a new quorum after each."""
    _turns: dict[RankName, Turn] = field(default_factory=dict)
    _healed_at: dict[RankName, int] = field(default_factory=dict)
    """Commits of a rank when its last heal was counted."""

    def push(
        self,
        now_s: float,
        turns: Iterable[Turn],
        lighthouse: LighthouseView | None,
        absent: Collection[GroupName],
    ) -> None:
        """Take in one tick.

        Args:
            now_s: its time.
            turns: one for each rank that answered and runs under a Manager.
            lighthouse: with the last quorum; None while it cannot be seen.
            absent: groups that could take part and are not in it.
        """
        tallies = self._tallied(now_s, turns)
        steady = any(tally.commits and not tally.jumped for tally in tallies.values())
        awaited = any(tally.fresh for tally in tallies.values())
        for group, tally in tallies.items():
            log = self._log(group)
            if tally.commits:
                log.commits.append((now_s, tally.commits))
            if tally.flagged or (tally.jumped and steady):
                log.heals.append(now_s)
                self._busy_s = now_s
                self._healed_at.update((turn.rank, turn.commits) for turn in tally.turns)
            if tally.failures and not awaited:
                log.failures.append(FailedCommits(now_s, tally.failures, tally.errored))
                self._busy_s = now_s
        if lighthouse is not None:
            ids = [member.replica_id for member in lighthouse.members]
            members = {group_of_replica(replica_id): replica_id for replica_id in ids}
            self._advanced(now_s, lighthouse.quorum_id, members)
            self._entered(now_s, members)
            self._stayed_out(now_s, absent, tallies)
        self._forget(now_s)

    def _log(self, group: GroupName) -> Attended:
        return self.groups.setdefault(group, Attended())

    def _tallied(self, now_s: float, turns: Iterable[Turn]) -> dict[GroupName, _Tally]:
        """Each group's tally of this tick; its turns are compared with the next tick's."""
        tallies: dict[GroupName, _Tally] = {}
        for turn in turns:
            tally = tallies.get(turn.group)
            if tally is None:
                tally = tallies[turn.group] = _Tally()
            tally.turns.append(turn)
            tally.fresh |= turn.fresh and not turn.errored
            tally.errored |= turn.errored
            before = self._turns.get(turn.rank)
            self._turns[turn.rank] = turn
            if before is not None:
                self._compare(now_s, tally, turn, before)
        return tallies

    def _compare(self, now_s: float, tally: _Tally, turn: Turn, before: Turn) -> None:
        """Add one rank's activity to its group's tally."""
        if before.incarnation != turn.incarnation:
            self._log(turn.group).restarted_s = now_s
            self._healed_at.pop(turn.rank, None)
            return
        grown, failed = turn.commits - before.commits, turn.failures - before.failures
        tally.commits = max(tally.commits, grown)
        tally.failures = max(tally.failures, failed)
        if before.commits < 1:
            return
        if turn.healing and (turn.ended > before.ended or not before.healing):
            tally.flagged = True
        if turn.committed_step is None or before.committed_step is None:
            return
        if turn.committed_step - before.committed_step > grown:
            tally.jumped |= before.commits > self._healed_at.get(turn.rank, -1)

    def _advanced(
        self, now_s: float, quorum_id: int, members: Mapping[GroupName, ReplicaId]
    ) -> None:
        before, self._quorum_id = self._quorum_id, quorum_id
        if before is None:
            return
        inside = {group: log.replica_id for group, log in self.groups.items() if log.inside}
        came_or_left = sum(inside.get(name) != members.get(name) for name in {*inside, *members})
        beyond = quorum_id - before - came_or_left
        if beyond > 0 and now_s - self._busy_s > _OF_A_HEAL_S:
            self.advances.append((now_s, beyond))

    def _entered(self, now_s: float, members: Mapping[GroupName, ReplicaId]) -> None:
        for group, replica_id in members.items():
            log = self._log(group)
            seen_before = log.replica_id is not None
            if seen_before and (not log.inside or log.replica_id != replica_id):
                log.entries.append(now_s)
            log.replica_id, log.inside = replica_id, True
        for group, log in self.groups.items():
            log.inside = group in members

    def _stayed_out(
        self, now_s: float, absent: Collection[GroupName], tallies: Mapping[GroupName, _Tally]
    ) -> None:
        for group, log in self.groups.items():
            if group not in absent:
                log.absent_since_s, log.others_commits = None, 0
                continue
            if log.absent_since_s is None:
                log.absent_since_s = now_s
            # a group that commits without a quorum takes local steps: no quorum was formed for
            # these
            others = (tally.commits for other, tally in tallies.items() if other not in absent)
            log.others_commits += max(others, default=0)

    def _forget(self, now_s: float) -> None:
        before_s = now_s - self.config.lag_window_s
        for log in self.groups.values():
            log.forget(before_s)
        del self.advances[: bisect_left(self.advances, before_s, key=itemgetter(0))]
