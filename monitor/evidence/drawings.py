"""Pictures of bundles for the pages of incidents, made by a process that may fail alone.

An analysis takes seconds of CPU and hundreds of MiB at worst: in the monitor's own process it would
take the interpreter from the tick. So a process of its own makes it (`draw`), nicer than the tick,
within bounds, one at a time; what it made is kept beside the bundle and made once. A bundle that
is written anew (before the eviction, when it is over) is drawn anew when somebody looks.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from monitor.evidence.draw import REFUSED, SCHEMA
from monitor.evidence.shelf import DRAWN, Shelf
from monitor.names import IncidentId
from monitor.reports.incident_evidence import PARTS, Drawn, Stage

log = logging.getLogger(__name__)

_KEPT_MAX: Final = 16 << 20
"""Bytes of a file that is read into the monitor."""
_NICE: Final = 10
"""At 19 it starves where every core is busy, and a person waits; a tick still wakes before it."""
_AGAIN_S: Final = 60.0
"""After a failure: a full disk may have room again."""
_FAILURES: Final = 64
_HELD: Final = 4
"""Files whose content is kept in memory: open pages ask every two seconds."""
_Kept = tuple[Mapping[str, str], str]
_ENVIRONMENT: Final = ("PATH", "LANG", "LC_ALL", "TMPDIR", "HOME", "LD_LIBRARY_PATH")
"""Of the monitor's; a token is none of its business."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What making one picture may take."""

    seconds: float = 120.0
    cpu_s: int = 60
    memory: int = 3 << 29
    """Bytes of address space: 1.5 GiB."""


@dataclass(frozen=True, slots=True)
class _Failure:
    stamp: str
    why: str
    at: float


class Drawings:
    """What there is of each bundle. Safe to use from any thread; waits for nothing but the disk."""

    def __init__(self, shelf: Shelf, bounds: Bounds | None = None) -> None:
        self._shelf = shelf
        self._bounds = bounds or Bounds()
        self._lock = threading.Lock()
        self._making: IncidentId | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._failed: dict[IncidentId, _Failure] = {}
        self._held: dict[Path, tuple[str, _Kept]] = {}
        self._closed = False

    def close(self) -> None:
        """End what is being made."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.kill()

    def get(self, incident_id: IncidentId) -> Drawn:
        """What is there; where nothing is, it is begun."""
        bundle = self._shelf.path(incident_id)
        if bundle is None:
            return Drawn(Stage.NONE)
        try:
            stamp = _stamp(bundle)
        except OSError as exc:
            return Drawn(Stage.FAILED, f"the bundle is gone: {exc.strerror}")
        parts, of = self._read(_beside(bundle))
        if of == stamp:
            return Drawn(Stage.READY, parts=parts, stamp=stamp)
        with self._lock:
            failure = self._failed.get(incident_id)
            lately = failure is not None and time.monotonic() - failure.at < _AGAIN_S
            if failure is not None and failure.stamp == stamp and lately:
                return Drawn(Stage.FAILED, failure.why, parts, of)
            if self._making is None and not self._closed:
                self._making = incident_id
                threading.Thread(
                    target=self._make,
                    args=(incident_id, bundle, stamp),
                    name="drawing",
                    daemon=True,
                ).start()
            mine = self._making == incident_id
        return Drawn(Stage.MAKING if mine else Stage.WAITING, parts=parts, stamp=of)

    def _read(self, file: Path) -> _Kept:
        """What was made, and from which bundle; parsed once while the file stays as it is."""
        try:
            known = _stamp(file)
        except OSError:
            return {}, ""
        with self._lock:
            held = self._held.get(file)
        if held is not None and held[0] == known:
            return held[1]
        found = _kept(file)
        with self._lock:
            self._held[file] = known, found
            while len(self._held) > _HELD:
                self._held.pop(next(iter(self._held)))
        return found

    def _make(self, incident_id: IncidentId, bundle: Path, stamp: str) -> None:
        """In a thread of its own, which only waits."""
        why: str | None = "the picture could not be made; the monitor's log has the details"
        try:
            why = self._run(bundle, stamp)
        except OSError as exc:
            why = f"no process could be started: {exc.strerror}"
        except Exception:
            log.exception("drawing the evidence of %s failed", incident_id)
        finally:
            with self._lock:
                self._process, self._making = None, None
                self._failed.pop(incident_id, None)
                if why is not None:
                    self._failed[incident_id] = _Failure(stamp, why, time.monotonic())
                    while len(self._failed) > _FAILURES:
                        self._failed.pop(next(iter(self._failed)))

    def _run(self, bundle: Path, stamp: str) -> str | None:
        """Why there is no picture; None: there is one."""
        bounds = self._bounds
        command = [sys.executable, "-m", "monitor.evidence.draw", str(bundle),
                   str(_beside(bundle)), stamp]  # fmt: skip
        with self._lock:
            if self._closed:
                return "the monitor is ending"
            self._process = process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE, env=_environment(),
            )  # fmt: skip
        _bound(process.pid, bounds)
        try:
            _, said = process.communicate(timeout=bounds.seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return f"it took more than {bounds.seconds:.0f} s: lightkeeper analyze reads it"
        if process.returncode == 0:
            return None
        return _why(process.returncode, said, bounds)


def _why(code: int, said: bytes, bounds: Bounds) -> str:
    lines = said.decode(errors="replace").strip().splitlines()
    if code == REFUSED and lines:
        return lines[-1][:500]
    if code == -signal.SIGXCPU:
        return f"it took more than {bounds.cpu_s} s of CPU: lightkeeper analyze reads it"
    log.error("drawing evidence ended with %d: %s", code, "\n".join(lines[-20:]))
    if any("MemoryError" in line for line in lines[-3:]):
        return "to read it takes more memory than it may have: lightkeeper analyze reads it"
    how = f"signal {-code}" if code < 0 else f"status {code}"
    return f"its process ended with {how}; the monitor's log has the details"


def _bound(pid: int, bounds: Bounds) -> None:
    """From outside: nothing of ours runs between fork and exec of a process with threads."""
    with contextlib.suppress(OSError):  # it may be over already
        os.setpriority(os.PRIO_PROCESS, pid, _NICE)
        limits = ((resource.RLIMIT_AS, bounds.memory), (resource.RLIMIT_CPU, bounds.cpu_s),
                  (resource.RLIMIT_CORE, 0))  # fmt: skip
        for which, most in limits:
            resource.prlimit(pid, which, (most, most))


def _environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
    return {**kept, **threads, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}


def _beside(bundle: Path) -> Path:
    return bundle.with_suffix(DRAWN)


def _stamp(bundle: Path) -> str:
    known = bundle.stat()
    return f"{known.st_mtime_ns}-{known.st_size}"


def _kept(file: Path) -> _Kept:
    """What was made, and from which bundle; nothing where it cannot be used."""
    try:
        with file.open("rb") as opened:
            body: Any = json.loads(opened.read(_KEPT_MAX))
    except (OSError, ValueError, RecursionError):
        return {}, ""
    if not isinstance(body, dict) or body.get("schema") != SCHEMA:
        return {}, ""
    parts, stamp = body.get("parts"), body.get("stamp")
    if not isinstance(parts, dict) or not isinstance(stamp, str):
        return {}, ""
    found = {name: parts[name] for name in PARTS if isinstance(parts.get(name), str)}
    return found, stamp
