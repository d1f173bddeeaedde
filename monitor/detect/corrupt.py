"""Corrupt state (class X): not finite, unequal replicas, a loss that jumps; one verdict a group.

While numbers are not finite nothing else is reported: one NaN is not bitwise another's, and a NaN
loss does not jump. A loss that jumps in one group alone is reported, and evicts nobody; in all
groups at once it comes from the optimiser or the data, and is not reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from lightkeeper.monitor.detect.history import History
from lightkeeper.monitor.detect.track import RankTrack
from lightkeeper.monitor.detect.weights import LATEST, Dissent
from lightkeeper.monitor.model.names import GroupName, RankName, group_of
from lightkeeper.monitor.model.units import grouped
from lightkeeper.monitor.model.verdict import Confidence, Kind, Verdict
from lightkeeper.monitor.model.wording import does, groups_of, listed, plural
from lightkeeper.worker_server.wire import Spoilt

# -- not finite --------------------------------------------------------------------------------

_TURN_S: Final = 2.0
"""A smaller difference in age between two hosts, polled in one sweep, means nothing."""


def _spoilt(track: RankTrack) -> Spoilt | None:
    return None if track.step is None else track.step.spoilt


def _in_spell(track: RankTrack) -> bool:
    """True if the rank's last attempt was not finite."""
    spoilt = _spoilt(track)
    return spoilt is not None and spoilt.run > 0


@dataclass(frozen=True, slots=True)
class Spell:
    """One rank whose numbers are not finite, or recently were not."""

    rank: RankName
    group: GroupName
    spoilt: Spoilt
    since_s: float


def spells(history: History) -> Iterable[Spell]:
    """Ranks that are not finite, or were not a moment ago."""
    for track in history.present():
        spoilt = _spoilt(track)
        if spoilt is None or _harmless(history, track, spoilt):
            continue
        since_s = (track.seen_s if track.report_s is None else track.report_s) - spoilt.age_s
        if spoilt.run or history.now_s - since_s < history.config.spell_shown_s:
            yield Spell(track.rank, track.group, spoilt, since_s)


def not_finite(history: History, cases: Sequence[Spell]) -> Iterable[Verdict]:
    """Numbers that are not finite (X): the rank with the first NaN or Inf, or that it is unknown.

    TorchFT commits a NaN to all groups, so that a step later nobody is finite. The rank that saw it
    in the earliest step, in its own numbers and before any exchange, is the culprit, and only once
    every other group has shown that it was finite in that step. Two groups in one step: ambiguous.

    An eviction is requested only while it fixes something: not when everybody is NaN already, and
    not for a NaN that came once and was voted down (bad data, or a loss scaler working as it
    should).
    """
    if not cases:
        return
    step = min(case.spoilt.first_step for case in cases)
    seen = [case for case in cases if case.spoilt.first_step == step]
    own = [case for case in seen if case.spoilt.where != "exchanged"]
    first = own or seen
    groups = {case.group for case in first}
    others = {name: ranks for name, ranks in history.groups().items() if name not in groups}
    unknown = sorted(name for name, ranks in others.items() if not _was_finite(ranks, step))
    if unknown and history.now_s - min(case.since_s for case in first) < history.config.silent_s:
        return  # they may have been first: look again
    why = _doubt(cases, first, unknown, own=bool(own))
    if why is not None:
        yield _cannot_tell(cases, own or cases, why)
    else:
        yield _culprit(history, cases, first)


def _harmless(history: History, track: RankTrack, spoilt: Spoilt) -> bool:
    """True if a rank does not train on what it reports: a stage without a loss, a mean over no
    tokens. Commits reach everybody; two steps later others would not be finite.
    """
    beyond = spoilt.first_step + 2
    return (
        spoilt.run > 0
        and _committed(track, beyond)
        and any(
            _says(other) and not _in_spell(other) and _committed(other, beyond)
            for other in history.present()
        )
    )


def _committed(track: RankTrack, step: int) -> bool:
    state = track.step
    return state is not None and state.committed_step is not None and state.committed_step >= step


def _was_finite(ranks: Sequence[RankTrack], step: int) -> bool:
    """True if a group showed that it was finite in its own part of this step."""
    saying = [track for track in ranks if track.step is not None and _says(track)]
    if not saying:  # a group that has never committed had no part in it
        return all(track.commits == 0 for track in ranks)
    return all(_passed(track, step) for track in saying)


def _says(track: RankTrack) -> bool:
    step = track.step
    return step is not None and (
        step.loss is not None
        or not step.loss_finite
        or step.spoilt is not None
        or step.gradients_watched
    )


def _passed(track: RankTrack, step: int) -> bool:
    """True if a rank completed a step in which its own numbers were finite."""
    state, spoilt = track.step, _spoilt(track)
    if state is None:
        return False
    if spoilt is not None and (spoilt.run or spoilt.first_step >= step):
        # one that was never finite in this life shows nothing about earlier
        later = spoilt.first_step > step and spoilt.attempts < state.attempt
        return later or (spoilt.first_step == step and spoilt.where == "exchanged")
    if track.died_s is not None:
        return True  # its page was read to the end, and reports nothing
    return _committed(track, step) or state.step > step


def _doubt(
    cases: Sequence[Spell], first: Sequence[Spell], unknown: Sequence[GroupName], *, own: bool
) -> str | None:
    """Why the first seen need not be the first; None: they are."""
    groups = sorted({case.group for case in first})
    if not own:
        return "it came with what was exchanged, and nobody says that it was its own"
    if len(groups) > 1:
        same = "were so in the same step: bad data, a learning rate or the program"
        return f"{listed(groups)} {same}"
    if unknown:
        return f"{listed(unknown)} cannot be seen to have been finite then"
    since_s = min(case.since_s for case in first) - _TURN_S
    for case in cases:
        if case.group not in groups and case.since_s < since_s:
            return f"{case.rank} was so earlier by the clock, at step {case.spoilt.first_step}"
    return None


def _cannot_tell(cases: Sequence[Spell], first: Sequence[Spell], why: str) -> Verdict:
    ranks = tuple(sorted(case.rank for case in first))
    step = min(case.spoilt.first_step for case in first)
    return Verdict(
        kind=Kind.STATE_CORRUPT,
        culprits=ranks,
        reason=f"{does(ranks, 'has')} had numbers that are not finite since step {step}; "
        f"cannot tell which was first: {why}",
        since_s=min(case.since_s for case in first),
        victims=tuple(sorted(case.rank for case in cases if case not in first)),
        evidence={case.rank: _seen(case.spoilt) for case in cases},
        signature="state_corrupt:not_finite",
    )


def _culprit(history: History, cases: Sequence[Spell], first: Sequence[Spell]) -> Verdict:
    nearest = [case for case in first if case.spoilt.where == "local"] or first
    group, step = nearest[0].group, nearest[0].spoilt.first_step
    local = nearest[0].spoilt.where == "local"
    whose = nearest if local else history.groups()[group]  # the sum is as much of its other ranks
    ranks = tuple(sorted(each.rank for each in whose))
    others = [t for t in history.present() if t.group != group and _says(t)]
    poisoned = tuple(sorted(t.rank for t in others if _in_spell(t)))
    spare = _spare(
        history,
        run=max(case.spoilt.run for case in nearest),
        step=step,
        everybody=len(poisoned) == len(others) > 0,
    )
    shared = not local and len(ranks) > 1  # whose it is matters less once the whole group has to go
    return Verdict(
        kind=Kind.STATE_CORRUPT,
        culprits=ranks,
        groups=(group,),
        reason=f"{does(ranks, 'was')} the first that {plural(ranks, 'was', 'were')} not finite, at "
        f"step {step}, {_where(poisoned, local=local, shared=shared)}",
        confidence=Confidence.UNSURE if shared and spare else Confidence.LIKELY,
        since_s=min(case.since_s for case in nearest),
        victims=poisoned,
        evidence={case.rank: _seen(case.spoilt) for case in cases},
        signature="state_corrupt:not_finite",
        spare=spare,
    )


def _where(followers: Sequence[RankName], *, local: bool, shared: bool) -> str:
    where = "its own loss or gradient" if local else "the sum of its group"
    then = f"{listed(followers)} followed" if followers else ""
    whose = "; cannot tell whose part of the sum it was" if shared else ""
    return f"in {where}; {then or 'every other group was finite in that step'}{whose}"


def _seen(spoilt: Spoilt) -> str:
    now = f"{spoilt.run} attempts in a row" if spoilt.run else "finite again"
    return f"not finite from step {spoilt.first_step}, seen {spoilt.where}; {now}"


def _spare(history: History, *, run: int, step: int, everybody: bool) -> str:
    """Why an eviction would not fix it, or is not needed; empty: it is."""
    if everybody:
        return (
            "no group is finite by now, and no eviction fixes that: go back to a checkpoint "
            f"from before step {step}"
        )
    needed = history.config.spoilt_attempts
    if run >= needed:
        return ""
    if not run:
        return "it is finite again: only that step was lost"
    return f"{run} of the {needed} attempts in a row that an eviction needs"


# -- unequal -----------------------------------------------------------------------------------


def unequal(history: History) -> Iterable[Verdict]:
    """Unequal replicas (X): silent corruption, by fingerprints of the weights. A verdict per group.

    The culprit is the odd one out of a lane, at two steps (see `monitor.detect.weights` for who may
    vote). With two sides and no majority it is unknown.
    """
    dissents = history.prints.dissents()
    by_ranks = grouped(((dissent.lane, _concerned(dissent)), dissent) for dissent in dissents)
    confirmed = [series for series in by_ranks.values() if len(series) > 1]
    accused: dict[GroupName, list[Dissent]] = {}
    for series in confirmed:
        if series[-1].odd and not _contradicted(series[-1], dissents):
            for group in groups_of(series[-1].odd):
                accused.setdefault(group, []).extend(series)
    yield from (_odd_one(group, series) for group, series in sorted(accused.items()))
    for series in confirmed:
        ranks = _concerned(series[-1])
        if not any(group in accused for group in groups_of(ranks)):
            yield _unknown(series)
            accused.update(dict.fromkeys(groups_of(ranks), series))


def _concerned(dissent: Dissent) -> tuple[RankName, ...]:
    return dissent.odd or tuple(sorted(rank for side in dissent.sides for rank in side))


def _contradicted(last: Dissent, dissents: Sequence[Dissent]) -> bool:
    """True if other ranks altogether were the odd ones at another step."""
    return any(
        other.lane == last.lane and other.odd and not set(other.odd) & set(last.odd)
        for other in dissents
    )


def _odd_one(group: GroupName, series: Sequence[Dissent]) -> Verdict:
    ranks = tuple(sorted({r for dissent in series for r in dissent.odd if group_of(r) == group}))
    last = max(series, key=lambda dissent: (dissent.step, dissent.lane))
    return Verdict(
        kind=Kind.STATE_CORRUPT,
        culprits=ranks,
        groups=(group,),
        reason=f"the weights of {listed(ranks)} differ from those of {len(last.sides[0])} ranks "
        f"that are equal to each other, after {_steps(series)}: they were equal before",
        confidence=Confidence.CERTAIN,
        since_s=min(dissent.seen_s for dissent in series),
        evidence=_sides(series),
        signature="state_corrupt:unequal",
    )


def _unknown(series: Sequence[Dissent]) -> Verdict:
    last, ranks = series[-1], _concerned(series[-1])
    why = "no majority was equal before and is now"
    if not last.known:
        why = (
            "they were not all seen to be equal before; a heal came between, or they differ by "
            "design and should take no fingerprints (replicas_equal=False)"
        )
    return Verdict(
        kind=Kind.STATE_CORRUPT,
        culprits=ranks,
        reason=f"the weights of {' and '.join(listed(side) for side in last.sides[:3])} differ "
        f"after {_steps(series)}, cannot tell which is right: {why}",
        since_s=series[0].seen_s,
        evidence=_sides(series),
        signature="state_corrupt:unequal",
    )


def _steps(series: Sequence[Dissent]) -> str:
    steps = {dissent.step for dissent in series}
    return f"steps {min(steps)} and {max(steps)}"


def _sides(series: Sequence[Dissent]) -> dict[str, str]:
    return {
        f"step {dissent.step}": " | ".join(listed(side) for side in dissent.sides)
        for dissent in series[-4:]
    }


# -- corrupt -----------------------------------------------------------------------------------

_ALSO: Final = 0.5
"""Share of the threshold at which another group's loss has also risen."""
_RISE: Final = 1.3
"""A jump worth reporting: the loss is this multiple of what it was."""


def corrupt(history: History) -> Iterable[Verdict]:
    """Wrong numbers (X): not finite, else unequal, else a loss that jumps. A verdict per group."""
    cases = tuple(spells(history))
    accused: set[GroupName] = set()
    if not any(case.spoilt.run for case in cases):
        others = [*unequal(history)] or [*_jumps(history)]
        accused.update(group for verdict in others for group in verdict.groups)
        yield from others
    yield from (v for v in not_finite(history, cases) if accused.isdisjoint(v.groups))


def _jumps(history: History) -> Iterable[Verdict]:
    limit = history.config.spike_z
    if not any(history.losses.risen(track.rank, _RISE) for track in history.present()):
        return
    seen = []
    for track in history.present():
        excess = history.losses.excess(track.rank) if track.participating else None
        if excess is not None:
            seen.append((track, excess))
    risen = {track.group for track, (z, _, _) in seen if z > limit * _ALSO}
    if len(risen) != 1 or len({track.group for track, _ in seen}) < 2:
        return
    jumps = [
        (track, now, usual) for track, (z, now, usual) in seen if z > limit and now > _RISE * usual
    ]
    if not jumps:
        return
    ranks = tuple(track.rank for track, _, _ in jumps)
    _, now, usual = jumps[0]
    yield Verdict(
        kind=Kind.STATE_CORRUPT,
        culprits=ranks,
        reason=f"the loss of {listed(ranks)} is {now:.3g} where it was {usual:.3g}, in the last "
        f"{LATEST} looks, and that of no other group has risen",
        confidence=Confidence.LIKELY,
        since_s=history.now_s,
        evidence={t.rank: f"loss {now:.4g}, usual {usual:.4g}" for t, now, usual in jumps},
        signature="state_corrupt:loss",
        spare="a loss alone evicts nobody: it may be the data of that group",
    )
