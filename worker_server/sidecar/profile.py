"""Asks the rank for a profile and waits for its trace; see `worker_server.rank.profile`."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from worker_server import run_dir, wire

_DEAF_S = 3.0
_TAKEN_UP_S = 5.0
"""The beat looks once a second."""
_SLOWER = 2.0
_SPARE_S = 60.0
"""For growing windows, collecting and saving."""
_LOOK_S = 0.05
_STACKS = f"GET {wire.PATH_STACKS} tells what it does"


class ProfileError(Exception):
    """No profile; `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Profiles:
    """Takes profiles of one rank, one at a time."""

    def __init__(
        self,
        page_file: Path,
        look: Callable[[], wire.Process],
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._page_file = page_file
        self._look = look
        self._clock = clock
        self._pause = pause
        self._lock = threading.Lock()

    def take(self, duration_s: float) -> bytes:
        """A Chrome trace of about `duration_s` seconds; its key `lightkeeper` says what it covers.

        Raises:
            ProfileError: none can be had.
        """
        self._check(self._look())
        if not self._lock.acquire(blocking=False):
            raise ProfileError(409, "a profile of this rank is being taken: one at a time")
        try:
            return self._take(duration_s)
        finally:
            self._clean()
            self._lock.release()

    def _take(self, duration_s: float) -> bytes:
        name = os.urandom(5).hex()
        ask = self._page_file.with_suffix(".profile.ask")
        trace = self._page_file.with_suffix(f".profile.{name}.json")
        done = trace.with_suffix(".done")
        run_dir.write_json(ask, {"id": name, "duration_s": duration_s})
        began = self._clock()
        while not done.exists():
            self._pause(_LOOK_S)
            process, waited_s = self._look(), self._clock() - began
            if not process.alive and not done.exists():
                raise ProfileError(410, "the rank ended while it was profiled")
            if ask.exists():
                self._check(process)
                if waited_s > _TAKEN_UP_S:
                    raise ProfileError(503, f"the rank did not take up the request; {_STACKS}")
            elif process.stopped:
                raise ProfileError(503, f"the rank was stopped while it was profiled; {_STACKS}")
            elif waited_s > _SLOWER * duration_s + _SPARE_S:
                raise ProfileError(503, f"no trace within {waited_s:.0f} s; {_STACKS}")
        facts = json.loads(done.read_text(encoding="utf-8"))
        if "error" in facts:
            raise ProfileError(int(facts["status"]), str(facts["error"]))
        return _with_facts(trace.read_bytes(), facts)

    def _check(self, process: wire.Process) -> None:
        if not process.alive:
            raise ProfileError(410, "the rank is dead")
        if process.stopped:
            raise ProfileError(503, f"the rank is stopped; {_STACKS}")
        age_s = process.interpreter_age_s
        if age_s is not None and age_s > _DEAF_S:
            raise ProfileError(
                503, f"the rank's interpreter has not run for {age_s:.1f} s; {_STACKS}"
            )

    def _clean(self) -> None:
        for path in self._page_file.parent.glob(f"{glob.escape(self._page_file.stem)}.profile.*"):
            with contextlib.suppress(OSError):
                path.unlink()


def _with_facts(trace: bytes, facts: dict[str, Any]) -> bytes:
    """The trace with one more key; it may have a hundred megabytes, so it is not parsed."""
    body = trace.strip()
    if not body.startswith(b"{") or not body.endswith(b"}"):
        raise ProfileError(503, "torch wrote half a trace: is the run directory full?")
    return b'{"lightkeeper": ' + json.dumps(facts).encode() + b"," + body[1:]
