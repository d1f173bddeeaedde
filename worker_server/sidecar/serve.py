"""The life of a sidecar: open the page, listen, register, watch, linger, clean up."""

from __future__ import annotations

import contextlib
import errno
import http.client
import ipaddress
import json
import logging
import logging.handlers
import os
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from msgspec import MsgspecError, Struct
from msgspec.json import decode

from lightkeeper.worker_server import home, run_dir, wire
from lightkeeper.worker_server.http_server import (
    Channel,
    HttpServer,
    ServerLimits,
    TlsError,
    file_limit,
    tls_channel,
)
from lightkeeper.worker_server.plain_text import LEVELS, formatter
from lightkeeper.worker_server.rank.page.layout import SharedPageError
from lightkeeper.worker_server.rank.page.reader import PageReader
from lightkeeper.worker_server.rank.settings import LOOPBACK, SettingError, Settings
from lightkeeper.worker_server.sidecar.app import (
    THREADS,
    EvictionOrder,
    RequestGuard,
    Served,
    make_app,
)
from lightkeeper.worker_server.sidecar.black_box import BlackBox
from lightkeeper.worker_server.sidecar.host import HostView, have_port
from lightkeeper.worker_server.sidecar.machine import keep_witnesses
from lightkeeper.worker_server.sidecar.metrics import make_registry
from lightkeeper.worker_server.sidecar.process import (
    EvictionResult,
    Family,
    GoneError,
    PidfdProcess,
    end_rank,
)
from lightkeeper.worker_server.sidecar.recorders import ControlPlane
from lightkeeper.worker_server.sidecar.stacks import Stacks

# -- Asks the monitor to be polled: a lease, renewed three times per term, returned at the end ----
# An unreachable monitor is not unusual: the next try comes a little later, and each outage is
# logged once. But a user whose rank is refused, or who has no monitor where there should be one,
# would look at an empty page and not know why: so the rank warns of that, once. The token goes to
# the monitor and nowhere else; redirects are not followed. With two monitors (one on standby) the
# rank registers at both, each in its own thread: one that hangs does not block the other.
#
# A rank that gets a new name, its TorchFT Manager's, is registered under it at once. A monitor that
# knows the name as another group's refuses it: then the rank keeps its launcher's name. A restarted
# rank has no Manager yet: the monitor reports the group's former name.

LEASE_S = 15.0
_ANSWER_S = 3.0
_PARTING_S = 0.3
"""For the last words of a rank whose pod is ending."""
_MIN_WAIT_S, _MAX_WAIT_S = 1.0, 15.0
_RENEW_MOST_S = 60.0
_LOOK_S = 0.5
"""Between two checks of the rank's name."""
_HINT = " (start `lightkeeper monitor` here, or set LIGHTKEEPER_MONITOR to where it is)"
"""For the default address."""
_ALONE_S = 10.0
"""Without any answer for this long after the start, the rank warns."""
_UNAUTHORIZED = "HTTP 401"
_REFUSED, _BROKEN, _FULL = 400, 500, 503


class EndpointFile:
    """What a sidecar publishes: its address, its rank's name, and what the rank should warn of."""

    def __init__(self, box: BlackBox, files: run_dir.RankFiles, url: str) -> None:
        self._box, self._files, self._url = box, files, url
        self._words: dict[str, str] = {}

    @property
    def identity(self) -> wire.Identity:
        return self._box.identity

    def registration(self, *, parting: bool = False) -> wire.Registration:
        """`parting`: with how the rank ends."""
        process = self._box.process()
        return wire.Registration(
            self._box.identity, self._url, LEASE_S,
            age_s=self._box.age_s, dead_age_s=process.dead_age_s, claim=self._box.page.claim,
            last=self._box.parting() if parting else None,
        )  # fmt: skip

    def publish(self) -> None:
        who = self._box.identity
        self._files.write_endpoint(
            {
                "rank": who.rank,
                "url": self._url,
                "pid": who.pid,
                "incarnation": who.incarnation,
                "sidecar_pid": os.getpid(),
                "sidecar_ticks": run_dir.start_ticks(os.getpid()),
                "pid_namespace": run_dir.pid_namespace(),
                **self._words,
            }
        )
        _log.info("rank %s (pid %d) at %s", who.rank, who.pid, self._url)

    def know_as(self, name: str) -> None:
        """Use the group's former name."""
        self._box.page.known_as = name
        self._words["known_as"] = name
        self.publish()

    def allow(self, asks_again: bool) -> None:
        """Take the monitor's word on shutting dead connections to the Lighthouse."""
        self._box.ask_again.allowed = asks_again

    def complain(self, why: str) -> None:
        """Publish a complaint for the rank's users."""
        self._words["complaint"] = why
        self.publish()

    def refuse(self, name: str, why: str) -> None:
        """Drop a name that is another group's."""
        self._box.page.refused = name
        self._words["refused"] = name
        self.complain(why)


def at_once(calls: Iterable[Callable[[], None]]) -> None:
    """Make these calls in parallel, and wait for all."""
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Registrar(threading.Thread):
    """Keeps the lease of one rank with one monitor."""

    def __init__(
        self,
        monitor: str,
        endpoint: EndpointFile,
        token: str | None,
        *,
        unfit: Callable[[], str | None] = lambda: None,
        hint: str = "",
    ) -> None:
        """`unfit`: why the monitor must not be asked now; `hint`: what to do if it is silent."""
        super().__init__(name="registrar", daemon=True)
        self._url = monitor.rstrip("/")
        self._endpoint = endpoint
        self._unfit = unfit
        self._hint = hint
        self._complaint = ""
        """The last one."""
        self._came = False
        """True if it was ever registered."""
        self._refusal = ""
        """The monitor's message for the last refusal, unless it refused only the name."""
        self._began_s = time.monotonic()
        self._identity = endpoint.identity
        """The identity last registered."""
        self._token = token
        self._stop_asked = threading.Event()
        self._renew_s = 0.0
        """Requested by the monitor: renewals of thousands of ranks every 5 s would overload it."""

    def run(self) -> None:
        wait, up, due_s = 0.0, True, time.monotonic()
        while not self._stop_asked.wait(min(_LOOK_S, max(0.0, due_s - time.monotonic()))):
            if time.monotonic() < due_s and self._endpoint.identity == self._identity:
                continue
            registration = self._endpoint.registration()
            self._identity = registration.identity
            body = json.dumps(wire.to_json(registration)).encode()
            problem = self._call("POST", wire.PATH_REGISTER, body)
            later = min(_MAX_WAIT_S, max(_MIN_WAIT_S, 2 * wait))
            wait = max(registration.lease_s / 3, self._renew_s) if problem is None else later
            due_s = time.monotonic() + wait
            self._complain(problem)
            if up != (problem is None):
                up = problem is None
                _log.info("monitor %s: %s", self._url, problem or "registered")

    def part(self) -> None:
        """Send how the rank ends, at once and once."""
        body = json.dumps(wire.to_json(self._endpoint.registration(parting=True))).encode()
        self._call("POST", wire.PATH_REGISTER, body, _PARTING_S)

    def _complain(self, problem: str | None) -> None:
        """Say why nobody watches here, once for each reason; what all share, by the first rank."""
        rank = self._identity.rank
        words, alike = "", True
        if problem is None:
            self._came = True
        elif problem == _UNAUTHORIZED:
            what = "a token" if self._token is None else "another token"
            words = f"wants {what}: set LIGHTKEEPER_TOKEN_FILE to a file that holds its token"
        elif self._refusal:
            words, alike = f"refuses rank {rank}: {self._refusal}", False
        elif not self._came and time.monotonic() - self._began_s >= _ALONE_S:
            words = f"does not answer ({problem}); it is asked again and again{self._hint}"
        if words and words != self._complaint and (self._identity.group_rank == 0 or not alike):
            self._complaint = words
            self._endpoint.complain(
                f"the monitor at {self._url} {words}. Until then it does not see {rank}."
            )

    def stop(self) -> None:
        """Stop renewing and return the lease; once."""
        if self._stop_asked.is_set():
            return
        self._stop_asked.set()
        self.join(_ANSWER_S)  # a pending renewal must not come after the return
        query = urlencode({"incarnation": self._identity.incarnation})
        rank = quote(self._identity.rank, safe="")
        claim = self._endpoint.registration().claim
        body = json.dumps({"secret": claim.secret if claim else ""}).encode()
        self._call("DELETE", f"{wire.PATH_REGISTER}/{rank}?{query}", body)

    def _call(
        self, method: str, path: str, body: bytes | None, within_s: float = _ANSWER_S
    ) -> str | None:
        """None on success, else what was wrong."""
        if (unfit := self._unfit()) is not None:
            return unfit
        headers = {"Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            status, answer = home.request(
                method, self._url + path, within_s, body=body, headers=headers
            )
            if method == "POST":
                self._heed(status, answer)
        except OSError as exc:
            return exc.strerror or str(exc) or type(exc).__name__
        except (http.client.HTTPException, ValueError) as exc:
            return repr(exc)
        return None if status == http.HTTPStatus.OK else f"HTTP {status}"

    def _heed(self, status: int, body: bytes) -> None:
        """Act on what the monitor says of name, renewal, refusal and orders; ignore the rest."""
        self._refusal = ""
        try:
            answer = decode(body, type=_Answer)
        except (MsgspecError, UnicodeDecodeError, RecursionError):
            return
        error, refused = wire.printable_line(answer.error), answer.refused_name
        refuses = (_REFUSED <= status < _BROKEN or status == _FULL) and not answer.soon
        if refuses and answer.error and refused is None:
            self._refusal = error.rstrip(".")
        if answer.renew_s is not None and 0 <= answer.renew_s <= _RENEW_MOST_S:
            self._renew_s = answer.renew_s
        if answer.asks_again is not None:
            self._endpoint.allow(answer.asks_again)
        renamed = self._identity.launched_as is not None
        if renamed and refused is not None and refused == self._identity.group:
            self._endpoint.refuse(refused, error)
        elif not renamed and answer.known_as is not None:
            self._endpoint.know_as(answer.known_as)


class _Answer(Struct):
    """The monitor's, to a registration."""

    error: str = ""
    refused_name: str | None = None
    known_as: str | None = None
    renew_s: float | None = None
    asks_again: bool | None = None
    soon: bool = False


# -- Where a sidecar listens: sockets, connection limit, and the host in its URL ------------------

_FILES_WANTED: Final = 8192
_FILES_KEPT: Final = 64
"""For our own page, logs, pidfds and pipes."""
_PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Between tries for a free port; in total less than the rank waits for its sidecar."""


def open_server(app: Any, settings: Settings, threads: int) -> HttpServer:
    """The server of this application, bound but not started; any port if the wanted one is taken.

    Raises:
        TlsError: the certificate or the key cannot be used.
        OSError: not an address of this host.
    """
    channel = Channel
    if settings.tls_cert is not None and settings.tls_key is not None:
        channel = tls_channel(settings.tls_cert, settings.tls_key)
    try:
        listener = listening_socket(settings.bind, settings.port)
    except OSError as exc:
        if settings.port:
            _log.warning("port %d: %s; taking any", settings.port, exc.strerror)
        elif exc.errno != errno.EADDRINUSE:
            raise
        listener = _any_port(settings.bind)
    limits = ServerLimits(connections=connections_that_fit(ServerLimits().connections))
    return HttpServer(
        app, listener, threads=threads, limits=limits, channel=channel, scheme=settings.scheme
    )


def _any_port(host: str) -> socket.socket:
    """A socket on a port that the kernel picks; retries if none is free."""
    for pause_s in _PAUSES_S:
        try:
            return listening_socket(host, 0)
        except OSError as exc:
            if exc.errno != errno.EADDRINUSE:
                raise
            _log.warning("no port is free; looking again in %.0f s", pause_s)
            time.sleep(pause_s)
    return listening_socket(host, 0)


def bind_towards(settings: Settings) -> str:
    """The default address to listen on: the narrowest that the monitor can reach. That is loopback
    for a monitor on this host, and without a token, which reading from elsewhere needs.
    """
    if settings.token is None or settings.unnamed or not settings.monitors:
        return LOOPBACK
    try:
        own, address = _route(urlsplit(settings.monitors[0]).hostname)
    except OSError:
        return LOOPBACK
    return LOOPBACK if own == address or ipaddress.ip_address(own).is_loopback else own


def _route(host: str | None, family: int = socket.AF_UNSPEC) -> tuple[str, str]:
    """Our address on the route to this host, and its own; nothing is sent.

    Raises:
        OSError: there is no such host, or no route.
    """
    family, kind, *_, address = socket.getaddrinfo(host, 9, family, socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0]), str(address[0])


def reachable_host(settings: Settings) -> str:
    """The host for the URL: the bind address, or for a wildcard the address towards the monitor."""
    if settings.bind not in ("0.0.0.0", "::", ""):  # noqa: S104
        return f"[{settings.bind}]" if ":" in settings.bind else settings.bind
    target = urlsplit(settings.monitors[0]).hostname if settings.monitors else None
    with contextlib.suppress(OSError):
        if target is not None:
            return _route(target, socket.AF_INET)[0]
    return socket.gethostname()


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that listens on the first address that `host` resolves to.

    Raises:
        OSError: the address is in use, or not one of this host.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError:
        listener.close()
        raise
    return listener


def connections_that_fit(wanted: int) -> int:
    """How many connections the process may hold; raises its limit of open files."""
    return max(8, min(wanted, file_limit(_FILES_WANTED) - _FILES_KEPT))


# -- the sidecar's life ---------------------------------------------------------------------------

_EVERY_S = 3.0
_TIMEOUT_S = 5.0
_ANY = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}  # noqa: S104


def check_self(settings: Settings, port: int, endpoint: Path) -> None:
    """Ask our own `/healthz`, and touch the endpoint file if we answer.

    The rank checks its time: a server that does not answer itself is replaced, see
    `rank.attach`. Any answer counts, even that a token is missing.
    """
    host = _ANY.get(settings.bind, settings.bind)
    where = f"{settings.scheme}://{f'[{host}]' if ':' in host else host}:{port}{wire.PATH_HEALTHZ}"
    whoever = None
    if settings.scheme == "https":
        whoever = ssl._create_unverified_context()  # noqa: S323  it is ourselves
    with contextlib.suppress(OSError, http.client.HTTPException):
        home.request("GET", where, _TIMEOUT_S, context=whoever)
        os.utime(endpoint)


_TICK_S = 1.0
_CLOSED_LINGER_S = 5.0
"""A rank that announced the end of its work leaves no evidence worth keeping longer."""
_NICE = 5
"""If both want one core, training gets three times as much of it. Measured with three spinning
threads and the rank on our core: `/v1/state` takes 6 ms (median) at nice 0, 18 at 5, 51 at 10."""
_log = logging.getLogger("lightkeeper.worker_server.sidecar")


def serve_rank(page_path: Path, rank_fd: int | None = None, stack: int = 0) -> int:
    """Serve the rank of this page until it is dead and the linger time is over.

    `rank_fd` is a pidfd that the rank passed on; the rank may have died since. `stack`: its own.
    """
    files = run_dir.RankFiles(page_path)
    handler = logging.handlers.RotatingFileHandler(files.log, maxBytes=64 * 1024, backupCount=1)
    form, words = os.environ.get("LIGHTKEEPER_LOG_FORMAT"), "%(asctime)s %(levelname)s %(message)s"
    handler.setFormatter(formatter(form, words))
    level = LEVELS.get(os.environ.get("LIGHTKEEPER_LOG_LEVEL", ""), logging.INFO)
    logging.basicConfig(level=level, handlers=[handler])
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a closed terminal ends the rank;
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # so does Ctrl-C: we outlive it
    parting = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: parting.set())  # the rank is ending
    try:
        page = PageReader(page_path)
        of_rank = {"group": page.identity.group, "rank": page.identity.rank}
        handler.addFilter(lambda record: vars(record).update(of_rank) is None)
        run_dir.hold(page_path)
        settings = Settings.from_environ(os.environ, page.identity.group_rank)
        if not os.environ.get("LIGHTKEEPER_BIND"):
            settings = replace(settings, bind=bind_towards(settings))
        process = PidfdProcess(page.identity.pid, page.start_ticks, rank_fd, stack=stack)
    except (SharedPageError, SettingError, GoneError, OSError) as exc:
        _log.error("cannot start: %s", exc)
        return 1
    box = BlackBox(
        page, process, ControlPlane(files.socket), Stacks(process.pid), files,
        machine=settings.machine,
    )  # fmt: skip
    try:
        _serve(box, process, files, settings, parting)
    except (TlsError, OSError) as exc:
        _log.error("cannot serve: %s", exc)
        return 1
    finally:
        # a living rank starts another sidecar on this page
        if process.wait_death(0) or process.runs_another_program():
            files.remove()
        _log.info("gone")
    return 0


def _serve(
    box: BlackBox, process: PidfdProcess, files: run_dir.RankFiles, settings: Settings,
    parting: threading.Event,
) -> None:  # fmt: skip
    def not_ours() -> set[int]:
        return run_dir.processes(files.page.parent) - {box.identity.pid}

    family = Family(box.identity.pid, not_ours)

    def evict_rank(order: EvictionOrder) -> EvictionResult:
        gently = partial(box.end_gently, order.manner, order.gently_s) if order.gently_s else None
        return end_rank(process, box.process(), order.grace_s, family, gently)

    url = ""
    registry = make_registry(box.state, lambda: url, box.follower)
    addresses = lambda: box.network.addresses  # noqa: E731
    folder = files.page.parent
    host = HostView(folder, box.identity, box.state, addresses, box.machine.of_rank).report
    app = make_app(
        Served(box, evict_rank, registry, host, settings.monitors),
        RequestGuard(settings, names=[box.identity.host]),
    )
    with contextlib.suppress(OSError):
        os.nice(_NICE)  # after the imports, and before the threads, which inherit it
    server = open_server(app, settings, THREADS)
    url = f"{settings.scheme}://{reachable_host(settings)}:{server.port}"
    server.start()
    if settings.host_port:
        _in_background(
            "host-port", have_port,
            lambda: listening_socket(settings.bind, settings.host_port), server.also,
        )  # fmt: skip

    if settings.machine:
        _in_background("machine", keep_witnesses, folder)
    unnamed: dict[str, Any] = {"unfit": home.not_ours, "hint": _HINT} if settings.unnamed else {}
    endpoint = EndpointFile(box, files, url)
    endpoint.publish()
    check = partial(check_self, settings, server.port, files.endpoint)
    _in_background("self-check", _repeat, check, lambda: time.sleep(_EVERY_S))
    leases = [
        Registrar(monitor, endpoint, settings.token, **unnamed) for monitor in settings.monitors
    ]
    for lease in leases:
        lease.start()
    run_dir.sweep(folder)

    def part() -> None:
        parting.clear()
        if not box.page.closed:
            at_once(lease.part for lease in leases)
        with contextlib.suppress(OSError):
            os.utime(files.endpoint)  # which the rank waits for

    _in_background("parting", _repeat, part, parting.wait)
    _watch(process, box, settings.linger_s, lambda: at_once(lease.stop for lease in leases), part)


def _repeat(act: Callable[[], None], wait: Callable[[], object]) -> None:
    while True:
        wait()
        act()


def _watch(
    process: PidfdProcess, box: BlackBox, linger_s: float, deregister: Callable[[], None],
    part: Callable[[], None],
) -> None:  # fmt: skip
    """Keep the black box until the rank is dead and its linger time is over.

    A rank that closed needs no monitor: its leases are returned.
    """
    given_back = False
    while not process.wait_death(_TICK_S):
        if process.runs_another_program():  # which may attach as a rank of its own
            _log.info("the rank's process runs another program")
            deregister()
            return
        try:
            box.tick()
        except Exception:  # noqa: BLE001  one failed look must not end the black box
            _log.exception("keeping the black box failed")
        if box.page.closed and not given_back:
            given_back = True
            deregister()
    part()  # first of all: its pod may be about to end
    _in_background("ending", box.learn_ending)
    closed = box.page.closed
    if closed:
        deregister()
    _log.info("the rank is gone (%s)", "its work was over" if closed else "not announced")
    threading.Event().wait(min(linger_s, _CLOSED_LINGER_S) if closed else linger_s)
    deregister()


def _in_background(name: str, target: Callable[..., None], *args: Any) -> None:
    threading.Thread(target=target, args=args, name=name, daemon=True).start()
