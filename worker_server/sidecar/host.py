"""All ranks of the host in one answer, from their pages: `GET /v1/host`.

Every sidecar can give it, because the run directory holds every rank's page. A page that cannot be
read affects only its own entry.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from msgspec import structs

from lightkeeper.worker_server import run_dir, wire
from lightkeeper.worker_server.rank.page import layout
from lightkeeper.worker_server.rank.page.layout import SharedPageError
from lightkeeper.worker_server.rank.page.reader import PageReader
from lightkeeper.worker_server.sidecar.process import GoneError, PidfdProcess

_BEATS_S = 3.0
"""Beats come every second: after one this recent, the interpreter runs."""
_log = logging.getLogger("lightkeeper.worker_server.sidecar")


# What a sidecar shares about its rank with its neighbours, for their `/v1/host`.

_STALE_S: Final = 30.0
"""Heads that were written longer ago are ignored."""


def share(path: Path, report: wire.StateReport, now_s: float) -> bool:
    """Write what the page does not hold to a file, so for one thing the heads of torch's recorders;
    False: there is nothing.

    Raises:
        OSError: it cannot be written.
    """
    heads = _recorded(report)
    rest = (report.witness, report.ending, report.connections or None)
    if rest == (None, None, None) and not heads:
        path.unlink(missing_ok=True)
        return False
    unseen = wire.StateReport(
        report.identity, report.process, heads=heads, witness=report.witness,
        ending=report.ending, connections=report.connections,
    )  # fmt: skip
    run_dir.write_json(path, {"written_s": now_s, "report": wire.to_json(unseen)})
    return True


def with_shared(path: Path, report: wire.StateReport, now_s: float) -> wire.StateReport:
    """The report, with what the file adds."""
    content = run_dir.read_json(path)
    try:
        kept, written_s = wire.parse_state(content["report"]), float(content["written_s"])
    except (ValueError, KeyError, TypeError):
        return report
    if kept.identity.incarnation != report.identity.incarnation:
        return report
    late_s = max(0.0, now_s - written_s)
    witness = kept.witness
    if witness is not None:
        witness = replace(witness, age_s=witness.age_s + late_s)
    process, then = report.process, kept.process
    if not process.alive and then.dead_age_s is not None:  # its own WorkerServer saw more of it
        process = structs.replace(then, dead_age_s=then.dead_age_s + late_s)
    heads = (
        structs.replace(
            head, age_s=head.age_s + late_s, read_age_s=(head.read_age_s or 0.0) + late_s
        )
        for head in _recorded(kept)
        if late_s <= _STALE_S or not process.alive
    )
    return structs.replace(
        report,
        process=process,
        witness=witness,
        heads=(*report.heads, *heads),
        connections=tuple(row.later(late_s) for row in kept.connections if late_s <= _STALE_S),
        ending=None if process.alive else kept.ending,
    )


def _recorded(report: wire.StateReport) -> tuple[wire.GroupHead, ...]:
    return tuple(head for head in report.heads if head.read_age_s is not None)


class _Neighbour:
    """One rank of the host, kept open.

    Raises:
        SharedPageError: its page cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._files = run_dir.RankFiles(path)
        self._page = PageReader(path)
        self._process: PidfdProcess | None = None
        with contextlib.suppress(GoneError):
            self._process = PidfdProcess(self._page.identity.pid, self._page.start_ticks)

    def identity(self) -> wire.Identity:
        """Its identity now, as its own WorkerServer reports it."""
        names = self._files.read_endpoint()
        self._page.refused, self._page.known_as = names.get("refused"), names.get("known_as")
        return self._page.identity

    def report(self) -> wire.StateReport:
        """Its state.

        Raises:
            LookupError: from here it is not known whether it lives.
        """
        now_ns = time.monotonic_ns()
        beat_age_s = self._page.beat_age_s(now_ns)
        process = wire.Process(alive=False, state=None)
        if self._process is not None:
            process = self._process.look(None if self._page.leaving else beat_age_s)
        elif run_dir.is_elsewhere(self._files.read_endpoint()):
            if beat_age_s > _BEATS_S:
                raise LookupError(
                    "it runs in another PID namespace (container), and its interpreter has not "
                    f"run for {beat_age_s:.1f} s: ask its own WorkerServer"
                )
            process = wire.Process(alive=True, state=None, interpreter_age_s=beat_age_s)
        report = self._page.report(process, now_ns)
        return with_shared(self._files.seen, report, time.monotonic())

    def url(self) -> str | None:
        """URL of its own WorkerServer, while that lives."""
        endpoint = self._files.read_endpoint()
        sidecar, url = run_dir.sidecar_in(endpoint), endpoint.get("url")
        seen = sidecar is not None and run_dir.start_ticks(sidecar[0]) == sidecar[1]
        lives = seen or run_dir.is_elsewhere(endpoint)
        return url if lives and isinstance(url, str) else None

    def close(self) -> None:
        if self._process is not None:
            self._process.close()


@dataclass(eq=False)
class HostView:
    """Reads the pages of all ranks of one job in a run directory; safe from any thread."""

    folder: Path
    identity: wire.Identity
    own: Callable[[], wire.StateReport]
    """Our rank's state."""
    addresses: Callable[[], tuple[str, ...]] = tuple
    """The host's."""
    machine: Callable[[int], tuple[wire.Testimony, ...]] = lambda _: ()
    """What is said of a pid."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._neighbours: dict[Path, _Neighbour] = {}

    def report(self) -> wire.HostReport:
        """The answer of `GET /v1/host`, sorted by rank."""
        with self._lock:
            paths = sorted(self.folder.glob("*.page"))
            for removed in self._neighbours.keys() - set(paths):
                self._forget(removed)
            entries = [entry for path in paths if (entry := self._entry(path)) is not None]
        return wire.HostReport(self.identity.host, tuple(sorted(entries, key=_order)))

    def _entry(self, path: Path) -> wire.HostEntry | None:
        try:
            return self._read(path)
        except Exception as exc:  # noqa: BLE001  any problem with a page goes into its entry
            if not path.exists():
                return None  # its sidecar has just removed it
            self._forget(path)
            why = " ".join(str(exc).split())[:300] or type(exc).__name__
            return wire.HostEntry(_rank_of(path), None, error=why)

    def _read(self, path: Path) -> wire.HostEntry | None:
        size = path.stat().st_size
        if size != layout.TOTAL_BYTES:  # reading past the end of a mapped file would kill us
            raise SharedPageError(f"{path} has {size} bytes, a page has {layout.TOTAL_BYTES}")
        neighbour = self._neighbours.get(path)
        if neighbour is None:
            neighbour = self._neighbours[path] = _Neighbour(path)
        who = neighbour.identity()
        if who.job != self.identity.job:
            return None
        own = who.incarnation == self.identity.incarnation
        try:
            report = self.own() if own else neighbour.report()
            if not own:
                said = self.machine(who.pid)
                report = structs.replace(report, addresses=self.addresses(), machine=said)
            return wire.HostEntry(who.rank, neighbour.url(), report)
        except LookupError as exc:
            return wire.HostEntry(who.rank, neighbour.url(), error=str(exc))

    def _forget(self, path: Path) -> None:
        if (neighbour := self._neighbours.pop(path, None)) is not None:
            neighbour.close()


def _order(entry: wire.HostEntry) -> tuple[str, int, str]:
    incarnation = entry.report.identity.incarnation if entry.report else ""
    return *wire.split_rank_name(entry.rank), incarnation


def _rank_of(path: Path) -> wire.RankName:
    """By its file's name: its page is unreadable."""
    name = unquote(path.stem.rpartition("-")[0])
    try:
        wire.split_rank_name(name)
    except wire.WireError:
        return wire.rank_name(path.stem, 0)
    return wire.RankName(name)


def have_port(
    listen: Callable[[], socket.socket],
    serve: Callable[[socket.socket], None],
    retry_s: float = 1.0,
) -> None:
    """Try to bind the host's port until it is ours, then keep it to the end."""
    problem: int | None = errno.EADDRINUSE  # a neighbour has it: not logged
    while True:
        try:
            listener = listen()
        except OSError as exc:
            if exc.errno != problem:
                problem = exc.errno
                _log.warning("the host's port: %s", os.strerror(exc.errno or 0))
            time.sleep(retry_s)
        else:
            serve(listener)
            _log.info("the host's port %d is ours", listener.getsockname()[1])
            return
