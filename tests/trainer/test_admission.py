"""The question to the monitor, against a small HTTP server."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from trainer.admission import Admitted, Away, Refused, ask_monitor


class Monitor:
    """Gives one answer to every question, and remembers the questions."""

    def __init__(self):
        self.answer, self.asked = (200, "{}"), []
        monitor = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                url = urlsplit(self.path)
                monitor.asked.append((url.path, parse_qs(url.query)))
                status, text = monitor.answer
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def monitor():
    running = Monitor()
    yield running
    running.close()


@pytest.mark.parametrize(
    ("status", "body", "answer"),
    [
        pytest.param(200, {"admit": True, "reason": "fine"}, Admitted("fine"), id="admitted"),
        pytest.param(200, {"admit": False, "reason": "slow since noon", "until_s": 7.0},
                     Refused("slow since noon"), id="refused"),
        pytest.param(200, {"admit": False}, Refused(""), id="refused-without-a-reason"),
    ],
)  # fmt: skip
def test_the_monitors_answer_is_taken_as_it_is(monitor, status, body, answer):
    monitor.answer = (status, json.dumps(body))

    assert ask_monitor(monitor.url + "/", "rg_1")("host 1") == answer
    assert monitor.asked == [("/v1/admission", {"host": ["host 1"], "group": ["rg_1"]})]


@pytest.mark.parametrize(
    ("status", "text"),
    [
        pytest.param(500, '{"admit": false}', id="broken"),
        pytest.param(404, '{"admit": false}', id="something-else"),
        pytest.param(200, "<html>", id="no-json"),
        pytest.param(200, "[]", id="no-object"),
        pytest.param(200, "3", id="a-number"),
        pytest.param(200, "{}", id="no-answer"),
        pytest.param(200, '{"admit": "false"}', id="no-bool"),
        pytest.param(200, '{"admit": null}', id="null"),
    ],
)
def test_an_answer_that_makes_no_sense_is_no_refusal(monitor, status, text):
    monitor.answer = (status, text)

    assert isinstance(ask_monitor(monitor.url, "rg_1")("host-1"), Away)


def test_a_monitor_that_is_not_there_is_away(monitor):
    monitor.close()

    answer = ask_monitor(monitor.url, "rg_1")("host-1")

    assert isinstance(answer, Away)
    assert "\n" not in answer.reason


def test_of_two_monitors_the_first_that_answers_is_believed_and_asked_first_then(monitor):
    monitor.answer = (200, json.dumps({"admit": False, "reason": "slow"}))
    broken = Monitor()
    broken.answer = (500, "")

    ask = ask_monitor(f"{broken.url}, {monitor.url}/", "rg_1")
    assert [ask("host-1"), ask("host-1")] == [Refused("slow"), Refused("slow")]
    assert (len(broken.asked), len(monitor.asked)) == (1, 2)
    broken.close()


def test_when_no_monitor_answers_they_are_away(monitor):
    monitor.answer = (500, "")
    assert isinstance(ask_monitor(f"{monitor.url},{monitor.url}", "rg_1")("host-1"), Away)
