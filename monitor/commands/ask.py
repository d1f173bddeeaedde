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


def add_ask_options(parser: argparse.ArgumentParser) -> None:
    """`--monitor` and `--format`."""
    parser.add_argument(
        "--monitor",
        metavar="URL",
        default=os.environ.get("LIGHTKEEPER_MONITOR", "http://127.0.0.1:8470"),
        help="the monitor to ask (default: LIGHTKEEPER_MONITOR, or http://127.0.0.1:8470)",
    )
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
    base = args.monitor.rstrip("/")
    if not base.startswith(("http://", "https://")):
        raise CommandError(f"--monitor is {args.monitor!r}, expected http://HOST:PORT", USAGE)
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
        raise CommandError(f"--monitor is {args.monitor!r}, not a URL", USAGE) from exc
    except requests.exceptions.RequestException as exc:
        why = "no answer in time" if isinstance(exc, requests.Timeout) else "nobody listens there"
        raise CommandError(f"cannot reach the monitor at {base}: {why}", FAILED) from exc
    try:
        answer = json.loads(said.content)
    except (ValueError, RecursionError) as exc:
        raise CommandError(f"{base} is not a monitor: it answers no JSON", FAILED) from exc
    if not isinstance(answer, dict):
        raise CommandError(f"{base} is not a monitor: it answers no object", FAILED)
    if said.status_code != 200:
        why = answer.get("error", f"status {said.status_code}")
        raise CommandError(f"the monitor at {base} says: {why}", FAILED)
    return answer
