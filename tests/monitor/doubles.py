"""Doubles without HTTP: a clock moved by hand, a store that only remembers, a part that breaks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lightkeeper.monitor.model.eviction import QuarantineEntry, QuarantineEvent, Scope
from lightkeeper.monitor.model.names import RankName
from lightkeeper.monitor.model.run import Run
from lightkeeper.monitor.model.work import WorkRow


class HandClock:
    def __init__(self, now_s: float = 1_000_000.0) -> None:
        self.at_s = now_s

    def ahead_s(self) -> float:
        return 0.0

    def troubles(self):
        return iter(())

    def now_s(self) -> float:
        return self.at_s

    def advance(self, seconds: float) -> None:
        self.at_s += seconds


class Memory:
    """What the registry, the quarantine list, the switch and the notifier ask of a store."""

    def __init__(self) -> None:
        self.targets: dict[RankName, Mapping[str, Any]] = {}
        self.quarantine: dict[tuple[Scope, str], QuarantineEntry] = {}
        self.events: dict[str, QuarantineEvent] = {}
        self.switches: dict[str, str | None] = {}
        self.runs: list[Run] = []
        self.work: dict[str, WorkRow] = {}
        self.notices: dict[tuple[str, str], str] = {}
        self.writes = 0

    def save_work(self, row: WorkRow) -> None:
        self.work[row.id] = row

    def drop_work(self, row: WorkRow) -> None:
        self.work.pop(row.id, None)

    def save_target(self, rank: RankName, body: Mapping[str, Any]) -> None:
        self.targets[rank] = body
        self.writes += 1

    def drop_target(self, rank: RankName) -> None:
        self.targets.pop(rank, None)

    def save_quarantine(self, entry: QuarantineEntry) -> None:
        self.quarantine[entry.scope, entry.name] = entry

    def drop_quarantine(self, scope: Scope, name: str) -> None:
        self.quarantine.pop((scope, name), None)

    def save_quarantine_event(self, event: QuarantineEvent) -> None:
        self.events[event.id] = event

    def drop_quarantine_event(self, event: QuarantineEvent) -> None:
        self.events.pop(event.id, None)

    def save_run(self, run: Run) -> None:
        self.runs.append(run)

    def save_switch(self, name: str, body: str | None) -> None:
        self.switches[name] = body

    def save_notice(self, sink: str, key: str, body: Mapping[str, Any] | None) -> None:
        if body is None:
            self.notices.pop((sink, key), None)
        else:
            self.notices[sink, key] = json.dumps(body)

    def flush(self) -> bool:
        return True


class Broken:
    """Every attribute that is called explodes."""

    def __getattr__(self, name: str):
        def explode(*_, **__):
            raise RuntimeError(f"{name} is broken")

        return explode
