"""What people are told of a fault and of the job: the face of an incident, ends, warnings."""

from __future__ import annotations

from typing import Any

import pytest

from lightkeeper.monitor.decide.rank_seconds import Spent
from lightkeeper.monitor.decide.tempo import Tempo
from lightkeeper.monitor.decide.view import DepartureBook, group_views, trouble_of
from lightkeeper.monitor.decide.view_json import report_to_json
from lightkeeper.monitor.model.eviction import Guard, Hold
from lightkeeper.monitor.model.incident import Incident, State
from lightkeeper.monitor.model.names import GroupName, IncidentId, RankName
from lightkeeper.monitor.model.observation import Observation
from lightkeeper.monitor.model.verdict import RankHealth
from lightkeeper.monitor.model.wording import face_of
from lightkeeper.worker_server.wire import (
    Doing,
    Ending,
    Frame,
    Process,
    StateReport,
    Tracer,
    Witness,
)
from tests.changed import replace
from tests.monitor.decide.scene import RELEASE, hang
from tests.monitor.samples import seen, snapshot, view

FRAME = Frame("Deadlock.log_step", "train.py", 66)
OPEN: dict[str, Any] = {"state": State.FIRING, "resolution": None, "groups": (GroupName("rg_1"),)}
HELD = Hold(
    IncidentId("inc-1"), Guard.BUDGET, "4 evictions an hour are used up",
    "It goes on at 12:00. To evict it yourself: lightkeeper evict rg_1", at_s=112.0,
)  # fmt: skip


def altered(observation: Observation, **changes: Any) -> Observation:
    assert isinstance(observation.outcome, StateReport)
    return replace(observation, outcome=replace(observation.outcome, **changes))


def dead(observation: Observation, ending: Ending | None = None, **how: Any) -> Observation:
    process = Process(alive=False, state=None, dead_age_s=4.0, **how)
    return altered(observation, process=process, ending=ending)


RAISED = Ending("Raised", "RuntimeError: shape mismatch", FRAME)


@pytest.mark.parametrize(
    ("shown", "rows", "then"),
    [
        (hang(), (), "How it ended: evicted: left the quorum"),
        (hang(**OPEN), (), ""),
        (
            hang(**OPEN), (HELD,),
            ("Nobody is evicted: 4 evictions an hour are used up. It goes on at 12:00. "
            "To evict it yourself: lightkeeper evict rg_1"),
        ),
        (hang(**{**OPEN, "groups": ()}), (), "Nobody is accused"),
        (hang(**{**OPEN, "state": State.EVICTING}), (HELD,), "rg_1 is being evicted"),
        (hang(**{**OPEN, "state": State.PENDING}), (), "It is not certain yet"),
    ],
    ids=["over", "undecided", "held", "nobody", "evicting", "pending"],
)  # fmt: skip
def test_after_the_verdicts_sentence_comes_what_happens_next(
    shown: Incident, rows: tuple[Hold, ...], then: str
) -> None:
    face = face_of(shown, rows, shown.last_seen_s)
    assert face.says == ("" if shown.open else "Over: ") + shown.verdict.reason
    assert face.next.startswith(then) if then else face.next == ""


def test_who_was_released_is_said_while_it_lasts_and_does_not_hide_a_hold() -> None:
    held = "Nobody is evicted: 4 evictions an hour are used up. It goes on at 12:00."
    for rows in ((HELD, RELEASE), (RELEASE, HELD)):
        said = face_of(hang(**OPEN), rows, 112.0).next
        assert said.startswith(held)
        assert said.endswith("rg_0.0 does not wait for rg_1 any more")
    failed = replace(RELEASE, state="failed", outcome="rg_0.0 no answer")
    assert face_of(hang(**OPEN), (failed,), 112.0).next == "Others still wait: rg_0.0 no answer"
    assert "wait" not in face_of(hang(), (HELD, RELEASE), 112.0).next


def test_a_sentence_that_is_older_than_the_tick_says_how_long_it_stands_by_now() -> None:
    open_incident = hang(**OPEN)
    assert face_of(open_incident, (), 160.0).says == f"{open_incident.verdict.reason} (60 s by now)"
    assert face_of(hang(), (), 160.0).says == f"Over: {open_incident.verdict.reason}"


def test_gone_victims_are_not_counted_as_waiting() -> None:
    open_incident = replace(
        hang(**OPEN), verdict=replace(hang().verdict, victims=("rg_0.0", "rg_2.0"))
    )
    health = {RankName("rg_0.0"): RankHealth.WAITING, RankName("rg_2.0"): RankHealth.DEAD}
    assert report_to_json(view(health=health).report(open_incident))["waiting"] == 1


def test_a_dead_rank_says_its_exception_and_its_line() -> None:
    gone = dead(seen("rg_0"), RAISED, exit_code=1)
    assert trouble_of(gone) == (
        "ended 4 s ago (exit code 1, RuntimeError: shape mismatch in "
        "Deadlock.log_step (train.py:66))"
    ).replace("4 s", "4.0 s")


def test_a_stack_from_before_a_death_is_said_to_be_from_before() -> None:
    witness = Witness(FRAME, Doing.LOCK, 3, 4.0, 16.0)
    gone = altered(dead(seen("rg_0"), exit_signal="SIGKILL"), witness=witness)
    assert trouble_of(gone) == (
        "ended 4.0 s ago (SIGKILL); 12 s before its end it stood in Deadlock.log_step (train.py:66)"
    )


def test_a_rank_that_stands_says_where_by_its_stacks() -> None:
    witness = Witness(FRAME, Doing.LOCK, 3, 4.0, 1.5)
    assert trouble_of(altered(seen("rg_0"), witness=witness)) == (
        "stands in Deadlock.log_step (train.py:66), waiting for a lock "
        "(3 stacks over 4.0 s, 1.5 s ago)"
    )


def traced(observation: Observation) -> Observation:
    return altered(observation, process=Process(alive=True, state="t", tracer=Tracer(4242, "gdb")))


def spoilt(observation: Observation) -> Observation:
    assert isinstance(observation.outcome, StateReport)
    assert observation.outcome.step is not None
    return altered(observation, step=replace(observation.outcome.step, loss_finite=False))


TEMPO = {RankName("rg_0.0"): Tempo(9.0, 1.0, 1.1)}


@pytest.mark.parametrize(
    ("shown", "says"),
    [
        (view(seen("rg_0"), tempos=TEMPO, spent=Spent(usual_s=0.5)),
         ("a step takes 2.1 s, and 0.5 s is usual",)),
        (view(seen("rg_0"), tempos=TEMPO, spent=Spent(usual_s=1.5)), ()),
        (view(spoilt(seen("rg_0"))),
         ("the loss of rg_0.0 is not finite, and steps are committed with it",)),
        (view(traced(seen("rg_0"))), ("somebody traces rg_0.0 by gdb (pid 4242)",)),
        (view(seen("rg_0")), ()),
    ],
    ids=["slow", "usual", "NaN", "traced", "well"],
)  # fmt: skip
def test_what_is_wrong_with_a_job_that_trains(shown: Any, says: tuple[str, ...]) -> None:
    assert shown.warnings == says


def test_a_job_that_ended_is_not_one_that_never_began() -> None:
    book = DepartureBook()
    assert book.push(snapshot(seen("rg_0"), seen("rg_1"), now_s=1000.0)) == ()
    last = (dead(seen("rg_0"), exit_signal="SIGTERM"), dead(seen("rg_1"), RAISED, exit_code=1))
    book.push(snapshot(*last, now_s=1010.0))
    gone = book.push(snapshot(now_s=1200.0))
    ended = view(departures=gone).ended
    assert ended is not None
    assert (ended.at_s, ended.clean) == (1006.0, False)
    assert ended.says == (
        "rg_1.0 exit code 1, RuntimeError: shape mismatch in Deadlock.log_step (train.py:66); "
        "rg_0.0 SIGTERM; 0 of 2 ranks left"
    )
    assert view().ended is None
    assert view(seen("rg_0"), departures=gone).ended is None


def test_of_an_endless_exception_the_beginning_is_said() -> None:
    gloo = "[/__w/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:6536."
    raised = Ending("no", exception=f"RuntimeError: {gloo} {'Look there. ' * 9}")
    shown = view(dead(seen("rg_0"), raised, exit_code=1)).ended
    assert shown is not None
    assert shown.says == (
        f"rg_0.0 exit code 1, RuntimeError: {gloo} {'Look there. ' * 3}...; 0 of 1 ranks left"
    )


def test_a_job_that_is_through_has_finished() -> None:
    ended = view(dead(seen("rg_0"), exit_code=0)).ended
    assert ended is not None
    assert ended.clean


def test_a_group_that_is_gone_while_others_train_is_a_warning() -> None:
    book = DepartureBook()
    book.push(snapshot(seen("rg_0"), dead(seen("rg_1"), exit_signal="SIGKILL")))
    gone = book.push(snapshot(seen("rg_0"), now_s=1030.0))
    assert view(seen("rg_0"), departures=gone).warnings == ("gone and not back: rg_1",)


def test_a_launchers_name_is_said_once_beside_the_managers() -> None:
    observation = seen("my_0")
    launched = replace(
        observation, identity=replace(observation.identity, launched_as=GroupName("0"))
    )
    (group,) = [row for row in group_views(view(launched)) if row.ranks]
    assert (group.group, group.launched_as) == ("my_0", "0")
