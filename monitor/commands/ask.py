"""Requests to a running monitor, for the commands that read or change it."""

from __future__ import annotations

import functools
import getpass
import json
import os
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

import requests
from urllib3.exceptions import NameResolutionError

from lightkeeper.monitor.commands.command import (
    FAILED,
    USAGE,
    CommandError,
    gathered,
    option,
    read_token,
    token_file,
)
from lightkeeper.monitor.commands.printing import console, line_width, print_json, show_lines, text
from lightkeeper.worker_server import home

T = TypeVar("T")
STATUS: Final = "/v1/status"
_TIMEOUT_S: Final = 10.0


def path_to(*parts: str) -> str:
    """`/v1/incidents/inc-1/ack`; a part is one part of the path, whatever is in it."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def login() -> str:
    """The user's login: shown, never trusted."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container whose user has no name
        return f"uid {os.getuid()}"


class _OtherError(CommandError):
    """Another monitor may answer."""

    def __init__(self, message: str) -> None:
        super().__init__(message, FAILED)


def _why(exc: requests.RequestException) -> str:
    reason = getattr(exc.args[0] if exc.args else None, "reason", None)
    if isinstance(exc, requests.Timeout):
        return "no answer in time"
    if isinstance(reason, NameResolutionError):
        return "there is no host of that name (DNS)"
    if isinstance(exc, requests.exceptions.SSLError):
        return f"TLS: {reason or exc}"
    return "nobody listens there"


class Monitor:
    """The monitors of `A,B`: asks the first, then the next if it is away or a standby."""

    def __init__(self, urls: str, token: str | None = None) -> None:
        self.urls = [url.strip().rstrip("/") for url in urls.split(",")]
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def ask(
        self, path: str, *, method: str = "GET", body: Any = None, **asked: Any
    ) -> dict[str, Any]:
        """The JSON answer; `asked`: the query, but for None.

        Raises:
            CommandError: the monitor is away or refused.
        """
        return self._first(
            lambda base: _object(base, self._ask(base, path, method, body, asked), "schema")
        )

    def read(self, path: str, **asked: Any) -> bytes:
        """The answer to a GET, as it is.

        Raises:
            CommandError: as `ask`.
        """
        return self._first(lambda base: self._ask(base, path, "GET", None, asked).content)

    def _first(self, ask: Callable[[str], T]) -> T:
        problems = []
        for base in self.urls:
            try:
                return ask(base)
            except _OtherError as exc:
                problems.append(str(exc))
        raise CommandError("; ".join(problems), FAILED)

    def _ask(
        self, base: str, path: str, method: str, body: Any, asked: Mapping[str, Any]
    ) -> requests.Response:
        if not base.startswith(("http://", "https://")):
            raise CommandError(f"--monitor is {base!r}, expected http://HOST:PORT")
        try:
            said = home.ask(
                method,
                base + path,
                params=asked,
                json=body,
                headers=self._headers,
                timeout=_TIMEOUT_S,
            )
        except requests.exceptions.InvalidURL as exc:
            raise CommandError(f"--monitor is {base!r}, not a URL") from exc
        except requests.exceptions.RequestException as exc:
            raise _OtherError(f"cannot reach the monitor at {base}: {_why(exc)}") from exc
        if said.status_code != 200:
            answer = _object(base, said)
            why = f"the monitor at {base} says: {answer['error']}"
            if said.status_code == HTTPStatus.NOT_FOUND and path == STATUS:
                why = f"{base} has no {STATUS}: it is no monitor, or one older than this command"
            if said.status_code == HTTPStatus.UNAUTHORIZED:
                why += "; give --token-file FILE, or set LIGHTKEEPER_TOKEN_FILE"
            if answer.get("role") == "standby":
                raise _OtherError(why)
            wrong = said.status_code == HTTPStatus.BAD_REQUEST and method == "GET"
            raise CommandError(why, USAGE if wrong else FAILED)
        return said


def _object(base: str, said: requests.Response, key: str = "error") -> dict[str, Any]:
    try:
        answer = json.loads(said.content)
    except (ValueError, RecursionError) as exc:
        raise CommandError(f"{base} is not a monitor: it answers no JSON", FAILED) from exc
    if not isinstance(answer, dict) or key not in answer:
        raise CommandError(f"{base} is not a monitor: its answer has no {key!r}", FAILED)
    return answer


def show_answer(monitor: Monitor, path: str, *, as_json: bool, **asked: Any) -> dict[str, Any]:
    """Print the monitor's answer: its JSON, or its text in the width of the screen."""
    if as_json:
        said = monitor.ask(path, **asked)
        print_json(said)
    else:
        out = console()
        said = monitor.ask(path, **asked, width=line_width(out))
        show_lines(out, said["text"])
    return said


def tell(said: Mapping[str, Any], line: str, style: str = "", *, as_json: bool) -> None:
    """Print what the monitor said, or its meaning in a line; an empty one is left out."""
    if as_json:
        print_json(said)
    elif line:
        console().print(text(line, style))


def _with_token(urls: str | None, token_file: Path | None) -> Monitor:
    """Send the token to the default address only if this user's monitor is there."""
    token = read_token(token_file)
    if urls is None and token is not None and (why := home.not_ours()) is not None:
        raise CommandError(
            f"cannot reach your monitor at {home.DEFAULT_MONITOR}: {why} (start it with "
            "`lightkeeper monitor`, or say where it is: --monitor URL)", FAILED,
        )  # fmt: skip
    return Monitor(urls or home.DEFAULT_MONITOR, token)


F = Callable[..., Any]


def _understood(declare: Callable[[F], F]) -> Callable[[F], F]:
    """What cannot be read in an answer is one line: it may be of anybody."""

    def decorate(called: F) -> F:
        @functools.wraps(called)
        def call(*, monitor: Monitor, **rest: Any) -> Any:
            try:
                return called(monitor=monitor, **rest)
            except (LookupError, TypeError, ValueError, AttributeError) as exc:
                where = ",".join(monitor.urls)
                why = f"{where} is no monitor, or of another version: {type(exc).__name__}: {exc}"
                raise CommandError(why[:500], FAILED) from exc

        return declare(call)

    return decorate


_urls: Final = option(
    "--monitor", "urls", metavar="URL", envvar="LIGHTKEEPER_MONITOR",
    show_default=home.DEFAULT_MONITOR,
    help="the monitor to ask; of several (A,B) the first that answers, for changes the active one",
)  # fmt: skip
asking: Final = _understood(
    gathered("monitor", lambda urls: Monitor(urls or home.DEFAULT_MONITOR), _urls)
)
changing: Final = _understood(gathered("monitor", _with_token, token_file, _urls))
