"""The question before a start: three answers, a deadline, and who is asked first."""

from __future__ import annotations

import time

import pytest

from lightkeeper.worker_server.rank.admission import (
    AdmissionAnswer,
    MonitorAway,
    ask_monitors,
    until,
)
from lightkeeper.worker_server.rank.settings import SettingError, monitors_of
from tests.worker_server.admissions import REFUSAL, FakeMonitor


def gone() -> str:
    closed = FakeMonitor()
    closed.close()
    return closed.url


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        pytest.param(
            {"admit": True, "reason": "fine"}, AdmissionAnswer(True, "fine"), id="admitted"
        ),
        pytest.param(
            REFUSAL, AdmissionAnswer(False, REFUSAL["reason"]), id="refused-until-released"
        ),
        pytest.param(
            {**REFUSAL, "until_s": 7},
            AdmissionAnswer(False, REFUSAL["reason"], 7),
            id="refused-until",
        ),
        pytest.param({"admit": False}, AdmissionAnswer(False, "no reason given"), id="no-reason"),
        pytest.param(
            {"admit": False, "reason": "a\n b"}, AdmissionAnswer(False, "a b"), id="one-line"
        ),
    ],
)
def test_the_monitors_answer_is_taken_as_it_is(monitor, body, answer):
    asked = monitor(body)
    assert ask_monitors([asked.url], "node 1", "rg&1", 5.0) == answer
    assert asked.questions == [{"host": ["node 1"], "group": ["rg&1"]}]


def test_without_a_group_none_is_asked_for(monitor):
    asked = monitor()
    ask_monitors([asked.url], "node1", None, 5.0)
    assert asked.asked == ["/v1/admission?host=node1"]


@pytest.mark.parametrize(
    "text",
    [
        "<html>",
        "[]",
        "3",
        "{}",
        '{"admit": "false"}',
        "[" * 9999,
        '{"admit": false, "until_s": true}',
    ],
)
def test_an_answer_that_makes_no_sense_is_no_refusal(monitor, text):
    assert isinstance(ask_monitors([monitor(text).url], "node1", None, 5.0), MonitorAway)


@pytest.mark.parametrize("status", [302, 404, 500, 503])
def test_another_status_is_no_refusal(monitor, status):
    assert isinstance(
        ask_monitors([monitor(REFUSAL, status=status).url], "node1", None, 5.0), MonitorAway
    )


def test_the_first_monitor_that_answers_counts(monitor):
    dead, broken, refusing, two = gone(), monitor("?"), monitor(REFUSAL), monitor()
    said = ask_monitors([dead, broken.url, refusing.url, two.url], "node1", None, 5.0)
    assert said == AdmissionAnswer(False, REFUSAL["reason"])
    assert (len(broken.asked), len(refusing.asked), len(two.asked)) == (1, 1, 0)


def test_the_monitor_that_answered_is_asked_first_the_next_time(monitor):
    broken, refusing = monitor("?"), monitor(REFUSAL)
    monitors = [broken.url, refusing.url]
    for _ in range(2):
        assert ask_monitors(monitors, "node1", None, 5.0) == AdmissionAnswer(
            False, REFUSAL["reason"]
        )
    assert (len(broken.asked), len(refusing.asked)) == (1, 2)


def test_when_all_are_away_each_is_named(monitor):
    dead, broken = gone(), monitor("{}")
    said = ask_monitors([dead, broken.url], "node1", None, 5.0)
    assert isinstance(said, MonitorAway)
    assert f"{dead}: ConnectionRefusedError" in said.reason
    assert f"{broken.url}: its answer is no admission" in said.reason
    assert "\n" not in said.reason


def test_a_monitor_that_never_answers_costs_the_deadline_and_no_more(monitor):
    began = time.monotonic()
    assert isinstance(ask_monitors([monitor(None).url], "node1", None, 0.2), MonitorAway)
    assert time.monotonic() - began < 10.0


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ("", ()), (" , ", ()), ("http://a:1/", ("http://a:1",)),
        ("http://a:1, https://b/x ,", ("http://a:1", "https://b/x")), ("http://[::1]:8", ("http://[::1]:8",)),
    ],
)  # fmt: skip
def test_monitors_come_by_comma(text, urls):
    assert monitors_of(text) == urls


@pytest.mark.parametrize(
    "text", ["a:1", "ftp://a", "http://", "http://a:x", "http://a,b", "http://[a"]
)
def test_an_address_that_is_none_is_said(text):
    with pytest.raises(SettingError, match="is no monitor's address, expected http://HOST:PORT"):
        monitors_of(text)


def test_an_end_reads_as_a_date_or_whom_it_takes():
    assert until(None) == "a person releases it"
    assert until(1.8e9).startswith("2027-01-1")
    assert [until(odd) for odd in (float("nan"), float("inf"), 1e30)] == ["some time"] * 3
