"""How an open page follows the monitor, over a real server: it asks for itself again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import requests

from lightkeeper.monitor.model.verdict import RankHealth
from lightkeeper.monitor.show.web import answers, paging
from tests.changed import replace
from tests.monitor.decide.scene import hang
from tests.page.serving import Stage
from tests.page.views import crowd

STALLED = {"rg_1.1": RankHealth.STALLED}


@pytest.fixture
def monitor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setattr(answers, "LONG_S", 60.0)  # the first page of a process takes long
    made = Stage(crowd(3, 2))
    yield made
    made.close()


def ask(monitor: Stage, tag: str = "", path: str = "/", **headers: str) -> requests.Response:
    """As `page-live.js` does."""
    headers = {"Accept": "text/html", "If-None-Match": tag, **headers}
    return requests.get(monitor.url + path, headers=headers, timeout=10)


@pytest.mark.parametrize("path", ["/", "/?by=host", "/groups/rg_1", "/ranks/rg_1.1", "/runs"])
def test_nothing_is_sent_while_nothing_is_new(monitor: Stage, path: str) -> None:
    first = ask(monitor, path=path)
    tag = first.headers["ETag"]
    again = ask(monitor, tag, path)
    assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", tag)


def test_a_new_view_is_a_new_page(monitor: Stage) -> None:
    first = ask(monitor)
    monitor.show(crowd(3, 2, STALLED, tick=101))
    second = ask(monitor, first.headers["ETag"])
    assert second.status_code == 200
    assert second.headers["ETag"] != first.headers["ETag"]
    assert "1 rank is unhealthy" in second.text


def test_a_page_is_compressed_for_who_can_read_that(monitor: Stage) -> None:
    packed, plain = ask(monitor), ask(monitor, **{"Accept-Encoding": "identity"})
    assert packed.headers["Content-Encoding"] == "gzip"
    assert "Content-Encoding" not in plain.headers
    assert packed.text == plain.text
    assert int(packed.headers["Content-Length"]) < len(plain.content) / 3


def test_what_is_not_known_has_a_page_that_is_followed_too(monitor: Stage) -> None:
    answer = ask(monitor, path="/groups/nobody")
    assert (answer.status_code, 'data-every="2"' in answer.text) == (404, True)
    assert ask(monitor, answer.headers["ETag"], "/groups/nobody").status_code == 304


def test_the_page_of_an_incident_is_made_once_a_view_for_all_who_read_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = []
    monkeypatch.setattr(answers, "LONG_S", 60.0)
    monkeypatch.setattr(paging, "incident_page", lambda view, *_: made.append(view) or "<html>")
    views = [replace(crowd(3, 2, tick=100 + n), incidents=(hang(),)) for n in range(2)]
    monitor = Stage(views[0])
    try:
        for _ in range(3):
            assert ask(monitor, path="/incidents/inc-1").status_code == 200
        monitor.show(views[1])
        ask(monitor, path="/incidents/inc-1")
    finally:
        monitor.close()
    assert made == views
