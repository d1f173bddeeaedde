"""The one line that a training script adds: `reporter = worker_server.attach()`.

Order matters: the page first (whatever fails later, it tells), then the sidecar, then the
beat thread, then what needs torch. Every failure ends in one warning and a working training.

The beat is one daemon thread that stamps the page once a second and does the small chores. None
of them may take long: what does (a profile) gets a thread of its own.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic

from worker_server import control_plane, run_dir, wire
from worker_server.rank import last_words, profile
from worker_server.rank.identity import POD, identity_from
from worker_server.rank.page import layout
from worker_server.rank.page.writer import PageWriter
from worker_server.rank.reporter import NullReporter, Reporter
from worker_server.rank.settings import Settings
from worker_server.rank.sidecar_process import SidecarProcess
from worker_server.rank.torch_hooks import count_steps, declare_compilations, when_imported
from worker_server.rank.warn_once import warn

_BEAT_S = 1.0
_START_S = 0.1
"""Until the sidecar is up: its launcher wants to be reaped, and the sidecar to be let in."""

_attached: Reporter | None = None


def attach(told: Mapping[str, str] | None = None) -> Reporter:
    """As `worker_server.attach`; `told` wins over the environment. `LIGHTKEEPER=0` switches it off.

    Raises:
        SystemExit: only with `LIGHTKEEPER_ADMISSION=refuse`, where the monitor refuses this host.
    """
    global _attached  # noqa: PLW0603  one process is one rank
    if _attached is not None:
        return _attached
    if os.environ.get("LIGHTKEEPER") == "0":
        _attached = NullReporter()
        return _attached
    environ = {**os.environ, **(told or {})}
    if (environ.get("LIGHTKEEPER_ADMISSION") or "off") != "off":
        from worker_server.rank.admission import ask_to_join  # noqa: PLC0415  few ask: it has http

        ask_to_join(environ, _warn)
    try:
        _attached = _attach(environ)
    except Exception as exc:  # noqa: BLE001  training goes on without us
        _attached = NullReporter()
        _warn(f"lightkeeper is not attached: {exc!r}")
    return _attached


def _attach(environ: Mapping[str, str]) -> Reporter:
    identity = identity_from(environ, os.getpid(), os.urandom(5).hex())
    Settings.from_environ(environ, identity.group_rank)  # a bad setting is better said here
    files, page = run_dir.first_usable(
        run_dir.candidates(environ), lambda folder: _new_page(folder, identity), _warn
    )
    if identity.host.startswith(POD) and environ.get("LOCAL_RANK", "0") == "0":
        _warn(
            f"lightkeeper does not know the node of {identity.host}, so quarantine cannot keep "
            "anybody off it: set LIGHTKEEPER_HOST from spec.nodeName"
        )
    try:
        sidecar = SidecarProcess(files)
    except Exception:
        files.remove()  # a page that nobody serves
        raise
    reporter = Reporter(page, lambda: _published(files, "url"))
    try:
        last_words.install(page, files.crash)
    except OSError as exc:
        _warn(f"lightkeeper cannot keep last words: {exc!r}")
    end = _start_beat(page, files, sidecar, lambda: _say_refusal(reporter, files))
    os.register_at_fork(after_in_child=lambda: _forget(reporter, end))
    if environ.get("LIGHTKEEPER_TORCH") != "0":
        try:
            when_imported("torch", lambda: _hook_torch(reporter, files))
        except Exception as exc:  # noqa: BLE001  steps are worth reporting without torch's part
            _warn(f"lightkeeper sees no collectives: {exc!r}")
    return reporter


def _new_page(folder: Path, identity: wire.Identity) -> tuple[run_dir.RankFiles, PageWriter]:
    files = run_dir.RankFiles.of(folder, identity.rank, identity.incarnation)
    page = PageWriter.create(files.page, identity, run_dir.start_ticks(os.getpid()) or 0)
    try:
        run_dir.check_room(folder)
    except OSError:
        files.remove()
        raise
    return files, page


def _published(files: run_dir.RankFiles, key: str) -> str | None:
    """What the sidecar has published of itself."""
    text = (files.read_endpoint() or {}).get(key)
    return text if isinstance(text, str) else None


def _say_refusal(reporter: Reporter, files: run_dir.RankFiles) -> None:
    """Say once why the Manager's name is not taken, where the WorkerServer was told so."""
    if reporter.loop.renamed and (why := _published(files, "refusal")) is not None:
        reporter.loop.renamed = False
        _warn(f"lightkeeper: {why}")


class _Complaints:
    """What the WorkerServer cannot do and a person can mend: each is warned of once."""

    def __init__(self, files: run_dir.RankFiles) -> None:
        self._files = files
        self._mark: int | None = None
        self._said: str | None = None

    def look(self) -> None:
        """Whether there is another."""
        mark, self._mark = self._mark, self._files.endpoint_mark()
        if self._mark == mark:
            return
        said = _published(self._files, "complaint")
        if said is not None and said != self._said:
            self._said = said
            _warn(f"lightkeeper: {said}")


def _hook_torch(reporter: Reporter, files: run_dir.RankFiles) -> None:
    """What waits until torch is there. Never raises: it may run inside an import."""

    def collectives() -> None:
        from worker_server.rank.collectives import install  # noqa: PLC0415  torch.distributed

        install(reporter)
        if files.socket_fits:
            control_plane.start(files.socket)
        profile.watch_torch()

    def optimizers() -> None:
        count_steps(reporter.from_source("optimizer"))

    for install, without in (
        (optimizers, "does not count the optimizer's steps"),
        (lambda: declare_compilations(reporter), "does not see what torch.compile does"),
        (collectives, "sees no collectives"),
    ):
        try:
            install()
        except Exception as exc:  # noqa: BLE001  training goes on without it
            _warn(f"lightkeeper {without}: {exc!r}")


def _warn(text: str) -> None:
    warn(text, stacklevel=5)


def _forget(reporter: Reporter, end: Callable[[], None]) -> None:
    """In a forked child: it is not the rank, and may attach as one of its own."""
    global _attached  # noqa: PLW0603
    atexit.unregister(end)  # its locks may be held by threads that the child does not have
    reporter.detach()
    last_words.forget()
    profile.forget()
    _attached = None


# -- the beat ------------------------------------------------------------------------------------


def _start_beat(
    page: PageWriter,
    files: run_dir.RankFiles,
    sidecar: SidecarProcess,
    say_refusal: Callable[[], None],
) -> Callable[[], None]:
    beat = Beat(
        page.beat,
        sidecar,
        (
            last_words.keeping(lambda text: page.write_note(layout.NOTE_STACKS, text)),
            last_words.note_uncaught,
            profile.Profiler(files.page).look,
            say_refusal,
            _Complaints(files).look,
            _tell_backends,
        ),
    )

    def end() -> None:
        page.end()
        beat.stop()
        profile.finish()
        last_words.note_uncaught()
        sidecar.let_go()

    atexit.register(end)
    beat.start()
    return end


def _tell_backends() -> None:
    module = sys.modules.get("worker_server.rank.collectives")  # it may be half imported
    tell = getattr(module, "tell_backends", None)
    if tell is not None:
        tell()


class Beat(threading.Thread):
    """Stamps the page: an interpreter that runs can do at least that."""

    def __init__(
        self,
        stamp: Callable[[], None],
        sidecar: SidecarProcess,
        chores: Sequence[Callable[[], None]],
    ) -> None:
        super().__init__(name="lightkeeper-beat", daemon=True)
        self._stamp = stamp
        self._sidecar: SidecarProcess | None = sidecar
        self._chores = list(chores)
        self._over = threading.Event()

    def run(self) -> None:
        """Until the interpreter ends."""
        due_s = monotonic()
        while not self._over.wait(self._pause_s(due_s)):
            self._stamp()
            if self._sidecar is not None and not self._try(self._sidecar.look):
                self._sidecar = None
            now_s = monotonic()
            if now_s >= due_s:
                due_s = now_s + _BEAT_S
                self.do_chores()

    def _pause_s(self, due_s: float) -> float:
        settled = self._sidecar is None or self._sidecar.settled
        return min(max(0.0, due_s - monotonic()), _BEAT_S if settled else _START_S)

    def do_chores(self) -> None:
        """All of them once; one that fails is not done again."""
        for chore in tuple(self._chores):
            if not self._try(chore):
                self._chores.remove(chore)

    def stop(self) -> None:
        """Do nothing any more."""
        self._over.set()

    def _try(self, chore: Callable[[], None]) -> bool:
        try:
            chore()
        except Exception as exc:  # noqa: BLE001  the beat goes on
            warn(f"lightkeeper: a chore of the beat failed: {exc!r}", stacklevel=2)
            return False
        return True
