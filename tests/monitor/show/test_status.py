"""`lightkeeper status`: four answers, compared whole."""

from __future__ import annotations

from typing import Any

import pytest

from lightkeeper.monitor.decide.headline import Headline, JobState
from lightkeeper.monitor.decide.view import View
from lightkeeper.monitor.detect.self_health import Condition, Health
from lightkeeper.monitor.model.eviction import Scope
from lightkeeper.monitor.model.incident import State
from lightkeeper.monitor.model.names import GroupName, Host, RankName
from lightkeeper.monitor.model.observation import (
    NO_LIGHTHOUSE,
    Failure,
    LighthouseAway,
    Pause,
    Unreachable,
)
from lightkeeper.monitor.model.verdict import Confidence, Kind
from lightkeeper.monitor.show.terminal.status import screen as text_of
from lightkeeper.monitor.show.terminal.status import training
from lightkeeper.monitor.show.terminal.tables import width_of
from lightkeeper.monitor.store.lease import LeaseStanding
from tests.changed import replace
from tests.monitor.bodies import (
    ID,
    NOW_S,
    entry,
    evicted,
    eviction,
    fleet,
    hung,
    incident,
    many,
    observed,
    status,
    trains,
)


def screen(view: View, width: int | None = None) -> str:
    lines = text_of("status", status(view), width, base="http://m:1")
    assert width is None or all(width_of(line) <= width for line in lines if "evid" not in line)
    return "\n".join(lines) + "\n"


def test_a_fleet_that_trains() -> None:
    assert (
        screen(trains())
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


def test_two_blanks_part_word_and_sentence_whatever_ranks_are_called() -> None:
    view = hung(incidents=(incident(culprits=("rg_ü.1",)),))
    assert "held back by  named  rg_ü.1 (not_entered)\n" in screen(view)


def test_a_fleet_that_hangs_while_a_group_is_evicted() -> None:
    view = hung(**evicted(eviction(NOW_S - 3)))
    assert (
        screen(view, width=80)
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
        screen(many(1250, 8), width=100)
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


AWAY = LighthouseAway("refused")
NONE = LighthouseAway(NO_LIGHTHOUSE)
SILENT = replace(observed("rg_1", 1), outcome=Unreachable(Failure.TIMEOUT, "1 s"))
CRASH = "rg_0.0 exit code 1, RuntimeError: no; 0 of 2 ranks left"
STEP = {"step": 120, "step_s": 0.5, "commit_age_s": 0.3}


@pytest.mark.parametrize(
    ("headline", "word", "text"),
    [
        (Headline(JobState.WAITING, "none has registered yet"), "no", "none has registered yet"),
        (Headline(JobState.STARTING, "no step is committed yet"), "starting",
         "no step is committed yet"),
        (Headline(JobState.TRAINING, "all are healthy", **{**STEP, "step_s": 9.0}), "yes",
         "step 120, 9 s a step, 2 of 2 groups in quorum 4"),
        (Headline(JobState.TRAINING, "all are healthy", **{**STEP, "step_s": None}), "yes",
         "step 120, 2 of 2 groups in quorum 4"),
        (Headline(JobState.DISTURBED, "rg_1 is slow", **STEP), "disturbed",
         "step 120, 0.5 s a step, 2 of 2 groups in quorum 4"),
        (Headline(JobState.PAUSING, "rg_0.0 in 'checkpoint', no commit for 40 s"), "pausing",
         "rg_0.0 in 'checkpoint', no commit for 40 s"),
        (Headline(JobState.STALLING, "no commit for 9.4 s (0.2 s is usual)", "Verdict in 12 s"),
         "stalling", "no commit for 9.4 s (0.2 s is usual), verdict in 12 s"),
        (Headline(JobState.STOPPED, "rg_1.1 hangs", "rg_1 is being evicted",
                  **{**STEP, "commit_age_s": 3.1}), "no", "no commit for 3.1s (step 120)"),
        (Headline(JobState.ENDED, CRASH, at_s=NOW_S - 1440), "ended", f"24m ago: {CRASH}"),
        (Headline(JobState.FINISHED, "0 of 2 ranks left", at_s=NOW_S - 5), "finished",
         "5.0s ago: 0 of 2 ranks left"),
    ],
    ids=lambda value: value.state if isinstance(value, Headline) else "",
)  # fmt: skip
def test_whether_it_trains_is_what_the_headline_says(
    headline: Headline, word: str, text: str
) -> None:
    answer = training(trains(), headline)
    assert (answer["is"], answer["says"]) == (word, text)


def test_a_job_that_lost_progress_never_says_yes_alone() -> None:
    lost = incident(culprits=(), kind=Kind.PROGRESS_LOST)
    lost = replace(lost, verdict=replace(lost.verdict, brief="the job continued from step 0: 528"))
    answer = status(trains(incidents=(lost,)))["training"]
    assert answer["says"].endswith("quorum 4; but the job continued from step 0: 528")
    over = replace(lost, state=State.RESOLVED)
    assert "but" not in status(trains(incidents=(over,)))["training"]["says"]


def test_without_a_lighthouse_no_quorum_is_told() -> None:
    answer = status(trains(lighthouse=AWAY))["training"]
    assert answer["says"] == "step 120, 0.5 s a step"


def test_without_a_lighthouse_no_line_speaks_of_eviction_or_quorum() -> None:
    assert status(trains(lighthouse=NONE))["keeper"]["more"] == []
    assert "quorum" not in screen(trains(lighthouse=NONE))


STANDBY = LeaseStanding(active=False, epoch=1, holder="head2", url=None, since_s=None)
PAUSE = Pause("rack 7", "ann", NOW_S, NOW_S + 60)
PAUSED = "PAUSED by ann until 2023-11-14 22:14:20 UTC: rack 7 (nobody is evicted but by hand)"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"observe": True}, ("observing", "observe mode: nothing is evicted")),
        (
            {"tokenless": True, "lighthouse": NONE},
            ("watching", "watch-only: no Lighthouse and no token are configured"),
        ),
        ({"lighthouse": NONE}, ("watching", "watch-only: no Lighthouse is configured")),
        (
            {"tokenless": True},
            ("acting", "evictions are on, through the Lighthouse alone: it has no token"),
        ),
        ({"standing": STANDBY}, ("standby", "this monitor stands by; active: head2")),
        (
            {"standing": replace(STANDBY, problem="the store /m.db takes no writes: it is full")},
            (
                "standby",
                "this monitor may not act now: the store /m.db takes no writes: it is full",
            ),
        ),
        ({"observe": True, "pause": PAUSE}, ("paused", PAUSED)),
    ],
    ids=["observe", "watch-only", "no Lighthouse", "no token", "standby", "full", "pause"],
)
def test_the_keeper_says_when_it_does_not_act(more: dict[str, Any], says: tuple[str, str]) -> None:
    answer = status(trains(**more))["keeper"]
    assert (answer["is"], answer["says"]) == says


def test_what_the_keeper_did_and_what_it_holds() -> None:
    gone = incident("gone", state=State.RESOLVED, resolution="evicted", back_on=(Host("spare"),))
    view = trains(
        incidents=(incident("open"), gone),
        quarantine=tuple(entry(f"node{number}") for number in range(5)),
        quarantine_groups=(entry("rg_1", scope=Scope.GROUP),),
        **evicted(eviction(NOW_S - 130, "gone")),
    )
    assert status(view)["keeper"]["more"] == [
        "evicted rg_1 2m ago: not_entered of rg_1.1, back on spare",
        "in quarantine: 5 hosts: node0, node1, node2 and 2 more",
        "in quarantine: 1 group: rg_1",
    ]


@pytest.mark.parametrize(
    ("view", "not_ready", "doubt"),
    [
        (trains(), "the loop stands still", "the loop stands still"),
        (trains(unknown={Kind.DEAD: "it crashed"}), "", "unknown: dead: it crashed"),
        (trains(troubles=("the disk is full",)), "", "the disk is full"),
        (trains(lighthouse=AWAY), "", "Lighthouse away: refused"),
        (fleet(observed("rg_0", 0), SILENT), "", "1 of 2 ranks do not answer: rg_1.1"),
        (trains(health=Health({Condition.LATE: "2 s late"}, 1, "it was late")), "",
         "2 s late (and 1 more)"),
    ],
    ids=["not ready", "a detector crashed", "trouble", "no Lighthouse", "silent rank", "late"],
)  # fmt: skip
def test_a_doubt_in_the_monitor_is_said(view: View, not_ready: str, doubt: str) -> None:
    answer = status(view, not_ready)["monitor"]
    assert (answer["is"], answer["says"]) == ("doubtful", doubt)


def test_a_monitor_that_was_given_no_lighthouse_is_trusted() -> None:
    assert status(trains(lighthouse=NONE))["monitor"]["is"] == "trusted"


def test_other_peoples_text_steers_no_terminal() -> None:
    bad = "\x1b[2J\x1b]0;owned\x07\u202eevil\nline"
    odd = observed("rg_0", 0, phase=bad)
    odd = replace(odd, identity=replace(odd.identity, group=bad, host=bad))
    view = fleet(odd, incidents=(incident(reason=bad, culprits=(bad,)),), troubles=(bad,),
                 quarantine=(entry(bad),))  # fmt: skip
    assert not {"\x1b", "\x07", "\u202e"} & set(screen(view, width=70))
    said = {**status(trains()), "keeper": {"is": "acting", "says": bad, "more": [bad]}}
    assert not {"\x1b", "\x07"} & set("".join(text_of("status", said, 70, base="")))


def test_programs_get_words_and_numbers() -> None:
    body = status(hung())
    assert body["training"] == {
        "is": "no", "says": "no commit for 14s (step 120)", "step": 120, "step_s": None,
        "commit_age_s": 14.0, "warnings": [], "ended": None, "more": [],
    }  # fmt: skip
    assert body["held_back_by"]["incidents"][0]["culprits"] == ["rg_1.1"]
    assert body["groups"] == {"all": 2, "evicting": 1, "waiting": 1}
    assert body["ranks"] == {"all": 4, "stalled": 1, "waiting": 3}
    answers = [body[about]["is"] for about in ("training", "held_back_by", "keeper", "monitor")]
    assert answers == ["no", "named", "acting", "trusted"]


def test_a_victim_of_an_older_incident_is_never_among_who_holds_it_back() -> None:
    root = incident(since_s=NOW_S - 30)
    after = incident("dead-rg_0.0-9", kind=Kind.DEAD, culprits=("rg_0.0",), since_s=NOW_S - 2)
    after = replace(after, groups=(GroupName("rg_0"),))
    answer = status(trains(incidents=(after, root)))["held_back_by"]
    assert answer["says"] == "rg_1.1 (not_entered and dead)"
    assert [brief["id"] for brief in answer["incidents"]] == [ID, "dead-rg_0.0-9"]


def test_candidates_of_an_unsure_incident_are_no_names() -> None:
    names = (RankName("job.0"), RankName("job.1"))
    tie = incident(culprits=(), candidates=names, confidence=Confidence.UNSURE, kind=Kind.MISMATCH)
    answer = status(trains(incidents=(tie,)))["held_back_by"]
    assert (answer["is"], answer["says"]) == ("unknown", "cannot tell: job.0 or job.1 (mismatch)")
