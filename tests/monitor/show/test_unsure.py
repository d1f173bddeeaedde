"""An unsure incident blames nobody, wherever it is shown: its candidates are called candidates."""

from __future__ import annotations

from lightkeeper.monitor.act.notices import NoticeFacts, notices
from lightkeeper.monitor.decide.view import View
from lightkeeper.monitor.decide.view_json import report_to_json
from lightkeeper.monitor.model.incident import Incident
from lightkeeper.monitor.model.names import RankName
from lightkeeper.monitor.model.verdict import Confidence
from lightkeeper.monitor.model.wording import title_of
from lightkeeper.monitor.show.web.incident_page import five_facts, incident_page
from tests.changed import replace
from tests.monitor.samples import incident, seen, view
from tests.monitor.show.test_incident_words import story_of, text_of
from tests.monitor.show.test_scrape import scrape

CANDIDATES = (RankName("rg_0.0"), RankName("rg_1.0"))
WORDS = "cannot tell: rg_0.0 or rg_1.0"


def unsure() -> Incident:
    sure = incident()
    doubt = replace(
        sure.verdict, culprits=CANDIDATES, confidence=Confidence.UNSURE, victims=(),
        reason="two ranks call different collectives",
    )  # fmt: skip
    return replace(sure, culprits=(), candidates=doubt.candidates, verdict=doubt)


def shown() -> View:
    return view(seen("rg_0"), seen("rg_1"), incidents=(unsure(),))


def test_programs_read_candidates_and_no_culprit() -> None:
    body = report_to_json(shown().report(unsure()))
    assert (body["culprits"], body["candidates"]) == ((), CANDIDATES)


def test_a_message_names_no_culprit() -> None:
    (notice,) = notices(NoticeFacts(110.0, (unsure(),), {}), url="", hold_s=9.0).values()
    assert notice.title == f"Hang, {WORDS}"
    assert (notice.incident["culprits"], notice.incident["candidates"]) == ([], [*CANDIDATES])


def test_metrics_call_a_candidate_so() -> None:
    suspects = [row for row in scrape(shown()).splitlines() if "rank_suspect{" in row]
    assert len(suspects) == 2
    assert all('role="candidate"' in row for row in suspects)


def test_the_page_says_that_it_cannot_tell() -> None:
    made = shown().report(unsure())
    assert title_of(unsure()) == f"Hang, {WORDS}"
    assert next(fact.word for fact in five_facts(made, 110.0) if fact.name == "who") == WORDS
    words = text_of(incident_page(shown(), made))
    assert "candidates rg_0.0 , rg_1.0 : one of them may have caused it" in words
    assert "culprit" not in words


def test_the_terminal_says_that_it_cannot_tell() -> None:
    made = shown().report(unsure())
    lines = story_of(made)
    assert "  candidates      rg_0.0 and rg_1.0 (unsure)" in lines
    assert not [text for text in lines if "blamed" in text]
