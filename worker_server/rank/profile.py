"""torch's profiler on demand, in the rank.

The sidecar writes `NAME.profile.ask`; the beat sees it, and a daemon thread profiles *all* threads,
writes a Chrome trace beside it and exits. Limits of torch 2.13 (each seen here):

- Collecting and saving a trace holds the GIL: about 5 us an op, so ten seconds of a loop of small
  ops would stop training for half a minute. So a short window first measures the ops per second;
  the next are longer, but only so that each stop stays near a second.
- Two profilers at once end in SIGSEGV. So torch's entry points are watched (`watch_torch`): while
  the job profiles itself we refuse, and when it begins while ours runs, ours ends first.
- A thread inside torch at the interpreter's end ends in SIGABRT: `finish` waits for it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_PROBE_S = 0.2
_GROWTH = 10
"""From window to window: limits the error of a probe taken while the loop waited."""
_MAX_EVENTS = 100_000
"""More make the trace and the stop of training longer: 7 us each in all, more on a busy machine."""
_EVENT_BYTES = 255
_MAX_GROWTH = 256 * 2**20
"""Of the rank's memory while the profiler runs; more ends the profile, even if the job's own."""
MAX_TRACE_BYTES = 128 * 2**20
_LOOK_S = 0.1
_YIELD_S = 60.0
_FINISH_S = 20.0

_turn = threading.Lock()
_theirs = False
"""Whether the job itself has the profiler prepared or running."""
_ours: _Session | None = None


class _RefusedError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def _answer(trace: Path, answer: dict[str, Any]) -> None:
    """Report the end to the sidecar: what the trace covers, or why there is none."""
    draft = trace.with_suffix(".draft")
    draft.write_text(json.dumps(answer), encoding="utf-8")
    draft.rename(trace.with_suffix(".done"))


def _refuse(trace: Path, refusal: _RefusedError) -> None:
    _answer(trace, {"status": refusal.status, "error": str(refusal)})


class _Session(threading.Thread):
    """One profile: from the request to the file."""

    def __init__(self, ask: dict[str, Any], trace: Path) -> None:
        super().__init__(name="lightkeeper-profile", daemon=True)
        self._duration_s = float(ask["duration_s"])
        self._trace = trace
        self._end_asked = threading.Event()
        self.over = threading.Event()
        """The profiler no longer runs (its file may be unfinished)."""

    def end_early(self, timeout_s: float) -> None:
        """Stop profiling now, and wait until the profiler is free."""
        self._end_asked.set()
        self.over.wait(timeout_s)

    def run(self) -> None:
        global _ours  # noqa: PLW0603
        try:
            _answer(self._trace, self._record())
        except Exception as exc:  # noqa: BLE001  whatever torch raises is the answer
            refusal = exc if isinstance(exc, _RefusedError) else None
            with contextlib.suppress(OSError):
                _refuse(self._trace, refusal or _RefusedError(503, f"torch's profiler: {exc!r}"))
        finally:
            self.over.set()
            with _turn:
                _ours = None

    def _record(self) -> dict[str, Any]:
        """Profile in growing windows until one is as long as asked or allowed; the last counts."""
        planned_s, cut = min(_PROBE_S, self._duration_s), None
        while True:
            window = _Window(planned_s, self._end_asked)
            events = self._save(window) / _EVENT_BYTES
            if self._end_asked.is_set():
                cut = "the job ended, or began a profile of its own"
            elif window.grown:
                cut = "the rank's memory grew by more than a profile may take"
            elif planned_s < self._duration_s:
                allowed_s = planned_s * _MAX_EVENTS / max(1.0, events)
                longer_s = min(self._duration_s, allowed_s, planned_s * _GROWTH)
                if longer_s > 1.5 * planned_s:
                    planned_s = longer_s
                    continue
                cut = f"{events / planned_s:.0f} events a second: more stop training for too long"
            return {"asked_s": self._duration_s, "profiled_s": round(window.lasted_s, 3),
                    "stopped_training_s": round(window.collect_s, 3), "cut": cut}  # fmt: skip

    def _save(self, window: _Window) -> int:
        draft = self._trace.with_suffix(".draft")
        began = time.monotonic()
        window.results.save(str(draft))
        window.results = None
        window.collect_s += time.monotonic() - began
        draft.rename(self._trace)
        size = self._trace.stat().st_size
        if size > MAX_TRACE_BYTES:
            self._trace.unlink()
            raise _RefusedError(503, f"the trace has {size} bytes: ask for a shorter one")
        return size


class _Window:
    """One run of the profiler; it is collected when `__init__` returns."""

    def __init__(self, seconds: float, stop: threading.Event) -> None:
        torch: Any = sys.modules["torch"]
        make_config: Any = sys.modules["torch._C._profiler"]._ExperimentalConfig

        options: dict[str, Any] = {"profile_all_threads": True, "trace_only": True}
        try:
            config = make_config(**options)
        except TypeError:  # an older torch
            config = make_config(profile_all_threads=True)
        device = "cuda" if torch.cuda.is_available() and torch.cuda.is_initialized() else None
        self._profile: Any = torch.autograd.profiler.profile(
            use_kineto=True, use_cpu=True, use_device=device, experimental_config=config
        )
        self.grown = False
        self._profile.__enter__()
        began = time.monotonic()
        try:
            self._wait(seconds, stop)
        finally:
            ended = time.monotonic()
            self._profile.use_device = None  # else it waits for a device that may hang
            self._profile.__exit__(None, None, None)
        self.lasted_s = ended - began
        self.results: Any = self._profile.kineto_results
        self._profile.kineto_results = None
        self.collect_s = time.monotonic() - ended

    def _wait(self, seconds: float, stop: threading.Event) -> None:
        until, before = time.monotonic() + seconds, _resident_bytes()
        while (left_s := until - time.monotonic()) > 0 and not self.grown:
            if stop.wait(min(left_s, _LOOK_S)):
                return
            self.grown = _resident_bytes() - before > _MAX_GROWTH


def _resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGESIZE")


class Profiler:
    """Looks for a request; called by the beat."""

    def __init__(self, page_file: Path) -> None:
        self._ask = page_file.with_suffix(".profile.ask")

    def look(self) -> None:
        """Begin a profile if the sidecar asks for one."""
        try:
            ask = json.loads(self._ask.read_text(encoding="utf-8"))
            self._ask.unlink()
        except FileNotFoundError:
            return
        trace = self._ask.with_name(f"{self._ask.stem}.{ask['id']}.json")
        problem = _begin(ask, trace)
        if problem is not None:
            _refuse(trace, problem)


def _begin(ask: dict[str, Any], trace: Path) -> _RefusedError | None:
    global _ours  # noqa: PLW0603
    if "torch" not in sys.modules:
        return _RefusedError(501, "torch is not imported in this rank")
    if not _watching:
        return _RefusedError(501, "this torch has no profiler that we know")
    with _turn:
        if _ours is not None:
            return _RefusedError(409, "a profile is running in this rank")
        if _theirs or sys.modules["torch.autograd.profiler"]._is_profiler_enabled:
            return _RefusedError(409, "the job itself has torch's profiler running")
        _ours = _Session(ask, trace)
    try:
        _ours.start()
    except RuntimeError as exc:  # no thread available, or the interpreter ends
        _ours = None
        return _RefusedError(503, f"the rank cannot profile: {exc}")
    return None


# -- one profiler at a time ---------------------------------------------------------------------

_watching = False


def watch_torch() -> None:
    """Track when the job itself uses torch's profiler; call once torch is imported."""
    global _watching  # noqa: PLW0603
    from torch.autograd import profiler  # noqa: PLC0415

    names = ("_prepare_profiler", "_enable_profiler", "_disable_profiler")
    if _watching or not all(hasattr(profiler, name) for name in names):
        return
    for name in names:
        setattr(profiler, name, _watched(getattr(profiler, name), begins=name != names[-1]))
    _watching = True


def _watched(original: Callable[..., Any], *, begins: bool) -> Callable[..., Any]:
    @functools.wraps(original)
    def watched(*args: Any, **kwargs: Any) -> Any:
        global _theirs  # noqa: PLW0603
        if isinstance(threading.current_thread(), _Session):
            return original(*args, **kwargs)
        if not begins:
            try:
                return original(*args, **kwargs)
            finally:
                _theirs = False
        with _turn:
            _theirs, session = True, _ours
        if session is not None:
            session.end_early(_YIELD_S)
        return original(*args, **kwargs)

    return watched


def finish() -> None:
    """At the interpreter's end: no thread of ours may be inside torch."""
    session = _ours
    if session is not None:
        session.end_early(_FINISH_S)
        session.join(_FINISH_S)


def forget() -> None:
    """In a forked child, where the profiling thread does not exist."""
    global _turn, _ours, _theirs  # noqa: PLW0603
    _turn = threading.Lock()
    _ours = None
    _theirs = False
