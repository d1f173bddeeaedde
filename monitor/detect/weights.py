"""Fingerprints of the weights, as they arrive from all ranks, and which of them disagree.

Theory of operation. Ranks that hold the same part of the weights share a *lane*. For the same lane,
committed step and part all values must be equal. Four rules keep a healthy rank from being
outvoted:

- A majority is one of all ranks of the lane, including those whose value is late or lost: a missing
  value can turn no vote, and dropping or delaying an observation adds no accusation. Nor does a
  rank that was equal to the others and has died since: two against two stays so when one dies.
- A group that heals has the weights of the group it healed from, and would give that one a second
  voice. So a rank votes in the *life* (incarnation and lineage) in which it was last seen in full
  agreement with all others, and in no later one.
- Repeated steps (a checkpoint from before, a job from the start) have other values. When a rank
  goes back, values seen before that moment are no longer compared; nor are those of a rank that has
  ended, or of a former life.
- One disagreement is not enough: two, at different steps, must name the same ranks (see
  `detectors.corrupt`).
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from lightkeeper.monitor.detect.track import RankTrack
from lightkeeper.monitor.model.names import RankName
from lightkeeper.monitor.model.units import grouped
from lightkeeper.worker_server.wire import Prints

# -- prints ------------------------------------------------------------------------------------

Life = tuple[str, int]
"""Incarnation and lineage: during one life a rank's weights are its own history."""

_STEPS_KEPT: Final = 32
_DISSENTS_KEPT: Final = 16
_PARTS_KEPT: Final = 256
_WITNESSES: Final = 2
"""This many of the ranks that are right must have weights that are known to be their own."""


@dataclass(frozen=True, slots=True)
class Dissent:
    """One step at which fingerprints that must be equal were not."""

    lane: int
    step: int
    part: int
    odd: tuple[RankName, ...]
    """Ranks that a strict majority outvotes, sorted; empty: unknown."""
    sides: tuple[tuple[RankName, ...], ...]
    """Who agrees with whom, the largest side first."""
    lives: Mapping[RankName, Life]
    seen_s: float
    known: bool
    """True if all of them were seen to be equal before, in the same life."""


@dataclass(slots=True)
class _Row:
    value: int
    part: int
    life: Life
    seen_s: float


@dataclass(slots=True)
class _Lane:
    steps: dict[int, dict[RankName, _Row]] = field(default_factory=dict)
    agreed: dict[int, dict[RankName, Life]] = field(default_factory=dict)
    """Part -> the life in which a rank was last seen to be equal to all others."""
    dissents: dict[int, Dissent] = field(default_factory=dict)
    since_s: float = float("-inf")
    """When one of its ranks last went back."""


@dataclass(slots=True)
class PrintBook:
    """All fingerprints that still matter."""

    lives: dict[RankName, Life] = field(default_factory=dict)
    """As of the latest sweep, or of the last fingerprint."""
    _incarnations: dict[RankName, str] = field(default_factory=dict)
    _lanes: dict[int, _Lane] = field(default_factory=dict)
    _lane_of: dict[RankName, int] = field(default_factory=dict)
    _reached: dict[RankName, int] = field(default_factory=dict)
    """The last step that a rank had a fingerprint of, in any life."""

    def push(self, now_s: float, tracks: Sequence[RankTrack]) -> None:
        """Take in one sweep: the latest report of every registered rank."""
        present = {track.rank: track for track in tracks}
        self._incarnations = {track.rank: track.identity.incarnation for track in tracks}
        self._lane_of = {rank: lane for rank, lane in self._lane_of.items() if rank in present}
        self.lives = {rank: life for rank, life in self.lives.items() if rank in present}
        self._reached = {rank: step for rank, step in self._reached.items() if rank in present}
        fresh: set[tuple[int, int]] = set()
        for track in tracks:
            if (prints := _prints(track)) is not None:
                fresh |= self._take(now_s, track, prints)
        for lane, step in sorted(fresh):
            self._judge(now_s, lane, step, present)
        self._forget()

    def dissents(self) -> tuple[Dissent, ...]:
        """Disagreements whose ranks all still live the same life; oldest first."""
        dissents = [
            dissent
            for lane in self._lanes.values()
            for dissent in lane.dissents.values()
            if all(
                self._lives_on(rank, dissent.lives[rank])
                for rank in dissent.odd or (rank for side in dissent.sides for rank in side)
            )
        ]
        return tuple(sorted(dissents, key=lambda dissent: (dissent.step, dissent.lane)))

    def _lives_on(self, rank: RankName, life: Life) -> bool:
        """True if it still lives this life: a restarted rank may have no fingerprint yet."""
        return self.lives.get(rank) == life and self._incarnations.get(rank) == life[0]

    def _take(self, now_s: float, track: RankTrack, prints: Prints) -> set[tuple[int, int]]:
        life, rank = (track.identity.incarnation, prints.lineage), track.rank
        lane = self._lanes.setdefault(prints.lane, _Lane())
        reached = self._reached.get(rank, -1)
        if self.lives.get(rank, life) != life and any(row[0] <= reached for row in prints.rows):
            lane.since_s = now_s
        self.lives[rank], self._lane_of[rank] = life, prints.lane
        self._reached[rank] = max((reached, *(row[0] for row in prints.rows)))
        fresh = set()
        for step, value, part in prints.rows:
            rows = lane.steps.setdefault(step, {})
            if rank not in rows or rows[rank].life != life:
                rows[rank] = _Row(value, part, life, now_s)
                fresh.add((prints.lane, step))
        return fresh

    def _judge(
        self, now_s: float, number: int, step: int, present: Mapping[RankName, RankTrack]
    ) -> None:
        lane = self._lanes[number]
        rows = self._comparable(lane, step, present)
        if not rows:
            return
        part = Counter(row.part for row in rows.values()).most_common(1)[0][0]
        values = {rank: row.value for rank, row in rows.items() if row.part == part}
        lives = {rank: rows[rank].life for rank in values}
        missing = self._missing(number, rows, step, present)
        if len(set(values.values())) == 1:
            lane.dissents.pop(step, None)
            if not missing and len({present[rank].group for rank in values}) > 1:
                lane.agreed[part] = lives
            return
        agreed = lane.agreed.get(part, {})
        sides = grouped((values[rank], rank) for rank in sorted(values))
        ordered = sorted(sides.values(), key=lambda side: (-len(side), side))
        voters = {rank for rank, life in lives.items() if agreed.get(rank) == life}
        votes = sorted((len(voters.intersection(side)) for side in ordered), reverse=True)
        first = max(ordered, key=lambda side: (len(voters.intersection(side)), side))
        # a rank that left since takes no vote along
        everyone = max(len(values) + missing, len(agreed))
        decided = votes[0] >= _WITNESSES and 2 * votes[0] > everyone
        lane.dissents[step] = Dissent(
            lane=number,
            step=step,
            part=part,
            odd=tuple(rank for rank in sorted(values) if decided and rank not in first),
            sides=tuple(map(tuple, ordered)),
            lives=lives,
            seen_s=now_s,
            known=len(voters) == len(values),
        )

    def _comparable(
        self, lane: _Lane, step: int, present: Mapping[RankName, RankTrack]
    ) -> dict[RankName, _Row]:
        """Values of live ranks for this step, from their current lives."""
        return {
            rank: row
            for rank, row in lane.steps[step].items()
            if rank in present
            and present[rank].died_s is None
            and row.life == self.lives.get(rank)
            and row.seen_s >= lane.since_s
        }

    def _missing(
        self,
        number: int,
        rows: Mapping[RankName, _Row],
        step: int,
        present: Mapping[RankName, RankTrack],
    ) -> int:
        """Ranks of the lane whose value for this step is missing, and may be anything."""
        members = [rank for rank, own in self._lane_of.items() if own == number]
        absent = [r for r in members if r not in rows and not _over(present[r], step)]
        groups = {track.group for track in present.values() if track.died_s is None}
        seen = (present[rank].step for rank in rows)
        participants = max(
            (state.participants or 0 for state in seen if state is not None), default=0
        )
        share = Counter(present[r].group for r in members)
        unseen = max(0, participants - len(groups)) * max(share.values(), default=1)
        return len(absent) + unseen

    def _forget(self) -> None:
        for number, lane in list(self._lanes.items()):
            for step in sorted(lane.steps)[:-_STEPS_KEPT]:
                del lane.steps[step]
            for step in sorted(lane.dissents)[:-_DISSENTS_KEPT]:
                del lane.dissents[step]
            for part in sorted(lane.agreed)[_PARTS_KEPT:]:
                del lane.agreed[part]
            if number not in self._lane_of.values():
                del self._lanes[number]


def _prints(track: RankTrack) -> Prints | None:
    return None if track.step is None else track.step.prints


def _over(track: RankTrack, step: int) -> bool:
    """True if a rank ended before this step, and so has no voice in it."""
    prints = _prints(track)
    rows = () if prints is None else prints.rows
    return track.died_s is not None and all(row[0] < step for row in rows)


# -- losses ------------------------------------------------------------------------------------

LATEST: Final = 3
"""Samples that are compared with earlier ones."""
_KEPT: Final = 60
_FEWEST: Final = 20
_FLAT: Final = 0.02
"""Share of the median: small changes of a nearly flat loss are no spikes."""


@dataclass(slots=True)
class _Course:
    incarnation: str
    attempt: int
    told: bytes = b""
    """Doubles, oldest first: thousands of ranks have a minute of them."""


@dataclass(slots=True)
class LossBook:
    """The losses of every rank's current incarnation.

    Losses as the ranks report them, a minute of them, and how far off the latest are.

    At most one sample a sweep: the loss of the last completed attempt. Robust: a median and its
    absolute deviation, so that a few high ones do not hide the next.
    """

    _courses: dict[RankName, _Course] = field(default_factory=dict)

    def push(self, tracks: Iterable[RankTrack]) -> None:
        present: list[RankName] = []
        for track in tracks:
            rank, incarnation, step = track.rank, track.identity.incarnation, track.step
            if step is None or not track.participating:
                continue
            present.append(rank)
            ended = step.commits + step.commit_failures
            course = self._courses.get(rank)
            if course is None or course.incarnation != incarnation:
                course = self._courses[rank] = _Course(incarnation, -1)
            if step.loss is not None and ended != course.attempt:
                course.attempt = ended
                course.told = (course.told + struct.pack("d", step.loss))[-8 * _KEPT :]
        if len(self._courses) > len(present):
            for rank in self._courses.keys() - set(present):
                del self._courses[rank]

    def risen(self, rank: RankName, times: float) -> bool:
        """True if the latest samples may be this multiple of the usual one: a cheap first look."""
        losses = self._losses(rank)
        return bool(losses) and losses[-1] > times * min(losses)

    def excess(self, rank: RankName) -> tuple[float, float, float] | None:
        """The smallest robust z-score among the latest samples, the latest loss and the usual one;
        None while there are too few.
        """
        losses = self._losses(rank)
        if not losses:
            return None
        past, latest = losses[:-LATEST], losses[-LATEST:]
        usual = median(past)
        spread = median([abs(loss - usual) for loss in past])
        width = 1.4826 * max(spread, _FLAT * abs(usual), 1e-12)
        return (min(latest) - usual) / width, latest[-1], usual

    def _losses(self, rank: RankName) -> Sequence[float]:
        """Those of a rank, oldest first; empty while there are too few."""
        course = self._courses.get(rank)
        if course is None or len(course.told) < 8 * (_FEWEST + LATEST):
            return ()
        return memoryview(course.told).cast("d").tolist()
