"""A real Alertmanager on loopback, and a server that stands for Slack, PagerDuty and Opsgenie.

Debian has one (`apt-get install prometheus-alertmanager`); elsewhere it is called `alertmanager`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import requests

from tests.http_server import FakeServer, Handler
from tests.ports import free_port
from tests.prometheus.server import RULES
from tests.waiting import wait_for

SECRETS: Final = {"pagerduty-key": "R0UT1NG", "opsgenie-key": "6enie", "slack-url": ""}


@contextmanager
def alertmanager(config_text: str, folder: Path) -> Iterator[str]:
    """Its URL; the test is skipped where there is none."""
    binary = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
    if binary is None:
        pytest.skip("no Alertmanager is installed (apt-get install prometheus-alertmanager)")
    config = folder / "alertmanager.yml"
    config.write_text(config_text)
    url = f"http://127.0.0.1:{free_port()}"
    with (folder / "alertmanager.log").open("wb") as log:
        process = subprocess.Popen(
            [binary, f"--config.file={config}", f"--storage.path={folder / 'alertmanager'}",
             f"--web.listen-address={url.removeprefix('http://')}", "--cluster.listen-address="],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:

        def ready() -> bool:
            assert process.poll() is None, (folder / "alertmanager.log").read_text()
            try:
                return requests.get(f"{url}/-/ready", timeout=5).ok
            except requests.RequestException:
                return False

        wait_for(ready, within_s=30, what="the Alertmanager is ready")
        yield url
    finally:
        process.terminate()
        process.wait(10)


class Pagers(FakeServer):
    """What each service was sent: (path, headers, body), in the order of arrival."""

    def __init__(self) -> None:
        super().__init__()
        self.posts: list[tuple[str, dict[str, str], Any]] = []

    def serve(self, handler: Handler, method: str, path: str, body: bytes) -> None:
        self.posts.append((path, dict(handler.headers), json.loads(body)))
        if path.startswith("/slack"):
            handler.reply(200, "text/plain", b"ok")
        else:
            handler.reply(202, "application/json", b'{"status": "success"}')

    def bodies(self, start: str) -> list[Any]:
        """Of one service, by how its path starts."""
        return [body for path, _, body in list(self.posts) if path.startswith(start)]

    def recipes(self, folder: Path) -> str:
        """alertmanager.example.yml with secrets in this folder, these addresses, and no pauses."""
        for name, secret in SECRETS.items():
            (folder / name).write_text(secret or f"{self.url}/slack/hook")
        text = (RULES / "alertmanager.example.yml").read_text()
        for shown, now in (
            ("/etc/alertmanager/", f"{folder}/"), ("group_wait: 10s", "group_wait: 0s"),
            ("group_interval: 1m", "group_interval: 1s"),
        ):  # fmt: skip
            assert shown in text
            text = text.replace(shown, now)
        urls = {"pagerduty": "pagerduty_url", "opsgenie": "opsgenie_api_url"}
        lines = [f"  {setting}: {self.url}/{name}/\n" for name, setting in urls.items()]
        return "global:\n" + "".join(lines) + text
