"""The one line that a training script adds: `reporter = lightkeeper.attach()`.

Order matters: first the page (it records whatever fails later), then the sidecar, then the beat
thread, then what needs torch. Every failure ends in one warning, and training continues.

The beat is one daemon thread that stamps the page once a second and does small chores. None of them
may take long.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import cast

from lightkeeper.worker_server import run_dir, wire
from lightkeeper.worker_server.harmless import warn
from lightkeeper.worker_server.home import is_open, misspelt
from lightkeeper.worker_server.rank import exchange, last_words, torch_hooks, trackers
from lightkeeper.worker_server.rank.identity import POD, claim_from, identity_from
from lightkeeper.worker_server.rank.null_reporter import NullReporter
from lightkeeper.worker_server.rank.page import layout
from lightkeeper.worker_server.rank.page.writer import PageWriter
from lightkeeper.worker_server.rank.reporter import Reporter
from lightkeeper.worker_server.rank.settings import Settings, for_sidecar

# -- The sidecar as the rank sees it: started by the attach, restarted when it is gone -----------
# One that is stopped (state T) or no longer answers its own checks is killed first, so that a rank
# never has two. That costs the beat one read of /proc and one stat a second.

_START_LIMIT_S = 60.0
_PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Before each restart. A sidecar gone five times has a cause that a sixth start cannot fix."""
_STEADY_S = 600.0
"""One that lived this long had no such cause: in weeks the kernel may kill more than five."""
_STOPPED_LOOKS = 5
_MUTE_LOOKS = 30
"""Looks in a row, a second apart: a stop that hits the rank too must not count. A server marks
itself every three seconds; under a load of 21 on two cores the longest gap in 75 s was 3.1 s."""
_LOOK_S = 0.9
_PART_S = 0.3
_ASKED_PART_S = 2.0
"""After SIGTERM: nobody waits for its exit code, and Kubernetes kills it after 30 s only."""
_PR_SET_PTRACER = 0x59616D61
_SHELL = "/bin/sh"
"""Starts the sidecar and is over in 1 ms, before training continues: a program that waits for any
child, by `os.wait()` or at SIGCHLD, meets none of ours. Python takes 0.1 s and more to fork."""
_SHELL_S = 1.0


def _end(pid: int, ticks: int) -> None:
    """SIGKILL exactly this process."""
    with contextlib.suppress(OSError):
        fd = os.pidfd_open(pid)
        try:
            if run_dir.process_state(pid, ticks) is not None:
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        finally:
            os.close(fd)


def start_sidecar(files: run_dir.RankFiles) -> subprocess.Popen[bytes]:
    """Start it in its own process group, with none of our files, pipes or terminals.

    A group and not a session: signals to the rank's group (Ctrl-C, Ctrl-Z, a launcher's kill) miss
    it either way, and the kernel's autogroup scheduling shares the cores by session. A new session
    with one small process in it got 0.1 s of CPU within 15 s on a host whose ranks spun on every
    core, and never came up (Linux 6.18).

    It inherits a pidfd of this process: however early we die, it knows which process it serves, and
    how we ended.
    """
    home = str(Path(__file__).absolute().parents[3])
    environ = for_sidecar(os.environ)
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [home, environ.get("PYTHONPATH")]))
    environ.pop("LD_PRELOAD", None)  # a profiler or allocator meant for training
    pidfd = last_words.move_high(os.pidfd_open(os.getpid()))
    words = [sys.executable, "-m", "lightkeeper.worker_server.sidecar", str(files.page)]
    words += [str(pidfd), str(run_dir.stack_of(os.getpid()))]
    if os.access(_SHELL, os.X_OK):
        words = [_SHELL, "-c", '"$@" &', "sh", *words]
    try:
        with files.log.open("ab") as log:  # for errors before it can log by itself
            launcher = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                cwd=files.page.parent,
                env=environ,
                process_group=0,
                pass_fds=(pidfd,),
            )
        if words[0] == _SHELL:
            with contextlib.suppress(subprocess.TimeoutExpired):
                launcher.wait(_SHELL_S)
        return launcher
    finally:
        os.close(pidfd)


@dataclass(eq=False)
class SidecarProcess:
    """Keeps one sidecar beside this process; the beat calls `look`."""

    files: run_dir.RankFiles
    start: Callable[[run_dir.RankFiles], subprocess.Popen[bytes]] = start_sidecar
    clock: Callable[[], float] = monotonic
    state: Callable[[int, int], str | None] = run_dir.process_state
    end: Callable[[int, int], None] = _end

    def __post_init__(self) -> None:
        self._launcher: subprocess.Popen[bytes] | None = self.start(self.files)
        self._started_s = self._looked_s = self.clock()
        self._sidecar: tuple[int, int] | None = None
        """Pid and start ticks of the admitted sidecar."""
        self._former: tuple[int, int] | None = None
        """The previous one's, whose file stays until the next one publishes."""
        self._restarts = 0
        self._mark: int | None = None
        self._stopped_looks = self._mute_looks = 0
        self._due_s: float | None = None
        self._given_up = False

    @property
    def settled(self) -> bool:
        """True if there is nothing to wait for: it is up, or will not come up."""
        return self._given_up or (self._sidecar is not None and self._due_s is None)

    def look(self) -> None:
        """Reap the launcher, admit the sidecar, restart it if it is gone."""
        if self._launcher is not None and self._launcher.poll() is not None:
            self._launcher = None  # it forks the sidecar and exits: no zombie stays
        if self._given_up:
            return
        if self._sidecar is None:
            self._admit()
        elif (state := self.state(*self._sidecar)) is None:
            self._again()
        elif self.clock() - self._looked_s >= _LOOK_S:
            self._looked_s = self.clock()
            self._watch(state, *self._sidecar)

    def _watch(self, state: str, pid: int, ticks: int) -> None:
        """Kill one that no longer serves; it is restarted once it is gone."""
        mark = self.files.endpoint_mark()
        mute = mark is not None and mark == self._mark
        self._mark = mark
        self._mute_looks = self._mute_looks + 1 if mute else 0
        self._stopped_looks = self._stopped_looks + 1 if state == "T" else 0
        if self._stopped_looks >= _STOPPED_LOOKS or self._mute_looks >= _MUTE_LOOKS:
            self._stopped_looks = self._mute_looks = 0
            self.end(pid, ticks)

    def part(self, within_s: float = _PART_S) -> None:
        """Have the sidecar send how this process ends while it ends, and wait for that, but not
        long: a pod that ends takes both along. Elsewhere the sidecar outlives the rank.
        """
        podded = 1 in (os.getpid(), os.getppid()) or "KUBERNETES_SERVICE_HOST" in os.environ
        sidecar = run_dir.sidecar_in(self.files.read_endpoint()) if podded else None
        if sidecar is None:
            return
        mark, until_s = self.files.endpoint_mark(), monotonic() + within_s
        with contextlib.suppress(OSError):
            if self.state(*sidecar) is not None:
                os.kill(sidecar[0], signal.SIGUSR1)
        while self.files.endpoint_mark() == mark and monotonic() < until_s:
            sleep(0.005)

    def let_go(self) -> None:
        """At process exit: do not warn about a launcher that still runs."""
        if self._launcher is not None and self._launcher.poll() is None:
            self._launcher.returncode = 0  # else Popen warns, where ResourceWarning is on

    def _admit(self) -> None:
        """Let the sidecar (and its py-spy) trace this process, where Yama would forbid it."""
        sidecar = run_dir.sidecar_in(self.files.read_endpoint())
        if sidecar not in (None, self._former) and self._launcher is None:
            self._sidecar = sidecar
            ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(sidecar[0]), 0, 0, 0)
        elif self.clock() - self._started_s > _START_LIMIT_S:
            last = ""
            with contextlib.suppress(OSError, IndexError):  # of a traceback, say
                last = f" ({self.files.log.read_text('utf-8', 'replace').splitlines()[-1][:200]})"
            self._give_up(f"did not come up{last}")

    def _again(self) -> None:
        now = self.clock()
        if self._due_s is None and now - self._started_s >= _STEADY_S:
            self._restarts = 0
        if self._restarts >= len(_PAUSES_S):
            self._give_up(f"was started {1 + self._restarts} times and is gone again")
        elif self._due_s is None:
            self._due_s = now + _PAUSES_S[self._restarts]
        elif now >= self._due_s:
            self._former, self._due_s, self._sidecar = self._sidecar, None, None
            self._restarts += 1
            self._started_s = now
            with contextlib.suppress(OSError):  # no process available: the time limit reports it
                self._launcher = self.start(self.files)

    def _give_up(self, why: str) -> None:
        self._given_up = True
        warn(f"lightkeeper's WorkerServer {why}: see {self.files.log}")


# -- attaching ------------------------------------------------------------------------------------

_BEAT_S = 1.0
_ORDERS_S = 0.25
"""Others wait for a group that is gone meanwhile. A look takes 10 us."""
_START_S = 0.1
"""Until the sidecar is up: its launcher must be reaped, and the sidecar admitted."""

_JOIN_S = 0.2
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}

_attached: Reporter | None = None


def attach(overrides: Mapping[str, str] | None = None) -> Reporter:
    """As `lightkeeper.attach`; `overrides` beats the environment.

    Raises:
        SystemExit: only with `LIGHTKEEPER_ADMISSION=refuse`, where the monitor refuses this host.
    """
    global _attached  # noqa: PLW0603  one process is one rank
    if _attached is not None:
        return _attached
    environ = {**os.environ, **(overrides or {})}
    if (environ.get("LIGHTKEEPER_ADMISSION") or "off") != "off":
        from lightkeeper.worker_server.rank.admission import ask_to_join  # noqa: PLC0415  has http

        ask_to_join(environ, warn)
    try:
        with _streams_reserved():
            _attached = _attach(environ)
    except Exception as exc:  # noqa: BLE001  training continues without us
        _attached = cast(Reporter, NullReporter())
        warn(f"lightkeeper is not attached: {exc!r}")
    return _attached


@contextlib.contextmanager
def _streams_reserved() -> Iterator[None]:
    """No file of ours takes the number of a standard stream that the program was started without:
    what C code prints to it would be written into our page.
    """
    taken: list[int] = []
    try:
        while not taken or taken[-1] < 3:
            taken.append(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
        yield
    finally:
        for fd in taken:
            os.close(fd)


def _attach(environ: Mapping[str, str]) -> Reporter:
    claim = claim_from(environ, os.urandom(16).hex())
    identity = identity_from(environ, os.getpid(), wire.digest(claim.secret))
    settings = Settings.from_environ(environ, identity.group_rank)  # raises if invalid
    if identity.group_rank == 0 and (complaint := misspelt(environ)):
        warn(f"lightkeeper: {complaint}")
    if settings.no_token and identity.group_rank == 0:
        warn(f"lightkeeper has no token: {settings.no_token}")
    key = settings.tls_key
    if key is not None and identity.group_rank == 0 and is_open(key.stat()):
        warn(f"lightkeeper: {key} holds a key that others can read: chmod 600 {key}")
    files, page = run_dir.first_usable(
        run_dir.candidates(environ), lambda folder: _new_page(folder, identity, claim), warn
    )
    if identity.host.startswith(POD) and environ.get("LOCAL_RANK", "0") == "0":
        warn(
            f"lightkeeper does not know the node of {identity.host}, so quarantine cannot keep "
            "anybody off it: set LIGHTKEEPER_HOST from spec.nodeName"
        )
    try:
        sidecar = SidecarProcess(files)
    except Exception:
        files.remove()  # a page that nobody serves
        raise
    page.keep()
    reporter = Reporter(page, lambda: _published(files, "url"))
    try:
        last_words.install(page, files.crash)
    except OSError as exc:
        warn(f"lightkeeper cannot keep last words: {exc!r}")
    beat, end = _start_beat(page, files, sidecar)
    os.register_at_fork(after_in_child=lambda: _forget(reporter, end))
    if environ.get("LIGHTKEEPER_TORCH") != "0":
        try:
            torch_hooks.when_imported("torch", lambda: _hook_torch(reporter, files, beat))
        except Exception as exc:  # noqa: BLE001  steps are still worth reporting
            warn(f"lightkeeper sees no collectives: {exc!r}")
    return reporter


def _new_page(
    folder: Path, identity: wire.Identity, claim: wire.Claim
) -> tuple[run_dir.RankFiles, PageWriter]:
    files = run_dir.RankFiles.of(folder, identity.rank, identity.incarnation)
    ticks = run_dir.start_ticks(os.getpid()) or 0
    page = PageWriter.create(files.page, identity, ticks, claim)
    try:
        run_dir.check_room(folder)
    except OSError:
        files.remove()
        raise
    return files, page


def _published(files: run_dir.RankFiles, key: str) -> str | None:
    text = files.read_endpoint().get(key)
    return text if isinstance(text, str) else None


def _complaining(files: run_dir.RankFiles) -> Callable[[], None]:
    """A chore of the beat: warns once about a WorkerServer's complaint that a person can fix."""
    mark: int | None = None
    warned: str | None = None

    def look() -> None:
        nonlocal mark, warned
        former, mark = mark, files.endpoint_mark()
        complaint = None if mark == former else _published(files, "complaint")
        if complaint is not None and complaint != warned:
            warned = complaint
            warn(f"lightkeeper: {complaint}")

    return look


def _hook_torch(reporter: Reporter, files: run_dir.RankFiles, beat: Beat) -> None:
    """What has to wait for torch. Never raises: it may run inside an import."""

    def exchanges() -> None:
        from lightkeeper.worker_server.rank import (  # noqa: PLC0415  they import torch.distributed
            collectives,
            process_groups,
            torchft,
        )

        collectives.install(reporter)
        beat.chores.append(collectives.tell_backends)
        process_groups.install()
        torchft.install(reporter)
        if os.environ.get("LIGHTKEEPER_MEND_TORCHFT") == "1":
            from lightkeeper.worker_server.rank import torchft_mends  # noqa: PLC0415  on request

            torchft_mends.install()
        if files.socket_fits:
            with _no_signals():
                torch_hooks.start_control_plane(files.socket)

    def optimizers() -> None:
        torch_hooks.count_steps(reporter.from_source("optimizer"))

    for install, without in (
        (optimizers, "does not count the optimizer's steps"),
        (
            lambda: torch_hooks.declare_compilations(reporter),
            "does not see what torch.compile does",
        ),
        (exchanges, "sees no collectives"),
    ):
        try:
            install()
        except Exception as exc:  # noqa: BLE001  training continues without it
            warn(f"lightkeeper {without}: {exc!r}")


def _forget(reporter: Reporter, end: Callable[[], None]) -> None:
    """In a forked child: it is not the rank, but may attach as its own rank."""
    global _attached  # noqa: PLW0603
    atexit.unregister(end)  # its locks may be held by threads that the child does not have
    reporter.detach()
    last_words.forget()
    _attached = None


# -- the beat ------------------------------------------------------------------------------------


def _start_beat(
    page: PageWriter, files: run_dir.RankFiles, sidecar: SidecarProcess
) -> tuple[Beat, Callable[[], None]]:
    """The beat, and what ends it with the process."""
    exchange.install(files)
    beat = Beat(
        page.beat,
        sidecar,
        [
            last_words.keeping(
                lambda text: page.write_note(layout.NOTE_STACKS, text), page.progress
            ),
            last_words.note_uncaught,
            _complaining(files),
            trackers.telling(page),
        ],
        exchange.obey,
    )

    def end() -> None:
        with contextlib.suppress(OSError):
            files.socket.unlink()  # from now on nobody finds torch's control plane
        page.end()
        beat.stop()
        last_words.note_uncaught()
        last_words.stand_down()
        sidecar.part()
        sidecar.let_go()
        beat.join(_JOIN_S)  # the interpreter's way to end it needs a file, and aborts without

    def end_by_sigterm() -> None:
        page.end(by_sigterm=True)
        sidecar.part(_ASKED_PART_S)

    try:
        with _no_signals():
            beat.start()
            if os.getpid() == 1:
                last_words.stand_in(end_by_sigterm)
    except RuntimeError:  # no thread to be had: without a beat a healthy rank would look frozen
        page.close()
        files.remove()
        raise
    atexit.register(end)
    return beat, end


@contextlib.contextmanager
def _no_signals() -> Iterator[None]:
    """Threads made in here get no signals: one that the program blocks would end the process."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Beat:
    """A thread that stamps the page, which any running interpreter can do.

    `threading` does not know it: a program that joins all its threads, or waits until it has only
    one, would never end. So nothing that the beat calls may ask for `current_thread`.
    """

    def __init__(
        self,
        stamp: Callable[[], None],
        sidecar: SidecarProcess,
        chores: list[Callable[[], None]],
        obey: Callable[[], None],
    ) -> None:
        """`obey` carries out what the monitor orders; it is called more often than the chores."""
        self._stamp = stamp
        self._sidecar: SidecarProcess | None = sidecar
        self.chores = chores
        """Done once a second each; one that fails is dropped."""
        self._obey = obey
        self._over, self._ended = threading.Event(), threading.Event()

    def start(self) -> None:
        """Raises RuntimeError where no thread is to be had."""
        _thread.start_new_thread(self._live, ())

    def join(self, within_s: float) -> None:
        self._ended.wait(within_s)

    def _live(self) -> None:
        try:
            self.run()
        finally:
            self._ended.set()

    def run(self) -> None:
        due_s = stamp_s = monotonic()
        while not self._over.wait(min(_ORDERS_S, self._pause_s(due_s))):
            if not self._try(self._obey):
                self._obey = lambda: None
            if monotonic() < min(stamp_s, due_s):
                continue
            stamp_s = monotonic() + self._pause_s(monotonic() + _BEAT_S)
            self._stamp()
            if self._sidecar is not None and not self._try(self._sidecar.look):
                self._sidecar = None
            now_s = monotonic()
            if now_s >= due_s:
                due_s = now_s + _BEAT_S
                for chore in tuple(self.chores):
                    if not self._try(chore):
                        self.chores.remove(chore)

    def _pause_s(self, due_s: float) -> float:
        settled = self._sidecar is None or self._sidecar.settled
        return min(max(0.0, due_s - monotonic()), _BEAT_S if settled else _START_S)

    def stop(self) -> None:
        self._over.set()

    def _try(self, chore: Callable[[], None]) -> bool:
        try:
            chore()
        except Exception as exc:  # noqa: BLE001  the beat continues
            warn(f"lightkeeper: a chore of the beat failed: {exc!r}")
            threading._active.pop(threading.get_ident(), None)  # type: ignore[attr-defined]  # logging may
            return False
        return True
