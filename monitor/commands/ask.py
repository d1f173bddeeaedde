"""One request to a running monitor, for the commands that read or change it."""

from __future__ import annotations

import argparse
import getpass
import json
import os
from collections.abc import Mapping
from typing import Any

import requests

from monitor.commands.errors import FAILED, USAGE, CommandError
from monitor.commands.secrets import read_token

# Who asks, by their login: shown, and trusted for nothing.


def login() -> str:
    """The user's name; `a person` in a container whose user has none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "a person"


_TIMEOUT_S = 10.0


def add_monitor_option(parser: argparse.ArgumentParser) -> None:
    """`--monitor`."""
    parser.add_argument(
        "--monitor",
        metavar="URL",
        default=os.environ.get("LIGHTKEEPER_MONITOR", "http://127.0.0.1:8470"),
        help="the monitor to ask (default: LIGHTKEEPER_MONITOR, or http://127.0.0.1:8470); of "
        "several (A,B) the first that answers, for changes the active one",
    )


def add_ask_options(parser: argparse.ArgumentParser) -> None:
    """`--monitor` and `--format`."""
    add_monitor_option(parser)
    parser.add_argument(
        "--format",
        choices=("table", "json"),
        default="table",
        help="table for people (default), json for programs",
    )


def ask(
    args: argparse.Namespace,
    path: str,
    *,
    method: str = "GET",
    body: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The monitor's JSON answer; of several monitors the first that answers and does not stand by.
    For anything but a GET, with the token of `--token-file`.

    Raises:
        CommandError: the monitor is away, or said no.
    """
    token = None if method == "GET" else read_token(args.token_file)
    problems: list[CommandError] = []
    for base in [one.strip().rstrip("/") for one in args.monitor.split(",")]:
        try:
            return _object(base, _ask(base, path, method, body, token))
        except _OtherError as exc:
            problems.append(exc)
    raise CommandError("; ".join(str(one) for one in problems), FAILED)


class _OtherError(CommandError):
    """Another monitor may answer."""

    def __init__(self, message: str) -> None:
        super().__init__(message, FAILED)


def _ask(
    base: str, path: str, method: str, body: Mapping[str, Any] | None, token: str | None
) -> requests.Response:
    if not base.startswith(("http://", "https://")):
        raise CommandError(f"--monitor is {base!r}, expected http://HOST:PORT", USAGE)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        said = requests.request(
            method,
            base + path,
            json=body,
            headers=headers,
            timeout=_TIMEOUT_S,
            allow_redirects=False,
        )
    except requests.exceptions.InvalidURL as exc:
        raise CommandError(f"--monitor is {base!r}, not a URL", USAGE) from exc
    except requests.exceptions.RequestException as exc:
        why = "no answer in time" if isinstance(exc, requests.Timeout) else "nobody listens there"
        raise _OtherError(f"cannot reach the monitor at {base}: {why}") from exc
    if said.status_code != 200:
        answer = _object(base, said)
        why = answer.get("error", f"status {said.status_code}")
        if answer.get("role") == "standby":
            raise _OtherError(f"the monitor at {base} says: {why}")
        raise CommandError(f"the monitor at {base} says: {why}", FAILED)
    return said


def _object(base: str, said: requests.Response) -> dict[str, Any]:
    try:
        answer = json.loads(said.content)
    except (ValueError, RecursionError) as exc:
        raise CommandError(f"{base} is not a monitor: it answers no JSON", FAILED) from exc
    if not isinstance(answer, dict):
        raise CommandError(f"{base} is not a monitor: it answers no object", FAILED)
    return answer
