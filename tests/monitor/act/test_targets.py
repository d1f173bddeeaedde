"""Who is polled, and for how long."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from lightkeeper.monitor.act.targets import LAPSE_GRACE_S, Registered, Registry
from lightkeeper.monitor.model.names import GroupName, RankName
from lightkeeper.monitor.model.observation import Failure, Observation, Unreachable
from lightkeeper.worker_server.wire import Claim, Ending, Process, Registration, StateReport, digest
from tests.monitor.doubles import HandClock, Memory
from tests.monitor.fakes import identity

RANK = RankName("rg_0.0")


def registration(
    incarnation: str = "one",
    url: str = "http://h:1",
    lease_s: float = 15.0,
    age_s: float | None = None,
):
    return Registration(identity(incarnation=incarnation), url, lease_s, age_s)


def named(
    group: str, launched_as: str | None = None, incarnation: str = "one", *, rank: int = 0, **more
):
    who = identity(GroupName(group), rank, world_size=2, incarnation=incarnation)
    launched = None if launched_as is None else GroupName(launched_as)
    url = f"http://h:{1000 + sum(map(ord, incarnation))}"
    return Registration(replace(who, launched_as=launched), url, 15.0, **more)


def answers(registry: Registry, *ranks: str, dead: bool = False) -> None:
    """These ranks answer a poll."""
    process = Process(alive=not dead, dead_age_s=0.0 if dead else None)
    targets = {target.rank: target.identity for target in registry.targets()}
    registry.heard({RankName(r): StateReport(targets[RankName(r)], process) for r in ranks})


def gone(registry: Registry, rank: str) -> None:
    """Nobody listens at its address any longer."""
    registry.gone(t.identity for t in registry.targets() if t.rank == rank)


class TestNames:
    """A group goes by its Manager's name, which is its rank's own word."""

    def setup_method(self) -> None:
        self.clock, self.memory = HandClock(), Memory()
        self.registry = Registry(self.clock, self.memory)

    def ranks(self) -> list[str]:
        return [target.rank for target in self.registry.targets()]

    def register(self, *args, **more) -> Registered:
        return self.registry.register(named(*args, **more))

    def test_a_process_that_is_renamed_is_one_target(self) -> None:
        self.register("0")
        for name in ("my_0", "my_1"):
            assert self.register(name, "0") is Registered.CURRENT
            assert self.ranks() == [*self.memory.targets] == [f"{name}.0"]

    def test_ranks_of_other_groups_stay_even_with_a_like_incarnation(self) -> None:
        self.register("1")
        self.register("0", rank=1)
        self.register("my_0", "0")
        assert self.ranks() == ["0.1", "1.0", "my_0.0"]

    def test_a_name_that_belongs_to_another_launchers_group_is_refused(self) -> None:
        self.register("rg_1", incarnation="honest")
        self.register("rg_0", incarnation="liar")
        assert self.register("rg_1", "rg_0", "liar") is Registered.REFUSED
        assert self.register("rg_1", "rg_0", "liar", rank=1) is Registered.REFUSED
        assert self.ranks() == ["rg_0.0", "rg_1.0"]
        assert self.register("rg_0", None, "liar") is Registered.CURRENT

    def test_a_launcher_takes_the_name_back_that_another_group_has_taken(self) -> None:
        self.register("rg_1", "rg_0", "liar")
        assert self.register("rg_1", None, "honest", rank=1) is Registered.CURRENT
        assert self.ranks() == ["rg_1.1"]
        assert self.register("rg_1", "rg_0", "liar") is Registered.REFUSED

    def test_of_two_launchers_groups_with_managers_of_one_name_the_first_has_it(self) -> None:
        self.register("my_0", "0", "a")
        assert self.register("my_0", "1", "b") is Registered.REFUSED
        assert self.register("my_0", "0", "a") is Registered.CURRENT
        assert self.ranks() == ["my_0.0"]

    @pytest.mark.parametrize("gone", ["silent", "dead"])
    def test_a_name_whose_bearer_is_gone_is_free(self, gone: str) -> None:
        self.register("my_0", "0", "a")
        if gone == "dead":
            answers(self.registry, "my_0.0", dead=True)
            self.register("my_0", "0", "a")  # its WorkerServer lingers
        else:
            self.clock.advance(15.1)
        assert self.register("my_0", "1", "b") is Registered.CURRENT

    def test_a_restart_of_the_same_launchers_group_takes_the_name_over(self) -> None:
        self.register("my_0", "0", "a", age_s=50.0)
        answers(self.registry, "my_0.0", dead=True)
        self.register("0", None, "b", age_s=1.0)
        assert self.register("my_0", "0", "b", age_s=2.0) is Registered.CURRENT
        assert self.register("my_0", "0", "a", age_s=53.0) is not Registered.CURRENT
        assert [(t.rank, t.identity.incarnation) for t in self.registry.targets()] == [
            ("my_0.0", "b")]  # fmt: skip

    def test_who_was_put_off_under_the_former_name_does_not_come_back_with_it(self) -> None:
        self.register("0", None, "a", age_s=50.0)
        gone(self.registry, "0.0")
        self.register("0", None, "b", age_s=1.0)
        self.register("my_0", "0", "b", age_s=2.0)
        assert self.register("0", None, "a", age_s=52.0) is Registered.SUPERSEDED
        assert self.ranks() == ["my_0.0"]

    def test_a_restarted_rank_is_told_how_its_group_was_called(self) -> None:
        self.register("my_0", "0", "a")
        assert self.registry.known_as(named("0", None, "b").identity) == "my_0"
        assert self.registry.known_as(named("1", None, "b").identity) is None
        assert self.registry.known_as(named("my_0", "0", "b").identity) is None
        self.register("my_1", "job", "c")  # a group that no launcher names
        assert self.registry.known_as(named("job", None, "d").identity) is None

    def test_a_restarted_monitor_knows_the_names_again(self) -> None:
        self.register("my_0", "0", "a")
        again = Registry(self.clock, self.memory)
        again.restore(list(self.memory.targets.values()))
        assert again.known_as(named("0", None, "b").identity) == "my_0"
        assert again.register(named("my_0", "0", "a")) is Registered.CURRENT
        assert [target.rank for target in again.targets()] == ["my_0.0"]


class TestLeases:
    def setup_method(self) -> None:
        self.clock, self.memory = HandClock(), Memory()
        self.registry = Registry(self.clock, self.memory)

    def incarnation(self) -> str | None:
        target = self.registry.get(RANK)
        return None if target is None else target.identity.incarnation

    def test_the_more_there_are_the_more_seldom_they_renew(self) -> None:
        assert self.registry.renew_s is None
        for n in range(1200):
            self.registry.register(named(f"rg_{n}", incarnation=str(n)))
        assert self.registry.renew_s == 6
        self.registry._targets.update({RankName(f"x.{n}"): None for n in range(20_000)})
        assert self.registry.renew_s == 60

    def test_a_late_renewal_of_an_old_incarnation_never_displaces_a_newer_one(self) -> None:
        for incarnation in ("one", "two", "three"):
            gone(self.registry, RANK)
            self.registry.register(registration(incarnation))
        self.clock.advance(5)
        assert self.registry.register(registration("one")) is Registered.SUPERSEDED
        assert self.registry.register(registration("two")) is Registered.SUPERSEDED
        assert self.incarnation() == "three"

    def test_a_lingering_elder_that_comes_second_after_a_cold_start_stays_out(self) -> None:
        self.registry.register(registration("young", age_s=3.0))
        gone(self.registry, RANK)
        assert self.registry.register(registration("old", age_s=90.0)) is Registered.SUPERSEDED
        assert self.incarnation() == "young"
        gone(self.registry, RANK)
        assert self.registry.register(registration("younger", age_s=0.5)) is Registered.CURRENT
        assert self.incarnation() == "younger"

    def test_unregistering_removes_the_target_if_it_still_bears_the_name(self) -> None:
        for incarnation in ("one", "two"):
            gone(self.registry, RANK)
            self.registry.register(registration(incarnation))
        assert not self.registry.unregister(RANK, "one")
        assert self.incarnation() == "two"
        assert self.registry.unregister(RANK, "two")
        assert self.registry.targets() == ()
        assert self.registry.standing(RANK, "two") is Registered.LEFT
        assert self.memory.targets == {}
        # the only known incarnation may come back after the newer one left
        assert self.registry.register(registration("one")) is Registered.CURRENT

    def test_a_lapsed_lease_is_kept_for_the_grace_so_that_a_dead_host_is_seen(self) -> None:
        self.registry.register(registration(lease_s=15.0))
        self.clock.advance(15.0 + LAPSE_GRACE_S)
        assert self.registry.expire() == ()
        self.clock.advance(0.1)
        assert [target.rank for target in self.registry.expire()] == [RANK]
        assert self.registry.targets() == ()

    def test_a_rank_that_answers_polls_does_not_expire(self) -> None:
        self.registry.register(registration(lease_s=15.0))
        self.clock.advance(15.0 + LAPSE_GRACE_S)
        answers(self.registry, RANK)
        self.clock.advance(15.0)
        assert self.registry.expire() == ()

    def test_a_renewal_costs_no_write(self) -> None:
        for _ in range(10):
            self.registry.register(registration())
            self.clock.advance(5)
        assert self.memory.writes == 1

    def test_only_who_knows_its_secret_takes_a_living_incarnation_to_another_url(self) -> None:
        moved = registration(digest("its own"), "http://h:2")
        self.registry.register(registration(digest("its own"), "http://h:1"))
        for claim in (None, Claim(secret="a guess")):
            assert self.registry.register(replace(moved, claim=claim)) is Registered.TAKEN
        itself = replace(moved, claim=Claim(secret="its own"))
        assert self.registry.register(itself) is Registered.CURRENT
        assert self.registry.targets()[0].url == "http://h:2"
        assert self.memory.writes == 2

    def test_the_store_gives_targets_and_their_order_back_for_one_lease(self) -> None:
        for incarnation in ("one", "two"):
            gone(self.registry, RANK)
            self.registry.register(registration(incarnation))
        stored = list(self.memory.targets.values())
        again = Registry(self.clock, Memory())
        again.restore(stored)
        assert [(target.identity, target.url) for target in again.targets()] == [
            (target.identity, target.url) for target in self.registry.targets()
        ]
        assert again.register(registration("one")) is Registered.SUPERSEDED
        self.clock.advance(15.0)
        assert again.expire() == ()
        self.clock.advance(0.1)
        assert [target.rank for target in again.expire()] == [RANK]
        ours = Registry(self.clock, Memory())
        ours.register(registration("new"))
        ours.restore(stored)  # of what another monitor saved only the unknown
        assert ours.standing(RANK, "new") is Registered.CURRENT

    def test_a_target_of_another_version_in_the_store_is_skipped(self) -> None:
        self.registry.restore([{"url": "http://h:1"}, {"identity": 3}])
        assert self.registry.targets() == ()

    @pytest.mark.parametrize(("asked", "given"), [(0.0, 1.0), (1e9, 3600.0), (15.0, 15.0)])
    def test_a_lease_is_held_between_a_second_and_an_hour(self, asked, given) -> None:
        self.registry.register(registration(lease_s=asked))
        assert self.registry.targets()[0].lease_s == given


def test_hosts_refused_for_their_token_are_a_trouble_for_a_minute_and_no_table_grows() -> None:
    clock = HandClock()
    registry = Registry(clock, Memory())
    assert list(registry.troubles()) == []
    for host in range(2_000):
        registry.refuse(f"10.0.{host // 250}.{host % 250}")
    [trouble] = registry.troubles()
    assert trouble.startswith(
        "ranks that are not shown want to register from 10.0.7.247, 10.0.7.248, 10.0.7.249 and "
        "997 more: their token is wrong or missing"
    )
    assert registry.refused["token"] == 2_000
    clock.advance(61)
    assert list(registry.troubles()) == []


def test_who_brought_a_rank_first_is_kept_over_renewals_and_a_restart() -> None:
    clock, store = HandClock(), Memory()
    registry = Registry(clock, store)
    assert registry.register(registration(), "10.0.0.1") is Registered.CURRENT
    assert registry.register(registration(), "10.9.9.9") is Registered.CURRENT
    assert [target.bringer for target in registry.targets()] == ["10.0.0.1"]
    assert registry.run is not None
    assert registry.run.bringer == "10.0.0.1"
    memory = [json.loads(json.dumps(body)) for body in store.targets.values()]
    again = Registry(clock, Memory())
    again.restore(memory, registry.run)
    assert [target.bringer for target in again.targets()] == ["10.0.0.1"]


class TestLastWords:
    """What a rank sent while it ended, once its pod has taken its WorkerServer along."""

    def parts(self, registry: Registry, *, alive: bool = False) -> None:
        ending = Ending("Raised ValueError: bad data.", "ValueError: bad data")
        process = Process(alive=alive, dead_age_s=None if alive else 0.5)
        last = StateReport(identity(), process, ending=ending)
        registry.register(replace(registration(), last=last))

    def seen(self, registry: Registry) -> Observation:
        away = Unreachable(Failure.REFUSED, "nobody listens")
        asked = Observation(identity(), "http://h:1", away, 0.0)
        ((seen,), _) = registry.current((asked,))
        return seen

    def test_they_are_its_report_when_it_does_not_answer_any_more(self) -> None:
        clock = HandClock()
        registry = Registry(clock, Memory())
        registry.register(registration())
        assert self.seen(registry).report is None
        self.parts(registry)
        clock.advance(2.0)
        report = self.seen(registry).report
        assert report is not None
        assert (report.process.alive, report.process.dead_age_s) == (False, 2.5)
        assert report.ending is not None
        assert report.ending.exception == "ValueError: bad data"

    def test_a_rank_that_answers_is_believed(self) -> None:
        registry = Registry(HandClock(), Memory())
        self.parts(registry)
        alive = StateReport(identity(), Process(alive=True))
        asked = Observation(identity(), "http://h:1", alive, 0.0)
        assert registry.current((asked,))[0] == (asked,)

    def test_nobody_makes_a_silent_rank_look_alive(self) -> None:
        registry = Registry(HandClock(), Memory())
        self.parts(registry, alive=True)
        assert self.seen(registry).report is None
