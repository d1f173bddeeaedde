"""Every HTTP request of the monitor, on one event loop in a thread of its own.

A request ends when its deadline says so, whatever the other side does: a peer that drips one
byte a second, sends for ever, redirects or talks nonsense costs its own request and nothing
else. Callers are ordinary threads; they get a `Future`, or block in `Fetcher.ask`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ssl
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import aiohttp

from monitor.act.kept_connections import (
    KEPT_S,
    Asking,
    BadAnswerError,
    KeptConnections,
    Place,
    place_of,
)
from monitor.bearer import Tokens
from monitor.model.names import GroupName
from monitor.model.observation import Failure

T = TypeVar("T")

_RESOLVER_THREADS: Final = 32
"""getaddrinfo cannot be cancelled: enough threads that one dead name server blinds nobody."""
_UNTYPED: Final = "application/octet-stream"
_TOLD: Final = (b"content-type", b"retry-after")
_STUCK_ERRNOS: Final = frozenset({errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH})


class FetchError(Exception):
    """No usable answer; `failure` says of which sort."""

    def __init__(self, failure: Failure, detail: str) -> None:
        super().__init__(f"{failure}: {detail}")
        self.failure = failure
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer, whatever its status."""

    status: int
    body: bytes
    content_type: str
    seconds: float
    """From asking to the last byte."""
    retry_after_s: float | None = None
    """What the server asked for, where it did so in seconds."""

    @property
    def summary(self) -> str:
        """In one short line."""
        text = " ".join(self.body.decode("utf-8", "replace").split())
        return f"answered {self.status}: {text[:160]}" if text else f"answered {self.status}"


@dataclass(frozen=True, slots=True)
class Question:
    """One HTTP request."""

    url: str
    timeout_s: float
    max_bytes: int
    method: str = "GET"
    json: Mapping[str, Any] | None = None
    body: bytes | None = None
    """Instead of `json`, as it stands."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    group: GroupName | None = None
    """The replica group of the WorkerServer that is asked, with the token that its ranks know, sent
    to this URL and nowhere else: redirects are not followed. None: with no token."""
    meter: Callable[[int], None] | None = None
    """Told of every piece of the body, on the loop; may raise `FetchError` to end the request."""


class CaError(Exception):
    """The file of authorities cannot be used; the message is one line for a person."""


def trust(ca_file: Path) -> ssl.SSLContext:
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
    trust(ca_file)
    made = ssl.create_default_context()
    made.load_verify_locations(cafile=ca_file)
    return made


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
        """`tls`: whom to trust for https; None: whom the system trusts. `proxies`: whether
        HTTPS_PROXY, HTTP_PROXY and NO_PROXY of the environment are used. `permit`: why nothing may
        be changed at this moment, or None; asked right before every request but a GET. `tokens`:
        for WorkerServers.
        """
        self.tokens = tokens or Tokens()
        self._permit = permit
        self._tls = tls
        self._proxies = proxies
        self._kept = KeptConnections()
        self._loop = asyncio.new_event_loop()
        self._resolvers = ThreadPoolExecutor(_RESOLVER_THREADS, thread_name_prefix="resolve")
        self._loop.set_default_executor(self._resolvers)
        self._thread = threading.Thread(target=self._loop.run_forever, name="fetch", daemon=True)
        self._thread.start()
        self._session: aiohttp.ClientSession = self.submit(self._open()).result(timeout=10)

    async def _open(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,
                keepalive_timeout=KEPT_S,
                ttl_dns_cache=60,
                ssl=True if self._tls is None else self._tls,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=self._proxies,
            timeout=aiohttp.ClientTimeout(total=None),  # each question brings its own deadline
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
            if (place := self._plain(question)) is not None:
                return await self._get(question, place, began)
            async with asyncio.timeout(max(0.0, question.timeout_s)):
                return await self._exchange(question, began)
        except TimeoutError as exc:
            detail = f"no full answer within {question.timeout_s:.1f} s"
            raise FetchError(Failure.TIMEOUT, detail) from exc
        except aiohttp.ClientConnectorDNSError as exc:
            raise FetchError(Failure.UNRESOLVED, f"cannot resolve {exc.host}") from exc
        except aiohttp.ClientConnectorCertificateError as exc:
            raise FetchError(Failure.GARBAGE, f"its certificate: {exc.certificate_error}") from exc
        except aiohttp.ClientConnectorError as exc:
            stuck = exc.os_error.errno in _STUCK_ERRNOS
            failure = Failure.TIMEOUT if stuck else Failure.REFUSED
            raise FetchError(failure, exc.os_error.strerror or str(exc)) from exc
        except aiohttp.InvalidURL as exc:
            raise FetchError(Failure.UNRESOLVED, f"not a URL: {question.url}") from exc
        except BadAnswerError as exc:
            raise FetchError(Failure.GARBAGE, str(exc)) from exc
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            raise FetchError(Failure.GARBAGE, _short(exc)) from exc

    def _headers(self, question: Question) -> dict[str, str]:
        token = None if question.group is None else self.tokens.of(question.group)
        told = {} if token is None else {"Authorization": f"Bearer {token}"}
        return {**question.headers, **told}

    def _plain(self, question: Question) -> Place | None:
        """Where to, if it can be asked without aiohttp."""
        if question.method != "GET" or question.body or question.json or self._proxies:
            return None
        return place_of(question.url)

    async def _get(self, question: Question, place: Place, began: float) -> Answer:
        headers = "".join(f"{name}: {told}\r\n" for name, told in self._headers(question).items())
        end = self._loop.time() + max(0.0, question.timeout_s)
        try:
            asking = Asking(place, headers.encode(), end, question.max_bytes, question.meter)
            reply = await self._kept.get(asking)
        except TimeoutError:
            raise
        except OSError as exc:
            failure = Failure.TIMEOUT if exc.errno in _STUCK_ERRNOS else Failure.REFUSED
            raise FetchError(failure, exc.strerror or str(exc)) from exc
        told = {name: reply.headers.get(name, b"").decode("latin-1") for name in _TOLD}
        return Answer(
            status=reply.status,
            body=bytes(reply.body),
            content_type=told[b"content-type"] or _UNTYPED,
            seconds=time.monotonic() - began,
            retry_after_s=_seconds(told[b"retry-after"]),
        )

    async def _exchange(self, question: Question, began: float) -> Answer:
        headers = self._headers(question)
        async with self._session.request(
            question.method,
            question.url,
            json=question.json,
            data=question.body,
            headers=headers,
            allow_redirects=False,
        ) as response:
            body = bytearray()
            async for chunk in response.content.iter_any():
                body += chunk
                if question.meter is not None:
                    question.meter(len(chunk))
                if len(body) > question.max_bytes:
                    response.close()
                    raise FetchError(Failure.GARBAGE, f"body over {question.max_bytes} bytes")
            return Answer(
                status=response.status,
                body=bytes(body),
                content_type=response.headers.get("Content-Type", _UNTYPED),
                seconds=time.monotonic() - began,
                retry_after_s=_seconds(response.headers.get("Retry-After", "")),
            )

    def close(self) -> None:
        """End what is under way and the thread; never waits longer than about two seconds."""
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
        self._kept.close()
        await self._session.close()


def _seconds(text: str) -> float | None:
    return float(text) if text.isascii() and text.isdigit() and len(text) < 7 else None


def _short(exc: BaseException) -> str:
    """One printable line about an exception, at most 200 characters."""
    return " ".join(f"{type(exc).__name__}: {exc}".split())[:200]
