"""A whole monitor, served over real HTTP, whose loop the test turns by hand; and its app alone."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import requests
from flask.testing import FlaskClient
from prometheus_client import CollectorRegistry

from lightkeeper.monitor.act.http import Fetcher, Tokens
from lightkeeper.monitor.act.quarantine import PauseSwitch, Quarantine
from lightkeeper.monitor.act.targets import Registry
from lightkeeper.monitor.clock import Clock
from lightkeeper.monitor.decide.pipeline import TickResult
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.escalation import Timeouts
from lightkeeper.monitor.model.observation import Snapshot
from lightkeeper.monitor.rulebook import standing
from lightkeeper.monitor.service import Options, Service
from lightkeeper.monitor.show.web.answers import AppContext
from lightkeeper.monitor.show.web.server import create_app
from lightkeeper.worker_server.wire import to_json
from tests.monitor.act.evictions import BRISK
from tests.monitor.doubles import HandClock, Memory
from tests.monitor.fakes import wait_until

TOKEN: Final = {"Authorization": "Bearer secret"}
FAST: Final = {"tick_s": 0.2, "stall_floor_s": 0.5, "warm_up_commits": 0, "warm_up_budget_s": 0.0}
"""A hang is seen at once."""
TIMEOUTS: Final = replace(BRISK, confirm_s=Timeouts().confirm_s)
"""Of evictions whose ranks answer at once, by a whole monitor on a busy host."""
READERS: Final = [
    ({"loopback": True}, {"Host": "127.0.0.1"}, 200),
    ({"loopback": True}, {"Host": "evil.example"}, 401),
    ({"loopback": True, "token": None}, {"Host": "evil.example"}, 403),
    ({"loopback": False}, {"Host": "10.0.0.1"}, 401),
    ({"loopback": False}, {"Host": "10.0.0.1", "Authorization": "Bearer other"}, 401),
    ({"loopback": False}, {"Host": "10.0.0.1", **TOKEN}, 200),
    ({"loopback": False, "open_reads": True}, {"Host": "10.0.0.1"}, 200),
]
"""A monitor's options, who asks it for what ranks said, and the status of the answer."""


def options(
    folder: Path, lighthouse: str | None = None, *, token: str | None = "secret", **more: Any
) -> Options:
    config = more.pop("config", KeeperConfig())
    more.setdefault("timeouts", TIMEOUTS)
    return Options(config, "127.0.0.1:0", folder / "m.db", lighthouse, token=token, **more)


@dataclass
class Script:
    """A judge that decides what the test wrote: one result a tick, then nothing."""

    results: list[dict[str, Any]] = field(default_factory=list)

    def tick(self, snapshot: Snapshot) -> TickResult:
        result = self.results.pop(0) if self.results else {}
        return TickResult(snapshot.now_s, **result)


class Api:
    """A monitor and what is asked of it."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.url = service.url
        self._due_s = 0.0

    @property
    def components(self) -> Any:
        return self.service.keeper._components

    def judged_by(self, judge: object) -> None:
        self.service.keeper._components = replace(self.components, judge=judge)

    def tick(self) -> None:
        self.service.keeper.tick()

    def tick_in_turn(self) -> bool:
        """Tick as often as a real monitor would; False: not yet."""
        now_s = time.monotonic()
        if now_s < self._due_s:
            return False
        self._due_s = now_s + 0.1
        self.tick()
        return True

    def evictions_end(self) -> None:
        wait_until(lambda: not self.components.evictors.active(), 15, "the evictions end")

    def call(self, method: str, path: str, **options: Any) -> requests.Response:
        options.setdefault("timeout", 10)
        return requests.request(method, self.url + path, **options)

    def get(self, path: str) -> Any:
        answer = self.call("GET", path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def metric(self, name: str, **labels: str) -> float | None:
        registry = self.components.metrics
        return registry.get_sample_value(f"lightkeeper_{name}", labels)

    def register(self, *ranks: Any) -> None:
        for rank in ranks:
            body = to_json(rank.registration())
            answer = self.call("POST", "/v1/register", json=body, headers=TOKEN)
            assert answer.status_code == 200, answer.text


def app_context(clock: Clock | None = None, **fields: Any) -> AppContext:
    """What the app shows and asks, over a memory; without a view."""
    clock, memory = clock or HandClock(), Memory()
    return AppContext(**{
        "clock": clock, "registry": Registry(clock, memory), "fetcher": None,
        "quarantine": Quarantine(clock, memory), "pause": PauseSwitch(clock, memory),
        "metrics": CollectorRegistry(), "view": lambda: None, "evict": lambda *_: None,
        "work": lambda row: row,
        "tick_s": 1.0, "version": "0", "rules": standing(KeeperConfig()), **fields,
    })  # fmt: skip


def app_client(rank: Any, fetcher: Fetcher, *, token: str | None = "secret", **fields: Any
               ) -> FlaskClient:  # fmt: skip
    """The app without a socket; it knows this rank."""
    fetcher.tokens = Tokens(token)
    context = app_context(fetcher=fetcher, **fields)
    context.registry.register(rank.registration())
    return create_app(context).test_client()
