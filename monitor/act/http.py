"""Every HTTP request of the monitor, on one event loop in a thread of its own.

A request ends when its deadline says so, whatever the other side does: a peer that drips one
byte a second, sends forever, redirects or talks nonsense costs its own request and nothing
else. Callers are ordinary threads; they get a `Future`, or block in `Fetcher.ask`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hmac
import json
import re
import resource
import ssl
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Set
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeVar

import aiohttp
from aiohttp.abc import ResolveResult
from yarl import URL

from lightkeeper.monitor.model.names import GroupName, one_line
from lightkeeper.monitor.model.observation import NO_ANSWER, Failure
from lightkeeper.worker_server.wire import HEADER_AGE

NO_GROUP: Final = GroupName("")
"""The gate: it is asked with the monitor's own token."""


class Tokens:
    """The API tokens: `own` may do everything (None: not configured), `groups` has one a group."""

    def __init__(
        self, own: str | None = None, groups: Mapping[GroupName, str] | None = None
    ) -> None:
        self.own = own
        self._of = dict(groups or {})
        self._groups: defaultdict[bytes, set[GroupName]] = defaultdict(set)
        for group, token in self._of.items():  # a hash lookup leaks no timing of the match
            self._groups[sha256(token.encode()).digest()].add(group)

    def of(self, group: GroupName) -> str | None:
        return self._of.get(group, self.own)

    def is_own(self, token: bytes) -> bool:
        return self.own is not None and hmac.compare_digest(token, self.own.encode())

    def groups(self, token: bytes) -> Set[GroupName]:
        """Groups whose ranks may register with this token."""
        return self._groups.get(sha256(token).digest(), frozenset())


T = TypeVar("T")

_RESOLVER_THREADS: Final = 32
"""getaddrinfo cannot be cancelled: with so many threads, a dead name server blocks no others."""
_CONNECT_SHARE: Final = 0.9
"""Share of a request's time: a later timeout is that of the answer."""
_UNTYPED: Final = "application/octet-stream"
_SECONDS: Final = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?")
_ERRNOS: Final = {
    **dict.fromkeys((errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH), Failure.TIMEOUT),
    **dict.fromkeys(
        (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL),
        Failure.UNASKED,
    ),
}
"""Why a connection failed: nothing answered in time, or this monitor lacks files, memory or ports.
Any other error means that nobody listens there."""


class FetchError(Exception):
    """No usable answer; `failure` is the kind."""

    def __init__(self, failure: Failure, detail: str, *, too_large: bool = False) -> None:
        super().__init__(f"{failure}: {detail}")
        self.failure = failure
        self.detail = detail
        self.too_large = too_large


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    content_type: str
    seconds: float
    """From asking to the last byte."""
    retry_after_s: float | None = None
    """The server's Retry-After, if it is in seconds."""
    age_s: float | None = None
    """How old the content is, where a WorkerServer says so."""

    @property
    def json_object(self) -> Mapping[str, Any]:
        """The body's JSON object; empty if it is anything else."""
        try:
            said = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return said if isinstance(said, dict) else {}

    @property
    def summary(self) -> str:
        text = one_line(self.body.decode("utf-8", "replace"), 160)
        return f"answered {self.status}: {text}" if text else f"answered {self.status}"


@dataclass(frozen=True, slots=True)
class Question:
    url: str = field(repr=False)
    """May hold a secret, as that of a chat's webhook does."""
    timeout_s: float
    max_bytes: int
    method: str = "GET"
    json: Mapping[str, Any] | None = None
    body: bytes | None = None
    """Sent unchanged, instead of `json`."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    group: GroupName | None = None
    """The replica group of the WorkerServer that is asked. Its token is sent to this URL only, as
    redirects are not followed. None: no token is sent."""
    meter: Callable[[int], None] | None = None
    """Called with each piece of the body, on the loop; raises `FetchError` to end the request."""


class CaError(Exception):
    """The file of certificate authorities cannot be used; the message is one line for a person."""


def trust_only(ca_file: Path) -> ssl.SSLContext:
    """Trust exactly the authorities of this file (PEM) for https.

    Raises:
        CaError: it cannot be read or holds none.
    """
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ValueError) as exc:
        why = exc.strerror if isinstance(exc, FileNotFoundError) else "no certificates in PEM"
        raise CaError(f"cannot use --ca-file {ca_file}: {why}") from exc


def trust_also(ca_file: Path) -> ssl.SSLContext:
    """Trust the authorities of this file and those that the system trusts.

    Raises:
        CaError: it cannot be read or holds none.
    """
    trust_only(ca_file)
    context = ssl.create_default_context()
    context.load_verify_locations(cafile=ca_file)
    return context


# -- fetcher -----------------------------------------------------------------------------------

LOOP_LATE_S: Final = 3.0
"""A fetch loop this much later than a deadline does not run: callers continue without it."""
KEPT_S: Final = 30.0
"""Idle connections are kept this long: longer than any sensible tick."""


@lru_cache(maxsize=1 << 16)
def _parsed(url: str) -> URL:
    """The URL, kept: to parse it each time costs a quarter of a request.

    Raises:
        aiohttp.InvalidURL: it is none.
    """
    try:
        return URL(url)
    except ValueError as exc:
        raise aiohttp.InvalidURL(url) from exc


class _Resolver(aiohttp.ThreadedResolver):
    """Keeps the names that are being resolved, so that a timeout names them."""

    def __init__(self, names: set[str]) -> None:
        super().__init__()
        self._names = names

    async def resolve(self, host: str, *args: Any, **how: Any) -> list[ResolveResult]:
        self._names.add(host)
        try:
            return await super().resolve(host, *args, **how)
        finally:
            self._names.discard(host)


class Fetcher:
    """Owns the loop, its thread and the connections. Close it when done."""

    def __init__(
        self,
        tls: ssl.SSLContext | None = None,
        *,
        proxies: bool = False,
        permit: Callable[[], str | None] = lambda: None,
        tokens: Tokens | None = None,
    ) -> None:
        """`tls`: authorities for https; None: the system's. `proxies`: whether HTTPS_PROXY,
        HTTP_PROXY and NO_PROXY of the environment are used. `permit` returns why nothing may be
        changed now, or None; it is called right before every request but a GET. `tokens`: for
        WorkerServers.
        """
        if proxies and tokens is not None:
            raise ValueError("no token goes to proxies")
        self.tokens = tokens or Tokens()
        self._permit = permit
        self._tls = tls
        self._proxies = proxies
        self._kept: set[tuple[str | None, int | None]] = set()
        """Hosts and ports whose connections are kept."""
        self._most_kept = 0
        self._kept_until_s = 0.0
        self._names: set[str] = set()
        self._loop = asyncio.new_event_loop()
        self._resolvers = ThreadPoolExecutor(_RESOLVER_THREADS, thread_name_prefix="resolve")
        self._loop.set_default_executor(self._resolvers)
        self._thread = threading.Thread(target=self._loop.run_forever, name="fetch", daemon=True)
        self._thread.start()
        self._keeping, self._closing = (
            self.submit(self._open(**how)).result(timeout=10)
            for how in ({"keepalive_timeout": KEPT_S}, {"force_close": True})
        )

    async def _open(self, **how: Any) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,
                **how,
                ttl_dns_cache=60,
                resolver=_Resolver(self._names),
                ssl=True if self._tls is None else self._tls,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=self._proxies,
            timeout=aiohttp.ClientTimeout(total=None),  # each request has its own deadline
            auto_decompress=False,  # a small body that unpacks to a huge one is still small
            headers={"Accept-Encoding": "identity", "User-Agent": "lightkeeper"},
        )

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop, from any thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def ask(self, question: Question) -> Answer:
        """Ask and wait.

        Raises:
            FetchError: no answer within `timeout_s`, or none that fits `max_bytes`.
        """
        asked = self.submit(self.fetch(question))
        try:
            return asked.result(timeout=question.timeout_s + 1.0)
        except FutureTimeoutError as exc:
            asked.cancel()
            raise FetchError(Failure.TIMEOUT, "the monitor's own loop is late") from exc
        except CancelledError as exc:
            raise FetchError(Failure.TIMEOUT, "the monitor is being stopped") from exc

    async def fetch(self, question: Question) -> Answer:
        """Ask, on the loop.

        Raises:
            FetchError: no answer within `timeout_s`, or none that fits `max_bytes`.
        """
        began = time.monotonic()
        if question.method != "GET" and (why := self._permit()) is not None:
            raise FetchError(Failure.REFUSED, f"not sent: {why}")
        try:
            async with asyncio.timeout(max(0.0, question.timeout_s)):
                return await self._exchange(question, began)
        except TimeoutError as exc:
            raise FetchError(Failure.TIMEOUT, self._late(question, exc)) from exc
        except aiohttp.ServerDisconnectedError as exc:
            raise FetchError(Failure.GARBAGE, "it hung up without an answer") from exc
        except aiohttp.ClientResponseError as exc:  # its text names the URL, which may be secret
            raise FetchError(Failure.GARBAGE, one_line(f"no HTTP: {exc.message}")) from exc
        except aiohttp.ClientConnectorDNSError as exc:
            raise FetchError(Failure.UNRESOLVED, f"cannot resolve {exc.host}") from exc
        except aiohttp.ClientConnectorCertificateError as exc:
            raise FetchError(Failure.GARBAGE, f"its certificate: {exc.certificate_error}") from exc
        except aiohttp.ClientConnectorError as exc:
            raise _failed(exc.os_error) from exc
        except aiohttp.InvalidURL as exc:
            raise FetchError(Failure.UNRESOLVED, f"not a URL: {question.url}") from exc
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            raise FetchError(Failure.GARBAGE, one_line(f"{type(exc).__name__}: {exc}")) from exc

    def _late(self, question: Question, exc: TimeoutError) -> str:
        if isinstance(exc, aiohttp.ServerTimeoutError):
            return "no connection in time"
        name, within = _parsed(question.url).host, f"{question.timeout_s:.1f} s"
        waits = name in self._names
        return f"its name {name} is not resolved within {within}" if waits else NO_ANSWER + within

    def _session(self, method: str, url: URL) -> aiohttp.ClientSession:
        """The session that keeps its connections, or the one that closes them after each answer: a
        change is sent once, so never on a connection that the other side may just be closing.

        A quarter of the files may be kept, and as many again of the last `KEPT_S`: the rest is for
        256 questions at once, the web server's clients, the store and the journal.
        """
        if method != "GET":
            return self._closing
        now_s, place = time.monotonic(), (url.host, url.port)
        if now_s >= self._kept_until_s:  # those asked first are the same each time
            self._kept, self._kept_until_s = set(), now_s + KEPT_S
            files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            self._most_kept = sys.maxsize if files == resource.RLIM_INFINITY else files // 4
        if len(self._kept) < self._most_kept:
            self._kept.add(place)
        return self._keeping if place in self._kept else self._closing

    async def _exchange(self, question: Question, began: float) -> Answer:
        url = _parsed(question.url)
        token = None if question.group is None else self.tokens.of(question.group)
        authorization = {} if token is None else {"Authorization": f"Bearer {token}"}
        async with self._session(question.method, url).request(
            question.method,
            url,
            json=question.json,
            data=question.body,
            headers={**question.headers, **authorization},
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(sock_connect=_CONNECT_SHARE * question.timeout_s),
        ) as response:
            body = bytearray()
            async for chunk in response.content.iter_any():
                body += chunk
                if question.meter is not None:
                    question.meter(len(chunk))
                if len(body) > question.max_bytes:
                    response.close()
                    over = f"body over {question.max_bytes} bytes"
                    raise FetchError(Failure.GARBAGE, over, too_large=True)
            return Answer(
                response.status,
                bytes(body),
                response.headers.get("Content-Type") or _UNTYPED,
                time.monotonic() - began,
                _seconds(response.headers.get("Retry-After", "")),
                _seconds(response.headers.get(HEADER_AGE, "")),
            )

    def close(self) -> None:
        """End open requests and the thread; waits at most about two seconds."""
        if self._loop.is_closed():
            return
        with contextlib.suppress(FutureTimeoutError):
            self.submit(self._shut()).result(timeout=1.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=1.0)
        self._resolvers.shutdown(wait=False, cancel_futures=True)
        if not self._thread.is_alive():
            self._loop.close()

    async def _shut(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._keeping.close()
        await self._closing.close()


def _seconds(header: str) -> float | None:
    return float(header) if _SECONDS.fullmatch(header) else None


def _failed(exc: OSError) -> FetchError:
    failure = _ERRNOS.get(exc.errno or 0, Failure.REFUSED)
    ours = "this monitor: " if failure is Failure.UNASKED else ""
    return FetchError(failure, ours + (exc.strerror or str(exc)))
