"""A sink over real HTTP that remembers what it was sent, and a notifier that tells it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lightkeeper.monitor.act.http import Fetcher
from lightkeeper.monitor.act.notices import NoticeFacts, Sink
from lightkeeper.monitor.act.notify import Notifier
from lightkeeper.monitor.metric import new_page
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import Guard, Hold
from lightkeeper.monitor.model.incident import Incident, State, Transition
from lightkeeper.monitor.model.work import Work
from tests.http_server import FakeServer
from tests.monitor.doubles import Memory
from tests.monitor.fakes import Page, wait_until
from tests.monitor.samples import incident

NOW_S = 1_000_000.0
NO_WORK = Work()


class Receiver(FakeServer):
    """Takes posts on any path."""

    def __init__(self) -> None:
        super().__init__()
        self.posts: list[tuple[str, Mapping[str, str], bytes]] = []
        self.answer: Callable[[int], Page] = lambda _: (200, "text/plain", b"ok")
        """By the number of the request."""
        self.headers: dict[str, str] = {}

    def serve(self, handler: Any, method: str, path: str, body: bytes) -> None:
        self.posts.append((path, dict(handler.headers), body))
        handler.reply(*self.answer(len(self.posts)), **self.headers)

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(body) for _, _, body in self.posts]


class Bench:
    """Sinks, their workers and what is stored, over a timeline that the test turns."""

    def __init__(
        self, sinks: Sequence[Sink], fetcher: Fetcher, memory: Memory, **times: float
    ) -> None:
        self.memory = memory
        self.metrics = new_page()
        self.places: list[tuple[str, str, str]] = []
        """Incident, sink and URL of each message whose receiver said where it is."""
        self.notifier = Notifier(
            sinks,
            fetcher=fetcher,
            store=memory,
            metrics=self.metrics,
            config=KeeperConfig(**{f"notify_{name}": value for name, value in times.items()}),
            url="http://head:8470",
            remembered=[(*key, json.loads(body)) for key, body in memory.notices.items()],
            sent=lambda *place: self.places.append(place),
            first_s=0.02,
        )

    def tell(
        self, *incidents: Incident, now_s: float = NOW_S, decisions=None, evictions=(),
        work: Work = NO_WORK,
    ) -> None:  # fmt: skip
        rows = dict(decisions or {})
        for eviction in evictions:  # before what was decided then
            rows[eviction.incident_id] = (eviction, *rows.get(eviction.incident_id, ()))
        self.notifier.push(NoticeFacts(now_s, incidents, rows, work=work))

    def counted(self, sink: str, outcome: str) -> float:
        labels = {"sink": sink, "outcome": outcome}
        name = "lightkeeper_notifications_total"
        return self.metrics.get_sample_value(name, labels) or 0.0

    def sent(self, sink: str, number: int) -> None:
        wait_until(lambda: self.counted(sink, "sent") >= number, 10, f"{number} sent to {sink}")
        assert self.counted(sink, "sent") == number


def over(fired: Incident, why: str = "recovered by itself", at_s: float = 200.0) -> Incident:
    """The same incident, resolved."""
    line = Transition(at_s, "resolved", why)
    return replace(fired, state=State.RESOLVED, story=(*fired.story, line), resolution=why)


def another(name: str, fingerprint: str | None = None) -> Incident:
    return replace(incident(name), fingerprint=fingerprint or f"fingerprint of {name}")


def held(firing: Incident, guard: str = "unsure", at_s: float = NOW_S - 60) -> dict:
    return {firing.id: (Hold(firing.id, Guard(guard), "cannot tell which of them", at_s=at_s),)}
