"""A gate's admin port, as far as the monitor uses it: over real HTTP on loopback."""

from __future__ import annotations

import json
import time
from typing import Any

from tests.http_server import FakeServer
from tests.monitor.fakes import page


class FakeGate(FakeServer):
    """Tests change it while it is served."""

    def __init__(self, token: str = "secret") -> None:
        super().__init__()
        self.token = token
        self.denied: list[dict[str, Any]] = []
        self.replicas: dict[str, dict[str, Any]] = {}
        self.lists = 0
        self.down = False
        self.deaf = False
        """Takes a list and does not follow it."""

    def speaks(self, *replica_ids: str) -> None:
        """These send heartbeats through it."""
        for replica_id in replica_ids:
            self.replicas[replica_id] = {"replica_id": replica_id, "group": "rg"}

    def refuses(self) -> list[str]:
        return [f"{denial['scope']} {denial['name']}" for denial in self.denied]

    def restart(self) -> None:
        self.denied, self.replicas = [], {}

    def serve(self, handler: Any, method: str, path: str, body: bytes) -> None:
        if self.down:
            handler.reply(503, "text/plain", b"down")
        elif method == "GET" and path == "/v1/gate":
            self.denied = [d for d in self.denied if (d["until_s"] or 1e18) > time.time()]
            answer = {"schema": 1, "lighthouse": "http://l", "lighthouse_up": True,
                    "denied": self.denied, "replicas": list(self.replicas.values())}  # fmt: skip
            handler.reply(*page(answer))
        elif method == "PUT" and path == "/v1/gate/denied":
            if handler.headers.get("Authorization") != f"Bearer {self.token}":
                handler.reply(*page({"error": "wrong token"}, 401))
                return
            self.lists += 1
            if not self.deaf:
                self.denied = json.loads(body)["denied"]
            handler.reply(*page({"denied": self.denied}))
        else:
            handler.reply(404, "text/plain", b"no such path")
