"""The job in one sentence: every state, on views written down and on fake timelines."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec import structs

from lightkeeper.monitor.decide.headline import JobState, headline_of
from lightkeeper.monitor.decide.rank_seconds import Spent
from lightkeeper.monitor.decide.view import Departure, View
from lightkeeper.monitor.model.eviction import Eviction, QuarantineEntry, Scope
from lightkeeper.monitor.model.incident import Incident, Milestones, State, Transition
from lightkeeper.monitor.model.names import GroupName, IncidentId, RankName, ReplicaId
from lightkeeper.monitor.model.observation import (
    NO_LIGHTHOUSE,
    LighthouseAway,
    LighthouseView,
    Member,
)
from lightkeeper.monitor.model.verdict import Confidence, Kind, RankHealth, Severity, Verdict
from lightkeeper.monitor.show.web.pages import FLEET, Context, PagePlace, make
from lightkeeper.worker_server.wire import Ending, Process
from tests.changed import replace
from tests.monitor.detect.test_unphased import attached
from tests.monitor.fleet import SimFleet, at, crash, gil, hang, shut_out, stands, stop
from tests.page.parts import parts_of, title_of
from tests.page.views import NOW_S, Simulated, crowd


def aged(view: View, age_s: float | None, phase: str | None = None) -> View:
    """The same, the youngest commit being so old."""
    for seen in view.snapshot.observations:
        step = seen.outcome.step
        structs.force_setattr(step, "last_commit_age_s", age_s)
        if phase is not None:
            structs.force_setattr(step, "phase", phase)
    return view


def unjudged(view: View) -> View:
    """As a monitor that stands by has it."""
    return replace(view, result=replace(view.result, rank_health={}))


def incident(name: str, kind: Kind = Kind.NOT_ENTERED, state: State = State.FIRING) -> Incident:
    culprit = RankName("rg_1.1")
    verdict = Verdict(
        kind=kind, culprits=(culprit,), groups=(GroupName("rg_1"),), reason=f"{culprit} is {kind}",
        confidence=Confidence.CERTAIN, since_s=NOW_S, victims=(RankName("rg_0.0"),),
    )  # fmt: skip
    return Incident(
        IncidentId(name), kind, name, "", state, verdict.culprits, verdict.groups, (), (), verdict,
        Milestones(NOW_S), (), NOW_S + 100, severity=Severity.CRITICAL,
    )  # fmt: skip


def ended(*processes: Process | None) -> View:
    """A job of which every rank is gone."""
    gone = tuple(
        Departure(RankName(f"rg_{n}.0"), GroupName(f"rg_{n}"), NOW_S + 60, process,
                  Ending("no", exception="RuntimeError: no") if n == 0 and process else None)
        for n, process in enumerate(processes)
    )  # fmt: skip
    return crowd(0, 1, departures=gone)


def died(code: int | None, signal: str | None = None) -> Process:
    return Process(alive=False, state=None, exit_code=code, exit_signal=signal)


WHERE = "No rank can be named yet. What each one does: lightkeeper get ranks"


def stopped(*processes: Process) -> View:
    """As `ended`, without an exception."""
    gone = (replace(departure, ending=None) for departure in ended(*processes).departures)
    return crowd(0, 1, departures=tuple(gone))


@pytest.mark.parametrize(
    ("view", "state", "said"),
    [
        (lambda: crowd(0, 1), "waiting", "Waiting for ranks: none has registered yet"),
        (lambda: aged(crowd(2, 2), None), "starting", "Starting: no step is committed yet"),
        (lambda: crowd(4, 2), "training", "Training: all 8 ranks are healthy"),
        (lambda: crowd(1, 1), "training", "Training: 1 rank is healthy"),
        (lambda: crowd(4, 2, {"rg_3.0": RankHealth.STARTING, "rg_3.1": RankHealth.STARTING}),
         "training", "Training: 6 of 8 ranks are healthy, 2 starting"),
        (lambda: unjudged(crowd(4, 2)), "training", "Training: 8 ranks report steps"),
        (lambda: crowd(4, 2, {"rg_1.1": RankHealth.SLOW}), "disturbed",
         "Training, but 1 rank is unhealthy"),
        (lambda: crowd(4, 2, {"rg_1.1": RankHealth.LATE}), "disturbed",
         "Training, but the next commit of 1 rank is late"),
        (lambda: crowd(4, 2, spent=Spent(usual_s=0.2)), "disturbed",
         "Training, but a step takes 0.9 s, and 0.2 s is usual"),
        (lambda: crowd(4, 2, unknown={"replica_lag": "it crashed"}), "disturbed",
         "Training, but nobody looks for replica lag"),
        (lambda: crowd(4, 2, evicting=frozenset({GroupName("rg_1")})), "disturbed",
         "Training, but rg_1 is being evicted"),
        (lambda: crowd(4, 2, incidents=(incident("i"),)), "disturbed",
         "Training, but rg_1.1 is not_entered"),
        (lambda: aged(crowd(4, 2, spent=Spent(usual_s=1.25)), 5.4), "late",
         "Late: no commit for 5.4 s (1.25 s is usual)"),
        (lambda: aged(crowd(4, 2, rest=RankHealth.LATE), 6.0), "stalling",
         f"Stalling: no commit for 6.0 s. {WHERE}"),
        (lambda: aged(crowd(4, 2), 60.0), "stalling",
         f"Stalling: no commit for 60 s. {WHERE}"),
        (lambda: aged(crowd(2, 2), 60.0, "checkpoint"), "pausing",
         "Pausing: rg_0.0, rg_0.1, rg_1.0 and rg_1.1 in 'checkpoint', no commit for 60 s"),
        (lambda: aged(crowd(4, 2, incidents=(incident("i"),)), 14.0), "stopped",
         "Not training: rg_1.1 is not_entered"),
        (lambda: ended(died(1), None), "ended",
         ("The job has ended: rg_0.0 exit code 1, RuntimeError: no; rg_1.0 not heard of any more; "
          "0 of 2 ranks left")),
        (lambda: ended(*[None] * 9), "ended",
         ("The job has ended: rg_0.0, rg_1.0, rg_2.0, rg_3.0 and 5 more not heard of any more; "
          "0 of 9 ranks left")),
        (lambda: ended(*map(died, range(1, 7))), "ended",
         ("The job has ended: rg_0.0 exit code 1, RuntimeError: no; rg_1.0 exit code 2; "
          "rg_2.0 exit code 3; rg_3.0 exit code 4 and 2 more; 0 of 6 ranks left")),
        (lambda: ended(None, died(None, "SIGINT"), died(None, "SIGTERM")), "ended",
         ("The job has ended: rg_0.0 not heard of any more; rg_1.0 SIGINT; rg_2.0 SIGTERM; "
          "0 of 3 ranks left")),
        (lambda: stopped(died(0), died(None, "SIGINT"), died(None, "SIGINT")), "interrupted",
         "The job was stopped: rg_1.0 and rg_2.0 SIGINT; rg_0.0 exit code 0; 0 of 3 ranks left"),
        (lambda: crowd(2, 1, {"rg_1.0": RankHealth.FINISHED}), "training",
         "Training: 1 rank is healthy"),
        (lambda: ended(died(0), died(0)), "finished",
         "The job has finished: 2 of 2 ranks ended with exit code 0"),
    ],
)  # fmt: skip
def test_the_headline_of(view: Callable[[], View], state: str, said: str) -> None:
    headline = headline_of(view())
    assert (headline.state, str(headline)) == (state, said)


def evicted(health: RankHealth | None = RankHealth.DEAD, **more) -> View:
    """rg_1 was evicted 20 s ago; its two ranks have this health, or are no longer there."""
    resolved = replace(incident("i"), state=State.RESOLVED, resolution="it is out")
    out = Eviction(
        resolved.id, GroupName("rg_1"), ReplicaId("rg_1:a"), NOW_S + 70, gone_s=NOW_S + 79,
        left_quorum_s=NOW_S + 80, ended_s=NOW_S + 80,
    )  # fmt: skip
    if health is None:
        gone = Departure(RankName("rg_1.0"), GroupName("rg_1"), NOW_S + 79, died(None, "SIGKILL"))
        more |= {"names": ["rg_0"], "departures": (gone,)}
    healths = {} if health is None else {"rg_1.0": health, "rg_1.1": health}
    healths |= more.pop("sick", {})
    more.setdefault("lighthouse", LighthouseView(8, (Member(ReplicaId("rg_0:a"), 1),), {}, ""))
    return crowd(2, 2, healths, incidents=(resolved,), decisions={out.incident_id: (out,)}, **more)


OUT = "Training without rg_1: evicted 20 s ago, not restarted yet. "
HELD = QuarantineEntry("rg_1", "it hung", "ann", NOW_S, None, None, scope=Scope.GROUP)


@pytest.mark.parametrize(
    ("view", "said"),
    [
        (evicted(), OUT + "Waiting for its launcher on node-rg_1-0"),
        (evicted(spent=Spent(usual_s=0.2)), OUT + "Waiting for its launcher on node-rg_1-0"),
        (evicted(RankHealth.UNREACHABLE), OUT + "Waiting for its launcher on node-rg_1-0"),
        (evicted(None), OUT + "Waiting for its launcher"),
        (evicted(quarantine_groups=(HELD,)),
         OUT + "rg_1 is quarantined: its launcher waits for the release"),
        (evicted(quarantine=(replace(HELD, name="node-rg_1-0", scope=Scope.HOST),)),
         OUT + "Waiting for its launcher: node-rg_1-0 is quarantined"),
        (evicted(sick={"rg_0.1": RankHealth.SLOW}), "Training, but 1 rank is unhealthy"),
        (evicted(RankHealth.STARTING), "Training: 2 of 4 ranks are healthy, 2 starting"),
        (evicted(RankHealth.HEALTHY), "Training: all 4 ranks are healthy"),
    ],
    ids=["dead", "slower too", "unreachable", "gone", "quarantined", "its host is",
         "another is sick", "starting", "back"],
)  # fmt: skip
def test_after_an_eviction_it_says_without_whom_it_trains_and_who_is_waited_for(
    view: View, said: str
) -> None:
    assert str(headline_of(view)) == said


END_S = NOW_S + 60.0
GAVE_UP = "RuntimeError: Timed out waiting 8000ms for recv operation to complete"
HUNG, WAITED = RankName("job.0"), RankName("job.1")


def gave_up(*incidents: Incident, says: str = GAVE_UP) -> View:
    """job.1 waited for job.0 and raised, and the agent ended job.0 with it."""
    job = GroupName("job")
    gone = (
        Departure(HUNG, job, END_S + 1, died(None, "SIGTERM"), Ending("no")),
        Departure(WAITED, job, END_S, died(1), Ending("no", exception=says)),
    )
    return crowd(0, 1, departures=gone, incidents=incidents)


def of_the_end(kind: Kind, culprit: RankName, over_s: float | None = None, **more) -> Incident:
    """Fired 3 s before the end, of a fault that began 8 s before it; a death, with the end."""
    made = incident("root", kind)
    since_s = END_S if kind is Kind.DEAD else END_S - 8
    verdict = replace(
        made.verdict, culprits=(culprit,), victims=(WAITED,), since_s=since_s,
        reason="it is so", brief=f"rank {culprit} hangs in flush (train.py:22)", **more,
    )  # fmt: skip
    made = replace(
        made, verdict=verdict, culprits=verdict.culprits, candidates=verdict.candidates,
        milestones=Milestones(END_S - 4, END_S - 3), last_seen_s=END_S,
    )  # fmt: skip
    if over_s is None:
        return made
    story = (Transition(over_s, "resolved", "its process ended"),)
    return replace(made, state=State.RESOLVED, resolution="its process ended", story=story)


ROOT = (
    "The job has ended: rank job.0 hangs in flush (train.py:22); job.1 gave up after 8.0 s; "
    "0 of 2 ranks left"
)
VICTIM_FIRST = f"The job has ended: job.1 exit code 1, {GAVE_UP}; job.0 SIGTERM; 0 of 2 ranks left"


@pytest.mark.parametrize(
    ("incidents", "says"),
    [
        pytest.param([of_the_end(Kind.NOT_ENTERED, HUNG)], ROOT, id="a hang, still open"),
        pytest.param([of_the_end(Kind.NOT_ENTERED, HUNG, END_S + 5)], ROOT,
                     id="a hang that is over, as its process ended"),
        pytest.param([of_the_end(Kind.DEAD, WAITED), of_the_end(Kind.NOT_ENTERED, HUNG, END_S + 5)],
                     ROOT, id="a hang, and the death of its victim"),
        pytest.param([of_the_end(Kind.NOT_ENTERED, HUNG, END_S - 2)], VICTIM_FIRST,
                     id="a hang that was over before"),
        pytest.param([of_the_end(Kind.STRAGGLER, HUNG)], VICTIM_FIRST, id="a slow rank"),
        pytest.param([], VICTIM_FIRST, id="none"),
    ],
)  # fmt: skip
def test_the_headline_of_an_ended_job_says_why_it_ended(incidents, says) -> None:
    assert str(headline_of(gave_up(*incidents))) == says


def test_a_job_that_ended_by_a_death_names_it_before_victims_that_say_more() -> None:
    job = GroupName("job")
    gone = (
        Departure(HUNG, job, END_S, died(None, "SIGKILL"), None),
        Departure(WAITED, job, END_S + 1, died(1), Ending("no", exception=GAVE_UP)),
    )
    view = crowd(0, 1, departures=gone, incidents=(of_the_end(Kind.DEAD, HUNG),))
    headline = headline_of(view)
    assert str(headline) == (
        f"The job has ended: job.0 SIGKILL; job.1 exit code 1, {GAVE_UP}; 0 of 2 ranks left"
    )
    assert headline.incident == "root"


@pytest.mark.parametrize(
    ("view", "said"),
    [
        (lambda: crowd(4, 2), "Training: all 8 ranks are healthy"),
        (lambda: aged(crowd(4, 2), 60.0), "Stalling"),
        (lambda: aged(crowd(4, 2, incidents=(incident("i"),)), 14.0), "Not training: rg_1.1: hang"),
    ],
    ids=["healthy", "stalling", "stopped"],
)
def test_the_title_of_the_tab_does_not_change_each_second(
    view: Callable[[], View], said: str
) -> None:
    assert title_of(make(Context(view(), PagePlace(FLEET)))) == said


def without_steps(view: View) -> View:
    for seen in view.snapshot.observations:
        structs.force_setattr(seen.outcome, "step", None)
    return view


def test_ranks_that_report_no_steps_are_watched_and_not_said_to_train() -> None:
    headline = headline_of(without_steps(crowd(2, 2)))
    assert str(headline) == "Watching: no rank reports its steps"
    hung = headline_of(without_steps(crowd(2, 2, incidents=(incident("i"),))))
    assert str(hung) == "Not training: rg_1.1 is not_entered"


def test_of_several_incidents_the_one_that_stops_the_job_is_told_first() -> None:
    slow = replace(incident("slow", Kind.STRAGGLER), milestones=Milestones(NOW_S - 50))
    unsure = replace(incident("unsure", state=State.PENDING), milestones=Milestones(NOW_S - 60))
    view = crowd(4, 2, incidents=(slow, unsure, incident("hang")))
    assert headline_of(view).incident == "hang"


def test_who_only_slows_the_job_is_not_blamed_for_its_standstill() -> None:
    slow = incident("slow", Kind.STRAGGLER)
    pending = incident("hang", state=State.PENDING)
    assert str(headline_of(crowd(4, 2, incidents=(slow,)))) == "Training, but rg_1.1 is straggler"
    stands = headline_of(aged(crowd(4, 2, incidents=(slow,)), 20.0))
    assert str(stands) == f"Stalling: no commit for 20 s. {WHERE}"
    assert stands.incident is None
    unseen = headline_of(aged(crowd(4, 2, incidents=(incident("u", Kind.UNSEEN),)), 20.0))
    assert str(unseen) == "Not training: rg_1.1 is unseen"
    suspected = headline_of(aged(crowd(4, 2, incidents=(slow, pending)), 20.0))
    assert (suspected.state, suspected.incident) == ("stopped", "hang")


@pytest.mark.parametrize("age_s", [0.6, 3.0, 5.4, 14.0, 16.0, 60.0])
def test_no_rank_is_green_while_the_next_commit_is_late(age_s: float) -> None:
    context = Context(aged(crowd(4, 2), age_s), PagePlace(FLEET))
    page = make(context)
    late = context.headline.state in (JobState.LATE, JobState.STALLING)
    assert late is (age_s > 3 * 1.25)
    assert set(context.states.values()) == ({"late"} if late else {"healthy"})
    assert ("steps a second</dt><dd>0.80" in parts_of(page)["pulse"]) is not late


def told(sim: Simulated, ticks: int) -> list[tuple[int, str, str]]:
    """At which tick the headline became another: its state, and what comes next."""
    changes: list[tuple[int, str, str]] = []
    for tick in range(1, ticks + 1):
        now = headline_of(sim.tick())
        if not changes or changes[-1][1:] != (now.state, now.next):
            changes.append((tick, now.state, now.next))
    return changes


LET_IT = "To let rg_1.1 continue: kill -CONT 1001 on host host-rg_1"


def test_a_rank_that_stops_is_late_then_named_then_its_group_is_evicted() -> None:
    assert told(Simulated(SimFleet(2, 2, [at(30, stop("rg_1.1"))])), 80) == [
        (1, "starting", ""),
        (2, "training", ""),
        (33, "late", ""),
        (34, "late", "Verdict in 2.0 s"),
        (35, "late", "Verdict in 1.0 s"),
        (36, "stopped", f"{LET_IT}. Decision on evicting rg_1 in 0.3 s"),
        (37, "stopped", "rg_1 is being evicted"),
        (41, "training", ""),
    ]


def test_a_job_that_reports_no_steps_is_watched_until_it_stands() -> None:
    assert told(Simulated(attached(2, 2, at(30, hang("rg_1.1")))), 70) == [
        (1, "watching", ""),
        (62, "stopped", "Decision on evicting rg_1 in 0.3 s"),
        (63, "stopped", "rg_1 is being evicted"),
        (64, "watching", ""),
    ]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (stop("rg_1.1"), "rank rg_1.1 is stopped by a signal in phase 'backward': 3 ranks wait"),
        (hang("rg_1.1"), "rank rg_1.1 hangs in phase 'forward': 3 ranks wait"),
        (gil("rg_1.1"), "rank rg_1.1 hangs in phase 'backward', GIL held: 3 ranks wait"),
        (crash("rg_1.1"), "rank rg_1.1 died 1.0 s ago: ended by SIGKILL: 1 rank waits"),
    ],
    ids=["stopped", "hangs", "gil", "dead"],
)
def test_the_headline_says_who_where_and_how_many_wait(fault, said: str) -> None:
    sim = Simulated(SimFleet(2, 2, [at(30, fault)]))
    headlines = [str(headline_of(sim.tick())) for _ in range(40)]
    assert f"Not training: {said}. rg_1 is being evicted" in headlines, "\n".join(headlines)


def test_of_a_group_that_the_others_train_without_by_now_it_says_that_nobody_waits() -> None:
    hangs, out = at(20, stands("rg_1.0", "fetch", 14)), at(40, shut_out("rg_1"))
    script = [hangs, at(20, stop("rg_2.0")), out]
    sim = Simulated(SimFleet(3, 1, script, source="torchft", across=True))
    headlines = [str(headline_of(sim.tick())) for _ in range(50)]
    assert "(train.py:14): 1 rank waits. Nobody is evicted: the last eviction is" in headlines[35]
    assert "(train.py:14). Nobody is evicted: the others train without it" in headlines[49]


def due(view: View, **changes) -> View:
    """Something is decided in 2 s."""
    at_s = view.snapshot.now_s + 2.0
    return replace(view, result=replace(view.result, look_again_s=at_s), **changes)


def without_lighthouse(view: View) -> View:
    return replace(view, snapshot=replace(view.snapshot, lighthouse=LighthouseAway(NO_LIGHTHOUSE)))


def pending(**changes) -> View:
    return due(
        aged(crowd(4, 2, incidents=(replace(incident("i", state=State.PENDING), **changes),)), 14.0)
    )


RANK = (RankName("rg_1.1"),)


@pytest.mark.parametrize(
    ("view", "says"),
    [
        pytest.param(pending(), "Decision on evicting rg_1 in 2.0 s", id="it may be evicted"),
        pytest.param(without_lighthouse(pending()), "Verdict in 2.0 s", id="no Lighthouse"),
        pytest.param(replace(pending(), observe=True), "Verdict in 2.0 s", id="observe mode"),
        pytest.param(pending(culprits=(), candidates=RANK), "Verdict in 2.0 s", id="unsure"),
        pytest.param(pending(culprits=(), groups=()), "Verdict in 2.0 s", id="nobody accused"),
    ],
)
def test_an_eviction_is_announced_only_where_there_can_be_one(view, says) -> None:
    assert headline_of(view).next == says
