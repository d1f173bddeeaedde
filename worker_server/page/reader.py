"""The sidecar's side of the page: turns words into wire types, whatever the writer is doing."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worker_server import wire
from worker_server.identity import name_in_replica_id, renamed
from worker_server.page import layout
from worker_server.page.aside_reader import AsideReader
from worker_server.page.mapped import NS
from worker_server.page.steps import StepsRing

_PHASES = struct.Struct(f"@{2 * layout.PHASE_SLOT_WORDS + layout.MAX_PHASES}q")
_STEP_SLOT = struct.Struct("@q" + layout.STEP_BODY.format[1:])
_RING_SLOT = struct.Struct("@q" + layout.RING_BODY.format[1:])
_RING_TAIL_WORD = _RING_SLOT.size // layout.WORD - 1


_NO_STEP = (0, 0, 0, layout.NONE, layout.NONE, layout.NONE, 0, 0, layout.NO_STRING, 0,
            layout.LOSS_ABSENT, layout.NONE, 0, 0.0)  # fmt: skip


def _or_none(value: int) -> int | None:
    return None if value == layout.NONE else value


def _bounded(loss: float) -> float | None:
    """One that diverges is told as the greatest that the wire takes."""
    bound = math.copysign(wire.NUMBER_MAX, loss)
    return (loss if abs(loss) <= abs(bound) else bound) if math.isfinite(loss) else None


class PageReader(AsideReader):
    """Reads one page file.

    Raises:
        layout.PageError: the file is foreign, cut short, or of another version.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._members: dict[int, tuple[str, tuple[int, ...]]] = {}
        self._steps = StepsRing(self._map, self._phase_names)
        self.refused: str | None = None
        """A name that is another group's."""
        self.known_as: str | None = None
        """What the group's Manager was called before this process, until there is a new one."""
        self._named: wire.GroupName | None = None
        self._identity = self._launched

    @property
    def identity(self) -> wire.Identity:
        """Who it is: its group's name is the Manager's, once there is one whose name will do."""
        replica = self._words[layout.W_REPLICA]
        told = name_in_replica_id(self._string(replica) if replica else self.known_as)
        if told == self.refused:
            told = None
        if told != self._named:
            self._named, self._identity = told, renamed(self._launched, told)
        return self._identity

    @property
    def closed(self) -> bool:
        """Whether the rank said that its work is over."""
        return bool(self._words[layout.W_CLOSED] & 1)

    @property
    def leaving(self) -> bool:
        """Whether its interpreter is in its last steps."""
        return bool(self._words[layout.W_CLOSED] & 2)

    @property
    def backends(self) -> list[str]:
        """Of all process groups that the rank has had."""
        return list(filter(None, self._string(self._words[layout.W_BACKENDS]).split(",")))

    @property
    def unhooked(self) -> tuple[str, ...]:
        """What the hooks did not find in this version of a library."""
        return tuple(filter(None, self._string(self._words[layout.W_UNHOOKED]).split(",")))

    @property
    def progress(self) -> int:
        """Phase changes so far."""
        return self._phase_now()[0]

    def beat_age_s(self, now_ns: int) -> float:
        """Seconds since a Python thread of the rank last ran, as far as the page can tell."""
        _, (_, since) = self._phase_now()
        return max(0, now_ns - max(self._words[layout.W_BEAT], since)) * NS

    # -- step -----------------------------------------------------------------------------

    def step_state(self, now_ns: int) -> wire.StepState | None:
        """What the rank reports of itself; None when it never reported anything."""
        if not (any(self._phases_begun()) or self._begun()[0] or self._step_slot()):
            return None
        return self._build_step(now_ns, *self._phase_and_seconds())

    def _build_step(
        self, now_ns: int, phase: tuple[int, int, int], seconds: Mapping[str, float]
    ) -> wire.StepState:
        progress, phase_id, since = phase
        names = self._phase_names()
        name = names[phase_id] if 0 <= phase_id < len(names) else layout.FIRST_PHASES[0]
        started = since or self._words[layout.W_STARTED]
        begun, begun_step = self._begun()
        row = self._step_slot() or _NO_STEP
        (step, attempt, commits, last_commit, quorum, participants, healing, errored, replica,
         tokens, loss_kind, committed_step, failures, loss) = row  # fmt: skip
        if begun > attempt:
            step, attempt = begun_step, begun
        waits_in, waits_s, waited_s = self.waits(now_ns)
        return wire.StepState(
            step=step,
            attempt=max(0, attempt),
            progress=max(0, progress),
            phase=name,
            phase_age_s=max(0, now_ns - started) * NS,
            commits=max(0, commits),
            last_commit_age_s=(
                None if last_commit == layout.NONE else max(0, now_ns - last_commit) * NS
            ),
            replica_id=wire.ReplicaId(self._string(replica)) if replica else None,
            quorum_id=_or_none(quorum),
            participants=None if participants < 0 else participants,
            healing=bool(healing),
            errored=bool(errored),
            loss=_bounded(loss) if loss_kind == layout.LOSS_FINITE else None,
            loss_finite=loss_kind != layout.LOSS_NOT_FINITE,
            tokens=tokens,
            seconds=seconds,
            committed_step=_or_none(committed_step),
            commit_failures=max(0, failures),
            held_s=self.held_s(),
            tags=self.tags(),
            counters=self.counters(),
            source=self.source(),
            spoilt=self.spoilt(now_ns),
            prints=self.prints(),
            times={name: took for name, took in self.times().items() if name in wire.TIMES},
            waits_in=waits_in,
            waits_s=waits_s,
            waited_s=waited_s,
            gradients_watched=self._words[layout.W_GRADIENTS] == 1,
        )

    def _phases_begun(self) -> tuple[int, int]:
        first = layout.PHASE_WORD
        return self._words[first], self._words[first + layout.PHASE_SLOT_WORDS]

    def _phase_and_seconds(self) -> tuple[tuple[int, int, int], dict[str, float]]:
        """The running phase, and seconds of the finished ones as they were when it began."""

        def copy() -> tuple[int, ...] | None:
            begun = self._phases_begun()
            blob = self._copy(layout.PHASE_WORD, _PHASES.size)
            return _PHASES.unpack(blob) if self._phases_begun() == begun else None

        numbers = self._retry(copy) or _PHASES.unpack(self._copy(layout.PHASE_WORD, _PHASES.size))
        slots = numbers[: layout.PHASE_SLOT_WORDS], numbers[layout.PHASE_SLOT_WORDS :]
        whole = [(last, phase, since) for first, phase, since, last, *_ in slots if first == last]
        _, running, since = phase = max(whole, default=(0, layout.PHASE_INIT, 0))
        spent = list(numbers[2 * layout.PHASE_SLOT_WORDS :])
        started = self._words[layout.W_STARTED]
        ahead = sum(spent) - (since or started) + started
        if 0 <= running < len(spent):
            spent[running] -= max(0, min(ahead, spent[running]))
        pairs = zip(self._phase_names(), spent, strict=False)
        return phase, {name: ns * NS for name, ns in pairs if ns > 0}

    def _phase_now(self) -> tuple[int, tuple[int, int]]:
        """Progress, and (phase, since); zeros are what a fresh page says."""

        def load(slot: int) -> tuple[int, tuple[int, int], int]:
            word = layout.PHASE_WORD + slot * layout.PHASE_SLOT_WORDS
            last = self._words[word + 3]
            return last, (self._words[word + 1], self._words[word + 2]), self._words[word]

        return self._newest(load) or (0, (layout.PHASE_INIT, 0))

    def _begun(self) -> tuple[int, int]:
        """The attempt that was begun last, and its step."""

        def load(slot: int) -> tuple[int, int, int]:
            word = layout.W_BEGUN + slot * layout.BEGUN_SLOT_WORDS
            last = self._words[word + 2]
            return last, self._words[word + 1], self._words[word]

        return self._newest(load) or (0, 0)

    def _step_slot(self) -> tuple[Any, ...] | None:
        """The newest whole step body, None before the first."""

        def load(slot: int) -> tuple[int, tuple[Any, ...], int]:
            word = layout.STEP_WORD + slot * layout.STEP_SLOT_WORDS
            last = self._words[word + _STEP_SLOT.size // layout.WORD - 1]
            row = _STEP_SLOT.unpack(self._copy(word, _STEP_SLOT.size))
            return last, row[1:-1], self._words[word]

        newest = self._newest(load)
        return None if newest is None or not newest[0] else newest[1]

    def _phase_names(self) -> list[str]:
        return self._names(layout.PHASE_NAME_OFFSET, layout.W_PHASES, layout.MAX_PHASES)

    def steps(self, since_attempt: int, now_ns: int) -> tuple[tuple[wire.StepRow, ...], int]:
        """Attempts after this one that are over, oldest first, and how many are lost."""
        return self._steps.since(since_attempt, now_ns)

    # -- process groups -------------------------------------------------------------------

    def heads(self, now_ns: int) -> tuple[wire.GroupHead, ...]:
        """Where the rank stands in every process group."""
        heads = []
        for index in range(self._group_count()):
            name, _ = self._group(index)
            size, enqueued, completed, op, entered, left, inside, _ = self._head(index)
            completed = max(0, completed)
            enqueued = max(enqueued, completed)
            since = entered if enqueued > completed else max(entered, left)
            heads.append(
                wire.GroupHead(
                    name=name,
                    size=max(0, size),
                    enqueued=enqueued,
                    completed=completed,
                    op=self._string(op),
                    age_s=max(0, now_ns - since) * NS if since else 0.0,
                    inside=min(max(0, inside), enqueued),
                )
            )
        return tuple(heads)

    def _head(self, index: int) -> tuple[int, ...]:
        offset = layout.GROUP_OFFSET + index * layout.GROUP_BYTES + layout.GROUP_HEAD_OFFSET
        word = offset // layout.WORD

        def read() -> tuple[int, ...] | None:
            before = self._words[word + 1], self._words[word + 2]
            row = tuple(self._words[word : word + layout.GROUP_HEAD_WORDS])
            after = self._words[word + 1], self._words[word + 2]
            return row if before == after else None

        return self._retry(read) or tuple(self._words[word : word + layout.GROUP_HEAD_WORDS])

    def members(self) -> dict[str, tuple[int, ...]]:
        """Group ranks of the members of every process group that the rank could name."""
        groups = (self._group(index) for index in range(self._group_count()))
        return {name: members for name, members in groups if members}

    def _group_count(self) -> int:
        return min(self._words[layout.W_GROUPS], layout.MAX_GROUPS)

    def _group(self, index: int) -> tuple[str, tuple[int, ...]]:
        known = self._members.get(index)
        if known is None:
            offset = layout.GROUP_OFFSET + index * layout.GROUP_BYTES
            name = self._text(offset, layout.GROUP_NAME_BYTES)
            text = self._text(offset + layout.GROUP_NAME_BYTES, layout.GROUP_MEMBERS_BYTES)
            known = self._members[index] = name, layout.decode_members(text)
        return known

    # -- the ring ---------------------------------------------------------------------------

    @property
    def entered(self) -> int:
        """Collectives entered so far, over all process groups."""
        return sum(
            self._words[
                (layout.GROUP_OFFSET + n * layout.GROUP_BYTES + layout.GROUP_HEAD_OFFSET)
                // layout.WORD + 1
            ]
            for n in range(self._group_count())
        )  # fmt: skip

    def ring(self, now_ns: int) -> tuple[tuple[wire.RingEntry, ...], int]:
        """The collectives, oldest first, and how many the ring has overwritten.

        A slot that is being written right now is left out.
        """
        rows = []
        for index in range(layout.RING_SLOTS):
            offset = layout.RING_OFFSET + index * layout.RING_SLOT_BYTES
            last = self._words[offset // layout.WORD + _RING_TAIL_WORD]
            row = _RING_SLOT.unpack(self._copy(offset // layout.WORD, _RING_SLOT.size))
            if last > 0 and self._words[offset // layout.WORD] == last:
                rows.append((last, row[1:-1]))
        rows.sort()
        dropped = max(0, rows[-1][0] - layout.RING_SLOTS) if rows else 0
        return tuple(self._entry(number, row, now_ns) for number, row in rows), dropped

    def _entry(self, number: int, row: tuple[Any, ...], now_ns: int) -> wire.RingEntry:
        (group, seq, op, dtype, reduce_op, root, step, attempt, nth, site, entered, left, error,
         flags, shapes) = row  # fmt: skip
        quorum = flags >> layout.RING_QUORUM_SHIFT
        text = bytes(shapes).split(b"\0", 1)[0].decode(errors="replace")
        sizes_in, sizes_out = layout.decode_shapes(text)
        return wire.RingEntry(
            group=self._group(group)[0],
            seq=max(0, seq),
            op=self._string(op),
            sizes_in=sizes_in,
            sizes_out=sizes_out,
            dtype=self._string(dtype) or None,
            reduce_op=self._string(reduce_op) or None,
            root=_or_none(root),
            step=_or_none(step),
            attempt=_or_none(attempt),
            nth=max(0, nth),
            site=self._string(site) or None,
            enter_age_s=max(0, now_ns - entered) * NS,
            exit_age_s=max(0, now_ns - left) * NS if left else None,
            error=self._string(error) or None,
            is_async=bool(flags & 1),
            id=number,
            quorum=quorum - 1 if quorum > 0 else None,
        )
