"""How a command is declared, and how it fails. Click does the rest.

A command is a function. Its docstring is its help, its options are its arguments. Options that
together mean one thing come as one value (`gathered`): a monitor, the sinks. A command
returns its exit status (None: done), or raises CommandError: one line on standard error.
"""

from __future__ import annotations

import functools
import inspect
import logging
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import click

from lightkeeper.worker_server import home
from lightkeeper.worker_server.plain_text import FORMS, LEVELS, log_to_stderr

F = TypeVar("F", bound=Callable[..., Any])

DONE: Final = 0
FAILED: Final = 1
USAGE: Final = 2


class CommandError(click.ClickException):
    """One line for a person, and the exit status."""

    def __init__(self, message: str, status: int = USAGE) -> None:
        super().__init__(" ".join(message.split()))
        self.exit_code = status  # type: ignore[misc] # one class for all of ours


class HelpPage(click.Command):
    """Its help is the unchanged docstring, then the options by section."""

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Not wrapped: examples keep their lines."""
        formatter.write(f"\n{inspect.cleandoc(self.help or '')}\n")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Those without a section first."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for param in self.get_params(ctx):
            record = None if isinstance(param, click.Argument) else param.get_help_record(ctx)
            if record is not None:
                sections.setdefault(getattr(param, "section", "Options"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


class Option(click.Option):
    def __init__(self, *words: Any, section: str = "Options", **more: Any) -> None:
        more["show_envvar"] = True
        super().__init__(*words, **more)
        self.section = section


class Within(click.ParamType[float]):
    """A number from `low` to `high`, or an integer (`kind`)."""

    name = "number"

    def __init__(self, low: float, high: float, kind: type[float] = float) -> None:
        self._low, self._high, self._kind = low, high, kind

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            number = self._kind(value)
        except ValueError:
            number = math.nan
        if not self._low <= number <= self._high:
            option = param.opts[0] if param is not None else "it"
            raise CommandError(f"{option} is {value}, expected {self._low:g} to {self._high:g}")
        return number


command: Final = functools.partial(click.command, cls=HelpPage)
option: Final = functools.partial(click.option, cls=Option)
FILE: Final = click.Path(path_type=Path, readable=False)  # its reader reports errors


def gathered(name: str, make: Callable[..., Any], *options: Callable[[F], F]) -> Callable[[F], F]:
    """Pass `options` to a command as one argument, made by `make` from its parameters."""
    taken = tuple(inspect.signature(make).parameters)

    def decorate(called: F) -> F:
        @functools.wraps(called)
        def call(**arguments: Any) -> Any:
            value = make(
                **{
                    parameter: arguments.pop(parameter)
                    for parameter in taken
                    if parameter in arguments
                }
            )
            return called(**arguments, **{name: value})

        for add in reversed(options):
            call = add(call)
        return call  # type: ignore[return-value]

    return decorate


as_json: Final = option(
    "--format", "as_json", type=click.Choice(("text", "table", "json")), default="text",
    callback=lambda _ctx, _param, value: value == "json",
    help="text for people (table is the same), json for programs",
)  # fmt: skip


# -- logs ------------------------------------------------------------------------------------------


def _set_up_logs(*, log_format: str, log_level: str | None, verbose: bool) -> int | None:
    """Set them up; returns the level that was asked for, if one was."""
    level = LEVELS["info"] if verbose and log_level is None else LEVELS.get(log_level or "")
    log_to_stderr(logging.WARNING if level is None else level, log_format)
    return level


logs: Final = gathered(
    "log_level",
    _set_up_logs,
    option("--log-format", type=click.Choice(FORMS), default="text",
           envvar="LIGHTKEEPER_LOG_FORMAT", help="json: one object a line"),
    option("--log-level", type=click.Choice(tuple(LEVELS)), envvar="LIGHTKEEPER_LOG_LEVEL",
           show_default="warning, and what is done",
           help="info: also what is held or refused, and why"),
    option("--verbose", is_flag=True, help="the same as --log-level info"),
)  # fmt: skip


# -- values of options of several commands: secrets and addresses ----------------------------------
# A secret is in a file or in the environment, never an argument.

token_file: Final = option(
    "--token-file", type=FILE, metavar="FILE",
    help="holds the secret shared with the WorkerServers (default: the file named by "
    "LIGHTKEEPER_TOKEN_FILE, the variable LIGHTKEEPER_TOKEN, or this user's own file, which "
    "`lightkeeper monitor` makes)",
)  # fmt: skip


def read_token(token_file: Path | None) -> str | None:
    """The shared secret; None if there is none.

    Raises:
        CommandError: the file cannot be read, is open to others, or holds no token.
    """
    return _token(token_file, home.read_token_file)


def make_token(token_file: Path | None, no_token: bool = False) -> str | None:
    """As `read_token`; if none is named, make the user's own file.

    Raises:
        CommandError: as `read_token`, or it cannot be made.
    """
    if no_token and token_file is not None:
        raise CommandError("--no-token and --token-file exclude each other")
    if no_token:
        return None
    try:
        return _token(token_file, home.make_token_file)
    except CommandError as exc:
        if token_file is not None or home.is_named(os.environ):
            raise
        raise CommandError(f"{exc.message}; or give --token-file FILE, or --no-token") from exc


def _token(token_file: Path | None, own: Callable[[Path], str]) -> str | None:
    try:
        return home.find_token(os.environ, token_file, own)
    except home.TokenFileError as exc:
        raise CommandError(f"the token: {exc}") from exc


def web_url(option: str, url: str, *, secret: bool = False) -> str:
    """A usable http(s) URL.

    Raises:
        CommandError: it is not, or holds a password; a secret one is not shown.
    """
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable, parts = False, None
    shown = "no http:// or https:// URL" if secret else f"{url!r}, expected http://HOST:PORT/..."
    if not usable or parts is None or not url.isprintable() or " " in url:
        raise CommandError(f"{option} is {shown}")
    if parts.username is not None and not secret:
        raise CommandError(f"{option} holds a password, which others can read there")
    return url


def read_secret(name: str, path: Path | None) -> str | None:
    """From the option's file, the file that NAME_FILE names, or the variable NAME.

    Raises:
        CommandError: the file cannot be read, or is not one plain line.
    """
    named = os.environ.get(f"{name}_FILE")
    path = path or (Path(named) if named else None)
    secret = (os.environ.get(name, "") if path is None else read_text(path)).strip()
    if not is_plain(secret) or (path is not None and not secret):
        raise CommandError(f"{path or name} does not hold one plain line")
    return secret or None


def is_plain(text: str) -> bool:
    return text.isprintable() and text.isascii()


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "not a text"
        raise CommandError(f"cannot read {path}: {why}") from exc
