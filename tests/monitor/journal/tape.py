"""A pipeline whose ticks are journalled in memory, and what comes of replaying them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from lightkeeper.monitor.decide.pipeline import Pipeline, TickResult
from lightkeeper.monitor.detect.detectors import DETECTORS
from lightkeeper.monitor.journal import memory
from lightkeeper.monitor.journal.entries import (
    Head,
    Packer,
    head_from_json,
    head_text,
    outcome_of,
    tick_from_json,
    tick_text,
)
from lightkeeper.monitor.journal.replay import Replay, Replayed
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.observation import Snapshot


def remembered(pipeline: Pipeline, config: KeeperConfig) -> dict[str, Any]:
    return memory.Writer(config).plain(memory.freeze(dict(pipeline.memory())))


@dataclass
class Tape:
    """Stands in for a pipeline and writes down every tick; a new file every `turn_every`."""

    pipeline: Pipeline
    config: KeeperConfig
    turn_every: int = 40
    files: list[list[bytes]] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)
    results: list[TickResult] = field(default_factory=list)

    def tick(self, snapshot: Snapshot) -> TickResult:
        if len(self.snapshots) % self.turn_every == 0:
            self.turn()
        result = self.pipeline.tick(snapshot)
        self.snapshots.append(snapshot)
        self.results.append(result)
        text = b"".join(tick_text(snapshot, outcome_of(result), self._writer))
        self.files[-1].append(text)
        return result

    def turn(self) -> None:
        """Begin another file, with the whole memory of this moment."""
        self._writer = memory.Writer(self.config)
        after = self.snapshots[-1].tick if self.snapshots else 0
        began_s = self.snapshots[-1].now_s if self.snapshots else 1.0
        number = len(self.files) + 1
        head = Head(self.config, "1.2.3", "run", number, began_s=began_s, after_tick=after)
        self.files.append([head_text(head, remembered(self.pipeline, self.config))])

    def packed(self, number: int = 0) -> bytes:
        """The bytes of a file."""
        packer = Packer()
        return b"".join(packer.line(text) for text in self.files[number]) + packer.end()

    def check(self, *, all_files: bool = True) -> None:
        """Every file (else the first two and the last), alone, gives the snapshots, the decisions
        and the memory that were."""
        if self.pipeline._detectors != DETECTORS:
            return
        last = len(self.files) - 1
        for number, texts in enumerate(self.files):
            if not (all_files or number in (0, 1, last)):
                continue
            replay, ticks = replay_file(texts)
            start = number * self.turn_every
            assert len(ticks) == min(self.turn_every, len(self.snapshots) - start)
            for place, replayed in enumerate(ticks, start):
                assert replayed.tick.snapshot == self.snapshots[place]
                assert replayed.difference() is None
                assert replayed.result == self.results[place]
            expected = dict(self.pipeline.memory())
            if number < last:
                told_next = json.loads(self.files[number + 1][0])["memory"]
                expected = memory.Reader(self.config).read(told_next)
            assert replay.pipeline is not None
            assert dict(replay.pipeline.memory()) == expected

    def __getattr__(self, name: str):
        return getattr(self.pipeline, name)


def replay_file(texts: list[str], **changes) -> tuple[Replay, list[Replayed]]:
    """A file replayed alone."""
    replay, head = Replay(changes), head_from_json(json.loads(texts[0]))
    reader = memory.Reader(head.config)
    replay.begin(head)
    ticks = (tick_from_json(json.loads(text), reader) for text in texts[1:])
    return replay, [replay.tick(tick) for tick in ticks]
