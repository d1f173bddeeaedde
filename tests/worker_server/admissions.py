"""A monitor that answers the question of launchers, and says what it was asked."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

REFUSAL = {"admit": False, "reason": "node1 is quarantined by ann: ECC", "until_s": None}


class FakeMonitor:
    def __init__(self, *answers: Any, status: int = 200) -> None:
        """Gives each answer once, the last one for ever; a text is sent as it is."""
        self.answers, self.asked = list(answers) or [{"admit": True, "reason": "fine"}], []
        self.release = threading.Event()
        """Until it is set, the answer None does not come."""
        monitor = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                monitor.asked.append(self.path)
                answer = monitor.answers[0]
                if len(monitor.answers) > 1:
                    del monitor.answers[0]
                if answer is None:
                    monitor.release.wait(60)
                    return
                text = answer if isinstance(answer, str) else json.dumps(answer)
                self.send_response(status)
                self.send_header("Location", "http://127.0.0.1:1/elsewhere")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    @property
    def questions(self) -> list[dict[str, list[str]]]:
        return [parse_qs(urlsplit(path).query) for path in self.asked]

    def close(self) -> None:
        self.release.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
