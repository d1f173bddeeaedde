"""When evidence is taken, by whom, and who waits for it how long."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from monitor.clock import Clock
from monitor.config import KeeperConfig
from monitor.evidence.asking import Asker, judged
from monitor.evidence.bundle import Content, Moment, MomentName, filler
from monitor.evidence.fleet import Memory, Seen, fleet_json, records_in_hand
from monitor.evidence.lanes import QUEUE, Job, Lane, Ticket
from monitor.evidence.parts import Part
from monitor.evidence.shelf import Shelf
from monitor.evidence.stacks import StacksReader
from monitor.evidence.whom import Whom, concerned
from monitor.fetch import Fetcher
from monitor.incident import Incident, State, incident_to_json
from monitor.metrics import Instruments
from monitor.names import IncidentId
from monitor.policy import Evict
from monitor.snapshot import Snapshot
from monitor.view import BundleView

log = logging.getLogger(__name__)

TIDY_S: Final = 3600.0
"""How often the folder is looked at: bundles grow too old."""
STUCK_S: Final = 10.0
"""A write that takes longer is told: a file server that is away hangs and reports nothing."""
MARGIN_S: Final = 0.5  # beyond the deadline of the asking: threads are scheduled late on busy hosts
_MIB: Final = 1024 * 1024


class Evidence:
    """Takes evidence in threads of its own; nothing here waits for a rank or for the disk.

    `take` belongs to the tick's thread, the rest to any. Close it when done.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        fetcher: Fetcher,
        token: str | None,
        shelf: Shelf,
        config: KeeperConfig,
        instruments: Instruments,
        version: str = "",
    ) -> None:
        self._clock = clock
        self._asker = Asker(clock, fetcher, token)
        self._shelf = shelf
        self.stacks = StacksReader(shelf)
        self._config = config
        self._instruments = instruments
        self._version = version
        self._memory = Memory()
        self._seen: Seen | None = None
        self._last: dict[IncidentId, Ticket] = {}
        self._troubles: dict[str, str] = {}
        self._tidied_s = clock.now_s()
        self._asking = threading.Lock()
        self._writing = threading.Lock()
        self._writing_since: float | None = None
        self._lanes = tuple(Lane(name, self._work) for name in ("evidence", "evidence-evict"))
        self._open()

    def close(self, timeout_s: float = 1.0) -> None:
        """Stop; what is under way gets `timeout_s`."""
        for lane in self._lanes:
            lane.close(timeout_s)

    # -- what the tick and the evictor call ---------------------------------------------------

    def take(
        self, snapshot: Snapshot, incidents: Iterable[Incident], changed: Iterable[Incident]
    ) -> None:
        """Take in one tick; incidents that fire and have no evidence yet get their moment."""
        self._seen = seen = self._memory.push(snapshot)
        if not self._on:
            return
        for incident in incidents:
            if incident.state is State.FIRING and not self._known(incident.id):
                self._begin(Job(self._ticket(incident.id, MomentName.FIRING), seen, incident))
        if snapshot.now_s - self._tidied_s >= TIDY_S:
            self._tidied_s = snapshot.now_s
            self._lanes[0].put(Job(None, seen, None))
        for incident in changed:
            if not incident.open and self._shelf.view(incident.id) is not None:
                self._lanes[0].put(Job(None, seen, incident))

    def look_again(self) -> None:
        """Another monitor may have written to the folder; looked at in a thread of its own."""
        if self._on and self._seen is not None:
            self._lanes[0].put(Job(None, self._seen, None))

    def before_eviction(
        self, evict: Evict, incident: Incident | None, author: str
    ) -> Ticket | None:
        """The moment that an eviction waits for: one of the last seconds, else a new one.

        None when no evidence is taken at all.
        """
        if not self._on or self._seen is None:
            return None
        with self._asking:
            last = self._last.get(evict.incident_id)
        fresh_s = self._config.evidence_fresh_s
        if last is not None and time.monotonic() - last.began <= fresh_s:
            return last
        ticket = self._ticket(evict.incident_id, MomentName.EVICTION)
        self._begin(Job(ticket, self._seen, incident, evict, author))
        return ticket

    # -- what is shown ------------------------------------------------------------------------

    def views(self, ids: Iterable[IncidentId]) -> Mapping[IncidentId, BundleView]:
        """The bundles of these incidents."""
        found = ((one, self._shelf.view(one)) for one in ids)
        return {one: view for one, view in found if view is not None}

    def path(self, incident_id: IncidentId) -> Path | None:
        """The file of an incident's bundle."""
        return self._shelf.path(incident_id)

    def troubles(self) -> tuple[str, ...]:
        """What is wrong with the folder, one sentence each."""
        found, since = tuple(self._troubles.values()), self._writing_since
        if since is not None and time.monotonic() - since > STUCK_S:
            found += (f"no evidence is kept: {self._shelf.folder} does not answer",)
        return found

    # -- taking it, in the lanes' threads -----------------------------------------------------

    @property
    def _on(self) -> bool:
        return self._config.evidence_count > 0

    def _known(self, incident_id: IncidentId) -> bool:
        return incident_id in self._last or self._shelf.view(incident_id) is not None

    def _ticket(self, incident_id: IncidentId, moment: MomentName) -> Ticket:
        return Ticket(incident_id, moment, self._config.evidence_deadline_s + MARGIN_S)

    def _begin(self, job: Job) -> None:
        ticket = job.ticket
        if ticket is None:
            return
        with self._asking:
            self._last.pop(ticket.incident_id, None)
            self._last[ticket.incident_id] = ticket
            while len(self._last) > 4 * QUEUE:
                self._last.pop(next(iter(self._last)))
        lane = self._lanes[ticket.moment is MomentName.EVICTION]
        if not lane.put(job):
            ticket.done("not taken: too many incidents at once")
            self._count(ticket.moment, "dropped")

    def _work(self, job: Job) -> None:
        """One job; never raises."""
        try:
            if job.ticket is not None:
                self._take_moment(job, job.ticket)
            elif job.incident is None:
                self._look_again()
            elif self._shelf.path(job.incident_id) is not None:
                self._write(job, [])
        except OSError as exc:
            self._trouble("write", f"evidence of {job.incident_id} is not kept: {_why(exc)}")
            self._count(job.moment, "unwritten")
        except Exception as exc:
            log.exception("evidence of %s failed", job.incident_id)
            self._trouble("write", f"evidence failed: {type(exc).__name__}: {exc}")
            self._count(job.moment, "failed")
        finally:
            if job.ticket is not None:
                job.ticket.done("failed; the monitor's log has the details")

    def _take_moment(self, job: Job, ticket: Ticket) -> None:
        config, began, began_s = self._config, time.monotonic(), self._clock.now_s()
        groups = () if job.evict is None else (job.evict.group,)
        whom = concerned(
            job.incident, groups, job.seen.snapshot.observations, config.evidence_ranks
        )
        raw = self._asker.ask(
            whom.asked,
            deadline_s=config.evidence_deadline_s,
            nbytes=int(config.evidence_mib * _MIB),
        )
        seconds = time.monotonic() - began
        answered = sum(one.answer is not None and one.answer.status == 200 for one in raw)
        ticket.done(f"{answered} of {len(raw)} parts of {len(whom.asked)} ranks in {seconds:.1f} s")
        self._instruments.evidence_seconds.observe(seconds)
        parts = judged(raw)
        fleet, told = fleet_json(job.seen, whom)
        moments = [
            Moment(ticket.moment, began_s, began_s + seconds, whom, parts, fleet, told),
            *self._in_hand(job, ticket, whom),
        ]
        self._write(job, moments)
        self._count(ticket.moment, _outcome(parts, whom))

    def _in_hand(self, job: Job, ticket: Ticket, whom: Whom) -> list[Moment]:
        """What the detectors had read before, beside the first moment."""
        parts = records_in_hand(job.seen, whom)
        if not parts or ticket.moment is not MomentName.FIRING:
            return []
        at_s = max(part.taken_s or 0.0 for part in parts)
        return [Moment(MomentName.JUDGED, at_s, at_s, Whom(whom.asked), parts)]

    def _write(self, job: Job, moments: list[Moment]) -> None:
        evict = job.evict
        content = Content(
            id=job.incident_id,
            incident=None if job.incident is None else incident_to_json(job.incident),
            eviction=None
            if evict is None
            else {"group": evict.group, "reason": evict.reason, "author": job.author},
            version=self._version,
            written_s=self._clock.now_s(),
        )
        with self._on_disk():
            if "open" in self._troubles:
                self._shelf.open()
                self._troubles.pop("open", None)
            before = self._shelf.path(job.incident_id)
            if before is not None and not before.exists():
                before = None
            nbytes = self._shelf.write(job.incident_id, filler(content, moments, before))
            self._instruments.evidence_bytes.inc(nbytes)
            self._troubles.pop("write", None)
            self._tidy()

    @contextlib.contextmanager
    def _on_disk(self) -> Iterator[None]:
        """One at a time, and known for how long."""
        with self._writing:
            self._writing_since = time.monotonic()
            try:
                yield
            finally:
                self._writing_since = None

    def _look_again(self) -> None:
        """Find what others did to the folder, and let go what is too old."""
        with self._on_disk():
            self._shelf.open()
            self._tidy()

    def _tidy(self) -> None:
        try:
            self._shelf.tidy(self._clock.now_s())
        except OSError as exc:
            self._trouble("tidy", f"old evidence cannot be removed: {_why(exc)}")
        else:
            self._troubles.pop("tidy", None)
        self._instruments.evidence_stored.set(self._shelf.nbytes)

    def _open(self) -> None:
        if not self._on:
            return
        try:
            self._shelf.open()
        except OSError as exc:
            where = self._shelf.folder
            self._trouble("open", f"no evidence can be kept in {where}: {_why(exc)}")
        else:
            self._tidy()

    def _trouble(self, what: str, why: str) -> None:
        if self._troubles.get(what) != why:
            log.warning("%s", why)
        self._troubles[what] = why

    def _count(self, moment: MomentName | None, outcome: str) -> None:
        self._instruments.evidence.labels(str(moment or "story"), outcome).inc()


def _outcome(parts: list[Part], whom: Whom) -> str:
    there = sum(part.body is not None for part in parts)
    if not there:
        return "empty"
    return "complete" if there == len(parts) and not whom.left_out else "partial"


def _why(exc: OSError) -> str:
    return exc.strerror or str(exc)
