"""What a run of the lab is worth, and its page: without a lab."""

from __future__ import annotations

import json
from typing import Any

import pytest

from experiments.netlab import page
from experiments.netlab.cases import CASES, SHAPES
from experiments.netlab.judge import Verdict, judge, told_s
from experiments.netlab.runner import pace, pause, released


def incident(fired: float | None = 6.0, **more: Any) -> dict[str, Any]:
    return {
        "kind": "dead", "fired": fired, "state": "firing", "severity": "warning",
        "confidence": "likely", "accused": {"1.0": "likely"},
        "sentences": [[3.0, "1.0 is late"], [6.0, "its host node-1 is lost"]],
        "evicted": {}, "released": [], **more,
    }  # fmt: skip


def record(case: str = "host-lost", pause_s: float = 8.0, **more: Any) -> dict[str, Any]:
    """A good run."""
    return {
        "key": f"{case}#0", "case": case, "alone": False, "code": "abc", "told": 6.0,
        "pauses": {"0.0": {"pause": pause_s, "over": pause_s}, "2.0": {"pause": 3.0, "over": 3.0}},
        "pace": {"0.0": [0.2, 0.25], "1.0": [0.2, None]},
        "named": {"1.0": 6.0}, "quarantined": [], "incidents": [incident()], **more,
    }  # fmt: skip


def verdict(case: str = "host-lost", **more: Any) -> tuple[Verdict, str]:
    return judge(record(case, **more), CASES[case].truth())


TIE = {"named": {}, "incidents": [incident(says=1, sentences=[[9.0, "node-1 and node-2 ..."]])]}


@pytest.mark.parametrize(
    ("case", "more", "expected", "because"),
    [
        ("host-lost", {}, Verdict.GOOD, ""),
        ("host-lost", {"incidents": [incident(evicted={"1:ab": 7.0})]}, Verdict.GOOD, ""),
        ("host-lost", {"incidents": [incident(evicted={"2:ab": 7.0})]}, Verdict.EVICTED, "groups"),
        ("host-lost", {"quarantined": ["node-1"]}, Verdict.GOOD, ""),
        ("host-lost", {"quarantined": ["node-2"]}, Verdict.EVICTED, "host node-2 is in quarantine"),
        ("host-lost", {"named": {"1.0": 6.0, "2.0": 7.0}}, Verdict.ACCUSED, "2.0 at 7.0 s"),
        ("host-lost", {"named": {}}, Verdict.MISSED, "1.0 not named"),
        ("host-lost", {"named": {"1.0": 17.6}}, Verdict.LATE, "told after 17.6 s, not 10.0"),
        ("host-lost", {"pause_s": 60.3}, Verdict.STOOD, "0.0 60.3 s, not 10.0"),
        ("host-lost", {"incidents": [incident(released=["0.0"])]}, Verdict.GOOD, ""),
        ("flap-host-4", {"named": {}, "incidents": []}, Verdict.GOOD, ""),
        ("flap-host-4", {}, Verdict.ACCUSED, "1.0"),
        ("flap-host-8", {}, Verdict.GOOD, ""),
        ("flap-all-4", {"incidents": [incident(released=[1])]}, Verdict.ENDED, "by dead"),
        ("pair-cut", TIE, Verdict.GOOD, ""),
        ("pair-cut", TIE | {"named": {"0.0": 9.0}}, Verdict.ACCUSED, "0.0"),
        ("pair-cut", {"named": {}}, Verdict.MISSED, "nobody said"),
        ("pair-cut", {"incidents": [incident(evicted={"1": 20, "2": 20})]}, Verdict.EVICTED, "one"),
    ],
)  # fmt: skip
def test_a_record_gets_the_worst_verdict_that_holds(
    case: str, more: dict[str, Any], expected: Verdict, because: str
) -> None:
    judged, why = verdict(case, **more)
    assert judged is expected, why
    assert because in why


def test_torchft_alone_is_judged_by_its_pause_only() -> None:
    assert verdict(alone=True, named={"2.0": 1.0}, told=None)[0] is Verdict.GOOD
    stands = {"0.0": {"pause": 90.0, "over": None}}
    assert verdict(alone=True, pauses=stands) == (Verdict.STOOD, "0.0 90.0 s and more, not 10.0")


def test_the_truth_is_told_when_the_incident_has_fired_and_all_of_it_is_said() -> None:
    truth = CASES["lighthouse-cut"].truth()
    said = incident(9.0, sentences=[[4.0, "1.0 hears no Lighthouse"]])
    assert told_s(record(incidents=[said]), truth) == 9.0  # it was pending before
    assert told_s(record(incidents=[incident()]), truth) is None
    assert told_s(record(), {**truth, "culprits": [], "says": ""}) == 6.0


def test_a_pause_reaches_past_the_fault_and_one_without_an_end_is_told() -> None:
    assert pause([1, 5, 9.9, 16, 17], 10, 18) == {"pause": 6.1, "over": 6, "first": 6}
    assert pause([9.5, 10.5], 10, 90) == {"pause": 79.5, "over": None, "first": 0.5}
    assert pause([], 10, 90) == {"pause": 80, "over": None, "first": None}


def test_a_pace_is_the_median_before_and_in_the_end() -> None:
    assert pace([0, 5, 5.25, 5.5, 80, 81.5, 83], 10, 90) == [0.25, 1.5]
    assert pace([5], 10, 90) == [None, None]


def test_what_was_ended_is_read_from_the_decisions_that_were_obeyed() -> None:
    rows = [
        {"action": "hold", "state": "held", "outcome": ""},
        {"action": "release", "state": "failed", "outcome": "0.0 no answer"},
        {"action": "release", "state": "confirmed", "outcome": "2.0 ended 1 connection"},
    ]
    assert released({"decisions": rows}) == ["2.0 ended 1 connection"]
    assert released({}) == []


def test_ranks_have_the_hosts_that_the_shape_says() -> None:
    assert SHAPES["2x2"].places["1.1"] == "node-3"
    assert SHAPES["2x2-packed"].nodes == ["node-0", "node-1"]
    assert CASES["host-lost-2x2"].goes_on == ("0.0", "0.1")
    for case in CASES.values():
        named = {*case.culprits, *case.also, *case.goes_on}
        assert named <= set(SHAPES[case.shape].places), case.name
        json.dumps(case.truth())


def test_the_page_has_a_row_a_case_with_torchft_alone_beside_it_and_what_is_not_good() -> None:
    stands = {"0.0": {"pause": 90.0, "over": None}}
    text = page.render([
        record(), record(pause_s=9.0, key="host-lost#1"), record(alone=True, pause_s=60.3),
        record("pair-cut", named={}, incidents=[], told=None),
        record("pair-cut", alone=True, pauses=stands),
    ])  # fmt: skip
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| `")]
    assert [row[2:7] for row in rows] == [
        ["2/2", "8.5 (9.0)", "60.3", "6.0", "0.20 -> 0.25"],
        ["0/1", "8.0", "90.0+", "-, 1 never", "0.20 -> 0.25"],
    ]
    assert "*its host node-1 is lost*" in rows[0][-1]
    assert "- `pair-cut#0`: **missed**" in text
    assert "host-lost#" not in text.partition("## Not good")[2]
