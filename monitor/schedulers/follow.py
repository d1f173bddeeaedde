"""Makes the schedulers agree with the quarantine list, each in a thread of its own.

Nothing waits for these threads: a tick does not, and a scheduler that hangs delays no other. They
look at the list themselves, once a second, so that it does not matter who changed it. In observe
mode, and on a monitor that stands by, they do nothing; a monitor that takes over reads back what is
ours, as one that starts does.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from monitor.metrics import Instruments
from monitor.schedulers.agreement import Action, Agreement, Wanted
from monitor.schedulers.protocol import Outcome, Scheduler

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 20.0
"""Of one request. `scontrol` gives up after MessageTimeout, 10 s by default."""
_BREATH_S: Final = 1.0
_RECALL_AGAIN_S: Final = 60.0


class Follower:
    """One scheduler's thread. Close it when done."""

    def __init__(
        self,
        scheduler: Scheduler,
        quarantined: Callable[[], Sequence[Wanted]],
        may_act: Callable[[], bool],
        instruments: Instruments,
        *,
        breath_s: float = _BREATH_S,
        timeout_s: float = TIMEOUT_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scheduler = scheduler
        self._quarantined = quarantined
        self._may_act = may_act
        self._instruments = instruments
        self._breath_s = breath_s
        self._timeout_s = timeout_s
        self._now = now
        self._agreement: Agreement | None = None
        """None while this monitor may not act."""
        self._recall_s: float | None = None
        """When to read back what is ours; None: it is known."""
        self._trouble: str | None = None
        self._troubles: tuple[str, ...] = ()
        self._closing = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"scheduler {scheduler.name}", daemon=True
        )
        self._thread.start()

    def troubles(self) -> tuple[str, ...]:
        """What does not succeed, one sentence each."""
        return self._troubles

    def close(self, timeout_s: float = 1.0) -> None:
        """Stop; what is under way gets `timeout_s`."""
        self._closing.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self.round()
                self._trouble = None
            except Exception as exc:
                if self._trouble is None:
                    log.exception("scheduler %s crashed", self.scheduler.name)
                self._trouble = f"crashed: {type(exc).__name__}: {exc}"
            self._tell()
            self._closing.wait(self._breath_s)

    def round(self) -> None:
        """One look at the list, and what is due by it."""
        if not self._may_act():
            self._agreement = None  # whoever acts now may change anything
            return
        if self._agreement is None:
            self._agreement, self._recall_s = Agreement(), self._now()
        agreement = self._agreement
        self._recall(agreement)
        for action in tuple(agreement.due(self._quarantined(), self._now())):
            if self._closing.is_set() or not self._may_act():
                return
            outcome = self._ask(action)
            agreement.learned(action, outcome, self._now())
            result = "done" if outcome.done else "failed"
            labels = (self.scheduler.name, action.word, result)
            self._instruments.scheduler_requests.labels(*labels).inc()
            level = logging.INFO if outcome.done else logging.WARNING
            log.log(level, "%s: %s", self.scheduler.name, outcome.detail)

    def _recall(self, agreement: Agreement) -> None:
        if self._recall_s is None or self._now() < self._recall_s:
            return
        hosts = self.scheduler.cordoned(self._timeout_s)
        self._recall_s = None if hosts is not None else self._now() + _RECALL_AGAIN_S
        agreement.recalled(hosts or (), self._now())

    def _ask(self, action: Action) -> Outcome:
        wanted = action.wanted
        try:
            if wanted is None:
                reason = "no longer in quarantine"
                return self.scheduler.uncordon(action.host, reason, self._timeout_s)
            return self.scheduler.cordon(
                wanted.host, wanted.reason, wanted.incident_id, self._timeout_s
            )
        except Exception as exc:
            log.exception("scheduler %s crashed", self.scheduler.name)
            return Outcome(False, f"crashed: {type(exc).__name__}: {exc}")

    def _tell(self) -> None:
        agreement = self._agreement
        counts = {"ours": 0, "foreign": 0, "failing": 0}
        counts.update({} if agreement is None else agreement.counts())
        for state, number in counts.items():
            self._instruments.scheduler_hosts.labels(self.scheduler.name, state).set(number)
        found = [] if agreement is None else list(agreement.troubles())
        found = [*([] if self._trouble is None else [self._trouble]), *found]
        self._troubles = tuple(f"scheduler {self.scheduler.name}: {said}" for said in found)


class Followers:
    """All of them. Close them when done."""

    def __init__(
        self,
        schedulers: Sequence[Scheduler],
        quarantined: Callable[[], Sequence[Wanted]],
        may_act: Callable[[], bool],
        instruments: Instruments,
    ) -> None:
        self._followers = tuple(
            Follower(one, quarantined, may_act, instruments) for one in schedulers
        )

    def troubles(self) -> tuple[str, ...]:
        """What does not succeed, one sentence each."""
        return tuple(said for one in self._followers for said in one.troubles())

    def close(self) -> None:
        """Stop all."""
        for one in self._followers:
            one.close()
