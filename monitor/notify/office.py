"""All sinks together: what a tick hands over, and what is stored of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from monitor.config import KeeperConfig
from monitor.fetch import Fetcher
from monitor.metrics import Instruments
from monitor.notify.courier import Courier
from monitor.notify.ledger import Ledger, Wanted
from monitor.notify.notices import Event, Known, Notice, notices
from monitor.notify.sinks import Sink


class Desk(Protocol):
    """Where what was sent is kept."""

    def save_notice(self, sink: str, key: str, body: Mapping[str, Any] | None) -> None:
        """Write one row; None forgets it."""
        ...

    def flush(self, wait_s: float = ...) -> bool:
        """Write to disk."""
        ...


class Office:
    """Hands every tick to every courier. Close it when done."""

    def __init__(
        self,
        sinks: Sequence[Sink],
        *,
        fetcher: Fetcher,
        desk: Desk,
        instruments: Instruments,
        config: KeeperConfig,
        url: str,
        remembered: Iterable[tuple[str, str, Mapping[str, Any]]] = (),
        first_s: float = 1.0,
    ) -> None:
        self._hold_s, self._url = config.notify_hold_s, url
        self._failed: dict[str, float] = {}
        """Since when each eviction is known to have failed."""
        ledgers = {
            sink.name: Ledger(sink, partial(desk.save_notice, sink.name), config.notify_give_up_s)
            for sink in sinks
        }
        for name, key, body in remembered:
            ledger = ledgers.get(name)
            if ledger is None:
                desk.save_notice(name, key, None)  # a sink that is configured no more
            else:
                ledger.restore(key, body)
        self._couriers = tuple(
            Courier(
                sink, ledgers[sink.name], fetcher, instruments, stored=desk.flush, first_s=first_s
            )
            for sink in sinks
        )

    def push(self, known: Known) -> None:
        """One tick; never waits for a sink."""
        if not self._couriers:
            return
        found = self._lasting(notices(known, url=self._url, hold_s=self._hold_s), known.now_s)
        wanted = Wanted(known.now_s, found, tuple(known.incidents))
        for courier in self._couriers:
            courier.push(wanted)

    def _lasting(self, found: dict[str, Notice], now_s: float) -> dict[str, Notice]:
        """Without evictions that failed just now: one that a restart of the monitor cut short is
        asked again, and one of a group that had restarted is resolved.
        """
        failed = [key for key, one in found.items() if one.event is Event.EVICTION_FAILED]
        self._failed = {key: self._failed.get(key, now_s) for key in failed}
        young = {key for key in failed if now_s - self._failed[key] < self._hold_s}
        return {key: one for key, one in found.items() if key not in young}

    def troubles(self) -> tuple[str, ...]:
        """Sinks that do not take messages, one sentence each."""
        return tuple(one.trouble for one in self._couriers if one.trouble is not None)

    def close(self) -> None:
        """Stop all."""
        for courier in self._couriers:
            courier.close()
