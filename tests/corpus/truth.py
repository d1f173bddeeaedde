"""What an honest reader of the records must say, may say, and must not say.

`must` are culprits whom the records show; a right answer names all of them. `may` are culprits whom
the simulation knows and the records do not clearly show (two members disagree and only history
could decide): naming them is not wrong, leaving them out neither. Everybody else is innocent.

The rules look at the simulated records, through what each recorder noted, never at an analysis.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from tests.corpus.faults import Fault
from tests.corpus.records import Recorder, Writer
from tests.corpus.simulate import Entry, Kernel, Run


@dataclass(frozen=True)
class Truth:
    must: frozenset[int]
    may: frozenset[int]
    kinds: frozenset[str]
    """Names of `Fault` (in monitor.records.findings) that say it right."""


ACCEPTED = {
    "not_entered": {"not_entered", "not_enqueuing", "point_to_point"},
    "most_absent": {"not_entered", "not_enqueuing"},
    "gpu_error": {"gpu_behind", "not_enqueuing", "not_entered"},
    "gpu_hang": {"gpu_behind", "not_enqueuing", "not_entered", "stuck_inside"},
    "stuck_inside": {"stuck_inside", "timed_out"},
    "timed_out": {"stuck_inside", "timed_out"},
    "wrong_size": {"mismatch"},
    "wrong_op": {"mismatch"},
    "wrong_dtype": {"mismatch"},
    "wrong_root": {"stuck_inside", "mismatch"},
    "silent_dtype": {"silent_mismatch"},
    "skipped": {"skipped_collective", "mismatch", "not_entered", "order_inversion"},
    "extra": {"extra_collective", "mismatch", "order_inversion"},
    "extra_last": {"extra_collective"},
    "order_inversion": {"order_inversion", "mismatch"},
    "order_tie": {"order_inversion", "mismatch"},
    "tie": {"mismatch"},
    "send_left_out": {"point_to_point", "order_inversion", "skipped_collective"},
    "transfer_order": {"point_to_point", "order_inversion"},
}


class Evidence:
    """The records of one case, as far as they were written."""

    def __init__(
        self,
        run: Run,
        at: dict[int, float],
        how: Recorder,
        silent: set[int],
        *,
        several: bool = False,
    ) -> None:
        self.run, self.how, self.silent, self.several = run, how, silent, several
        self.writers = {
            rank: Writer(run, rank, at[rank], how) for rank in run.entries if rank not in silent
        }
        self.by_key: dict[tuple[object, ...], dict[int, Entry]] = {}
        for rank, writer in self.writers.items():
            for entry in writer.entries[-how.capacity :]:
                if not entry.ends:
                    for key in entry.kernel.keys:
                        self.by_key.setdefault(key, {})[rank] = entry

    def finished(self, rank: int, entry: Entry) -> bool:
        writer = self.writers[rank]
        if entry.part:
            return entry.kernel.done <= writer.at
        return writer.retired(entry) if not writer.nccl else writer.state(entry) == "completed"

    def members(self, key: tuple[object, ...]) -> tuple[int, ...]:
        members = self.run.programs.teams[int(key[1])].members  # type: ignore[call-overload]
        if key[0] == "p2p":
            return tuple(members[int(i)] for i in key[2:4])  # type: ignore[call-overload]
        return members

    def called(self, rank: int) -> set[tuple[object, ...]]:
        kernels: list[Kernel] = [entry.kernel for entry in self.run.entries[rank]]
        return {key for kernel in kernels for key in kernel.keys}

    def waited_for(self, rank: int) -> bool:
        """Whether somebody is inside a call that needs this rank, which has not made it.

        Inside, not only queued: while another fault holds up everybody, this one harms nobody.
        """
        called = set() if rank in self.silent else self.called(rank)
        return any(
            rank in self.members(key) and key not in called
            and any(self.inside(r, e) for r, e in rows.items())
            for key, rows in self.by_key.items()
        )  # fmt: skip

    def outnumbered(self, rank: int) -> bool:
        """Whether more are idle than have called, in all that waits for it: a call too many?"""
        return all(
            len(rows) < sum(r not in rows and not self.waits(r) for r in self.members(key))
            for key, rows in self.by_key.items()
            if rank in self.members(key) and rank not in rows
            and any(self.inside(r, e) for r, e in rows.items())
        )  # fmt: skip

    def waits(self, rank: int) -> bool:
        """Whether it is inside a call of its own."""
        entries = self.writers[rank].entries if rank in self.writers else []
        return any(self.inside(rank, e) for e in entries if not e.part)

    @property
    def past(self) -> bool:
        """Whether the records tell what a rank called before."""
        return self.how.frames and not self.how.only_active

    def only_missing(self, silent: set[int]) -> bool:
        """Whether somebody is inside a call that everybody made but those without a record."""
        return any(
            set(self.members(key)) - set(rows) <= silent & set(self.members(key))
            and len(rows) < len(self.members(key))
            and any(self.inside(r, e) for r, e in rows.items())
            for key, rows in self.by_key.items()
        )

    def inside(self, rank: int, entry: Entry) -> bool:
        return entry.kernel.started < math.inf and not self.finished(rank, entry)

    def behind(self, rank: int) -> bool:
        """Whether its record shows unfinished what a peer's shows completed."""
        mine = self.first_unfinished(rank)
        for other in self.writers:
            if other == rank:
                continue
            theirs = self.first_unfinished(other)
            for team, seq in mine.items():
                called = self.last_called(other, team)
                if seq < theirs.get(team, called + 1):
                    return True
        return False

    def first_unfinished(self, rank: int) -> dict[int, int]:
        """By group, of collectives."""
        unfinished: dict[int, int] = {}
        for entry in self.writers[rank].entries:
            if not entry.call.p2p and not self.finished(rank, entry):
                unfinished.setdefault(entry.call.team, entry.collective_seq)
        return unfinished

    def last_called(self, rank: int, team: int) -> int:
        entries = self.writers[rank].entries
        seqs = [e.collective_seq for e in entries if e.call.team == team and not e.call.p2p]
        return max(seqs, default=0)

    def not_started(self, rank: int) -> bool:
        """Whether it is scheduled in what it is stuck in first, and a peer has started that."""
        writer = self.writers[rank]
        if not (self.how.timing and writer.nccl):
            return False
        whole = (e for e in writer.entries if not e.ends and not e.part)
        stuck = [e for e in whole if not self.finished(rank, e)]
        if not stuck or writer.state(stuck[0]) != "scheduled":
            return False
        rows = self.by_key.get(stuck[0].kernel.keys[0], {})
        return any(self.writers[r].state(e) == "started" for r, e in rows.items() if r != rank)

    def left_out(self, rank: int, entry: Entry) -> bool:
        """Whether it is not in the record, because only unfinished entries are."""
        return self.how.only_active and self.finished(rank, entry)

    def alone(self, rank: int) -> bool:
        """Whether it is inside a collective that no other member has called."""
        return any(
            key[0] != "p2p" and set(rows) == {rank} and self.inside(rank, rows[rank])
            for key, rows in self.by_key.items()
        )

    def stands_out(self, rank: int, *, mark: str = "", live: bool = True) -> str:
        """`yes`: it brought something else than a strict majority of all members; `somehow`."""
        best = "no"
        for key, rows in self.by_key.items():
            mine = rows.get(rank)
            if key[0] == "p2p" or mine is None or (mark and mine.call.mark != mark):
                continue
            if live and self.finished(rank, mine):
                continue
            visible = [e for r, e in rows.items() if not self.left_out(r, e)]
            shown = Counter(entry.call.shown() for entry in visible)
            if len(shown) < 2:
                continue
            best = "somehow" if best == "no" else best
            common, count = shown.most_common(1)[0]
            begun = not live or sum(self.inside(r, e) for r, e in rows.items()) > 1
            begun = begun and (not live or self.inside(rank, mine))
            if common != mine.call.shown() and 2 * count > len(self.members(key)) and begun:
                return "yes"
        return best


def judge(fault: Fault, kind: str, evidence: Evidence) -> tuple[set[int], set[int]]:
    """(must, may) of one fault that happened."""
    must: set[int] = set()
    may: set[int] = set()
    for rank in fault.culprits:
        verdict = _of_rank(fault, kind, rank, evidence)
        if verdict == "must":
            must.add(rank)
        elif verdict == "may":
            may.add(rank)
    return must, may


def _of_rank(fault: Fault, kind: str, rank: int, evidence: Evidence) -> str:
    if rank in evidence.silent:
        return "must" if evidence.waited_for(rank) else "may"
    rule = _RULES.get(kind)
    return rule(fault, rank, evidence) if rule is not None else ""


def _absent(fault: Fault, rank: int, evidence: Evidence) -> str:
    if evidence.run.halted.get(rank) != fault.mark:
        return ""  # another fault kept it from coming so far: it is a victim
    if evidence.several and evidence.waits(rank):
        return "may"  # it waits for another fault's culprit as its peers do
    if evidence.outnumbered(rank) and not evidence.past:
        return "may"  # it looks as if the few that wait had called once too often
    return "must" if evidence.waited_for(rank) else "may"


def _gpu(fault: Fault, rank: int, evidence: Evidence) -> str:
    shown = evidence.behind(rank) or evidence.not_started(rank)
    idle = evidence.waited_for(rank) and not any(
        not evidence.finished(rank, entry) for entry in evidence.writers[rank].entries
    )
    if shown or idle:
        return "must"
    return "may" if evidence.waited_for(rank) else ""


def _different(fault: Fault, rank: int, evidence: Evidence) -> str:
    out = evidence.stands_out(rank, mark=fault.mark)
    return {"yes": "must", "somehow": "may"}.get(out, "may")


def _silently_different(fault: Fault, rank: int, evidence: Evidence) -> str:
    if evidence.how.only_active:
        # Only while it is under way is it in such a record.
        return "may" if evidence.stands_out(rank, mark=fault.mark) != "no" else ""
    out = evidence.stands_out(rank, mark=fault.mark, live=False)
    return {"yes": "must", "somehow": "may"}.get(out, "")


def _shifted(fault: Fault, rank: int, evidence: Evidence) -> str:
    size = len(evidence.run.programs.teams[fault.team or 0].members)
    if size < 3:
        return "may"
    out = evidence.stands_out(rank)
    if out == "yes" or (fault.kind == "skipped" and evidence.waited_for(rank)):
        return "must"
    if evidence.alone(rank):
        # In a circle it is one against many; alone at the end only history tells.
        return "must" if evidence.waited_for(rank) else _ahead(fault, rank, evidence)
    return "may"


def _ahead(fault: Fault, rank: int, evidence: Evidence) -> str:
    size = len(evidence.run.programs.teams[fault.team or 0].members)
    how = evidence.how
    return "must" if size > 2 and how.frames and not how.only_active else "may"


def _inverted(fault: Fault, rank: int, evidence: Evidence) -> str:
    entries = evidence.writers[rank].entries
    stuck = any(e.call.mark == fault.mark and evidence.inside(rank, e) for e in entries)
    members = evidence.run.programs.teams[fault.team or 0].members
    odd = [
        r for r in members
        if r in evidence.silent
        or any(e.call.mark and evidence.inside(r, e) for e in evidence.writers[r].entries)
    ]  # fmt: skip
    return "must" if 2 * len(odd) < len(members) and stuck else "may"


def _half(fault: Fault, rank: int, evidence: Evidence) -> str:
    return "" if evidence.how.only_active else "may"


def _other_root(fault: Fault, rank: int, evidence: Evidence) -> str:
    return "may" if evidence.behind(rank) else ""


def _only_history(fault: Fault, rank: int, evidence: Evidence) -> str:
    return "may"


_RULES = {
    "not_entered": _absent,
    "most_absent": _absent,
    "gpu_error": _gpu,
    "gpu_hang": _gpu,
    "wrong_size": _different,
    "wrong_op": _different,
    "wrong_dtype": _different,
    "wrong_root": _other_root,
    "silent_dtype": _silently_different,
    "skipped": _shifted,
    "extra": _shifted,
    "extra_last": _ahead,
    "order_inversion": _inverted,
    "tie": _half,
    "order_tie": _half,
    "send_left_out": _only_history,
    "transfer_order": _only_history,
}
"""Not here: failed links and timeouts, which no record of NCCL pins on a rank."""
