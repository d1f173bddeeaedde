"""Which incidents are meant."""

from __future__ import annotations

import pytest

from monitor.decide.accounts import Choice, ChoiceError, NoSuchIncidentError, find, span_s
from monitor.model.verdict import Kind
from tests.monitor.decide.scene import hang
from tests.monitor.samples import incident


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
