"""`lightkeeper notify --test`, and the options that say whom to notify.

A secret is never on the command line, where every user of the host reads it: it stands in a file
or in the environment. What is shown of a URL is its host.
"""

from __future__ import annotations

import argparse
import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from monitor.act.http import CaError, Fetcher, FetchError, trust_also
from monitor.act.notices import Alertmanager, Event, Message, Notice, Sink, Slack, Webhook
from monitor.act.notify import send, told
from monitor.commands.errors import DONE, FAILED, USAGE, CommandError
from monitor.commands.secrets import read_secret, web_url
from monitor.commands.tables import cell, console, print_json, table, word
from monitor.model.urls import shown_url

EXAMPLES = """\
examples:
  does everybody hear it?
    lightkeeper notify --test --notify-slack-file slack-url --notify-alertmanager http://am:9093
  the same options belong to the monitor:
    lightkeeper monitor ... --notify-slack-file slack-url --notify-alertmanager http://am:9093

docs/notify.md has the messages, and what is sent when.
"""
_ENV: Final = "LIGHTKEEPER_NOTIFY_"
_TEST_S: Final = 60.0


def add_notify_options(parser: argparse.ArgumentParser) -> None:
    """Whom to notify; of `lightkeeper monitor` too."""
    made = parser.add_argument_group("notify")
    made.add_argument(
        "--notify-webhook",
        metavar="URL",
        default=os.environ.get(f"{_ENV}WEBHOOK"),
        help="POST one JSON object a message there (default: LIGHTKEEPER_NOTIFY_WEBHOOK)",
    )
    made.add_argument(
        "--notify-webhook-secret-file",
        type=Path,
        metavar="FILE",
        help="sign these with HMAC-SHA256 by this secret (default: the file named by "
        "LIGHTKEEPER_NOTIFY_WEBHOOK_SECRET_FILE, or LIGHTKEEPER_NOTIFY_WEBHOOK_SECRET)",
    )
    made.add_argument(
        "--notify-slack-file",
        type=Path,
        metavar="FILE",
        help="holds the URL of a Slack-compatible incoming webhook, which is a secret (default: "
        "the file named by LIGHTKEEPER_NOTIFY_SLACK_FILE, or LIGHTKEEPER_NOTIFY_SLACK)",
    )
    made.add_argument(
        "--notify-alertmanager",
        metavar="URL",
        default=os.environ.get(f"{_ENV}ALERTMANAGER"),
        help="Prometheus' Alertmanager, such as http://am:9093 (default: "
        "LIGHTKEEPER_NOTIFY_ALERTMANAGER)",
    )
    made.add_argument(
        "--notify-alertmanager-auth-file",
        type=Path,
        metavar="FILE",
        help="holds the Authorization header for it, such as 'Bearer TOKEN' (default: the file "
        "named by LIGHTKEEPER_NOTIFY_ALERTMANAGER_AUTH_FILE, or "
        "LIGHTKEEPER_NOTIFY_ALERTMANAGER_AUTH)",
    )
    made.add_argument(
        "--notify-label",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="label on every alert, such as cluster=a; repeatable",
    )
    made.add_argument(
        "--public-url",
        metavar="URL",
        default=os.environ.get("LIGHTKEEPER_PUBLIC_URL"),
        help="of the monitor, as people reach it: for links in messages (default: "
        "LIGHTKEEPER_PUBLIC_URL, or where it is bound)",
    )


def sinks_of(args: argparse.Namespace, expire_s: float = 300.0) -> tuple[Sink, ...]:
    """The sinks that these options and the environment name.

    Raises:
        CommandError: one of them cannot be used.
    """
    return tuple(_sinks(args, expire_s))


def _sinks(args: argparse.Namespace, expire_s: float) -> Iterator[Sink]:
    if args.notify_webhook:
        secret = read_secret(f"{_ENV}WEBHOOK_SECRET", args.notify_webhook_secret_file)
        yield Webhook("webhook", web_url("--notify-webhook", args.notify_webhook), secret)
    slack = read_secret(f"{_ENV}SLACK", args.notify_slack_file)
    if slack is not None:
        yield Slack("slack", web_url("the Slack URL", slack, secret=True))
    if args.notify_alertmanager:
        yield Alertmanager(
            "alertmanager",
            web_url("--notify-alertmanager", args.notify_alertmanager),
            read_secret(f"{_ENV}ALERTMANAGER_AUTH", args.notify_alertmanager_auth_file),
            _labels(args.notify_label),
            expire_s,
        )


def _labels(texts: list[str]) -> Mapping[str, str]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier() or not name.isascii():
            raise CommandError(f"--notify-label is {text!r}, expected NAME=VALUE", USAGE)
        found[name] = value
    return found


def public_url_of(args: argparse.Namespace) -> str | None:
    """The monitor's address for people, if one was given.

    Raises:
        CommandError: it is none.
    """
    if not args.public_url:
        return None
    return web_url("--public-url", args.public_url).rstrip("/")


# -- the command ---------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `notify`."""
    parser.add_argument(
        "--test", action="store_true", required=True, help="send a test message to every sink"
    )
    parser.add_argument(
        "--format", choices=("table", "json"), default="table", help="table for people (default)"
    )
    parser.add_argument(
        "--ca-file", type=Path, metavar="FILE", help="PEM file of authorities to trust as well"
    )
    add_notify_options(parser)


def run(args: argparse.Namespace) -> int:
    """Send a test message to every sink; 1 if one of them did not take it."""
    sinks = sinks_of(args, _TEST_S)
    if not sinks:
        raise CommandError("nobody to notify: see lightkeeper notify --help", USAGE)
    try:
        tls = None if args.ca_file is None else trust_also(args.ca_file)
    except CaError as exc:
        raise CommandError(str(exc), USAGE) from exc
    fetcher = Fetcher(tls, proxies=True)
    try:
        message = Message(_test(public_url_of(args) or ""), time.time())
        answers = [_try(fetcher, sink, message) for sink in sinks]
    finally:
        fetcher.close()
    _show(args, answers)
    return DONE if all(one["ok"] for one in answers) else FAILED


def _test(url: str) -> Notice:
    now_s = time.time()
    return Notice(
        key=f"test {now_s:.3f}",
        event=Event.TEST,
        incident_id="test",
        severity="warning",
        title=f"lightkeeper on {socket.gethostname()}: a test",
        text="Somebody ran lightkeeper notify --test. Nothing is wrong.",
        since_s=now_s,
        url=url,
    )


def _try(fetcher: Fetcher, sink: Sink, message: Message) -> dict[str, Any]:
    where = shown_url(sink.post([message]).url)
    try:
        answer = send(fetcher, sink, [message])
    except FetchError as exc:
        return {"sink": sink.name, "url": where, "ok": False, "said": str(exc)}
    good = 200 <= answer.status < 300
    return {"sink": sink.name, "url": where, "ok": good, "said": told(answer)}


def _show(args: argparse.Namespace, answers: list[dict[str, Any]]) -> None:
    if args.format == "json":
        print_json({"schema": 1, "sinks": answers})
        return
    made = table("a test message to every sink", "sink", "at", "took it", "said")
    for one in answers:
        took = word("yes" if one["ok"] else "no")
        made.add_row(cell(one["sink"]), cell(one["url"]), took, cell(one["said"]))
    console().print(made)
