"""Which incidents are meant, and that a spreadsheet runs nothing."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.audit.choose import Choice, ChoiceError, NoSuchIncidentError, find, span_s
from monitor.audit.review import Judgement, Review
from monitor.audit.sheet import COLUMNS, sheet
from monitor.detectors.verdict import Kind
from monitor.names import IncidentId
from tests.monitor.audit.scene import case, hang
from tests.monitor.shell.test_store import incident


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("15m", 900), ("1.5h", 5400), ("7d", 604_800), ("2w", 1_209_600)],
)
def test_spans_are_read_as_people_write_them(text: str, seconds: float) -> None:
    assert span_s(text) == seconds


@pytest.mark.parametrize("text", ["", "d", "7 days", "-1d", "1e9d", "yesterday", "٣d"])
def test_what_is_no_span_is_said(text: str) -> None:
    with pytest.raises(ChoiceError, match="expected a span such as"):
        span_s(text)


def test_the_beginning_of_an_id_is_enough_if_no_other_begins_so() -> None:
    known = [incident("dead-rg_0.0-1"), incident("dead-rg_0.0-12"), incident("hang-rg_1.0-3")]
    assert find(known, "hang").id == "hang-rg_1.0-3"
    assert find(known, "dead-rg_0.0-1").id == "dead-rg_0.0-1"
    with pytest.raises(ChoiceError, match=r"^2 incidents begin with dead: dead-rg_0\.0-1, dead-"):
        find(known, "dead")
    for nothing in ("x", ""):
        with pytest.raises(NoSuchIncidentError):
            find(known, nothing)


def test_incidents_are_chosen_by_time_kind_and_group() -> None:
    over, now = hang(last_seen_s=112.0), incident("inc-2", first_seen_s=50.0)
    assert Choice.of(None, None, None, 1000.0).among([over, now]) == [over, now]
    assert Choice.of("10s", None, None, 1000.0).among([over, now]) == [now]  # still open
    assert Choice.of("1d", "straggler", None, 1000.0).among([over, now]) == []
    assert Choice.of(None, "not_entered", "rg_1", 0.0).among([over]) == [over]
    assert Choice.of(None, None, "rg_9", 0.0).among([over]) == []
    with pytest.raises(ChoiceError, match="kind is 'slow', expected one of dead, not_entered"):
        Choice.of(None, "slow", None, 0.0)
    assert Choice.of(None, "dead", None, 0.0).kind is Kind.DEAD


# -- CSV -------------------------------------------------------------------------------------------


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_an_incident_is_one_line_with_its_moments_counted_from_the_fault() -> None:
    (row,) = rows(sheet([case(review=Review(Judgement.RIGHT, "ann", "yes", 1.0))]))
    assert tuple(row) == COLUMNS
    assert {name: row[name] for name in ("id", "kind", "outcome", "groups", "began", "guards")} == {
        "id": "inc-1", "kind": "not_entered", "outcome": "evicted", "groups": "rg_1",
        "began": "1970-01-01T00:01:40+00:00", "guards": "cool_down:2.0 budget:2.5",
    }  # fmt: skip
    after = ("fire", "decide", "ask", "leave", "survivors", "rejoin")
    assert [float(row[f"{name}_after_s"]) for name in after] == [6.0, 10.5, 11.0, 16.0, 17.0, 36.0]
    assert (row["lost_low"], row["saved_low"], row["saved_high"]) == ("140.0", "226.0", "730.0")
    assert (row["review"], row["reviewed_by"], row["note"]) == ("right", "ann", "yes")


def test_what_cannot_be_told_is_an_empty_cell() -> None:
    (row,) = rows(sheet([case(facts=None)]))
    assert (row["lost_low"], row["saved_low"], row["review"]) == ("", "", "")


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t=", "\r=", "\n="])
def test_a_spreadsheet_takes_no_cell_for_a_formula(start: str) -> None:
    evil = f'{start}HYPERLINK("http://evil","x")'
    one = hang(id=IncidentId(evil))
    one = replace(one, verdict=replace(one.verdict, reason=evil))
    said = Review(Judgement.RIGHT, evil, evil, 1.0)
    (row,) = rows(sheet([case(one, review=said)]))
    for name in ("id", "reason", "note", "reviewed_by"):
        assert row[name].startswith("'")
    assert (
        float(rows(sheet([case(review=replace(said, judgement=Judgement.WRONG))]))[0]["saved_low"])
        == -74
    )


@given(st.text(max_size=30))
def test_any_text_is_one_line_of_one_cell(text: str) -> None:
    one = hang()
    one = replace(one, verdict=replace(one.verdict, reason=text))
    (row,) = rows(sheet([case(one)]))
    assert len(row) == len(COLUMNS)
    assert not row["reason"].startswith(("=", "+", "-", "@"))
