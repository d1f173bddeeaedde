"""`lightkeeper check notify`, and the options that say whom to notify.

What is shown of a URL is its host.
"""

from __future__ import annotations

import functools
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from monitor.act.http import CaError, Fetcher, FetchError, trust_also
from monitor.act.notices import Alertmanager, Event, Message, Notice, Sink, Slack, Webhook
from monitor.act.notify import send
from monitor.commands.command import (
    DONE,
    FAILED,
    FILE,
    CommandError,
    F,
    as_json,
    command,
    gathered,
    option,
)
from monitor.commands.options import read_secret, web_url
from monitor.commands.printing import show_checks
from monitor.model.names import shown_url

_ENV: Final = "LIGHTKEEPER_NOTIFY_"
_TEST_S: Final = 60.0
Sinks = Callable[[float], tuple[Sink, ...]]
"""Who is told, of seconds after which an alert ends by itself."""


def sinks_of(
    *, notify_webhook: str | None, notify_webhook_secret_file: Path | None,
    notify_slack_file: Path | None, notify_alertmanager: str | None,
    notify_alertmanager_auth_file: Path | None, notify_label: tuple[str, ...],
) -> Sinks:  # fmt: skip
    """The sinks that these options and the environment name.

    Raises:
        CommandError: one of them cannot be used.
    """
    found: list[Sink] = []
    if notify_webhook:
        secret = read_secret(f"{_ENV}WEBHOOK_SECRET", notify_webhook_secret_file)
        found.append(Webhook("webhook", web_url("--notify-webhook", notify_webhook), secret))
    slack = read_secret(f"{_ENV}SLACK", notify_slack_file)
    if slack is not None:
        found.append(Slack("slack", web_url("the Slack URL", slack, secret=True)))
    if not notify_alertmanager:
        return lambda _: tuple(found)
    alertmanager = functools.partial(
        Alertmanager,
        "alertmanager",
        web_url("--notify-alertmanager", notify_alertmanager),
        read_secret(f"{_ENV}ALERTMANAGER_AUTH", notify_alertmanager_auth_file),
        _labels(notify_label),
    )
    return lambda expire_s: (*found, alertmanager(expire_s))


def _labels(texts: tuple[str, ...]) -> Mapping[str, str]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier() or not name.isascii():
            raise CommandError(f"--notify-label is {text!r}, expected NAME=VALUE")
        found[name] = value
    return found


def _public_url(public_url: str | None) -> str | None:
    return web_url("--public-url", public_url).rstrip("/") if public_url else None


_option: Final = functools.partial(option, section="Notify")
_sink_options: Final = gathered(
    "sinks",
    sinks_of,
    _option("--notify-webhook", metavar="URL", envvar=f"{_ENV}WEBHOOK",
            help="POST one JSON object a message there"),
    _option("--notify-webhook-secret-file", type=FILE, metavar="FILE",
            help="sign these with HMAC-SHA256 by this secret (default: the file named by "
            "LIGHTKEEPER_NOTIFY_WEBHOOK_SECRET_FILE, or LIGHTKEEPER_NOTIFY_WEBHOOK_SECRET)"),
    _option("--notify-slack-file", type=FILE, metavar="FILE",
            help="holds the URL of a Slack-compatible incoming webhook, which is a secret "
            "(default: the file named by LIGHTKEEPER_NOTIFY_SLACK_FILE, or "
            "LIGHTKEEPER_NOTIFY_SLACK)"),
    _option("--notify-alertmanager", metavar="URL", envvar=f"{_ENV}ALERTMANAGER",
            help="Prometheus' Alertmanager, such as http://am:9093"),
    _option("--notify-alertmanager-auth-file", type=FILE, metavar="FILE",
            help="holds the Authorization header for it, such as 'Bearer TOKEN' (default: the file "
            "named by LIGHTKEEPER_NOTIFY_ALERTMANAGER_AUTH_FILE, or "
            "LIGHTKEEPER_NOTIFY_ALERTMANAGER_AUTH)"),
    _option("--notify-label", multiple=True, metavar="NAME=VALUE",
            help="label on every alert, such as cluster=a; repeatable"),
)  # fmt: skip
_url_option: Final = gathered("public_url", _public_url, _option(
    "--public-url", metavar="URL", envvar="LIGHTKEEPER_PUBLIC_URL",
    help="of the monitor, as people reach it: for links in messages (default: where it is bound)",
))  # fmt: skip


def notify_options(called: F) -> F:
    """Whom to notify; of `lightkeeper monitor` too."""
    return _sink_options(_url_option(called))


# -- the command ---------------------------------------------------------------------------------


@command()
@option("--ca-file", type=FILE, metavar="FILE", help="PEM file of authorities to trust as well")
@option("--test", is_flag=True, hidden=True, expose_value=False)  # as it was called before 0.2
@as_json
@notify_options
def check(*, sinks: Sinks, public_url: str | None, ca_file: Path | None, as_json: bool) -> int:
    """Send a test message to every sink.

    examples:
      send one to every receiver:
        lightkeeper check notify --notify-slack-file slack-url --notify-alertmanager http://am:9093
      the same options belong to the monitor:
        lightkeeper monitor ... --notify-slack-file slack-url --notify-alertmanager http://am:9093

    exit status: 0 all took it, 1 one did not, 2 wrong arguments.
    docs/alerts.md has the messages, and what is sent when.
    """
    told_ones = sinks(_TEST_S)
    if not told_ones:
        raise CommandError("nobody to notify: see lightkeeper check notify --help")
    try:
        tls = None if ca_file is None else trust_also(ca_file)
    except CaError as exc:
        raise CommandError(str(exc)) from exc
    fetcher = Fetcher(tls, proxies=True)
    try:
        message = Message(_test(public_url or ""), time.time())
        answers = [_try(fetcher, sink, message) for sink in told_ones]
    finally:
        fetcher.close()
    columns = {"sink": "sink", "url": "at", "ok": "took it", "said": "said"}
    show_checks("a test message to every sink", "sinks", answers, columns, as_json=as_json)
    return DONE if all(one["ok"] for one in answers) else FAILED


def _test(url: str) -> Notice:
    now_s = time.time()
    return Notice(
        key=f"test {now_s:.3f}",
        event=Event.TEST,
        incident_id="test",
        severity="warning",
        title=f"lightkeeper on {socket.gethostname()}: a test",
        text="Somebody ran lightkeeper check notify. Nothing is wrong.",
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
    return {"sink": sink.name, "url": where, "ok": good, "said": answer.summary}
