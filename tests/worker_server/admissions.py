"""A monitor that answers the question of launchers, and says what it was asked."""

from __future__ import annotations

import json
import threading
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.http_server import FakeServer, Handler

REFUSAL = {"admit": False, "reason": "node1 is quarantined by ann: ECC", "until_s": None}


class FakeMonitor(FakeServer):
    def __init__(self, *answers: Any, status: int = 200) -> None:
        """Gives each answer once, the last one for ever; a text is sent as it is."""
        super().__init__()
        self.answers, self.asked = list(answers) or [{"admit": True, "reason": "fine"}], []
        self.status = status
        self.release = threading.Event()
        """Until it is set, the answer None does not come."""

    def serve(self, handler: Handler, method: str, path: str, body: bytes) -> None:
        self.asked.append(path)
        answer = self.answers[0]
        if len(self.answers) > 1:
            del self.answers[0]
        if answer is None:
            self.release.wait(60)
            handler.close_connection = True
            return
        text = answer if isinstance(answer, str) else json.dumps(answer)
        elsewhere = "http://127.0.0.1:1/elsewhere"
        handler.reply(self.status, "application/json", text.encode(), Location=elsewhere)

    @property
    def questions(self) -> list[dict[str, list[str]]]:
        return [parse_qs(urlsplit(path).query) for path in self.asked]

    def close(self) -> None:
        self.release.set()
        super().close()
