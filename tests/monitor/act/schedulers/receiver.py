"""A receiver that owes what docs/deploy.md says, and a world behind it."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from lightkeeper.monitor.act.http import Fetcher
from lightkeeper.monitor.act.schedulers.base import Place, Scheduler
from lightkeeper.monitor.act.schedulers.webhook import WebhookScheduler
from tests.http_server import FakeServer, Hang
from tests.monitor.act.schedulers.conformance import NODE, OTHER, OWNER, World, place_of

SECRET = b"7f6e5d4c3b2a"
DOC = Path(__file__).parents[4] / "docs/deploy.md"


def _sample() -> Callable[..., bool]:
    """What the docs give to people who write a receiver."""
    (code,) = re.findall(r"```python\n(.*?)```", DOC.read_text(encoding="utf-8"), re.DOTALL)
    sample: dict[str, Any] = {}
    exec(code, sample)
    return sample["verify"]


verify = _sample()
Body = dict[str, Any]


class Receiver:
    """Hosts and tasks of some cluster."""

    def __init__(self) -> None:
        self.hosts: dict[str, set[str]] = {NODE: set(), OTHER: set()}
        """Who keeps each out."""
        self.tasks: set[str] = set()
        self.done: dict[str, Body] = {}
        """Answers by idempotency key."""
        self.requests: list[tuple[Body, dict[str, str]]] = []
        self.answers: list[tuple[int, dict[str, str], bytes]] = []
        self.now_s: float | None = None
        self.hanging = False

    def answer(self, raw: bytes, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        body = json.loads(raw)
        now_s = body and int(headers["X-Lightkeeper-Signature"][2:].partition(",")[0])
        self.requests.append((body, headers))
        if self.answers:
            return self.answers.pop(0)
        if not verify(SECRET, raw, headers["X-Lightkeeper-Signature"], self.now_s or now_s):
            return 401, {}, b"signed with another secret, too old, or changed on the way"
        key = headers["Idempotency-Key"]
        assert body["idempotency_key"] == key
        if key not in self.done:
            self.done[key] = self._do(body)
        said = self.done[key]
        return said.pop("status", 200), {}, json.dumps(said).encode()

    def _do(self, body: Body) -> Body:
        owner = body["owner"]
        match body["action"]:
            case "ping":
                return {"done": True, "detail": "here"}
            case "list":
                return {"hosts": [host for host, by in self.hosts.items() if owner in by]}
            case "remove":
                for place in body["places"]:
                    self.tasks.discard(place["labels"]["task"])
                return {"done": True, "detail": f"ended {body['group']}"}
        host = body["host"]
        if host not in self.hosts:
            return {"status": 404, "done": False, "detail": f"no host {host!r}"}
        held = self.hosts[host]
        if body["action"] == "uncordon":
            held.discard(owner)
            return {"done": True, "detail": f"{host} is held by {sorted(held)}"}
        others = held - {owner}
        held.add(owner)
        return {"done": True, "detail": f"{host} is cordoned", "ours": not others}


class Served(FakeServer):
    """A receiver over HTTP."""

    def __init__(self, receiver: Receiver) -> None:
        super().__init__()
        self._receiver = receiver

    def serve(self, handler: Any, method: str, path: str, body: bytes) -> None:
        if self._receiver.hanging:
            raise Hang
        status, headers, out = self._receiver.answer(body, dict(handler.headers))
        handler.reply(status, "application/json", out, **headers)


@contextmanager
def served(receiver: Receiver) -> Iterator[str]:
    """Its URL."""
    with closing(Served(receiver)) as server:
        yield f"{server.url}/hook-path-s3cret"


class WebhookWorld(World):
    """Tasks of a cluster behind a receiver."""

    def __init__(self, receiver: Receiver, url: str, fetcher: Fetcher) -> None:
        super().__init__()
        self.receiver = receiver
        self._url, self._fetcher = url, fetcher
        self._tasks = itertools.count()
        self.scheduler = self.made(OWNER)

    def made(self, owner: str = OWNER, secret: bytes = SECRET) -> WebhookScheduler:
        return WebhookScheduler(self._url, secret, self._fetcher, self.everyone, lambda: owner)

    def start(self, rank: str, host: str, beside: Place | None = None) -> Place:
        task = f"t-{next(self._tasks)}" if beside is None else beside.labels["task"]
        self.receiver.tasks.add(task)
        place = place_of(rank, host, {"task": task})
        self.places.append(place)
        return place

    def renew(self, place: Place) -> Place:
        self.receiver.tasks.discard(place.labels["task"])
        self.places.remove(place)
        return self.start(place.rank, place.host)

    def runs(self, place: Place) -> bool:
        return place.labels["task"] in self.receiver.tasks

    def admits(self, host: str) -> bool:
        return not self.receiver.hosts[host]

    def admin_keeps_out(self, host: str) -> None:
        self.receiver.hosts[host].add("alice")

    def admin_lets_in(self, host: str) -> None:
        self.receiver.hosts[host].clear()

    def by_admin(self, host: str) -> bool:
        return "alice" in self.receiver.hosts[host]

    def other_owner(self) -> Scheduler:
        return self.made("other")

    def break_off(self) -> None:
        self.receiver.answers = [(503, {}, b"busy\n")] * 1000

    def hang(self) -> None:
        self.receiver.hanging = True
