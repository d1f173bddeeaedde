"""`lightkeeper status`: four answers, compared whole."""

from __future__ import annotations

from typing import Any

import pytest

from lightkeeper.monitor.decide.view import IncidentReport, bundle_url
from lightkeeper.monitor.show.status import (
    StatusFacts,
    answers,
    answers_to_json,
    held_back,
    keeper,
    short,
    training,
    trust,
)
from lightkeeper.monitor.show.tables import text_of, width_of
from tests.monitor.bodies import (
    NOW_S,
    asked,
    headline,
    hung,
    incident,
    many,
    rank,
    reported,
    snapshot,
)


def screen(seen: StatusFacts, width: int | None = None) -> str:
    def link(shown: IncidentReport) -> str:
        return "" if shown.bundle is None else f"http://m:1{bundle_url(shown.incident.id)}"

    lines = short(seen, width, link)
    assert width is None or all(
        width_of(text_of(line)) <= width for line in lines if "evidence" not in text_of(line)
    )
    return "\n".join(text_of(line) for line in lines) + "\n"


def test_a_fleet_that_trains() -> None:
    assert (
        screen(asked(snapshot()))
        == """\
training      yes  step 120, 0.5 s a step, 2 of 2 groups in quorum 4
held back by  nobody  busiest is rg_1.1: 0.4 s a step, the median 0.4 s
keeper        acting  evictions are on, for confident verdicts
              no eviction in the last hour
monitor       trusted  looked 0.5s ago, all 4 ranks answer
groups        2  2 healthy
ranks         4  4 healthy

group  health       host   ranks  step  commits  quorum  heartbeat
rg_0   healthy      node0      2   120      118  yes          0.1s
rg_1   healthy      node1      2   120      118  yes          0.1s
"""
    )


def test_a_fleet_that_hangs_while_a_group_is_evicted() -> None:
    evicting = incident(
        account={"outcome": "evicting", "holds": [], "back_on": []}, eviction={"asked_s": NOW_S - 3}
    )
    assert (
        screen(asked(hung(), recent=reported(evicting)), width=80)
        == """\
training      no  no commit for 14s (step 120)
held back by  named  rg_1.1 (not_entered)
              critical, firing: rg_1.1 stands still in 'data'. rg_1 is being
              evicted (not_entered-rg_1.1-7)
              evidence: http://m:1/v1/incidents/not_entered-rg_1.1-7/bundle
keeper        acting  evictions are on, for confident verdicts
              is evicting rg_1 3.0s ago: not_entered of rg_1.1
monitor       trusted  looked 0.5s ago, all 4 ranks answer
groups        2  1 evicting, 1 waiting
ranks         4  1 stalled, 3 waiting

group  health       host   ranks  step  commits  quorum  heartbeat
rg_1   evicting     node1      2   120      118  yes          0.1s
rg_0   waiting      node0      2   120      118  yes          0.1s
"""
    )


def test_ten_thousand_ranks_stay_a_short_answer() -> None:
    assert (
        screen(asked(many(1250, 8)), width=100)
        == """\
training      yes  step 120, 0.5 s a step, 1,250 of 1,250 groups in quorum 4
held back by  nobody  busiest is rg_7.3: 0.49 s a step, the median 0.4 s
keeper        acting  evictions are on, for confident verdicts
              no eviction in the last hour
monitor       trusted  looked 0.5s ago, all 10,000 ranks answer
groups        1,250  1,250 healthy
ranks         10,000  10,000 healthy

group  health       host   ranks  step  commits  quorum  heartbeat
rg_0   healthy      node0      8   120      118  yes          0.1s
rg_1   healthy      node1      8   120      118  yes          0.1s
rg_2   healthy      node2      8   120      118  yes          0.1s
rg_3   healthy      node3      8   120      118  yes          0.1s
rg_4   healthy      node4      8   120      118  yes          0.1s
rg_5   healthy      node5      8   120      118  yes          0.1s
rg_6   healthy      node6      8   120      118  yes          0.1s
rg_7   healthy      node7      8   120      118  yes          0.1s
rg_8   healthy      node8      8   120      118  yes          0.1s
rg_9   healthy      node9      8   120      118  yes          0.1s
and 1,240 more, none of them worse: lightkeeper get groups
"""
    )


AWAY = {"up": False, "reason": "refused"}
NONE = {"up": False, "reason": "none configured"}
SILENT = rank("rg_1", 1, health="unreachable", last_commit_age_s=None,
              unreachable={"reason": "timeout", "detail": "1 s"})  # fmt: skip


NO_STEPS = {"step": None, "step_s": None, "commit_age_s": None}
CRASH = "rg_0.0 exit code 1, RuntimeError: no; 0 of 2 ranks left"


@pytest.mark.parametrize(
    ("headline_said", "word", "text"),
    [
        (headline("waiting", "none has registered yet", **NO_STEPS), "no",
         "none has registered yet"),
        (headline("starting", "no step is committed yet", **NO_STEPS), "starting",
         "no step is committed yet"),
        (headline(step_s=9.0), "yes", "step 120, 9 s a step, 2 of 2 groups in quorum 4"),
        (headline(step_s=None), "yes", "step 120, 2 of 2 groups in quorum 4"),
        (headline("disturbed", "rg_1 is slow"), "disturbed",
         "step 120, 0.5 s a step, 2 of 2 groups in quorum 4"),
        (headline("pausing", "rg_0.0 in 'checkpoint', no commit for 40 s"), "pausing",
         "rg_0.0 in 'checkpoint', no commit for 40 s"),
        (headline("stalling", "no commit for 9.4 s (0.2 s is usual)", next="Verdict in 12 s"),
         "stalling", "no commit for 9.4 s (0.2 s is usual), verdict in 12 s"),
        (headline("stopped", "rg_1.1 hangs", next="rg_1 is being evicted", commit_age_s=3.1), "no",
         "no commit for 3.1s (step 120)"),
        (headline("ended", CRASH, at_s=NOW_S - 1440), "ended", f"24m ago: {CRASH}"),
        (headline("finished", "0 of 2 ranks left", at_s=NOW_S - 5), "finished",
         "5.0s ago: 0 of 2 ranks left"),
    ],
    ids=lambda value: value["state"] if isinstance(value, dict) else "",
)  # fmt: skip
def test_whether_it_trains_is_what_the_headline_says(
    headline_said: dict[str, Any], word: str, text: str
) -> None:
    seen = asked(snapshot(headline=headline_said))
    answer = training(seen.fleet)
    assert (answer.word, answer.text) == (word, text)
    assert answers_to_json(seen)["headline"] == str(seen.fleet.headline)


def test_without_a_lighthouse_no_quorum_is_told() -> None:
    away = {"up": False, "reason": "refused"}
    assert training(asked(snapshot(lighthouse=away)).fleet).text == "step 120, 0.5 s a step"


STANDBY = {"role": "standby", "holder": "head2", "url": None}


@pytest.mark.parametrize(
    ("more", "words", "says"),
    [
        ({"observe": True}, {}, ("observing", "observe mode: nothing is evicted")),
        (
            {"tokenless": True, "lighthouse": NONE},
            {},
            ("watching", "watch-only: no Lighthouse and no token are configured"),
        ),
        ({"lighthouse": NONE}, {}, ("watching", "watch-only: no Lighthouse is configured")),
        (
            {"tokenless": True},
            {},
            ("acting", "evictions are on, through the Lighthouse alone: it has no token"),
        ),
        ({"monitor": STANDBY}, {}, ("standby", "this monitor stands by; active: head2")),
        (
            {"observe": True},
            {"pause": "PAUSED by ann: rack 7"},
            ("paused", "PAUSED by ann: rack 7"),
        ),
    ],
    ids=["observe", "watch-only", "no Lighthouse", "no token", "standby", "pause"],
)
def test_the_keeper_says_when_it_does_not_act(
    more: dict[str, Any], words: dict[str, str], says: tuple[str, str]
) -> None:
    answer = keeper(asked(snapshot(**more), **words))
    assert (answer.word, answer.text) == says


def test_what_the_keeper_did_and_what_it_holds() -> None:
    done = incident(
        "gone", state="resolved", eviction={"asked_s": NOW_S - 130},
        account={"outcome": "evicted", "holds": [], "back_on": ["spare"]},
    )  # fmt: skip
    held = incident(
        "held",
        account={"outcome": "held", "back_on": [],
                 "holds": [{"guard": "budget", "reason": "3 of 3 this hour", "start_s": 1.0,
                            "end_s": None}]},
    )  # fmt: skip
    body = snapshot(
        incidents=[held],
        quarantine=[{"host": f"node{number}"} for number in range(5)],
        quarantine_groups=[{"group": "rg_1"}],
    )
    assert keeper(asked(body, recent=reported(held, done))).more == (
        "evicted rg_1 2m ago: not_entered of rg_1.1, back on spare",
        "in quarantine: 5 hosts: node0, node1, node2 and 2 more",
        "in quarantine: 1 group: rg_1",
    )


@pytest.mark.parametrize(
    ("more", "words", "doubt"),
    [
        ({}, {"not_ready": "the loop stands still"}, "the loop stands still"),
        ({"unknown": [{"kind": "dead", "why": "it crashed"}]}, {}, "unknown: dead: it crashed"),
        ({"troubles": ["the disk is full"]}, {}, "the disk is full"),
        ({"lighthouse": AWAY}, {}, "Lighthouse away: refused"),
        ({"ranks": [rank("rg_0", 0), SILENT]}, {}, "1 of 2 ranks do not answer: rg_1.1"),
        ({"self_health": {"hold": "it was late", "conditions": {"late": "2 s late"}}}, {},
         "2 s late (and 1 more)"),
    ],
    ids=["not ready", "a detector crashed", "trouble", "no Lighthouse", "silent rank", "late"],
)  # fmt: skip
def test_a_doubt_in_the_monitor_is_said(
    more: dict[str, Any], words: dict[str, str], doubt: str
) -> None:
    answer = trust(asked(snapshot(**more), **words))
    assert (answer.word, answer.text) == ("doubtful", doubt)


def test_a_monitor_that_was_given_no_lighthouse_is_trusted() -> None:
    assert trust(asked(snapshot(lighthouse=NONE))).word == "trusted"


def test_other_peoples_text_steers_no_terminal() -> None:
    bad = "\x1b[2J\x1b]0;owned\x07\u202eevil\nline"
    body = snapshot(
        incidents=[incident(reason=bad, culprits=[bad])],
        troubles=[bad], groups=[{**snapshot()["groups"][0], "group": bad, "host": bad}],
        ranks=[rank("rg_0", 0, rank=bad, phase=bad, host=bad)],
        quarantine=[{"host": bad}],
    )  # fmt: skip
    said = screen(asked(body), width=70)
    assert not {"\x1b", "\x07", "\u202e"} & set(said)


def test_programs_get_words_and_numbers() -> None:
    body = answers_to_json(asked(hung()))
    assert body["training"] == {
        "is": "no", "says": "no commit for 14s (step 120)", "step": 120, "step_s": None,
        "commit_age_s": 14.0, "warnings": [], "ended": None,
    }  # fmt: skip
    assert body["held_back_by"]["incidents"][0]["culprits"] == ["rg_1.1"]
    assert body["groups"] == {"all": 2, "evicting": 1, "waiting": 1}
    assert body["ranks"] == {"all": 4, "stalled": 1, "waiting": 3}
    assert [answer.word for answer in answers(asked(hung()))] == [
        "no",
        "named",
        "acting",
        "trusted",
    ]


def test_a_victim_of_an_older_incident_is_never_among_who_holds_it_back() -> None:
    root = incident(since_s=NOW_S - 30)
    after = incident("dead-rg_0.0-9", kind="dead", culprits=["rg_0.0"], since_s=NOW_S - 2)
    answer = held_back(asked(snapshot(incidents=[after, root])).fleet)
    assert answer.text == "rg_1.1 (not_entered, dead)"


def test_candidates_of_an_unsure_incident_are_no_names() -> None:
    tie = incident(culprits=[], candidates=["job.0", "job.1"], confidence="unsure", kind="mismatch")
    answer = held_back(asked(snapshot(incidents=[tie])).fleet)
    assert (answer.word, answer.text) == ("unknown", "cannot tell: job.0 or job.1 (mismatch)")
