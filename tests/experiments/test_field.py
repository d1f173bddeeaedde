"""The field suite's own parts: its table, its judge, its page, the switch of its scripts."""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import time
from pathlib import Path
from typing import Any

import pytest

from experiments.field import acts
from experiments.field.cases import CASES, PATTERNS, SCRIPTS, Case, Family, Fate, Launch, lines
from experiments.field.fleet import RANK_STEP, Tail
from experiments.field.judge import Verdict, is_, judge, main_incident, said
from experiments.field.runner import untold

LOCK = CASES["lock"]
_OTHER_MARKS = {"elsewhere", "master_port", "listener"}


def incident(
    culprit: str, says: str, *, confidence: str = "likely", fired: float | None = 12.0
) -> dict[str, Any]:
    milestones = {"first_seen_s": 11.0} | ({} if fired is None else {"firing_s": fired})
    return {
        "kind": "not_entered",
        "culprits": [culprit],
        "accused": {culprit: confidence},
        "confidence": confidence,
        "milestones": milestones,
        "sentences": [[11.0, "1.0 is suspected"], [12.0, says]],
    }


def record(case: Case = LOCK, **more: Any) -> dict[str, Any]:
    """Of a run in which everything was right."""
    return {
        "key": f"{case.name}#0",
        "case": case.name,
        "number": 0,
        "family": str(case.family),
        "healthy": case.healthy,
        "bug": case.bug,
        "truth": case.truth(),
        "struck": [["lock", "1.0", 0.0]],
        "failed": [],
        "accused": [["1.0", "likely", "not_entered", "1.0 hangs in Metrics.log_step"]],
        "evicted": {"1": 12.0},
        "to_firing": 12.0,
        "to_commit": 18.0,
        "stands": [[0.5, 18.0]],
        "stood_untold": [],
        "incidents": [incident("1.0", "1.0 hangs in Metrics.log_step (tools.py:47)")],
        "took_s": 50.0,
        "code": "c69a293",
    } | more


# -- the table ---------------------------------------------------------------------------------


def test_there_are_enough_bugs_and_habits() -> None:
    assert sum(not case.healthy for case in CASES.values()) >= 40
    assert sum(case.healthy for case in CASES.values()) >= 15
    assert {case.family for case in CASES.values()} == set(Family)


def check_row(case: Case) -> None:
    deeds = [acts.parse(text) for text in case.acts]
    ranks = set(case.names)
    groups = {rank.partition(".")[0] for rank in ranks}
    assert set(case.culprits) <= ranks | groups
    assert set(case.also) <= ranks | (groups if case.nobody else set())
    assert set(case.health_not) <= ranks
    assert {str(group) for group in case.elsewhere} < groups or not case.elsewhere
    patterns = [case.also_if, case.headline_not, case.kind, case.severity]
    patterns += [pattern for key in PATTERNS for pattern in getattr(case, key)]
    for pattern in patterns:
        re.compile(pattern)
        assert set(re.findall(r"@(\w+)", pattern)) <= {*lines(), *_OTHER_MARKS}
    bugs = [text for text in case.bug.split(";") if text]
    armed = [bug for bug in bugs if not bug.endswith("*start")]
    assert len(armed) == sum(act.verb == "arm" for act in deeds), "each bug is armed once"
    files = (f"{case.script}.py", "tools.py", "corpus.py")
    code = "".join((SCRIPTS / name).read_text() for name in files)
    for bug in bugs:
        assert f'now("{bug.partition("@")[0].strip()}")' in code
    assert max(act.end_s for act in deeds) < case.watch_s
    assert case.least_s < case.watch_s
    assert not case.healthy or (not case.culprits and case.fate is Fate.STAY)
    assert not (case.nobody and case.culprits)
    assert not case.strict or case.says, "a report is of use only if it is worded"
    assert case.launch is Launch.GROUPS or (case.groups == 1 and case.fate is Fate.STAY)


def test_every_row_can_be_made() -> None:
    for case in CASES.values():
        check_row(case)


def test_scripts_hold_nothing_of_ours_but_the_attach() -> None:
    for script in SCRIPTS.glob("*.py"):
        calls = [
            node
            for node in ast.walk(ast.parse(script.read_text()))
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in {"lightkeeper", "reporter"}
        ]
        assert [call.attr for call in calls] == ["attach"] * script.name.startswith("train_")


def test_an_act_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="is none of"):
        acts.parse("0: shout rank 1.0")
    assert acts.parse("3: gdb rank 1.0 for 10") == acts.Act(3.0, "gdb", "rank 1.0", 10.0)


# -- names -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("truth", "name", "same"),
    [
        ("1.0", "1.0", True),
        ("1.0", "train_ddp_1.0", True),
        ("1.0", "my_1.1", False),
        ("1.0", "11.0", False),
        ("1", "my_1.1", True),
        ("1", "1", True),
        ("1.0", "1", True),
        ("1", "train_ddp_1:0a2f-77", True),
        ("1", "train_ddp_0:0a2f-17", False),
        ("0.1", "fsdp_0.1", True),
        ("1", "1~6ec8ce44", True),
        ("1", "1~6ec8ce44.0", True),
        ("1", "train_ddp_1~6ec8ce44.0", True),
    ],
)
def test_who_is_meant(truth: str, name: str, same: bool) -> None:
    assert is_(truth, name) is same


# -- the judge ---------------------------------------------------------------------------------


def test_the_culprit_alone_is_exact() -> None:
    assert judge(record()) == (Verdict.EXACT, "")
    assert said(record()) is True


def test_a_sentence_without_the_cause_is_still_exact_and_told_apart() -> None:
    vague = record(incidents=[incident("1.0", "1.0 is in no collective for 31 s")])
    assert judge(vague)[0] == Verdict.EXACT
    assert said(vague) is False


def test_a_sentence_of_an_incident_that_never_fired_does_not_count() -> None:
    pending = record(incidents=[incident("1.0", "1.0 hangs in log_step", fired=None)])
    assert said(pending) is False


def test_a_healthy_rank_beside_the_culprit() -> None:
    wrong = record(accused=[*record()["accused"], ["2.0", "certain", "dead", "2.0 is gone"]])
    assert judge(wrong) == (Verdict.ACCUSED, "2.0 (certain, dead)")


@pytest.mark.parametrize("confidence", ["pending", "unsure"])
def test_doubt_is_no_accusation(confidence: str) -> None:
    doubt = record(accused=[*record()["accused"], ["2.0", confidence, "dead", "2.0 is gone"]])
    assert judge(doubt)[0] == Verdict.EXACT


def test_a_healthy_group_evicted_is_the_worst() -> None:
    wrong = record(evicted={"0": 61.0}, stood_untold=[[0.0, 90.0]])
    assert judge(wrong) == (Verdict.EVICTED, "0 at 61.0 s")


def test_whom_nobody_may_evict() -> None:
    gdb = record(CASES["gdb-90s"], bug="", evicted={"1": 6.8})
    assert judge(gdb)[0] == Verdict.EVICTED


def test_a_traced_rank_may_be_named_as_traced_and_as_nothing_else() -> None:
    case = CASES["gdb-10s"]
    looked_at = record(
        case, evicted={}, accused=[["1.0", "certain", "traced", "gdb (pid 9) traces 1.0"]]
    )
    assert judge(looked_at)[0] == Verdict.EXACT
    hung = record(case, evicted={}, accused=[["1.0", "certain", "not_entered", "1.0 stands still"]])
    assert judge(hung)[0] == Verdict.ACCUSED


def test_a_stand_without_a_word_is_silence() -> None:
    assert judge(record(stood_untold=[[0.5, 70.0]])) == (Verdict.SILENT, "from 0.5 to 70.0 s")


@pytest.mark.parametrize("confidence", [None, "pending", "unsure"])
def test_a_culprit_that_is_not_named_is_missed(confidence: str | None) -> None:
    accused = [] if confidence is None else [["1.0", confidence, "not_entered", "s"]]
    assert judge(record(accused=accused))[0] == Verdict.MISSED


def test_all_culprits_have_to_be_named() -> None:
    case = CASES["two-of-three"]
    both = record(case, accused=[["1.0", "likely", "k", "s"], ["2.0", "likely", "k", "s"]])
    assert judge(both)[0] == Verdict.EXACT
    assert judge({**both, "accused": both["accused"][:1]})[0] == Verdict.MISSED


def test_where_the_evidence_cannot_tell_both_are_exact_and_the_victim_alone_is_not() -> None:
    case = CASES["rank0-only"]
    both = [["1.0", "unsure", "mismatch", "s"], ["1.1", "unsure", "mismatch", "s"]]
    assert judge(record(case, evicted={}, accused=both))[0] == Verdict.EXACT
    assert judge(record(case, evicted={}, accused=both[1:]))[0] == Verdict.MISSED


def test_a_culprit_is_named_each_time() -> None:
    struck = [["lock", "1.0", 0.0], ["lock", "1.0", 30.0]]
    once = record(struck=struck, bug="lock@1.0*2", took_s=100.0)
    assert judge(once) == (Verdict.MISSED, "1.0 (not named again after 30.0 s)")
    twice = [*once["incidents"], incident("1.0", "1.0 hangs again", fired=43.0)]
    assert judge({**once, "incidents": twice})[0] == Verdict.EXACT


def test_a_fault_without_a_culprit_has_to_be_reported() -> None:
    case = CASES["orphans"]
    quiet = record(case, evicted={}, accused=[], incidents=[])
    assert judge(quiet) == (Verdict.MISSED, "its cause was not said")
    incidents = [{**incident("", "1 trains twice"), "culprits": []}]
    assert judge({**quiet, "incidents": incidents})[0] == Verdict.EXACT


def test_named_but_nobody_trains_again() -> None:
    assert judge(record(to_commit=None))[0] == Verdict.NOT_OUT


def test_a_bug_that_did_not_strike_judges_nobody() -> None:
    assert judge(record(struck=[], evicted={"0": 3.0}))[0] == Verdict.INVALID


def test_silence_about_the_healthy_is_exact() -> None:
    case = CASES["pause"]
    quiet = record(case, accused=[], evicted={}, incidents=[], to_firing=None)
    assert judge(quiet)[0] == Verdict.EXACT
    assert judge({**quiet, "accused": [["0.0", "likely", "dead", "s"]]})[0] == Verdict.ACCUSED


def test_the_incident_that_tells_it_names_the_culprit() -> None:
    first = incident("0.0", "0.0 is gone", fired=3.0)
    mine = incident("1.0", "1.0 hangs", fired=9.0)
    assert main_incident(record(incidents=[first, mine])) is mine
    assert main_incident(record(incidents=[first])) is first
    assert main_incident(record(incidents=[incident("1.0", "s", fired=None)])) is None


@pytest.mark.parametrize(
    ("stands", "spans", "left"),
    [
        ([[0.0, 40.0]], [], []),
        ([[0.0, 70.0]], [], [[0.0, 70.0]]),
        ([[0.0, 70.0]], [(50.0, 90.0)], []),
        ([[0.0, 130.0]], [(76.0, 130.0)], [[0.0, 130.0]]),
        ([[100.0, 170.0]], [(5.0, 60.0)], [[100.0, 170.0]]),
    ],
    ids=["short", "silent", "told", "told too late", "told of another"],
)
def test_stands_of_over_a_minute_have_to_be_told(
    stands: list[list[float]], spans: list[tuple[float, float]], left: list[list[float]]
) -> None:
    assert untold(stands, spans) == left


# -- the judge of reports ------------------------------------------------------------------------

RING = CASES["report-15b"]
LINES = {
    "sends_skip": "pipeline.py:7",
    "middle_receives": "pipeline.py:8",
    "last_receives": "p.py:9",
}


def report(**more: Any) -> dict[str, Any]:
    """Of a run of RING in which everything was right; `truth` changes what was asked for."""
    truth = {**RING.truth(), "says": ["circle"], "headline": ["circle"], **more.pop("truth", {})}
    says = "a circle: job.0 waits in skip (pipeline.py:7) for job.2, which waits for job.1"
    circle = {**incident("", says, fired=6.0), "culprits": [], "accused": {}, "kind": "deadlock"}
    circle |= {"severity": "critical", "state": "firing", "bundle": 900, "sentences": [[6.0, says]]}
    circle |= {"evidence": ["job.1 at scripts/pipeline.py:8", "job.2 at p.py:9"]}
    return (
        record(RING)
        | {
            "truth": truth,
            "marks": LINES,
            "struck": [["skip_first", "job.0", 0.0]],
            "accused": [],
            "evicted": {},
            "hosts": [],
            "stands": [[0.0, 40.0]],
            "incidents": [circle],
            "headlines": [
                [-9.0, "Training: all is well"],
                [6.0, "Not training: a circle of three"],
            ],
            "health": {"job.0": "waiting", "job.2": "waiting"},
            "exit": None,
        }
        | more
    )


def changed(**more: Any) -> dict[str, Any]:
    """The report with another incident."""
    right = report()
    return {**right, "incidents": [{**right["incidents"][0], **more}]}


ENDED = {"ends": True, "says": ["circle"], "headline": []}


def test_nobody_is_to_blame_and_everything_is_said() -> None:
    assert judge(report()) == (Verdict.EXACT, "")


@pytest.mark.parametrize(
    ("confidence", "verdict"),
    [("unsure", Verdict.ACCUSED), ("likely", Verdict.ACCUSED), ("pending", Verdict.EXACT)],
)
def test_where_nobody_is_to_blame_nobody_is_named_in_doubt_neither(
    confidence: str, verdict: Verdict
) -> None:
    assert judge(report(accused=[["job.2", confidence, "deadlock", "s"]]))[0] is verdict


def test_a_group_may_go_although_nobody_in_it_is_to_blame() -> None:
    truth = {"fate": "may", "also": ["1"]}
    assert judge(report(evicted={"train_1": 9.0}))[0] is Verdict.EVICTED
    assert judge(report(evicted={"1": 9.0}, truth=truth))[0] is Verdict.EXACT
    assert judge(report(evicted={"0": 9.0}, truth=truth))[0] is Verdict.EVICTED


def test_a_place_is_the_line_that_the_script_had_then() -> None:
    moved = report(marks={**LINES, "sends_skip": "pipeline.py:77"})
    assert judge(moved) == (Verdict.POOR, r"'\\bpipeline\\.py:77\\b' is not shown")
    assert judge(report(marks={**LINES, "sends_skip": "pipeline.py:70"}))[0] is Verdict.POOR
    assert judge(report(marks={}))[0] is Verdict.POOR


@pytest.mark.parametrize(
    ("missing", "because"),
    [
        ({"evidence": []}, r"'\\bpipeline\\.py:8\\b' is not shown; '\\bp\\.py:9\\b' is not shown"),
        ({"severity": "info"}, "severity: info"),
        ({"bundle": None}, "no bundle of evidence"),
    ],
    ids=["evidence", "severity", "bundle"],
)
def test_poor_words(missing: dict[str, Any], because: str) -> None:
    assert judge(changed(**missing)) == (Verdict.POOR, because)


def test_an_incident_that_says_nothing_of_the_cause_has_missed_it() -> None:
    wrong = changed(sentences=[[6.0, "no progress for 31 s"]])
    assert judge(wrong) == (Verdict.MISSED, "its cause was not said")


def test_the_last_headline_counts() -> None:
    late = report(headlines=[[6.0, "Not training: a circle"], [9.0, "Training: all is well"]])
    assert judge(late) == (Verdict.POOR, "'circle' is not in the headline")


def test_another_kind() -> None:
    assert judge(report(truth={"kind": "mismatch"})) == (Verdict.POOR, "kind: deadlock")
    assert judge(report(truth={"kind": "mismatch|deadlock"}))[0] is Verdict.EXACT


def test_an_incident_that_closes_while_its_fault_lasts() -> None:
    kept = {"truth": {**RING.truth(), "kept": True}}
    assert judge(changed(state="resolved") | kept)[1].endswith("its incident is closed")
    assert "closed" not in judge(report() | kept)[1]


@pytest.mark.parametrize(
    "wrong",
    [
        {"truth": {"says_not": ["waits for job.1"]}},
        {"truth": {"says_not": ["of three"]}},
        {"truth": {"headline_not": "all is well"}},
        {"truth": {"health_not": {"job.2": "waiting|finished"}}},
        {"hosts": ["host-1"]},
    ],
    ids=["sentence", "last headline", "any headline", "health", "host"],
)
def test_what_must_not_be_said(wrong: dict[str, Any]) -> None:
    assert judge(report(**wrong))[0] is Verdict.MISLED


def test_a_sentence_about_somebody_else_misleads_nobody() -> None:
    truth = {"says_not": ["job.9"], "headline_not": "Stalling", "health_not": {"job.1": "dead"}}
    assert judge(report(truth=truth))[0] is Verdict.EXACT


def test_it_has_to_be_said_in_time() -> None:
    assert judge(report(truth={"within_s": 5.0})) == (Verdict.LATE, "it at 6.0 s of 5.0 s")
    assert judge(report(truth={"within_s": 6.0}))[0] is Verdict.EXACT
    suspicion = changed(sentences=[[2.0, "a circle"]])
    assert judge(suspicion | {"truth": {**suspicion["truth"], "within_s": 5.0}})[0] is Verdict.LATE


def test_a_culprit_has_to_be_named_in_time() -> None:
    late = record(truth={**LOCK.truth(), "within_s": 11.0})
    assert judge(late) == (Verdict.LATE, "1.0 at 12.0 s of 11.0 s")
    assert judge(record(truth={**LOCK.truth(), "within_s": 60.0}))[0] is Verdict.EXACT


def test_a_job_that_ends_has_to_end_with_a_word() -> None:
    quiet = report(truth=ENDED, exit=[1, 9.0], incidents=[])
    assert judge(quiet) == (Verdict.SILENT, "it ended at 9.0 s")
    assert judge(report(truth=ENDED, exit=[1, 9.0]))[0] is Verdict.EXACT
    late = changed(milestones={"firing_s": 30.0}) | {"exit": [1, 9.0]}
    assert judge(late | {"truth": {**late["truth"], **ENDED}})[0] is Verdict.SILENT


@pytest.mark.parametrize("ended", [None, [0, 9.0]], ids=["runs on", "status 0"])
def test_a_job_that_was_to_end_with_an_error_and_did_not_judges_nobody(ended: Any) -> None:
    assert judge(report(truth=ENDED, exit=ended))[0] is Verdict.INVALID


def test_a_job_that_ends_with_an_error_unasked_judges_nobody() -> None:
    assert judge(report(exit=[1, 9.0])) == (Verdict.INVALID, "the job ended with 1 at 9.0 s")
    assert judge(report(exit=[0, 9.0]))[0] is Verdict.EXACT


def test_records_of_before_the_reports_are_judged_as_they_were() -> None:
    truth = {"culprits": ["1.0"], "also": [], "also_if": "", "says": "log_step", "fate": "out"}
    assert judge(record(truth=truth)) == (Verdict.EXACT, "")
    assert said(record(truth=truth)) is True


def test_a_strict_case_has_half_the_time_to_tell_a_stand() -> None:
    assert untold([[0.0, 40.0]], [(39.0, 40.0)], 30.0) == [[0.0, 40.0]]
    assert untold([[0.0, 40.0]], [(33.0, 40.0)], 30.0) == []


# -- logs, switch ------------------------------------------------------------------------------


def test_a_tail_tells_who_moves(tmp_path: Path) -> None:
    path = tmp_path / "group-0.log"
    tail = Tail(path, mates=3)
    assert not tail.look(1.0)
    path.write_text("x [7] loss = 5.5000, participants = 3\n[8] loss = 5.4, par")
    assert tail.look(2.0)
    assert (tail.step, tail.participants, tail.moved_s) == (7, 3, 2.0)
    assert not tail.look(3.0)
    with path.open("a") as file:
        file.write("ticipants = 2\n")
    assert tail.look(4.0)
    assert (tail.step, tail.participants, tail.steps) == (8, 2, 2)


def test_ranks_of_one_torchrun_are_told_apart_in_its_log(tmp_path: Path) -> None:
    path = tmp_path / "group-job.log"
    first, tenth = (Tail(path, RANK_STEP.format(rank=rank)) for rank in (1, 10))
    path.write_text("train rank 1 step 4 loss 0.1train rank 10 step 9 loss 0.1\n\n")
    assert first.look(1.0)
    assert tenth.look(2.0)
    assert (first.step, tenth.step, first.participants) == (4, 9, None)


def test_a_bug_strikes_once_where_and_when_it_is_armed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, struck = tmp_path / "go", tmp_path / "struck.jsonl"
    for key, value in {
        "BUG": "lock@0.0,1.0;queue@1.0*always;lock@2.0",
        "BUG_GO": str(go), "BUG_STRUCK": str(struck),
        "REPLICA_GROUP_ID": "1", "RANK": "0",
    }.items():  # fmt: skip
        monkeypatch.setenv(key, value)

    def born() -> Any:
        switch = runpy.run_path(str(SCRIPTS / "trouble.py"))
        switch["now"].__globals__["BEGAN"] = time.monotonic() - 60
        return switch["now"]

    now = born()
    assert not now("lock"), "not armed yet"
    go.write_text("1")
    assert not now("queue"), "the second bug is not armed yet"
    assert [now("lock"), now("lock")] == [True, False]
    go.write_text(f"2 {os.getpid()}")
    assert [now("queue"), now("queue")] == [True, True]
    assert [json.loads(line)["bug"] for line in struck.read_text().splitlines()] == [
        "lock",
        "queue",
    ]


def test_a_bug_of_the_start_strikes_at_once_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REPLICA_GROUP_ID", raising=False)
    for key, value in {
        "BUG": "left_out@job.0*start", "BUG_GO": str(tmp_path / "go"),
        "BUG_STRUCK": str(tmp_path / "struck.jsonl"), "RANK": "0",
    }.items():  # fmt: skip
        monkeypatch.setenv(key, value)
    now = runpy.run_path(str(SCRIPTS / "trouble.py"))["now"]
    assert [now("left_out"), now("left_out")] == [True, False]
