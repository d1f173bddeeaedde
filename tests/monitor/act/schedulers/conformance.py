"""What every scheduler's driver owes, tried on a small world of its own."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any

import pytest

from lightkeeper.monitor.act.schedulers.base import NotDone, Outcome, Place, Scheduler, Why
from lightkeeper.monitor.model.names import GroupName, Host, IncidentId, RankName

NODE, OTHER = Host("node1"), Host("node2")
INCIDENT = IncidentId("hang-rg_1.0-1795282163773")
REASON = "rg_1.0 stands still in 'data'; 3 others wait"
WHY = Why(REASON, INCIDENT)
OWNER = "a1b2c3"
RG_1 = GroupName("rg_1")
SOON_S = 5.0
"""Deadline of requests that succeed at once."""
SHORT_S = 0.3
"""Deadline of requests that nobody answers."""


class World(ABC):
    """A scheduler with two nodes, and who looks at it from outside."""

    scheduler: Scheduler
    ends: tuple[Any, Any] = ({}, {})
    """What it says of a place that runs, and of one that was removed; nothing: it is not asked."""

    def __init__(self) -> None:
        self.places: list[Place] = []
        self.registry_broken = False

    def everyone(self) -> list[Place]:
        if self.registry_broken:
            raise RuntimeError("the registry\nis broken")
        return self.places

    @abstractmethod
    def start(self, rank: str, host: str, beside: Place | None = None) -> Place:
        """A rank starts, and is registered; in the same job or pod as another if so said."""

    @abstractmethod
    def renew(self, place: Place) -> Place:
        """What ran there ends, and something of the same name starts."""

    @abstractmethod
    def runs(self, place: Place) -> bool: ...

    @abstractmethod
    def admits(self, host: str) -> bool:
        """Whether something new would start there."""

    @abstractmethod
    def admin_keeps_out(self, host: str) -> None: ...

    @abstractmethod
    def admin_lets_in(self, host: str) -> None: ...

    @abstractmethod
    def by_admin(self, host: str) -> bool:
        """Whether the administrator's word stands there, unchanged."""

    def testifies(self, host: str) -> list[tuple[str, str, str]]:
        """What stands of a host that the administrator keeps out: host, weight, code."""
        return []

    @abstractmethod
    def other_owner(self) -> Scheduler:
        """The same scheduler, asked by another monitor."""

    @abstractmethod
    def break_off(self) -> None:
        """From now on every request fails at once."""

    @abstractmethod
    def hang(self) -> None:
        """From now on nothing is answered."""


def is_one_line(outcome: Outcome) -> bool:
    return bool(outcome.detail) and outcome.detail.isprintable() and len(outcome.detail) < 800


class Conformance:
    """Inherit it, and bring a fixture `world`."""

    def cordon(self, world: World, host: str = NODE, reason: str = REASON) -> Outcome:
        outcome = world.scheduler.cordon(Host(host), Why(reason, INCIDENT), SOON_S)
        assert is_one_line(outcome)
        return outcome

    def uncordon(self, world: World, host: str = NODE) -> Outcome:
        outcome = world.scheduler.uncordon(Host(host), "released", SOON_S)
        assert is_one_line(outcome)
        return outcome

    def remove(self, world: World, *places: Place, group: GroupName = RG_1) -> Outcome:
        outcome = world.scheduler.remove(group, places, WHY, SOON_S)
        assert is_one_line(outcome)
        return outcome

    # -- hosts ---------------------------------------------------------------------------------

    def test_nothing_new_starts_on_a_cordoned_host_and_what_runs_there_goes_on(self, world):
        place = world.start("rg_1.0", NODE)
        outcome = self.cordon(world)
        assert outcome.done
        assert outcome.ours
        assert NODE in outcome.detail
        assert not world.admits(NODE)
        assert world.admits(OTHER)
        assert world.runs(place)

    def test_each_may_be_asked_twice_and_a_host_never_cordoned_stays_as_it_is(self, world):
        assert self.uncordon(world).done
        assert world.admits(NODE)
        for _ in range(2):
            again = self.cordon(world)
            assert again.done
            assert again.ours
            assert not world.admits(NODE)
        for _ in range(2):
            assert self.uncordon(world).done
            assert world.admits(NODE)

    def test_what_an_administrator_keeps_out_is_left_to_him(self, world):
        world.admin_keeps_out(NODE)
        outcome = self.cordon(world)
        assert outcome.done
        assert world.by_admin(NODE)
        assert self.uncordon(world).done
        assert world.by_admin(NODE)
        assert not world.admits(NODE)

    def test_what_an_administrator_does_after_us_is_not_undone_by_the_release(self, world):
        self.cordon(world)
        world.admin_lets_in(NODE)
        assert self.uncordon(world).done
        assert world.admits(NODE)
        world.admin_keeps_out(NODE)
        assert self.uncordon(world).done
        assert world.by_admin(NODE)

    @pytest.mark.parametrize(
        "host",
        ["nowhere", "ALL", "all", "node1,node2", "node[1-2]", "../node1", "", "-w", "node1 node2",
         "node1\nnode2", "*", "pod:rg-1-worker-0", "x" * 400],
    )  # fmt: skip
    def test_a_host_that_is_not_exactly_one_known_node_is_refused(self, world, host):
        outcome = self.cordon(world, host)
        assert not outcome.done
        assert world.admits(NODE)
        assert world.admits(OTHER)
        assert not self.uncordon(world, host).done

    @pytest.mark.parametrize(
        "reason",
        ["it's \"quoted\" `id` $(reboot) \\ ; | & > /tmp/x", "two\nlines\x00\x1b[31m", "x" * 5000,
         "Grüße", "", "State=RESUME Reason=mine"],
        ids=["shell", "control", "long", "accents", "empty", "options"],
    )  # fmt: skip
    def test_no_reason_does_harm(self, world, reason):
        assert self.cordon(world, NODE, reason).done
        assert not world.admits(NODE)
        assert world.admits(OTHER)
        assert self.uncordon(world).done
        assert world.admits(NODE)

    def test_what_is_ours_can_be_read_back(self, world):
        world.admin_keeps_out(OTHER)
        assert list(world.scheduler.cordoned(SOON_S)) == []
        self.cordon(world)
        assert list(world.scheduler.cordoned(SOON_S)) == [NODE]
        self.uncordon(world)
        assert list(world.scheduler.cordoned(SOON_S)) == []

    def test_the_cordon_of_another_monitor_is_not_ours(self, world):
        other = world.other_owner()
        assert other.cordon(NODE, WHY, SOON_S).done
        assert list(world.scheduler.cordoned(SOON_S)) == []
        assert self.uncordon(world).done
        assert not world.admits(NODE)
        assert other.uncordon(NODE, "released", SOON_S).done
        assert world.admits(NODE)

    # -- what it says of hosts -----------------------------------------------------------------

    def said(self, world: World) -> list[tuple[str, str, str]]:
        said = world.scheduler.testimonies({NODE, OTHER, Host("pod:x"), Host("../x")}, SOON_S)
        return sorted({(names[0], str(each.weight), each.code) for names, each in said})

    def test_only_what_others_keep_out_testifies(self, world):
        assert self.said(world) == []
        self.cordon(world)
        assert self.said(world) == []
        world.other_owner().cordon(OTHER, WHY, SOON_S)
        assert self.said(world) == []
        for host in (NODE, OTHER):
            world.scheduler.uncordon(host, "released", SOON_S)
            world.other_owner().uncordon(host, "released", SOON_S)
        world.admin_keeps_out(OTHER)
        assert self.said(world) == world.testifies(OTHER)

    @pytest.mark.parametrize("how", ["break_off", "hang"])
    def test_who_does_not_answer_is_not_waited_for(self, world, how):
        getattr(world, how)()
        began = time.monotonic()
        if world.testifies(OTHER):
            with pytest.raises(NotDone):
                list(world.scheduler.testimonies({NODE, OTHER}, SHORT_S))
        assert time.monotonic() - began < SHORT_S + 2.0

    def ends(self, world, *places, timeout_s=SOON_S):
        said = world.scheduler.ends(places, timeout_s)
        return {place.rank: (str(each.weight), each.code) for place, each in said}

    def test_what_runs_is_told_to_run_and_what_was_ended_is_told_to_be_gone(self, world):
        mine, other = world.start("rg_1.0", NODE), world.start("rg_0.0", OTHER)
        untold = place_of("rg_2.0", NODE, {})
        runs, gone = world.ends
        assert self.ends(world, mine, other, untold) == (runs and {"rg_1.0": runs, "rg_0.0": runs})
        self.remove(world, mine)
        assert self.ends(world, mine, other) == (runs and {"rg_1.0": gone, "rg_0.0": runs})

    @pytest.mark.parametrize("how", ["break_off", "hang"])
    def test_who_cannot_be_asked_says_nothing_of_an_end_and_is_told_so(self, world, how):
        mine = world.start("rg_1.0", NODE)
        assert world.scheduler.tried(SOON_S).done
        getattr(world, how)()
        began = time.monotonic()
        if world.ends[0]:
            with pytest.raises(NotDone):
                self.ends(world, mine, timeout_s=SHORT_S)
            outcome = world.scheduler.tried(SHORT_S)
            assert not outcome.done
            assert outcome.detail.startswith("it cannot be asked: ")
        assert time.monotonic() - began < 2 * SHORT_S + 2.0

    # -- groups --------------------------------------------------------------------------------

    def test_a_group_is_removed_wherever_it_runs_and_no_other(self, world):
        mine = [world.start("rg_1.0", NODE), world.start("rg_1.1", OTHER)]
        others = [world.start("rg_0.0", NODE), world.start("rg_2.0", OTHER)]
        outcome = self.remove(world, *mine)
        assert outcome.done
        assert not any(world.runs(place) for place in mine)
        assert all(world.runs(place) for place in others)

    def test_ranks_of_one_group_may_share_a_place(self, world):
        first = world.start("rg_1.0", NODE)
        second = world.start("rg_1.1", NODE, beside=first)
        other = world.start("rg_0.0", NODE)
        for _ in range(2):  # one that is gone is removed
            assert self.remove(world, first, second).done
            assert not world.runs(first)
        assert world.runs(other)

    def test_a_place_that_carries_another_group_too_is_left_alone_and_says_why(self, world):
        mine = world.start("rg_1.0", NODE)
        alone = world.start("rg_1.1", OTHER)
        world.start("rg_0.0", NODE, beside=mine)
        outcome = self.remove(world, mine, alone)
        assert not outcome.done
        assert "rg_0.0" in outcome.detail
        assert world.runs(mine)
        assert world.runs(alone)

    def test_a_group_that_does_not_tell_its_place_is_left_alone(self, world):
        place = world.start("rg_1.0", NODE)
        outcome = self.remove(world, Place(place.rank, place.host))
        assert not outcome.done
        assert world.runs(place)
        assert not self.remove(world).done

    def test_what_has_started_since_under_the_same_name_is_never_hit(self, world):
        old = world.start("rg_1.0", NODE)
        new = world.renew(old)
        assert self.remove(world, old).done
        assert world.runs(new)

    def test_nothing_is_hit_when_it_cannot_be_told_who_else_is_there(self, world):
        place = world.start("rg_1.0", NODE)
        world.registry_broken = True
        outcome = self.remove(world, place)
        assert not outcome.done
        assert world.runs(place)

    # -- trouble -------------------------------------------------------------------------------

    @pytest.mark.parametrize("how", ["break_off", "hang"])
    def test_trouble_makes_an_outcome_and_costs_the_deadline_and_no_more(self, world, how):
        place = world.start("rg_1.0", NODE)
        getattr(world, how)()
        began = time.monotonic()
        scheduler = world.scheduler
        outcomes = (
            scheduler.cordon(NODE, WHY, SHORT_S),
            scheduler.uncordon(NODE, "released", SHORT_S),
            scheduler.remove(RG_1, [place], WHY, SHORT_S),
        )
        assert scheduler.cordoned(SHORT_S) is None
        assert any(not check.ok for check in scheduler.checks(SHORT_S))
        assert not any(outcome.done for outcome in outcomes)
        assert all(is_one_line(outcome) for outcome in outcomes)
        assert time.monotonic() - began < 5 * (SHORT_S + 2.0)

    def test_checks_change_nothing_and_all_pass_where_all_is_well(self, world):
        checks = world.scheduler.checks(SOON_S)
        assert checks
        assert [check for check in checks if not check.ok] == []
        assert all(check.what and check.said.isprintable() for check in checks)
        assert world.admits(NODE)
        assert world.admits(OTHER)


def place_of(rank: str, host: str, labels: dict[str, str]) -> Place:
    return Place(RankName(rank), Host(host), labels)
