"""`tests.dashboards.asked`: which panels a running Prometheus leaves empty."""

import json
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

import pytest

from lightkeeper.dashboards import committed
from lightkeeper.dashboards.selectors import or_none
from tests.dashboards.asked import main, queries
from tests.dashboards.boards import filled
from tests.http_server import FakeServer, Handler
from tests.ports import free_port
from tests.prometheus.server import prometheus
from tests.waiting import wait_for

EVERY = [query for board in committed.read_boards() for query in queries(board)]


class FakeHttp(FakeServer):
    """Answers each path and expression by a function."""

    def __init__(self, answer: Callable[[str, dict[str, str]], tuple[int, bytes]]) -> None:
        super().__init__()
        self.answer = answer
        self.asked: list[tuple[str, dict[str, str]]] = []

    def serve(self, handler: Handler, method: str, path: str, body: bytes) -> None:
        url = urlsplit(path)
        parameters = {name: values[0] for name, values in parse_qs(url.query).items()}
        self.asked.append((url.path, parameters))
        status, said = self.answer(url.path, parameters)
        handler.reply(status, "application/json", said)


@pytest.fixture
def serve():
    made: list[FakeHttp] = []

    def start(answer) -> FakeHttp:
        made.append(FakeHttp(answer))
        return made[-1]

    yield start
    for fake in made:
        fake.close()


def said(series: int) -> tuple[int, bytes]:
    result = [{"metric": {"n": str(n)}, "value": [0, "1"]} for n in range(series)]
    body = {"status": "success", "data": {"resultType": "vector", "result": result}}
    return 200, json.dumps(body).encode()


def refused(why: str) -> tuple[int, bytes]:
    return 400, json.dumps({"status": "error", "error": why}).encode()


def check(fake: FakeHttp, *more: str) -> int:
    return main([f"http://{fake.address}", *more])


def test_a_prometheus_that_has_all_of_it_passes(serve, capsys) -> None:
    fake = serve(lambda *_: said(3))
    assert check(fake, "--range", "600", "--scrape", "5") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"{len(EVERY)} queries, 0 failed or empty"
    assert lines[0].split(maxsplit=3) == ["ok", "3", "fleet", "panel Jobs/A"]
    _seen, (jobs, _), *others = fake.asked
    assert jobs == "/api/v1/label/job_id/values"
    assert {path for path, _ in others} == {"/api/v1/query", "/api/v1/query_range"}
    for _, parameters in others:
        assert "$" not in parameters["query"]
        if "start" in parameters:
            assert float(parameters["end"]) - float(parameters["start"]) == pytest.approx(600)


def test_a_refused_query_and_an_empty_panel_are_found_and_a_quiet_one_is_not(serve, capsys) -> None:
    def answer(_, parameters: dict[str, str]) -> tuple[int, bytes]:
        expr = parameters.get("query", "")
        if "by (health)" in expr:
            return refused("parse error:\n  no such thing")
        empty = ("group_step", "rank_suspect")
        return said(0 if any(metric in expr for metric in empty) else 1)

    fake = serve(answer)
    assert check(fake, "--format", "json") == 1
    report = json.loads(capsys.readouterr().out)
    by_name = {f"{query['board']}: {query['where']}": query for query in report["queries"]}
    states = {name: (query["found"], query["said"]) for name, query in by_name.items()}
    assert states["groups: panel Groups, worst first/B"] == ("quiet", "no group")
    assert states["incidents: panel Suspects/A"] == ("quiet", "nobody is suspected")
    assert states["fleet: panel Ranks by health/A"] == (
        "FAILED", "parse error: no such thing",
    )  # fmt: skip
    wrong = [name for name, (state, _) in states.items() if state in ("EMPTY", "FAILED")]
    assert report["wrong"] == len(wrong)


def test_where_no_monitor_is_scraped_that_is_what_is_said(serve, capsys) -> None:
    assert check(serve(lambda *_: said(0))) == 1
    assert "this Prometheus sees no monitor" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda *_: (200, b"<html>"), "gives no answer"),
        (lambda *_: (404, b"not found"), "is no Prometheus"),
        (lambda *_: (200, b"[]"), "is no Prometheus"),
    ],
    ids=["a page", "404", "a list"],
)
def test_a_server_that_is_no_prometheus_is_one_line_of_error(
    serve, capsys, answer, why: str
) -> None:
    assert check(serve(answer)) == 1
    error = capsys.readouterr().err
    assert why in error
    assert error.startswith("error: http://127.0.0.1:")
    assert error.count("\n") == 1


def test_nobody_there_is_told_in_one_line(capsys) -> None:
    assert main([f"http://127.0.0.1:{free_port()}"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.integration
@pytest.mark.timeout(120)
def test_nothing_happened_is_a_zero_only_while_a_monitor_is_there(serve) -> None:
    page = [b"lightkeeper_self_health_scale 1\n"]
    fake = serve(lambda *_: (200, page[0]) if page[0] else (500, b""))
    config = f"""\
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - {{job_name: lightkeeper, static_configs: [{{targets: ["{fake.address}"]}}]}}
"""
    expr = filled(or_none("sum by (reason) (lightkeeper_poll_failures_total)", "reason"))

    with prometheus(config) as prom:

        def seen() -> dict[str, float]:
            return {sample.labels["reason"]: sample.value for sample in prom.query(expr)}

        wait_for(lambda: seen() == {"none": 0.0}, within_s=20, what="a zero")
        page[0] += b'lightkeeper_poll_failures_total{reason="timeout"} 2\n'
        wait_for(lambda: seen() == {"timeout": 2.0}, within_s=20, what="the failures alone")
        page[0] = b""
        wait_for(lambda: seen() == {}, within_s=20, what="no zero of a monitor that is gone")
