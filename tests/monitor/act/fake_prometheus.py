"""A Prometheus that answers instant queries by what they contain, and the shipped rows."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from lightkeeper.monitor.act import testimonies
from tests.http_server import FakeServer, Hang


def shipped() -> list[dict[str, Any]]:
    file = Path(testimonies.__file__).with_name("cluster.toml")
    return tomllib.loads(file.read_text(encoding="utf-8"))["prometheus"]


def row(value: object = "1", **labels: str):
    return {"metric": labels, "value": [1796000000.5, value]}


class FakePrometheus(FakeServer):
    """Answers queries by what they contain."""

    def __init__(self) -> None:
        super().__init__()
        self.series: dict[str, list] = {}
        self.raw: dict[str, tuple[int, bytes]] = {}
        """Given instead: status and body."""
        self.asked: list[str] = []
        self.authorization: set[str | None] = set()
        self.hanging = False

    def serve(self, handler, method, path, body):
        parts = urlsplit(path)
        assert (method, parts.path) == ("GET", "/prom/api/v1/query")
        (query,) = parse_qs(parts.query)["query"]
        self.asked.append(query)
        self.authorization.add(handler.headers.get("Authorization"))
        if self.hanging:
            raise Hang
        for words, (status, raw) in self.raw.items():
            if words in query:
                where = {"Location": f"{self.url}/elsewhere"} if status == 302 else {}
                return handler.reply(status, "application/json", raw, **where)
        result = next((rows for words, rows in self.series.items() if words in query), [])
        answer = {"status": "success", "data": {"resultType": "vector", "result": result}}
        return handler.reply(200, "application/json", json.dumps(answer).encode())
