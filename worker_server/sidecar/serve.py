"""The life of a sidecar: open the page, listen, register, watch, linger, clean up."""

from __future__ import annotations

import contextlib
import http.client
import logging
import logging.handlers
import os
import signal
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from worker_server import run_dir, wire
from worker_server.rank.page.layout import PageError
from worker_server.rank.page.reader import PageReader
from worker_server.rank.settings import SettingError, Settings
from worker_server.sidecar.app import THREADS, Served, make_app
from worker_server.sidecar.black_box import BlackBox, black_box_of
from worker_server.sidecar.evict import Eviction, Family, evict
from worker_server.sidecar.guard import Guard
from worker_server.sidecar.host import HostView, have_port
from worker_server.sidecar.listening import (
    TlsError,
    listen,
    listening_socket,
    reachable_host,
)
from worker_server.sidecar.metrics import make_registry
from worker_server.sidecar.process import GoneError, PidfdProcess
from worker_server.sidecar.registration import LEASE_S, Registrar, give_back

_EVERY_S = 3.0
_TIMEOUT_S = 5.0
_ANY = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}  # noqa: S104


def mark_answers(answers: Callable[[], bool], endpoint: Path) -> None:
    """Ask ourselves for our health, and mark the endpoint file when we answer.

    The rank looks at that mark: a server that does not answer itself is replaced, see
    `worker_server.rank.sidecar_process`. Any answer counts, also that a token is missing.
    """
    if answers():
        with contextlib.suppress(OSError):
            os.utime(endpoint)


def _check_self(settings: Settings, port: int, endpoint: Path) -> None:
    """Until the process ends."""
    pause = threading.Event()
    while not pause.wait(_EVERY_S):
        mark_answers(lambda: answers(settings, port), endpoint)


def answers(settings: Settings, port: int) -> bool:
    """Whether the server on this port says anything to a question for its health."""
    host = _ANY.get(settings.bind, settings.bind)
    connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
    if settings.scheme == "https":
        whoever = ssl._create_unverified_context()  # noqa: S323  it is ourselves
        connection = http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=whoever)
    try:
        connection.request("GET", wire.PATH_HEALTHZ)
        connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return True


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
    def not_ours() -> set[int]:
        return run_dir.processes(files.page.parent) - {box.identity.pid}

    family = Family(box.identity.pid, not_ours)

    def evict_rank(grace_s: float) -> Eviction:
        return evict(process, box.process(), grace_s, family)

    url = ""
    registry = make_registry(box.state, lambda: url, box.follower)
    host = HostView(files.page.parent, box.identity, box.state).report
    app = make_app(
        Served(box, evict_rank, registry, host), Guard(settings, names=[box.identity.host])
    )
    _yield_to_training()
    server = listen(app, settings, THREADS)
    url = f"{settings.scheme}://{reachable_host(settings)}:{server.port}"
    server.start()
    if settings.host_port:
        _in_background(
            "host-port", have_port,
            lambda: listening_socket(settings.bind, settings.host_port), server.also,
        )  # fmt: skip

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

    def complain(why: str) -> None:
        names.update(complaint=why)
        publish()

    publish()
    _in_background("self-check", _check_self, settings, server.port, files.endpoint)
    leases = [
        Registrar(
            monitor, lambda: wire.Registration(box.identity, url, LEASE_S), settings.token,
            refused=refuse, known_as=know_as, complained=complain,
        )
        for monitor in settings.monitors
    ]  # fmt: skip
    for lease in leases:
        lease.start()
    run_dir.sweep(files.page.parent)
    _watch(process, box, settings.linger_s, lambda: give_back(leases))


def _yield_to_training() -> None:
    """Where both want one core, training gets three times as much: readers must not slow it.

    Comes after the imports, which are most of the start, and before the threads, which inherit it.
    Measured with three spinning threads and the rank on the sidecar's own core: `/v1/state` takes
    6 ms (median) at nice 0, 18 ms at 5, 51 ms at 10.
    """
    with contextlib.suppress(OSError):
        os.nice(_NICE)


def _watch(
    process: PidfdProcess, box: BlackBox, linger_s: float, deregister: Callable[[], None]
) -> None:
    """Until the rank is dead and the time is over for which its endpoints go on answering.

    A rank that closed is not the monitor's business.
    """
    told = False
    while not process.wait_death(_TICK_S):
        try:
            box.tick()
        except Exception:  # noqa: BLE001  one failed look must not end the black box
            _log.exception("keeping the black box failed")
        if box.closed and not told:
            told = True
            deregister()
    _in_background("ending", box.learn_ending)
    closed = box.closed
    if closed and not told:
        deregister()
    _log.info("the rank is gone (%s)", "its work was over" if closed else "not announced")
    threading.Event().wait(min(linger_s, _CLOSED_LINGER_S) if closed else linger_s)
    deregister()


def _in_background(name: str, target: Callable[..., None], *args: Any) -> None:
    threading.Thread(target=target, args=args, name=name, daemon=True).start()


def _log_to(path: Path) -> None:
    handler = logging.handlers.RotatingFileHandler(path, maxBytes=64 * 1024, backupCount=1)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("waitress").setLevel(logging.ERROR)  # "task queue depth" is not news
