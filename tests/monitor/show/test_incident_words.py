"""An incident in five facts, and the table of its course."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest

from lightkeeper.monitor.decide.pipeline import TickResult
from lightkeeper.monitor.decide.view import IncidentReport, View
from lightkeeper.monitor.model.incident import State, Training
from lightkeeper.monitor.model.observation import LighthouseAway, Snapshot
from lightkeeper.monitor.model.verdict import Confidence, Kind, Severity
from lightkeeper.monitor.model.wording import title_of
from lightkeeper.monitor.show.templating import moment
from lightkeeper.monitor.show.web.incident_page import (
    five_facts,
    incident_page,
    incident_text,
    timeline,
)
from tests.changed import replace
from tests.monitor.decide.scene import EVICTION, MARKS, hang
from tests.monitor.show.test_incident_page import HELD, report

OPEN = {"state": State.FIRING, "resolution": None, "story": hang().story[:2]}
BEFORE = replace(
    MARKS, evict_asked_s=None, left_quorum_s=None, survivor_commit_s=None, rejoined_s=None
)


def told(**changes: Any) -> dict[str, tuple[str, str, str]]:
    made = report(**changes)
    return {fact.name: (fact.word, fact.more, fact.tone) for fact in five_facts(made, 160.0)}


def test_five_facts_answer_what_is_asked_first() -> None:
    assert told() == {
        "who": ("rg_1.0", "node1, likely", "idle"),
        "since": (moment(100.0), "1 min ago", "idle"),
        "done": ("evicted", "rg_1, by lightkeeper, after 11 s", "good"),
        "over": ("yes", "after 16 s", "good"),
        "training": ("yes", "rg_1 is back, 36 s after it began, and the job trains again", "good"),
    }


def test_while_it_fires_and_is_held_the_job_stands() -> None:
    incident = hang(**OPEN, milestones=BEFORE)
    answers = told(incident=incident, evictions=(), rows=(HELD,))
    assert answers["done"] == ("nothing: held back", "by cool down", "away")
    assert answers["over"] == ("no", "for 60 s by now", "bad")
    assert answers["training"][0] == "no"
    assert answers["training"][1] == "the job stands: nobody commits"


@pytest.mark.parametrize(
    ("training", "word"),
    [
        (Training.TRAINS, "yes, disturbed"),
        (Training.STANDS, "no"),
        (Training.UNKNOWN, "not known yet"),
    ],
)
@pytest.mark.parametrize("confidence", list(Confidence))
@pytest.mark.parametrize("severity", list(Severity))
def test_whether_the_job_trains_follows_its_commits_alone(
    training, word, confidence, severity
) -> None:
    incident = hang(**OPEN, milestones=BEFORE, training=training, severity=severity)
    incident = replace(incident, verdict=replace(incident.verdict, confidence=confidence))
    assert told(incident=incident, evictions=(), rows=())["training"][0] == word


def test_a_commit_before_the_job_stood_is_no_sign_that_it_trains() -> None:
    marks = replace(BEFORE, survivor_commit_s=117.0)
    incident = hang(**OPEN, milestones=marks, training=Training.STANDS)
    assert told(incident=incident, evictions=(), rows=())["training"][0] == "no"


def test_a_title_is_who_and_what() -> None:
    assert title_of(hang(culprits=("rg_1.0", "rg_1.1"))) == "rg_1.0 and rg_1.1: hang"
    assert title_of(hang(culprits=(), groups=())) == "Hang"


def test_others_that_commit_do_so_without_the_group_that_is_away() -> None:
    incident = hang(milestones=replace(MARKS, rejoined_s=None))
    assert told(incident=incident)["training"] == (
        "yes, without rg_1 so far", f"the other groups train since {moment(117.0)}", "wait",
    )  # fmt: skip


def test_that_nobody_saw_a_commit_is_not_taken_for_training() -> None:
    assert told(incident=hang(milestones=BEFORE), evictions=())["training"][0] == "not known"


@pytest.mark.parametrize("kind", list(Kind), ids=str)
def test_every_kind_has_a_title_that_needs_no_manual(kind: Kind) -> None:
    incident = hang()
    incident = replace(incident, kind=kind, verdict=replace(incident.verdict, kind=kind))
    for culprits in (incident.culprits, ()):
        words = title_of(report(incident=replace(incident, culprits=culprits)).incident)
        assert "_" not in words.replace("rg_1", "")
        assert words[0].isupper() or words.startswith("rg_1")


def test_the_course_has_a_row_for_all_that_happened_in_its_order() -> None:
    assert [(event.label, event.start_s, event.end_s) for event in timeline(report())] == [
        ("not seen yet", 100.0, 105.0),
        ("first seen", 105.0, 106.0),
        ("firing", 106.0, 111.0),
        ("held: cool down", 106.0, 108.0),
        ("held: budget", 108.0, 110.5),
        ("decided", 110.5, 110.5),
        ("asked: rg_1", 111.0, 111.0),
        ("gate refuses it", 111.0, 111.2),
        ("Lighthouse kill", 111.1, 113.1),
        ("WorkerServers", 113.1, None),
        ("processes gone", 115.0, 115.0),
        ("left the quorum", 116.0, 116.0),
        ("resolved", 116.0, 116.0),
        ("others commit", 117.0, 117.0),
        ("back", 136.0, 136.0),
    ]


def course(made: IncidentReport, now_s: float) -> str:
    """That section of the page."""
    snapshot = Snapshot(now_s, 1, 0.0, (), LighthouseAway("no"))
    page = incident_page(View(snapshot, TickResult(now_s), observe=False), made)
    (section,) = re.findall(r'<section id="course".*?</section>', page, re.DOTALL)
    return section


def story_of(made: IncidentReport) -> list[str]:
    """What `lightkeeper incidents show` prints."""
    return incident_text(made, "http://m:1", None).splitlines()


def text_of(markup: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", markup)).split())


def test_an_eviction_by_hand_is_no_fault() -> None:
    incident = hang()
    incident = replace(
        incident, kind=Kind.BY_HAND, verdict=replace(incident.verdict, kind=Kind.BY_HAND)
    )
    assert title_of(replace(incident, culprits=())) == "rg_1: evicted by hand"
    assert timeline(report(incident=incident))[0].label == "held: cool down"


def test_an_open_incident_is_told_up_to_now() -> None:
    incident = hang(**OPEN, milestones=BEFORE)
    words = text_of(course(report(incident=incident, evictions=(), rows=(HELD,)), 160.0))
    assert "54 s so far" in words


def test_the_story_has_the_same_course_and_what_it_cost() -> None:
    lines = [" ".join(line.split()) for line in story_of(report())]
    assert "lost at least 140 rank-seconds" in lines
    assert "+6.0 s held: cool down, 2.0 s: too soon. 60 s more" in lines
    assert "+11.0 s gate refuses it, 0.2 s: worked: refused" in lines
    assert any(line.endswith("so far: asked") for line in lines)
    assert "+36.0 s back: its first commit as a new replica" in lines


@pytest.mark.parametrize(("hosts", "listed"), [(("node1",), True), ((), False)])
def test_who_is_sent_to_the_quarantine_list_finds_the_host_there(hosts, listed: bool) -> None:
    words = " ".join(story_of(report(evictions=(replace(EVICTION, quarantine=hosts),))))
    assert "look at node1 before it is used again" in words
    assert ("quarantine list" in words) is listed
