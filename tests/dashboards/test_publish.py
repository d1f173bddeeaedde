"""The push, against a small HTTP server that answers as Grafana does."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("grafana_api", reason="the grafana extra")

from dashboards.__main__ import main
from dashboards.publish import GrafanaPublisher, PublishError, read_token

BOARD = {"uid": "one", "title": "One", "panels": []}


class Grafana:
    """Folders and dashboards by uid; `script` holds answers to give first: (status, body)."""

    def __init__(self):
        self.folders, self.boards, self.requests, self.script = {}, {}, [], []
        grafana = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self):
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length) or "null")
                grafana.requests.append((self.command, self.path))
                status, answer = grafana.handle(self.path, self.headers, body)
                text = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_PUT = answer  # noqa: N815

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    def handle(self, path, headers, body):
        if self.script:
            return self.script.pop(0)
        if headers["Authorization"] != "Bearer secret":
            return 401, {"message": "Invalid API key"}
        if path == "/api/folders":
            if body["uid"] in self.folders:
                return 412, {"message": "the folder has been changed by someone else"}
            self.folders[body["uid"]] = body["title"]
            return 200, {"uid": body["uid"]}
        if path == "/api/folders/lightkeeper":
            return 200, {"uid": "lightkeeper"}
        if path == "/api/dashboards/db":
            board = body["dashboard"]
            if board["uid"] in self.boards and not body["overwrite"]:
                return 412, {"message": "exists"}
            self.boards[board["uid"]] = (body["folderUid"], board)
            return 200, {"url": f"/d/{board['uid']}", "status": "success"}
        return 404, {"message": "Not found"}

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def grafana():
    running = Grafana()
    yield running
    running.close()


def publisher(grafana, token="secret"):
    return GrafanaPublisher(grafana.url, token, sleep=lambda _: None)


def test_a_push_creates_the_folder_and_stores_the_dashboard_in_it(grafana):
    assert publisher(grafana).push([BOARD]) == [f"{grafana.url}/d/one"]
    assert grafana.folders == {"lightkeeper": "Lightkeeper"}
    assert grafana.boards["one"] == ("lightkeeper", {**BOARD, "id": None})


def test_a_second_push_replaces_and_does_not_fail(grafana):
    publisher(grafana).push([BOARD])
    publisher(grafana).push([{**BOARD, "title": "Two"}])

    assert grafana.boards["one"][1]["title"] == "Two"
    assert len(grafana.folders) == 1


def test_a_grafana_that_is_just_starting_is_tried_again(grafana):
    grafana.script = [(503, {"message": "starting"}), (502, "Bad Gateway")]

    assert publisher(grafana).push([BOARD]) == [f"{grafana.url}/d/one"]
    assert [path for _, path in grafana.requests].count("/api/folders") == 3


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        pytest.param([(401, {"message": "no"})],
                     "cannot create the folder at {url}: Unauthorized; is the token right and not "
                     "expired?", id="wrong-token"),
        pytest.param([(403, {"message": "no"})],
                     "cannot create the folder at {url}: Client Error 403: no; the service account "
                     "needs the Editor role", id="no-right"),
        pytest.param([(404, "<html>not here</html>")],
                     "cannot create the folder at {url}: Client Error 404: <html>not here</html>; "
                     "is this the root URL of Grafana?", id="not-the-root"),
        pytest.param([(500, {"message": "disk\nfull"})] * 3,
                     "cannot create the folder at {url}: Server Error 500: disk full", id="broken"),
        pytest.param([(404, "a message of a proxy")],
                     "cannot create the folder: {url} did not answer as Grafana does (string "
                     "indices must be integers, not 'str')", id="type-error-of-the-client"),
        pytest.param([(200, "<html>")],
                     "cannot create the folder: {url} did not answer as Grafana does (Expecting "
                     "value: line 1 column 1 (char 0))", id="no-json"),
        pytest.param([(200, {}), (200, [])],
                     "{url} did not answer as Grafana does: []", id="json-of-something-else"),
    ],
)  # fmt: skip
def test_a_push_that_fails_says_why_in_one_line(grafana, answers, said):
    grafana.script = list(answers)

    with pytest.raises(PublishError) as caught:
        publisher(grafana).push([BOARD])

    assert str(caught.value) == said.format(url=grafana.url)


def test_no_grafana_at_all_is_one_line(grafana):
    grafana.close()

    with pytest.raises(PublishError, match=r"^cannot create the folder at http://127\S+: [^\n]+$"):
        publisher(grafana).push([BOARD])


@pytest.mark.parametrize("url", ["grafana:3000", "ftp://g", "http://", "http://g:port"])
def test_a_url_that_is_none_is_refused(url):
    with pytest.raises(PublishError, match=r"URL|Port"):
        GrafanaPublisher(url, "secret")


@pytest.mark.parametrize("text", ["", "\n", "two words", "é"])
def test_a_token_file_without_one_token_is_refused(tmp_path, text):
    (tmp_path / "token").write_text(text)

    with pytest.raises(PublishError, match="does not hold one token"):
        read_token(tmp_path / "token")


def push(grafana, token_file, *more):
    return main(["push", "--url", grafana.url, "--token-file", str(token_file), *more])


@pytest.fixture
def token_file(tmp_path):
    path = tmp_path / "token"
    path.write_text("secret\n")
    return path


def test_the_command_pushes_what_is_committed(grafana, token_file, capsys):
    assert push(grafana, token_file) == 0
    assert capsys.readouterr().out == f"{grafana.url}/d/lightkeeper-fleet\n"
    assert grafana.boards["lightkeeper-fleet"][1]["title"] == "Lightkeeper: fleet"


def test_a_dry_run_sends_nothing(grafana, token_file, capsys):
    assert push(grafana, token_file, "--dry-run") == 0
    assert grafana.requests == []
    assert "would store lightkeeper-fleet" in capsys.readouterr().out


def test_a_missing_token_file_is_one_line_and_exit_one(grafana, tmp_path, capsys):
    assert push(grafana, tmp_path / "absent") == 1
    assert capsys.readouterr().err.count("\n") == 1
