"""Streams of events over a real server: few, told what changed, and ended in time."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest
import requests

from monitor.model.verdict import RankHealth
from monitor.show import latest
from monitor.show.latest import STREAMS, Streams
from tests.monitor.fakes import wait_until
from tests.page.serving import Stage
from tests.page.views import crowd

STALLED = {"rg_1.1": RankHealth.STALLED}


@pytest.fixture
def monitor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setattr(latest, "LONG_S", 60.0)  # the first page of a process takes long
    made = Stage(crowd(3, 2))
    yield made
    made.close()


def follow(monitor: Stage, query: str = "", **headers: str) -> requests.Response:
    url = f"{monitor.url}/v1/events{query}"
    return requests.get(url, stream=True, timeout=10, headers=headers)


def events(answer: requests.Response) -> Iterator[tuple[str, dict]]:
    """Tag and body of each event."""
    lines: list[str] = []
    for line in answer.iter_lines(decode_unicode=True):
        if line:
            lines.append(line)
            continue
        fields = dict(text.split(": ", 1) for text in lines if not text.startswith(":"))
        lines = []
        if "data" in fields:
            yield fields["id"], json.loads(fields["data"])


def test_a_stream_tells_all_first_and_then_what_changed(monitor: Stage) -> None:
    with follow(monitor) as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        stream = events(answer)
        _, first = next(stream)
        assert first["full"] is True
        assert first["order"] == ["rg_0", "rg_1", "rg_2"]
        monitor.show(crowd(3, 2, STALLED, tick=101))
        _, second = next(stream)
        assert (second["full"], second["facts"]["ranks"]) == (False, {"stalled": 1, "healthy": 5})


def test_who_comes_back_is_told_what_it_missed(monitor: Stage) -> None:
    with follow(monitor) as answer:
        tag, _ = next(events(answer))
    monitor.show(crowd(3, 2, STALLED, tick=101))
    for query, headers in ((f"?since={tag}", {}), ("", {"Last-Event-ID": tag})):
        with follow(monitor, query, **headers) as answer:
            assert next(events(answer))[1]["full"] is False
    with follow(monitor, "?since=of-another-monitor") as answer:
        assert next(events(answer))[1]["full"] is True


def test_who_polls_is_told_the_same(monitor: Stage) -> None:
    url = f"{monitor.url}/v1/fleet"
    first = requests.get(url, timeout=10).json()
    assert first["full"] is True
    monitor.show(crowd(3, 2, STALLED, tick=101))
    second = requests.get(url, params={"since": first["tag"]}, timeout=10).json()
    assert (second["full"], second["facts"]["tone"]) == (False, "wait")
    assert requests.get(url, params={"page": "/nothing"}, timeout=10).status_code == 400


def test_one_page_is_followed_by_its_path(monitor: Stage) -> None:
    with follow(monitor, "?page=/ranks/rg_1.1") as answer:
        _, event = next(events(answer))
    assert event["title"] == "rank rg_1.1"


def test_more_streams_than_there_may_be_are_refused_and_the_api_still_answers(
    monitor: Stage,
) -> None:
    open_ones = [follow(monitor) for _ in range(STREAMS)]
    assert {stream.status_code for stream in open_ones} == {200}
    refused = follow(monitor)
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "30")
    assert "poll /v1/fleet" in refused.json()["error"]
    assert monitor.desk.streams.open == STREAMS
    assert requests.get(f"{monitor.url}/healthz", timeout=5).status_code == 200
    for answer in open_ones:
        answer.close()

    def freed() -> bool:
        monitor.show(crowd(3, 2, tick=monitor.view.snapshot.tick + 1))
        return monitor.desk.streams.open == 0

    wait_until(freed, what="streams whose clients are gone end")


def test_streams_end_when_the_monitor_does(monitor: Stage) -> None:
    with follow(monitor) as answer:
        stream = events(answer)
        next(stream)
        monitor.desk.streams.close()
        assert list(stream) == []
    assert follow(monitor).status_code == 503
    wait_until(lambda: monitor.desk.streams.open == 0, what="its place is given back")


def test_a_client_that_does_not_read_loses_its_stream() -> None:
    sent = list(Streams().run(lambda: b"data: x\n\n", lambda: 1, slow_s=0.3))
    assert sent == [b"retry: 2000\n\n"]  # nothing is piled up for it


def test_a_client_that_vanishes_without_a_word_loses_its_stream(monitor: Stage) -> None:
    host, port = monitor.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(b"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_until(lambda: monitor.desk.streams.open == 1, what="the stream begins")

    def freed() -> bool:
        monitor.show(crowd(3, 2, tick=monitor.view.snapshot.tick + 1))
        return monitor.desk.streams.open == 0

    wait_until(freed, what="the stream ends")


def test_a_place_is_given_back_once() -> None:
    streams = Streams(at_most=1)
    give_back = streams.take()
    assert give_back is not None
    assert streams.take() is None
    give_back()
    give_back()
    assert streams.open == 0
    streams.close()
    assert streams.take() is None
