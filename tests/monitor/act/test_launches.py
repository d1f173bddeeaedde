"""Whose rank is it: ranks of an older launch, another launch at once, another job, a new run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pytest

from lightkeeper.monitor.act.targets import ANSWERS_S, CONTEST_S, STANDS_S, Registered, Registry
from lightkeeper.monitor.model.names import GroupName, RankName
from lightkeeper.worker_server.wire import (
    Claim,
    Identity,
    Process,
    Registration,
    StateReport,
    StepState,
    digest,
)
from tests.monitor.doubles import HandClock, Memory
from tests.monitor.fakes import identity


@dataclass
class Launch:
    """One start of one replica group, as its WorkerServers tell it."""

    fleet: Fleet
    name: str
    group: str = "job"
    ranks: int = 2
    job: str = "job"
    host: str = "h"
    claim: dict[str, str] = field(default_factory=dict)
    born_s: float = 0.0
    died_s: float | None = None

    def __post_init__(self) -> None:
        self.born_s = self.fleet.clock.now_s()
        self.fleet.launches.append(self)

    def secret(self, rank: int) -> str:
        return f"{self.name} {rank}"

    def who(self, rank: int) -> Identity:
        who = identity(GroupName(self.group), rank, world_size=self.ranks,
                        incarnation=digest(self.secret(rank)))  # fmt: skip
        return Identity(**{**vars(who), "job": self.job, "host": self.host, "place": {}})

    def register(self, rank: int) -> Registered:
        now_s = self.fleet.clock.now_s()
        port = 1000 + 10 * self.fleet.launches.index(self) + rank
        asks = Registration(
            self.who(rank), f"http://{self.host}:{port}", 15.0, now_s - self.born_s,
            None if self.died_s is None else now_s - self.died_s,
            Claim(secret=self.secret(rank), **self.claim),
        )  # fmt: skip
        return self.fleet.registry.register(asks, self.host)

    def up(self) -> list[Registered]:
        return [self.register(rank) for rank in range(self.ranks)]

    def die(self) -> None:
        self.died_s = self.fleet.clock.now_s()


class Fleet:
    """Launches at one registry; each second those alive answer a poll, and all renew."""

    def __init__(self) -> None:
        self.clock, self.launches, self.moving = HandClock(), list[Launch](), True
        self.registry, self.steps = Registry(self.clock, Memory()), 0

    def launch(self, name: str, **more) -> Launch:
        return Launch(self, name, **more)

    def tick(self, seconds: int = 1, *, renew: Iterable[Launch] = ()) -> None:
        for _ in range(seconds):
            self.clock.advance(1.0)
            self.steps += self.moving
            by_incarnation = {
                launch.who(rank).incarnation: launch
                for launch in self.launches for rank in range(launch.ranks)
            }  # fmt: skip
            reports = {}
            for target in self.registry.targets():
                died_s = by_incarnation[target.identity.incarnation].died_s
                age_s = None if died_s is None else self.clock.now_s() - died_s
                process = Process(alive=died_s is None, dead_age_s=age_s)
                reports[target.rank] = StateReport(target.identity, process, self.step())
            self.registry.heard(reports)
            for launch in renew:
                launch.up()

    def step(self) -> StepState:
        return StepState(
            step=self.steps, attempt=self.steps, phase="other", phase_age_s=0.0,
            progress=self.steps, seconds={}, commits=self.steps,
            last_commit_age_s=0.0, committed_step=self.steps,
        )  # fmt: skip

    def names(self) -> dict[str, str]:
        """Who is polled -> of which launch."""
        owners = {
            launch.who(rank).incarnation: launch.name
            for launch in self.launches for rank in range(launch.ranks)
        }  # fmt: skip
        return {t.rank: owners[t.identity.incarnation] for t in self.registry.targets()}

    def run(self) -> str:
        assert self.registry.run is not None
        return self.registry.run.id


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


def test_corpses_of_a_stopped_run_leave_with_the_first_rank_of_the_next(fleet: Fleet) -> None:
    hung = fleet.launch("hung")
    hung.up()
    fleet.tick()
    first = fleet.run()
    hung.die()
    fleet.tick(30, renew=[hung])
    assert fleet.names() == {"job.0": "hung", "job.1": "hung"}
    short = fleet.launch("short", ranks=1)
    assert short.up() == [Registered.CURRENT]
    fleet.tick(30, renew=[hung, short])
    assert fleet.names() == {"job.0": "short"}
    gone = fleet.registry.standing(RankName("job.1"), hung.who(1).incarnation)
    assert gone is Registered.SUPERSEDED  # an eviction of it does not end the next run's
    assert fleet.run() != first
    assert fleet.registry.run.job == "job"


def test_corpses_of_a_job_of_other_groups_leave_too(fleet: Fleet) -> None:
    old = [fleet.launch(f"old {n}", group=f"train_{n}", ranks=1) for n in range(2)]
    for launch in old:
        launch.up()
    fleet.tick()
    for launch in old:
        launch.die()
    fleet.tick()
    fleet.launch("new").up()
    fleet.tick(20, renew=old)
    assert fleet.names() == {"job.0": "new", "job.1": "new"}


def test_a_run_whose_end_was_not_seen_before_the_next_began_is_over_all_the_same(
    fleet: Fleet,
) -> None:
    old = [fleet.launch(f"old {n}", group=f"train_{n}", ranks=1) for n in range(2)]
    same = fleet.launch("same")
    for launch in (*old, same):
        launch.up()
    fleet.tick()
    run = fleet.run()
    for launch in (*old, same):
        launch.die()
    fleet.clock.advance(3.0)  # no poll in between
    new = fleet.launch("new")
    assert new.register(1) is Registered.WAIT
    assert fleet.launch("other", group="other", ranks=1).up() == [Registered.CURRENT]
    fleet.tick(8, renew=[*old, same, new])
    assert fleet.names() == {"job.0": "new", "job.1": "new", "other.0": "other"}
    assert fleet.run() != run


@pytest.mark.parametrize("first", ["the living", "the dead"])
def test_a_fresh_monitor_takes_no_dead_rank_of_a_run_that_was_over(fleet: Fleet, first) -> None:
    old = [fleet.launch(f"old {n}", group=f"train_{n}", ranks=1) for n in range(2)]
    for launch in old:
        launch.die()
    fleet.clock.advance(55.0)
    new = fleet.launch("new")
    if first == "the living":
        new.up()
    assert [launch.up() for launch in old] == [[Registered.OVER]] * 2
    new.up()
    assert [launch.up() for launch in old] == [[Registered.OVER]] * 2
    assert fleet.names() == {"job.0": "new", "job.1": "new"}


def test_a_fresh_monitor_takes_the_dead_of_a_group_whose_run_lives(fleet: Fleet) -> None:
    fell, lives = (fleet.launch(f"{n}", group=f"train_{n}", ranks=1) for n in range(2))
    fleet.clock.advance(60.0)
    fell.die()
    assert fell.up() == [Registered.OVER]  # nobody is here yet: it asks again
    lives.up()
    assert fell.up() == [Registered.CURRENT]


def test_a_group_that_restarts_beside_another_stays_in_its_run(fleet: Fleet) -> None:
    groups = [fleet.launch(f"{n}", group=f"rg_{n}") for n in range(2)]
    for launch in groups:
        launch.up()
    fleet.tick()
    run = fleet.run()
    groups[1].die()
    fleet.tick(5, renew=groups)
    again = fleet.launch("again", group="rg_1")
    assert again.up() == [Registered.CURRENT] * 2
    fleet.tick(5, renew=[*groups, again])
    assert fleet.names() == {"rg_0.0": "0", "rg_0.1": "0", "rg_1.0": "again", "rg_1.1": "again"}
    assert fleet.run() == run


def test_a_rank_that_fell_first_stays_beside_one_of_its_launch_that_came_late(fleet: Fleet) -> None:
    """Of one Slurm step: on a slow host the second process begins when the first has crashed."""
    early = fleet.launch("early", claim={"launch": "slurm:7.0"})
    early.register(0)
    early.die()
    fleet.tick(5)
    late = fleet.launch("late", claim={"launch": "slurm:7.0"})
    assert late.register(1) is Registered.CURRENT
    assert fleet.names() == {"job.0": "early", "job.1": "late"}


@pytest.mark.parametrize(
    "claim",
    [{}, {"meeting": "same"}, {"launcher": "{}"}, {"launch": "{}"}],
    ids=["no claim", "one address", "two launchers", "two ids"],
)
def test_a_second_run_at_once_is_refused_aloud_and_the_first_stays_watched(
    fleet: Fleet, claim
) -> None:
    first = fleet.launch("first", claim={k: v.format(1) for k, v in claim.items()})
    first.up()
    second = fleet.launch("second", claim={k: v.format(2) for k, v in claim.items()})
    assert second.up() == [Registered.WAIT] * 2
    fleet.tick(int(CONTEST_S) + 1, renew=[first, second])
    assert second.up() == [Registered.TAKEN] * 2
    assert fleet.names() == {"job.0": "first", "job.1": "first"}
    [trouble] = fleet.registry.troubles()
    assert trouble.startswith("job.1 of job job is not watched: another run of that name lives; ")
    first.die()
    fleet.tick(2, renew=[first, second])
    assert fleet.names() == {"job.0": "second", "job.1": "second"}


def test_two_jobs_at_once_are_told_apart_by_name_or_lighthouse(fleet: Fleet) -> None:
    fleet.launch("a", group="rg_0", job="a").up()
    fleet.tick()
    other = fleet.launch("b", group="rg_1", job="b")
    assert other.register(0) is Registered.WAIT
    fleet.clock.advance(CONTEST_S + 1)
    fleet.registry.heard({RankName("rg_0.0"): StateReport(fleet.launches[0].who(0), Process(True))})
    assert other.register(0) is Registered.OTHER_JOB
    [trouble] = fleet.registry.troubles()
    assert trouble.startswith("rg_1.0 of job b is not watched: the monitor watches another job")


def test_who_asks_another_lighthouse_is_told_both_addresses(fleet: Fleet) -> None:
    here, there = "http://head:29510", "http://head:29511"
    fleet.launch("a", group="rg_0", claim={"lighthouse": here}).up()
    fleet.tick()
    other = fleet.launch("b", group="rg_1", claim={"lighthouse": there})
    assert other.register(0) is Registered.WAIT
    fleet.clock.advance(CONTEST_S + 1)
    fleet.registry.heard({RankName("rg_0.0"): StateReport(fleet.launches[0].who(0), Process(True))})
    assert other.register(0) is Registered.OTHER_JOB
    [trouble] = fleet.registry.troubles()
    assert (
        f"is not watched, for it asks the Lighthouse at {there} and the others {here}: " in trouble
    )


@pytest.mark.parametrize("torchft", ["first", "second"])
def test_a_torchft_job_and_a_plain_one_by_turns_are_two_runs_however_soon(
    fleet: Fleet, torchft: str
) -> None:
    """Not a second lies between, and no poll has seen the end of the first."""

    def start(name: str) -> list[Launch]:
        if name != torchft:
            return [fleet.launch(name)]
        claim = {"lighthouse": "http://h:29510"}
        return [fleet.launch(f"{name} {n}", group=f"{n}", ranks=1, claim=claim) for n in range(2)]

    def all_are_in(launches: list[Launch]) -> bool:
        return all(stood is Registered.CURRENT for each in launches for stood in each.up())

    first = start("first")
    assert all_are_in(first)
    fleet.tick(5)
    run = fleet.run()
    for launch in first:
        launch.die()
    second = start("second")
    assert second[0].register(0) is Registered.WAIT
    fleet.tick()
    assert all_are_in(second)
    assert {owner.split()[0] for owner in fleet.names().values()} == {"second"}
    assert fleet.run() != run


def test_groups_of_one_lighthouse_are_one_job_whatever_its_name(fleet: Fleet) -> None:
    asks = {"lighthouse": "http://head:29510"}
    for number in range(2):
        launch = fleet.launch(f"{number}", group=f"rg_{number}", job=f"slurm-{number}", claim=asks)
        assert launch.up() == [Registered.CURRENT] * 2
    elsewhere = fleet.launch("c", group="rg_2", job="slurm-0",
                             claim={"lighthouse": "http://head:29511"})  # fmt: skip
    assert elsewhere.register(0) is Registered.WAIT


@pytest.mark.parametrize("ranks", [2, 4])
def test_orphans_that_stand_still_lose_their_names_to_a_new_start_on_their_host(
    fleet: Fleet, ranks: int
) -> None:
    """Its launcher was killed; it waits for a peer that is gone."""
    orphan = fleet.launch("orphan", ranks=ranks)
    orphan.up()
    fleet.tick()
    fleet.moving = False
    fleet.tick(int(STANDS_S))
    elsewhere = fleet.launch("elsewhere", host="other")
    assert elsewhere.register(0) is Registered.WAIT
    new = fleet.launch("new")
    fleet.tick(3, renew=[new])
    assert fleet.names() == {"job.0": "new", "job.1": "new"}


def test_a_rank_whose_host_is_silent_is_no_reason_for_a_new_run(fleet: Fleet) -> None:
    """Cut off for a while, the monitor hears of a restarted group first."""
    groups = [fleet.launch(f"{n}", group=f"rg_{n}") for n in range(2)]
    for launch in groups:
        launch.up()
    fleet.tick()
    run = fleet.run()
    fleet.clock.advance(ANSWERS_S + 5)
    fleet.launch("again", group="rg_1").up()
    assert fleet.run() == run


def test_a_stranger_of_another_world_joins_no_group(fleet: Fleet) -> None:
    """One registration with an unused number had an honest group killed."""
    fleet.launch("honest", group="rg_2", ranks=1, claim={"launch": "secret"}).up()
    for number, claim in enumerate(({}, {"launch": "guessed"})):
        evil = fleet.launch(f"evil {number}", group="rg_2", ranks=8, host="evil", claim=claim)
        assert evil.register(7) is Registered.WAIT
    sized = fleet.launch("sized", group="rg_2", ranks=2, host="evil")
    assert sized.register(1) is Registered.WAIT
    assert fleet.names() == {"rg_2.0": "honest"}


@pytest.mark.parametrize("claim", [{"launch": "secret"}, {"meeting": "secret"}])
def test_a_stranger_that_claims_nothing_joins_no_launch_that_does(
    fleet: Fleet, claim: dict[str, str]
) -> None:
    """A number is free while a rank is not up yet, or its host is lost."""
    fleet.launch("honest", group="rg_2", claim=claim).register(0)
    evil = fleet.launch("evil", group="rg_2", host="evil")
    assert evil.register(1) is Registered.WAIT
    fleet.launch("late", group="rg_2", host="other", claim=claim).register(1)
    assert fleet.names() == {"rg_2.0": "honest", "rg_2.1": "late"}


def test_a_run_outlives_a_restart_of_the_monitor(fleet: Fleet) -> None:
    first = fleet.launch("first")
    first.up()
    memory = fleet.registry._store
    again = Registry(fleet.clock, memory)
    again.restore(list(memory.targets.values()), memory.runs[-1])
    fleet.registry = again
    fleet.tick(2, renew=[first])
    assert fleet.run() == memory.runs[-1].id
    assert len(memory.runs) == 1


def test_a_rank_that_was_born_after_the_clock_was_set_back_is_no_elder(fleet: Fleet) -> None:
    fleet.launch("first").up()
    memory = fleet.registry._store
    fleet.clock.advance(-3600.0)
    fleet.registry = Registry(fleet.clock, memory)
    fleet.registry.restore(list(memory.targets.values()), memory.runs[-1])
    fleet.clock.advance(ANSWERS_S)
    assert fleet.launch("again").up() == [Registered.CURRENT] * 2


def test_a_lone_rank_whose_manager_names_its_group_stays_in_its_run(fleet: Fleet) -> None:
    """Its only name is given up for the other: for a moment nobody is there."""
    lone = fleet.launch("lone", group="0", ranks=1)
    lone.up()
    who = replace(lone.who(0), group=GroupName("train_0"), launched_as=GroupName("0"))
    asks = Registration(who, "http://h:1000", 15.0, 1.0, None, Claim(secret=lone.secret(0)))
    assert fleet.registry.register(asks, "h") is Registered.CURRENT
    assert [str(target.rank) for target in fleet.registry.targets()] == ["train_0.0"]
    assert len(fleet.registry._store.runs) == 1
