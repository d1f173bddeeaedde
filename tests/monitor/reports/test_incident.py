"""An incident as a page without JavaScript: every rung, who decided, what held and what let go."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

from monitor.audit.books import Books
from monitor.pipeline import TickResult
from monitor.reports.incident import incident_page, incidents_page
from monitor.snapshot import LighthouseAway, Rung, RungOutcome, RungResult, Snapshot
from monitor.store import DecisionRow, DecisionState
from monitor.view import View, incident_json
from tests.monitor.audit.scene import EVICTION, FACTS, ID, ROWS, hang

RUNGS = (
    RungOutcome(Rung.GATE, 111.0, 111.2, "worked: refused", RungResult.WORKED, 5.0),
    RungOutcome(Rung.LIGHTHOUSE_KILL, 111.1, 113.1, "no answer", RungResult.UNKNOWN, 2.0),
    RungOutcome(Rung.WORKER_EVICT, 113.1, None, "asked", None, 9.0),
)
HELD = replace(ROWS[0], body={"release": "60 s more"})


def body(**changes: Any) -> dict[str, Any]:
    """The incident of the scene as the API tells it."""
    one = changes.pop("one", hang())
    evictions = changes.pop("evictions", (replace(EVICTION, rungs=RUNGS),))
    rows = changes.pop("rows", (HELD, *ROWS[1:]))
    return incident_json(
        View(
            snapshot=Snapshot(2000.0, 1, 0.0, (), LighthouseAway("no")),
            result=TickResult(2000.0),
            observe=False,
            incidents=(one,),
            decisions={ID: rows},
            books=Books(facts={ID: FACTS}, evictions={ID: evictions}),
        ),
        one,
    )


class Cells(HTMLParser):
    """The rows of all tables, as text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self._inside = True

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.rows[-1][-1] += data


def rows(text: str) -> list[list[str]]:
    return Cells(text).rows


def test_every_rung_tells_its_result_its_seconds_and_its_deadline() -> None:
    told = rows(incident_page(body(), guarded=False))
    at = told.index(["rung", "result", "began", "took", "deadline", "what it says"])
    assert told[at + 1 : at + 6] == [
        ["gate refuses it", "worked", "+6.0 s", "0.2 s", "5.0 s", "refused"],
        ["Lighthouse kill", "unknown", "+6.1 s", "2.0 s", "2.0 s", "no answer"],
        ["WorkerServers", "under way", "+8.1 s", "-", "9.0 s", "asked"],
        ["scheduler", "not climbed", "", "", "", ""],
        ["page a person", "not climbed", "", "", "", ""],
    ]


def test_who_decided_on_what_and_what_released_a_hold() -> None:
    text = incident_page(body(), guarded=False)
    assert "Decided by lightkeeper: not_entered is evicted when it fires" in text
    told = rows(text)
    heads = ["guard", "held for", "why", "would be released by", "what released it"]
    at = told.index(heads)
    assert told[at + 1 : at + 3] == [
        ["cool_down", "2.0 s", "too soon", "60 s more", "budget held instead"],
        ["budget", "2.5 s", "4 an hour are used up, still", "nothing is said",
         "it was decided to evict"],
    ]  # fmt: skip
    assert ["+5.5 s", "evict", "", "lightkeeper", "not_entered: hung", "held"] in told


def test_a_hold_that_stands_says_so_and_nobody_was_evicted() -> None:
    one = hang(state="firing", resolution=None)
    text = incident_page(body(one=one, evictions=(), rows=(HELD,)), guarded=False)
    assert ["cool_down", "still", "too soon", "60 s more", "it holds"] in rows(text)
    assert "Nobody was evicted." in text


def test_nothing_on_it_runs_and_names_of_others_are_no_markup() -> None:
    evil = "<script>alert(1)</script>"
    one = hang(resolution=evil)
    one = replace(one, verdict=replace(one.verdict, reason=evil, evidence={evil: evil}))
    row = DecisionRow(ID, 110.0, "evict", None, evil, state=DecisionState.DECIDED, author=evil)
    rungs = (RungOutcome(Rung.GATE, 1.0, 2.0, evil, RungResult.FAILED),)
    told = body(one=one, rows=(row,), evictions=(replace(EVICTION, rungs=rungs, failed=evil),))
    for text in (incident_page(told, guarded=False), incidents_page([told])):
        assert "<script" not in text
        assert re.search(r"\son[a-z]+=", text) is None
        assert "&lt;script&gt;" in text


def test_its_evidence_is_no_link_where_a_link_cannot_carry_the_token() -> None:
    told = {**body(), "bundle": {"url": "/v1/incidents/inc-1/bundle", "bytes": 1, "written_s": 1}}
    assert '<a href="/v1/incidents/inc-1/bundle"' in incident_page(told, guarded=False)
    guarded = incident_page(told, guarded=True)
    assert 'href="/v1/incidents/inc-1/bundle"' not in guarded
    assert "needs the token" in guarded


def test_all_of_them_newest_first_each_with_its_page() -> None:
    text = incidents_page([body()])
    assert '<a href="/incidents/inc-1">inc-1</a>' in text
    assert "None so far." in incidents_page([])
