"""An incident as a page without JavaScript: every rung, who decided, what held and what let go."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from typing import Any

from lightkeeper.monitor.decide.pipeline import TickResult
from lightkeeper.monitor.decide.view import IncidentReport, View
from lightkeeper.monitor.decide.view_json import report_to_json
from lightkeeper.monitor.model.eviction import Rung, RungOutcome, RungResult
from lightkeeper.monitor.model.incident import BundleView, Incident
from lightkeeper.monitor.model.names import Host, IncidentId, RunId
from lightkeeper.monitor.model.observation import LighthouseAway, Snapshot
from lightkeeper.monitor.model.run import Run
from lightkeeper.monitor.model.verdict import Kind
from lightkeeper.monitor.show.web.incident_page import (
    BundleStacks,
    incident_page,
    incident_text,
    incidents_page,
)
from tests.changed import replace
from tests.monitor.decide.scene import EVICTION, ID, MARKS, RELEASE, ROWS, hang, of_kind

RUNGS = (
    RungOutcome(Rung.GATE, 111.0, 111.2, "refused", RungResult.WORKED, 5.0),
    RungOutcome(Rung.LIGHTHOUSE_KILL, 111.1, 113.1, "no answer", RungResult.UNKNOWN, 2.0),
    RungOutcome(Rung.WORKER_EVICT, 113.1, None, "asked", None, 9.0),
)
HELD = replace(ROWS[0], release="60 s more")


def scene(*incidents: Incident, rows=None, evictions=None, **more: Any) -> View:
    return View(
        snapshot=Snapshot(2000.0, 1, 0.0, (), LighthouseAway("no")),
        result=TickResult(2000.0),
        observe=False,
        incidents=incidents,
        decisions={
            ID: (
                *((HELD, *ROWS[1:]) if rows is None else rows),
                *((replace(EVICTION, rungs=RUNGS),) if evictions is None else evictions),
            )
        },
        runs=(Run(RunId("1"), "job", 0.0, lost={ID: 140.0}),),
        **more,
    )


def report(**changes: Any) -> IncidentReport:
    """The incident of the scene."""
    incident = changes.pop("incident", hang())
    made_of = {name: changes.pop(name) for name in ("rows", "evictions") if name in changes}
    return replace(scene(incident, **made_of).report(incident), **changes)


def page(shown: IncidentReport, *before: Incident, stacks: BundleStacks | None = None) -> str:
    return incident_page(scene(*before), shown, stacks or BundleStacks(), "http://m")


def listing(*incidents: Incident, asked: dict[str, str] | None = None, wrong: str = "") -> str:
    return incidents_page(scene(*incidents), incidents, asked or {}, wrong)


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
    cells = rows(page(report()))
    at = cells.index(["step", "result", "began", "took", "deadline", "what it says"])
    assert cells[at + 1 : at + 6] == [
        ["gate refuses it", "✓ worked", "+11.0 s", "0.2 s", "5.0 s", "refused"],
        ["Lighthouse kill", "? unknown", "+11.1 s", "2.0 s", "2.0 s", "no answer"],
        ["WorkerServers", "… under way", "+13.1 s", "\N{EN DASH}", "9.0 s", "asked"],
        ["scheduler", "- not needed", "", "", "", ""],
        ["page a person", "- not needed", "", "", "", ""],
    ]


def test_who_decided_on_what_and_what_released_a_hold() -> None:
    text = page(report())
    assert "Decided by lightkeeper: not_entered is evicted when it fires" in text
    cells = rows(text)
    assert ["+6.0 s", "? held: cool down", "2.0 s", "too soon. 60 s more"] in cells
    assert ["+8.0 s", "? held: budget", "2.5 s", "4 an hour are used up, still"] in cells
    assert ["+6.0 s", "hold", "cool down", "lightkeeper", "too soon. 60 s more", "held"] in cells
    assert ["+10.5 s", "evict", "", "lightkeeper", "not_entered: hung", "asking"] in cells


def test_a_hold_that_stands_says_so_and_nobody_was_evicted() -> None:
    incident = hang(state="firing", resolution=None)
    text = page(report(incident=incident, evictions=(), rows=(HELD,)))
    held = ["+6.0 s", "? held: cool down", "32 min so far", "too soon. 60 s more"]
    assert held in rows(text)
    assert "Nobody was evicted." in text


def test_a_release_is_told_as_what_was_done_and_interrupts_no_hold() -> None:
    incident = hang(state="firing", resolution=None, milestones=replace(MARKS, evict_asked_s=None))
    shown = report(incident=incident, evictions=(), rows=(HELD, RELEASE))
    text = page(shown)
    cells = rows(text)
    assert ["+6.0 s", "? held: cool down", "32 min so far", "too soon. 60 s more"] in cells
    said = "rg_0.0 does not wait for rg_1 any more"
    ended = "rg_0.0 ended 2 connections"
    assert ["+9.5 s", "✓ others released", "0.5 s", f"{said}: {ended}"] in cells
    decision = ["+9.5 s", "release", "", "lightkeeper", said, f"confirmed: {ended}"]
    assert decision in cells
    assert "<b>" in text
    assert "they do not wait for rg_1" in text
    assert report_to_json(shown)["decisions"][-1]["action"] == "release"
    assert "None" not in text + incident_text(shown, "http://m:1", None)


def test_a_release_that_failed_is_not_called_done() -> None:
    failed = replace(RELEASE, state="failed", outcome="rg_0.0 no answer")
    incident = hang(state="firing", resolution=None, milestones=replace(MARKS, evict_asked_s=None))
    text = page(report(incident=incident, evictions=(), rows=(HELD, failed)))
    assert "nothing: held back" in text
    assert "others released" not in text
    assert "not released" in text


def test_no_foreign_script_runs_on_the_page_and_foreign_names_are_no_markup() -> None:
    evil = "<script>alert(1)</script>"
    incident = hang(resolution=evil)
    incident = replace(
        incident, verdict=replace(incident.verdict, reason=evil, evidence={evil: evil})
    )
    rungs = (RungOutcome(Rung.GATE, 1.0, 2.0, evil, RungResult.FAILED),)
    hostile = report(
        incident=incident, rows=(),
        evictions=(replace(EVICTION, rungs=rungs, failed=evil, reason=evil, author=evil),),
    )  # fmt: skip
    for text in (page(hostile), listing(incident)):
        assert text.count("<script") <= 1  # ours, a file
        assert "<script>" not in text
        assert re.search(r"\son[a-z]+=", text) is None
        assert "&lt;script&gt;" in text


BUNDLE = BundleView(2048, 1.0)


def test_its_evidence_is_neither_shown_nor_linked_where_that_needs_the_token() -> None:
    bundled = report(bundle=BUNDLE)
    stacks = BundleStacks("<p>a secret</p>")
    open_to_all = page(bundled, stacks=stacks)
    assert '<a href="/v1/incidents/inc-1/bundle"' in open_to_all
    assert "a secret" in open_to_all
    guarded = incident_page(scene(), bundled, None, "http://m")
    assert 'href="/v1/incidents/inc-1/bundle"' not in guarded
    assert "a secret" not in guarded
    assert "They are shown with the monitor's token." in guarded
    assert (
        'curl -OJ -H "Authorization: Bearer $TOKEN" http://m/v1/incidents/inc-1/bundle'
        in html.unescape(guarded)
    )
    assert "lightkeeper analyze inc-1.zip" in guarded


def test_why_there_are_no_stacks_is_told_and_the_rest_of_the_page_is_there() -> None:
    text = page(report(bundle=BUNDLE), stacks=BundleStacks(why="the bundle is damaged"))
    assert "the bundle is damaged" in text
    assert "What was done" in text


def test_ten_thousand_victims_are_counted_and_few_told_by_name() -> None:
    victims = tuple(f"rg_{n // 8}.{n % 8}" for n in range(10_000))
    incident = hang()
    few = replace(incident, verdict=replace(incident.verdict, victims=victims[:3]))
    assert '<a href="/ranks/rg_0.2">rg_0.2</a>' in page(report(incident=few))
    crowded = report(incident=replace(incident, verdict=replace(incident.verdict, victims=victims)))
    told_json = report_to_json(crowded)
    assert (len(told_json["victims"]), told_json["victim_count"]) == (64, 10_000)
    many = page(crowded)
    assert '<a href="/ranks/rg_0.2">rg_0.2</a>' in many
    assert "and 9,976 more" in many
    assert len(many) < 60_000


def test_names_of_ranks_groups_and_hosts_lead_to_their_pages() -> None:
    text = page(report())
    for path in ("/ranks/rg_1.0", "/groups/rg_1", "/hosts/node1", "/hosts/node4"):
        assert f'<a href="{path}">' in text


def test_earlier_incidents_are_linked_with_what_they_have_in_common() -> None:
    other = of_kind(Kind.STRAGGLER)
    milestones = replace(other.milestones, first_seen_s=50.0)
    other = replace(other, id=IncidentId("inc-0"), milestones=milestones, hosts=(Host("node1"),))
    cells = rows(page(report(), other))
    heads = ["kind", "when", "first seen", "what", "the same"]
    assert cells[cells.index(heads) + 1] == [
        "straggler", "32 min ago", "1970-01-01 00:00:50 UTC",
        f"evicted, resolved: {other.verdict.reason}", "host node1, group rg_1",
    ]  # fmt: skip


def test_the_list_has_all_incidents_newest_first_each_with_its_page() -> None:
    text = listing(hang())
    assert '<a href="/incidents/inc-1">' in text
    cells = rows(text)[1]
    assert cells[0] == "✓ resolved (was critical)"
    assert cells[1].startswith("rg_1.0: hang")
    assert cells[4].startswith("✓ evictedrg_1, by lightkeeper")


def test_an_empty_list_explains_itself() -> None:
    assert "nothing was seen that went wrong" in listing()
    chosen = incidents_page(scene(hang()), [], {"kind": "dead"})
    assert "None of 1 incident fits this." in chosen
    assert '<option value="dead" selected="">dead</option>' in chosen
    assert '<a href="/incidents">show all</a>' in chosen


def test_the_form_keeps_what_was_asked_and_tells_what_was_wrong() -> None:
    evil = '"><script>alert(1)</script>'
    text = listing(
        asked={"group": evil, "since": evil}, wrong=f"since is {evil!r}, expected a span"
    )
    assert "<script>" not in text
    assert 'role="alert"' in text


def test_the_list_tells_what_all_of_them_came_to() -> None:
    other = replace(hang(), id=IncidentId("inc-2"))
    text = re.sub("<[^>]*>", " ", listing(hang(), other))
    shown = " ".join(text.split())
    assert "evictions 2 of replica groups" in shown
    assert "lost 140 rank-seconds at least; not known of 1" in shown
