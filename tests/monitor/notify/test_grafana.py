"""Annotations on a Grafana that answers as its HTTP API is documented (v8 to v12).

POST /api/annotations -> 200 {"message": "Annotation added", "id": N}; PATCH /api/annotations/:id ->
200 {"message": "Annotation patched"}; 401, 403, 404 and 5xx with {"message": ...}.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from monitor.cli import build_parser
from monitor.commands.errors import CommandError
from monitor.commands.notify import sinks_of
from monitor.incident import State
from monitor.names import IncidentId
from monitor.notify.annotations import Grafana, standing
from monitor.notify.notices import Known
from monitor.notify.sinks import Webhook
from tests.monitor.audit.scene import EVICTION, ID, MARKS, ROWS, hang
from tests.monitor.notify.scene import Bench, Receiver
from tests.monitor.shell.fakes import FakeServer, Page, page, wait_until


class FakeGrafana(FakeServer):
    """Holds annotations by id, as the real one does."""

    def __init__(self) -> None:
        super().__init__()
        self.token = "glsa_secret"
        self.kept: dict[int, dict[str, Any]] = {}
        self.asked: list[tuple[str, str]] = []
        self.broken: Page | None = None

    def serve(self, handler: Any, method: str, path: str, body: bytes) -> None:
        self.asked.append((method, path))
        handler.reply(*(self.broken or self._answer(handler, method, path, body)))

    def _answer(self, handler: Any, method: str, path: str, body: bytes) -> Page:
        if handler.headers.get("Authorization") != f"Bearer {self.token}":
            return page({"message": "Unauthorized"}, 401)
        told = json.loads(body)
        if method == "POST" and path == "/api/annotations":
            if not told.get("text"):
                return page({"message": "text field should not be empty"}, 400)
            number = len(self.kept) + 1
            self.kept[number] = {"timeEnd": told["time"], **told}
            return page({"message": "Annotation added", "id": number})
        number = int(path.rpartition("/")[2]) if method == "PATCH" else -1
        if number not in self.kept:
            return page({"message": "Annotation not found"}, 404)
        self.kept[number] |= told
        return page({"message": "Annotation patched"})

    @property
    def by_text(self) -> list[tuple[str, float, float]]:
        """What stands there: the first words, from, to (seconds)."""
        found = [(one["text"].split("<br>")[0], one["time"] / 1e3, one["timeEnd"] / 1e3)
                 for one in self.kept.values()]  # fmt: skip
        return sorted(found)


@pytest.fixture
def grafana() -> Iterator[FakeGrafana]:
    made = FakeGrafana()
    yield made
    made.close()


def sink(grafana: FakeGrafana, **more: Any) -> Grafana:
    return Grafana("grafana", grafana.url, grafana.token, **more)


GOING_ON = replace(
    hang(
        state=State.EVICTING, resolution=None, story=hang().story[:3],
        milestones=replace(MARKS, left_quorum_s=None, survivor_commit_s=None, rejoined_s=None),
    )
)  # fmt: skip
BEGUN = replace(EVICTION, gone_s=None, left_quorum_s=None)
HELD = {ID: ROWS}


def patched(grafana: FakeGrafana, number: int) -> None:
    def count() -> int:
        return sum(method == "PATCH" for method, _ in grafana.asked)

    wait_until(lambda: count() >= number, 10, f"{number} patches")
    assert count() == number


def test_an_incident_its_eviction_and_what_held_it_are_regions(make, grafana: FakeGrafana) -> None:
    bench: Bench = make(sink(grafana), hold_s=2.5)
    bench.tell(GOING_ON, now_s=112.0, decisions=HELD, evictions=[BEGUN])
    bench.sent("grafana", 3)
    assert grafana.by_text == [
        ("rg_1 is evicted", 111.0, 111.0),
        ("rg_1.0: not entered", 105.0, 105.0),
        ("rg_1: nobody is evicted (budget)", 108.0, 110.5),
    ]
    bench.tell(hang(), now_s=117.0, decisions=HELD, evictions=[EVICTION])
    patched(grafana, 2)
    assert [(start_s, end_s) for _, start_s, end_s in grafana.by_text] == [
        (111.0, 116.0), (105.0, 116.0), (108.0, 110.5),
    ]  # fmt: skip
    tags = {tuple(one["tags"]) for one in grafana.kept.values()}
    assert tags == {
        ("lightkeeper", "incident", "not_entered", "rg_1", "inc-1"),
        ("lightkeeper", "eviction", "not_entered", "rg_1", "inc-1"),
        ("lightkeeper", "held", "not_entered", "budget", "rg_1", "inc-1"),
    }
    assert all("dashboardUID" not in one for one in grafana.kept.values())


def test_nothing_is_added_twice_whatever_ticks_and_restarts(make, grafana: FakeGrafana) -> None:
    first: Bench = make(sink(grafana))
    for _ in range(3):
        first.tell(GOING_ON, now_s=112.0, evictions=[BEGUN])
    first.sent("grafana", 2)
    wait_until(lambda: len(first.disk.rows) == 2, 10, "the ids are stored")
    first.office.close()
    again: Bench = make(sink(grafana))
    again.tell(GOING_ON, now_s=113.0, evictions=[BEGUN])
    again.tell(hang(), now_s=117.0, evictions=[EVICTION])
    patched(grafana, 2)
    wait_until(lambda: again.counted("grafana", "sent") == 2, 10, "both changes")
    assert len(grafana.kept) == 2
    again.tell(hang(), now_s=1e6, evictions=[EVICTION])
    wait_until(lambda: not again.disk.rows, 10, "what is long over is forgotten")
    assert len(grafana.asked) == 4


def test_what_began_and_ended_while_grafana_was_away_is_told_in_one(make, grafana) -> None:
    grafana.broken = page({"message": "database is locked"}, 500)
    bench: Bench = make(sink(grafana))
    bench.tell(GOING_ON, now_s=112.0)
    wait_until(lambda: bench.counted("grafana", "failed") >= 2, 10, "tries")
    assert bench.office.troubles()[0].startswith("notify grafana: answered 500: ")
    bench.tell(hang(), now_s=117.0)
    grafana.broken = None
    bench.sent("grafana", 1)
    assert grafana.by_text == [("rg_1.0: not entered", 105.0, 116.0)]
    wait_until(lambda: not bench.office.troubles(), 10, "it is well again")


@pytest.mark.parametrize(
    ("status", "says"),
    [(401, "Unauthorized"), (403, "You'll need additional permissions"), (404, "Not found")],
)
def test_a_refusal_is_a_trouble_and_is_tried_again(make, grafana, status: int, says: str) -> None:
    grafana.broken = page({"message": says}, status)
    bench: Bench = make(sink(grafana))
    bench.tell(GOING_ON, now_s=112.0)
    told = wait_until(bench.office.troubles, 10, "a trouble")
    assert told[0].startswith(f"notify grafana: answered {status}: ")
    assert grafana.token not in told[0]
    grafana.broken = None
    bench.sent("grafana", 1)


def test_an_annotation_that_somebody_deleted_stays_deleted(make, grafana: FakeGrafana) -> None:
    bench: Bench = make(sink(grafana))
    bench.tell(GOING_ON, now_s=112.0)
    bench.sent("grafana", 1)
    grafana.kept.clear()
    bench.tell(hang(), now_s=117.0)
    wait_until(lambda: ("PATCH", "/api/annotations/1") in grafana.asked, 10, "a try")
    bench.tell(replace(hang(), severity=GOING_ON.severity), now_s=118.0)
    bench.tell(hang(), GOING_ON_TOO, now_s=119.0)
    bench.sent("grafana", 2)
    assert [text for text, _, _ in grafana.by_text] == ["rg_1.0: not entered"]
    assert not bench.office.troubles()


GOING_ON_TOO = replace(GOING_ON, id=IncidentId("inc-2"))


def test_an_answer_without_an_id_changes_nothing_later(make, grafana: FakeGrafana) -> None:
    grafana.broken = page({"message": "Annotation added"})
    bench: Bench = make(sink(grafana))
    bench.tell(GOING_ON, now_s=112.0)
    bench.sent("grafana", 1)
    bench.tell(hang(), now_s=117.0)
    bench.tell(hang(), GOING_ON_TOO, now_s=118.0)
    bench.sent("grafana", 2)
    assert {method for method, _ in grafana.asked} == {"POST"}


def test_one_dashboard_alone_and_a_root_below_a_path(make, grafana: FakeGrafana) -> None:
    one = Grafana("grafana", grafana.url + "/", grafana.token, dashboard="lk-fleet")
    bench: Bench = make(one)
    bench.tell(GOING_ON, now_s=112.0)
    bench.sent("grafana", 1)
    assert grafana.kept[1]["dashboardUID"] == "lk-fleet"
    assert grafana.asked == [("POST", "/api/annotations")]
    below = replace(one, url="https://g.example/grafana/").post
    (message,) = standing(known(GOING_ON), url="", hold_s=1, keep_s=60).values()
    assert below([message]).url == "https://g.example/grafana/api/annotations"
    assert below([replace(message, ref="7")]).method == "PATCH"


def known(*incidents: Any, evictions: Any = (), now_s: float = 112.0) -> Known:
    return Known(now_s, incidents, {}, evictions)


def test_what_ranks_say_is_no_markup() -> None:
    one = replace(GOING_ON, verdict=replace(GOING_ON.verdict, reason="<script>x</script>"))
    (message,) = standing(known(one), url="http://h", hold_s=1, keep_s=60).values()
    body = json.loads(Grafana("g", "http://g", "t").post([message]).body)
    assert body["text"] == (
        "rg_1.0: not entered<br>&lt;script&gt;x&lt;/script&gt;<br>"
        '<a href="http://h/incidents/inc-1">inc-1</a>'
    )


def test_pending_incidents_and_those_long_over_do_not_stand_there() -> None:
    pending = replace(GOING_ON, milestones=replace(MARKS, firing_s=None))
    assert standing(known(pending), url="", hold_s=1, keep_s=60) == {}
    assert standing(known(hang(), now_s=177.0), url="", hold_s=1, keep_s=60) == {}


def test_evictions_by_hand_and_failed_ones_stand_there_too() -> None:
    by_hand = replace(EVICTION, incident_id=IncidentId("manual-rg_1"), failed="not gone")
    (message,) = standing(known(evictions=[by_hand]), url="", hold_s=1, keep_s=60).values()
    assert message.ended is not None
    assert (message.ended.at_s, message.ended.reason) == (115.0, "failed: not gone")
    assert message.notice.labels["kind"] == "by_hand"


def test_people_are_not_paged_for_what_only_stands_on_a_dashboard(
    make: Callable[..., Bench],
    grafana: FakeGrafana,
    receiver: Receiver,
) -> None:
    bench = make(sink(grafana), Webhook("webhook", receiver.url))
    bench.tell(GOING_ON, now_s=112.0, evictions=[BEGUN])
    bench.sent("grafana", 2)
    bench.sent("webhook", 1)
    assert [one["event"] for one in receiver.bodies] == ["incident"]


def test_the_token_comes_from_a_file_and_is_shown_nowhere(tmp_path, monkeypatch) -> None:
    path = tmp_path / "token"
    path.write_text("glsa_secret\n")
    words = ["--grafana", "http://g:3000", "--grafana-token-file", str(path)]
    parsed = build_parser().parse_args(["notify", "--test", *words, "--grafana-dashboard", "uid"])
    (made,) = sinks_of(parsed)
    assert made == Grafana("grafana", "http://g:3000", "glsa_secret", "uid")
    assert "glsa" not in repr(made)
    monkeypatch.delenv("LIGHTKEEPER_NOTIFY_GRAFANA_TOKEN", raising=False)
    with pytest.raises(CommandError, match="--grafana needs a token"):
        sinks_of(build_parser().parse_args(["notify", "--test", "--grafana", "http://g:3000"]))
