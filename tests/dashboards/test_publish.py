"""The push, against a server that answers as Grafana's API documents."""

import pytest

from lightkeeper.dashboards import publish
from lightkeeper.dashboards.publish import Grafana, PublishError, read_grafana_token
from tests.dashboards.grafana_server import EDITOR, VIEWER, GrafanaServer

BOARD = {"uid": "one", "title": "One", "panels": []}
OTHER = {"uid": "two", "title": "Two", "panels": []}

SAVED_MEANWHILE = "somebody saved it since we looked: push again to replace it"
FROM_A_FILE = (
    "this Grafana reads it from a file (one.json): change the file, or stop provisioning it"
)
TITLE_TAKEN = "the folder has another dashboard of this title: rename or remove it"


def reached(grafana, token=EDITOR):
    return Grafana(grafana.url, token, pause_s=0.0)


def push(grafana, *boards, folder_uid=None, token=EDITOR):
    """What became of each dashboard."""
    pushed = publish.push_boards(reached(grafana, token), boards, folder_uid)
    return [(row.action, row.why) for row in pushed]


def test_a_push_creates_the_folder_and_the_dashboards_in_it(grafana):
    assert push(grafana, BOARD, OTHER) == [("create", ""), ("create", "")]
    assert grafana.folders["lightkeeper"]["title"] == "Lightkeeper"
    assert {kept["folderUid"] for kept in grafana.boards.values()} == {"lightkeeper"}


def test_a_push_twice_makes_one_version_and_after_a_change_a_second(grafana):
    push(grafana, BOARD, OTHER)
    assert push(grafana, BOARD, OTHER) == [("unchanged", ""), ("unchanged", "")]
    assert grafana.versions("one") == [1]
    assert grafana.writes() == ["/api/folders", "/api/dashboards/db", "/api/dashboards/db"]

    assert push(grafana, {**BOARD, "refresh": "5s"}, OTHER) == [("update", ""), ("unchanged", "")]
    assert (grafana.versions("one"), grafana.versions("two")) == ([1, 2], [1])
    assert grafana.boards["one"]["dashboard"]["refresh"] == "5s"


def test_a_grafana_that_stores_it_in_other_words_gets_no_version_for_nothing(grafana):
    grafana.rewrites = lambda board: {**board, "schemaVersion": 42, "preload": False}
    push(grafana, BOARD)

    assert push(grafana, BOARD) == [("unchanged", "")]
    grafana.edit("one", refresh="1d")
    assert push(grafana, BOARD) == [("update", "")]
    assert grafana.versions("one") == [1, 2, 3]


def test_a_change_saved_while_we_look_is_not_overwritten(grafana, monkeypatch):
    push(grafana, BOARD)
    looked = Grafana.last_message

    def saved_now(self, uid):
        message = looked(self, uid)
        grafana.edit("one", refresh="1m")
        return message

    monkeypatch.setattr(Grafana, "last_message", saved_now)
    assert push(grafana, {**BOARD, "refresh": "5s"}, OTHER) == [
        ("refused", SAVED_MEANWHILE),
        ("create", ""),
    ]
    assert grafana.boards["one"]["dashboard"]["refresh"] == "1m"


def test_a_dashboard_read_from_a_file_is_told_and_the_others_go_on(grafana):
    grafana.add_folder("lightkeeper", "Lightkeeper")
    grafana.add_board(BOARD, "lightkeeper", provisioned="one.json")
    changed = {**BOARD, "refresh": "5s"}

    assert push(grafana, changed, OTHER) == [
        ("refused", FROM_A_FILE),
        ("create", ""),
    ]  # fmt: skip


def test_a_nested_folder_is_named_by_its_uid(grafana):
    grafana.add_folder("ml", "Machine learning")
    grafana.add_folder("nested", "Training", parent="ml")

    assert push(grafana, BOARD, folder_uid="nested") == [("create", "")]
    assert grafana.boards["one"]["folderUid"] == "nested"
    assert push(grafana, BOARD) == [("update", "")]


def test_our_folder_that_somebody_nested_is_found_there(grafana):
    grafana.add_folder("ml", "Machine learning")
    grafana.add_folder("lightkeeper", "Lightkeeper", parent="ml")

    assert push(grafana, BOARD) == [("create", "")]
    assert "/api/folders" not in grafana.writes()


def test_a_folder_that_is_not_there_is_not_invented(grafana):
    with pytest.raises(PublishError, match="there is no folder with uid 'nowhere'"):
        push(grafana, BOARD, folder_uid="nowhere")
    assert grafana.writes() == []


def test_another_dashboard_of_the_same_title_is_told(grafana):
    grafana.add_folder("lightkeeper", "Lightkeeper")
    grafana.add_board({**BOARD, "uid": "theirs"}, "lightkeeper")

    assert push(grafana, BOARD) == [
        ("refused", TITLE_TAKEN)
    ]  # fmt: skip


def test_a_grafana_that_is_just_starting_is_tried_again(grafana):
    grafana.script = [(503, {"message": "starting"}), (502, "Bad Gateway")]

    assert push(grafana, BOARD) == [("create", "")]
    assert grafana.requests[:3] == [("GET", "/api/folders/lightkeeper")] * 3


def test_a_grafana_behind_a_path_is_told_with_its_own_address():
    grafana = GrafanaServer(prefix="/graphs")
    try:
        (row,) = publish.push_boards(reached(grafana), [BOARD])
    finally:
        grafana.close()
    assert row.url == f"{grafana.url}/d/one/of-that-name"


LOOK = "cannot look at the folder at {url}: "


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        pytest.param([(401, {"message": "no"})],
                     LOOK + "it answers 401: no; is the token right and not expired?",
                     id="wrong-token"),
        pytest.param([(403, {"message": "no"})],
                     LOOK + "it answers 403: no; the service account needs the Editor role",
                     id="no-right"),
        pytest.param([(404, "<html>not here</html>")],
                     LOOK + "it answers 404: <html>not here</html>; is this the root URL of "
                     "Grafana?", id="not-the-root"),
        pytest.param([(404, "a message of a proxy")],
                     LOOK + "it answers 404: a message of a proxy; is this the root URL of "
                     "Grafana?", id="proxy"),
        pytest.param([(500, {"message": "disk\nfull"})] * 3,
                     LOOK + "it answers 500: disk full", id="broken"),
        pytest.param([(200, "<html>")],
                     "{url} did not answer as Grafana does: <html>", id="no-json"),
        pytest.param([(200, [])],
                     "{url} did not answer as Grafana does: []", id="json-of-something-else"),
    ],
)  # fmt: skip
def test_a_push_that_fails_says_why_in_one_line(grafana, answers, said):
    grafana.script = list(answers)

    with pytest.raises(PublishError) as caught:
        push(grafana, BOARD)

    assert str(caught.value) == said.format(url=grafana.url)


def test_a_token_that_may_only_read_changes_nothing(grafana):
    with pytest.raises(PublishError, match="the service account needs the Editor role"):
        push(grafana, BOARD, token=VIEWER)
    assert (grafana.folders, grafana.boards) == ({}, {})


def test_no_grafana_at_all_is_one_line(grafana):
    grafana.close()
    said = r"^cannot look at the folder at http://127\S+: it cannot be reached$"
    with pytest.raises(PublishError, match=said):
        push(grafana, BOARD)


@pytest.mark.parametrize("url", ["grafana:3000", "ftp://g", "http://", "http://g:port"])
def test_a_url_that_is_none_is_refused(url):
    with pytest.raises(PublishError, match=r"URL|Port"):
        Grafana(url, EDITOR)


@pytest.mark.parametrize("text", ["", "\n", "two words", "é"])
def test_a_token_file_without_one_token_is_refused(tmp_path, text):
    (tmp_path / "token").write_text(text)

    with pytest.raises(PublishError, match="does not hold one token"):
        read_grafana_token(tmp_path / "token")
