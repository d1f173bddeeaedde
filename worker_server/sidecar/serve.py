"""The life of a sidecar: open the page, listen, register, watch, linger, clean up."""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from worker_server import run_dir, wire
from worker_server.environment import SettingError, Settings, monitors_of
from worker_server.page.layout import PageError
from worker_server.page.reader import PageReader
from worker_server.sidecar import timeline
from worker_server.sidecar.app import THREADS, make_app
from worker_server.sidecar.black_box import BlackBox, black_box_of
from worker_server.sidecar.evict import Eviction, evict
from worker_server.sidecar.family import Family
from worker_server.sidecar.guard import Guard
from worker_server.sidecar.host import HostPort, HostView
from worker_server.sidecar.listening import listen, listening_socket, reachable_host
from worker_server.sidecar.metrics import make_registry
from worker_server.sidecar.process import GoneError, PidfdProcess
from worker_server.sidecar.registration import LEASE_S, OnName, Registrars
from worker_server.sidecar.self_check import SelfCheck, answers
from worker_server.sidecar.tls import TlsError

_TICK_S = 1.0
_CLOSED_LINGER_S = 5.0
"""A rank that said that its work is over leaves no evidence worth more than this."""
_NICE = 5
_log = logging.getLogger("worker_server.sidecar")


def serve(page_path: Path, rank_fd: int | None = None) -> int:
    """Serve the rank of this page until it is dead and the linger time is over.

    `rank_fd` is a pidfd that the rank passed on; it may have died since.
    """
    files = run_dir.RankFiles(page_path)
    _log_to(files.log)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a terminal that goes, likewise
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the rank; we outlive it
    try:
        page = PageReader(page_path)
        run_dir.hold(page_path)
        settings = Settings.from_environ(os.environ, page.identity.group_rank)
        process = PidfdProcess(page.identity.pid, page.start_ticks, rank_fd)
    except (PageError, SettingError, GoneError, OSError) as exc:
        _log.error("cannot start: %s", exc)
        return 1
    box = black_box_of(page, process, files)
    try:
        _serve(box, process, files, settings)
    except (TlsError, OSError) as exc:
        _log.error("cannot serve: %s", exc)
        return 1
    finally:
        if process.wait_death(0):  # a living rank starts another sidecar on the same page
            files.remove()
        _log.info("gone")
    return 0


def _serve(
    box: BlackBox, process: PidfdProcess, files: run_dir.RankFiles, settings: Settings
) -> None:
    linger = _Linger(process, box, settings.linger_s)

    def not_ours() -> set[int]:
        return run_dir.processes(files.page.parent) - {box.identity.pid}

    family = Family(box.identity.pid, not_ours)

    def evict_rank(grace_s: float) -> Eviction:
        return evict(process, box.process(), grace_s, family)

    url = ""
    app = make_app(
        box, evict_rank,
        guard=Guard(settings, names=[box.identity.host]),
        registry=make_registry(box.state, lambda: url, box.follower),
        host=HostView(files.page.parent, box.identity, box.state).report,
        table=timeline.render,
    )  # fmt: skip
    _yield_to_training()
    server = listen(app, settings, THREADS)
    url = f"{settings.scheme}://{reachable_host(settings)}:{server.port}"
    server.start()
    if settings.host_port:
        HostPort(lambda: listening_socket(settings.bind, settings.host_port), server.also).start()

    names: dict[str, str] = {}

    def publish() -> None:
        files.write_endpoint(
            {
                "rank": box.identity.rank,
                "url": url,
                "pid": box.identity.pid,
                "incarnation": box.identity.incarnation,
                "sidecar_pid": os.getpid(),
                "sidecar_ticks": run_dir.start_ticks(os.getpid()),
                "pid_namespace": run_dir.pid_namespace(),
                **names,
            }
        )
        _log.info("rank %s (pid %d) at %s", box.identity.rank, box.identity.pid, url)

    def refuse(name: str, why: str) -> None:
        box.refuse(name)
        names.update(refused=name, refusal=why)
        publish()

    def know_as(name: str) -> None:
        box.know_as(name)
        names.update(known_as=name)
        publish()

    publish()
    SelfCheck(lambda: answers(settings, server.port), files.endpoint).start()
    registrar = None
    if settings.monitor is not None:
        registrar = Registrars(
            monitors_of(settings.monitor),
            lambda: wire.Registration(box.identity, url, LEASE_S),
            settings.token,
            OnName(refuse, know_as),
        )
        registrar.start()
    run_dir.sweep(files.page.parent)
    deregister = registrar.stop if registrar is not None else lambda: None
    linger.watch(on_closed=deregister)
    deregister()


def _yield_to_training() -> None:
    """Where both want one core, training gets three times as much: readers must not slow it.

    Comes after the imports, which are most of the start, and before the threads, which inherit it.
    Measured with three spinning threads and the rank on the sidecar's own core: `/v1/state` takes
    6 ms (median) at nice 0, 18 ms at 5, 51 ms at 10.
    """
    with contextlib.suppress(OSError):
        os.nice(_NICE)


class _Linger:
    """Waits for the rank's death, then for the time that its endpoints go on answering."""

    def __init__(self, process: PidfdProcess, box: BlackBox, linger_s: float) -> None:
        self._process = process
        self._box = box
        self._linger_s = linger_s

    def watch(self, on_closed: Callable[[], None]) -> None:
        """Until the linger time is over; a rank that closed is not the monitor's business."""
        told = False
        while not self._process.wait_death(_TICK_S):
            try:
                self._box.tick()
            except Exception:  # noqa: BLE001  one failed look must not end the black box
                _log.exception("keeping the black box failed")
            if self._box.closed and not told:
                told = True
                on_closed()
        threading.Thread(target=self._box.learn_ending, name="ending", daemon=True).start()
        closed = self._box.closed
        if closed and not told:
            on_closed()
        _log.info("the rank is gone (%s)", "its work was over" if closed else "not announced")
        threading.Event().wait(min(self._linger_s, _CLOSED_LINGER_S) if closed else self._linger_s)


def _log_to(path: Path) -> None:
    handler = logging.handlers.RotatingFileHandler(path, maxBytes=64 * 1024, backupCount=1)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("waitress").setLevel(logging.ERROR)  # "task queue depth" is not news
