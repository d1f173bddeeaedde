"""How an open page follows the monitor, over a real server: by asking what is new."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import requests

from lightkeeper.monitor.model.verdict import RankHealth
from lightkeeper.monitor.show import latest
from tests.page.serving import Stage
from tests.page.views import crowd

STALLED = {"rg_1.1": RankHealth.STALLED}


@pytest.fixture
def monitor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setattr(latest, "LONG_S", 60.0)  # the first page of a process takes long
    made = Stage(crowd(3, 2))
    yield made
    made.close()


def ask(monitor: Stage, tag: str = "", **query: str) -> requests.Response:
    """As `page-live.js` does."""
    headers = {"If-None-Match": f'"{tag}"'} if tag else {}
    query = {"since": tag, **query}
    return requests.get(f"{monitor.url}/v1/fleet", query, headers=headers, timeout=10)


def test_the_first_answer_has_all_and_later_ones_what_changed(monitor: Stage) -> None:
    first = ask(monitor).json()
    assert first["full"] is True
    assert first["order"] == ["rg_0", "rg_1", "rg_2"]
    monitor.show(crowd(3, 2, STALLED, tick=101))
    second = ask(monitor, first["tag"]).json()
    assert (second["full"], second["facts"]["tone"]) == (False, "wait")
    assert second["facts"]["ranks"] == {"stalled": 1, "healthy": 5}


def test_nothing_is_sent_while_nothing_is_new(monitor: Stage) -> None:
    first = ask(monitor)
    tag = first.json()["tag"]
    assert first.headers["ETag"] == f'"{tag}"'
    again = ask(monitor, tag)
    assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", f'"{tag}"')
    monitor.show(crowd(3, 2, STALLED, tick=101))
    assert ask(monitor, tag).status_code == 200


def test_a_tag_of_another_monitor_gets_everything(monitor: Stage) -> None:
    assert ask(monitor, "of-another-monitor").json()["full"] is True


def test_one_page_is_followed_by_its_path(monitor: Stage) -> None:
    assert ask(monitor, page="/ranks/rg_1.1").json()["title"] == "rank rg_1.1"
    assert ask(monitor, page="/nothing").status_code == 400
