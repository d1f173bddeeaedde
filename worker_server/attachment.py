"""The one line that a training script adds: `reporter = worker_server.attach()`.

Order matters: the page first (whatever fails later, it tells), then the sidecar, then the
beat thread, then what needs torch. Every failure ends in one warning and a working training.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from worker_server import control_plane, run_dir, wire
from worker_server.complaint import complain
from worker_server.environment import Settings
from worker_server.identity import POD, identity_from
from worker_server.page.writer import PageWriter
from worker_server.reporter import NullReporter, Reporter, StepReporter
from worker_server.torch_hook import when_torch

_BEAT_S = 1.0
_START_S = 0.1
"""Until the sidecar is up: its launcher wants to be reaped, and the sidecar to be let in."""
_START_LIMIT_S = 60.0
_PR_SET_PTRACER = 0x59616D61
_attached: StepReporter | None = None


def attach(told: Mapping[str, str] | None = None) -> StepReporter:
    """Report this process as a rank, and start its WorkerServer beside it.

    Never raises and never waits for the sidecar. Calling it again gives the same reporter.
    `told` wins over the environment. `LIGHTKEEPER=0` in the environment switches it off.
    """
    global _attached  # noqa: PLW0603  one process is one rank
    if _attached is not None:
        return _attached
    if os.environ.get("LIGHTKEEPER") == "0":
        _attached = NullReporter()
        return _attached
    try:
        _attached = _attach({**os.environ, **(told or {})})
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
    _say_what_is_missing(identity, environ)
    launcher = _start_sidecar(files)
    reporter = Reporter(page, _UrlOf(files))
    _Beat(page, files, launcher).start()
    os.register_at_fork(after_in_child=lambda: _forget(reporter))
    if environ.get("LIGHTKEEPER_TORCH") == "0":
        return reporter
    try:
        when_torch(lambda: _distributed(reporter, files))
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


def _say_what_is_missing(identity: wire.Identity, environ: Mapping[str, str]) -> None:
    if identity.host.startswith(POD) and environ.get("LOCAL_RANK", "0") == "0":
        _warn(
            f"lightkeeper does not know the node of {identity.host}, so quarantine cannot keep "
            "anybody off it: set LIGHTKEEPER_HOST from spec.nodeName"
        )


def _distributed(reporter: Reporter, files: run_dir.RankFiles) -> None:
    """What waits until torch is there. Never raises: it may run inside an import."""
    try:
        from worker_server.integrations.optimizer import count_steps  # noqa: PLC0415

        count_steps(reporter.from_source("optimizer"))
    except Exception as exc:  # noqa: BLE001
        _warn(f"lightkeeper does not count the optimizer's steps: {exc!r}")
    try:
        from worker_server import collectives  # noqa: PLC0415  imports torch.distributed

        collectives.install(reporter)
        if files.socket_fits:
            control_plane.start(files.socket)
    except Exception as exc:  # noqa: BLE001
        _warn(f"lightkeeper sees no collectives: {exc!r}")


def _warn(text: str) -> None:
    complain(text, stacklevel=5)


def _start_sidecar(files: run_dir.RankFiles) -> subprocess.Popen[bytes]:
    """A process of its own session that holds none of our files, pipes or terminals."""
    home = str(Path(__file__).resolve().parent.parent)
    environ = dict(os.environ)
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [home, environ.get("PYTHONPATH")]))
    environ.pop("LD_PRELOAD", None)  # a profiler or allocator meant for training
    with files.log.open("ab") as log:  # what goes wrong before it can log by itself
        return subprocess.Popen(
            [sys.executable, "-m", "worker_server.sidecar", str(files.page)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            cwd=files.page.parent,
            env=environ,
            start_new_session=True,
            close_fds=True,
        )


class _UrlOf:
    def __init__(self, files: run_dir.RankFiles) -> None:
        self._files = files

    def __call__(self) -> str | None:
        url = (self._files.read_endpoint() or {}).get("url")
        return url if isinstance(url, str) else None


class _Beat(threading.Thread):
    """Stamps the page once a second: an interpreter that runs can do at least that."""

    def __init__(
        self, page: PageWriter, files: run_dir.RankFiles, launcher: subprocess.Popen[bytes]
    ) -> None:
        super().__init__(name="lightkeeper-beat", daemon=True)
        self._page = page
        self._files = files
        self._launcher: subprocess.Popen[bytes] | None = launcher
        self._started_s = time.monotonic()
        self._settled = False
        self._over = threading.Event()
        atexit.register(self._over.set)

    def run(self) -> None:
        while not self._over.wait(_BEAT_S if self._settled else _START_S):
            self._page.beat()
            if not self._settled:
                self._reap()
                self._admit()

    def _reap(self) -> None:
        """The launcher forks the sidecar and exits; leave no zombie of it."""
        if self._launcher is not None and self._launcher.poll() is not None:
            self._launcher = None

    def _admit(self) -> None:
        """Let the sidecar (and its py-spy) look into this process, where Yama forbids it."""
        pid = (self._files.read_endpoint() or {}).get("sidecar_pid")
        if isinstance(pid, int) and self._launcher is None:
            ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)
            self._settled = True
        elif time.monotonic() - self._started_s > _START_LIMIT_S:
            _warn(f"lightkeeper's WorkerServer did not come up: see {self._files.log}")
            self._settled = True


def _forget(reporter: Reporter) -> None:
    """In a forked child: it is not the rank, and may attach as one of its own."""
    global _attached  # noqa: PLW0603
    reporter.detach()
    _attached = None
