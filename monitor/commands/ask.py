"""One request to a running monitor, for the commands that read or change it."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from typing import Any

import requests

from monitor.commands.errors import FAILED, USAGE, CommandError

_TIMEOUT_S = 10.0


def add_monitor_option(parser: argparse.ArgumentParser) -> None:
    """`--monitor`."""
    parser.add_argument(
        "--monitor",
        metavar="URL",
        default=os.environ.get("LIGHTKEEPER_MONITOR", "http://127.0.0.1:8470"),
        help="the monitor to ask (default: LIGHTKEEPER_MONITOR, or http://127.0.0.1:8470)",
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
    token: str | None = None,
) -> dict[str, Any]:
    """The monitor's JSON answer.

    Raises:
        CommandError: the monitor is away, or said no.
    """
    base = _base(args)
    said = _request(base, path, method=method, body=body, token=token)
    answer = _object(base, said)
    if said.status_code != 200:
        raise _refused(base, said.status_code, answer)
    return answer


def ask_bytes(args: argparse.Namespace, path: str) -> bytes:
    """An answer that is no JSON.

    Raises:
        CommandError: the monitor is away, or said no.
    """
    base = _base(args)
    said = _request(base, path)
    if said.status_code != 200:
        raise _refused(base, said.status_code, _object(base, said))
    return said.content


def _base(args: argparse.Namespace) -> str:
    base = str(args.monitor).rstrip("/")
    if not base.startswith(("http://", "https://")):
        raise CommandError(f"--monitor is {args.monitor!r}, expected http://HOST:PORT", USAGE)
    return base


def _request(
    base: str,
    path: str,
    *,
    method: str = "GET",
    body: Mapping[str, Any] | None = None,
    token: str | None = None,
) -> requests.Response:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        return requests.request(
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
        raise CommandError(f"cannot reach the monitor at {base}: {why}", FAILED) from exc


def _object(base: str, said: requests.Response) -> dict[str, Any]:
    try:
        answer = json.loads(said.content)
    except (ValueError, RecursionError) as exc:
        raise CommandError(f"{base} is not a monitor: it answers no JSON", FAILED) from exc
    if not isinstance(answer, dict):
        raise CommandError(f"{base} is not a monitor: it answers no object", FAILED)
    return answer


def _refused(base: str, status: int, answer: Mapping[str, Any]) -> CommandError:
    why = answer.get("error", f"status {status}")
    return CommandError(f"the monitor at {base} says: {why}", FAILED)
