"""A monitor that answers launchers and sidecars, and says what it was asked."""

from __future__ import annotations

import json
import threading
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.http_server import FakeServer, Handler

REFUSAL = {"admit": False, "reason": "node1 is quarantined by ann: ECC", "until_s": None}


class FakeMonitor(FakeServer):
    def __init__(self, *answers: Any, status: int = 200, port: int = 0) -> None:
        """Gives each answer once, the last one for ever; a text is sent as it is. A function gives
        status and answer by the body."""
        super().__init__(port=port)
        self.answers = list(answers) or [{"admit": True, "reason": "fine"}]
        self.calls: list[tuple[str, str, str | None, bytes]] = []
        self.status = status
        self.release = threading.Event()
        """Until it is set, the answer None does not come."""

    def serve(self, handler: Handler, method: str, path: str, body: bytes) -> None:
        self.calls.append((method, path, handler.headers["Authorization"], body))
        answer, status = self.answers[0], self.status
        if len(self.answers) > 1:
            del self.answers[0]
        if answer is None:
            self.release.wait(60)
            handler.close_connection = True
            return
        if callable(answer):
            status, answer = answer(body) if status == 200 else (status, {})
        text = answer if isinstance(answer, str) else json.dumps(answer)
        elsewhere = "http://127.0.0.1:1/elsewhere"
        handler.reply(status, "application/json", text.encode(), Location=elsewhere)

    @property
    def asked(self) -> list[str]:
        return [path for _, path, _, _ in self.calls]

    @property
    def questions(self) -> list[dict[str, list[str]]]:
        return [parse_qs(urlsplit(path).query) for path in self.asked]

    def close(self) -> None:
        self.release.set()
        super().close()
