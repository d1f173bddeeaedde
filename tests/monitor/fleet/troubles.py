"""Faults of a group, of its numbers, and of what lies between the ranks and the monitor."""

from __future__ import annotations

from collections.abc import Iterable

from lightkeeper.monitor.model.names import RankName
from lightkeeper.monitor.model.observation import Failure
from tests.monitor.fleet.faults import sets
from tests.monitor.fleet.fleet import SimFleet
from tests.monitor.fleet.script import Fault


def jam(group: str, for_s: float = 1e9) -> Fault:
    """The group's collectives are entered by all and let nobody out: a link, a GPU."""
    return lambda fleet: fleet.jammed_until_s.update({group: fleet.now_s + for_s})


def slow_link(group: str, for_s: float) -> Fault:
    """Each collective of the group takes so many seconds once all are in it."""
    return lambda fleet: fleet.link_s.update({group: for_s})


def slow_network(for_s: float) -> Fault:
    """Each transfer across groups takes so many seconds once all are in it."""
    return lambda fleet: vars(fleet).update(network_s=for_s)


def jam_across(for_s: float = 1e9) -> Fault:
    """The transfer across groups is entered by all and lets nobody out."""
    return lambda fleet: vars(fleet).update(no_quorum_until_s=fleet.now_s + for_s)


def second_life(group: str) -> Fault:
    """Its launcher dies and leaves its ranks behind; the group is started again beside them."""

    def do(fleet: SimFleet) -> None:
        fleet.ghosts[fleet.groups[group][0].replica_id] = False
        fleet.restart(group)

    return do


def ghosts_hang(fleet: SimFleet) -> None:
    """Whoever is not seen does not come to the next quorum."""
    fleet.ghosts = dict.fromkeys(fleet.ghosts, True)


def restart(group: str, start_s: float = 6.0) -> Fault:
    """The launcher kills what is left of the group and starts it again."""
    return lambda fleet: fleet.restart(group, start_s)


def silent(rank: str, for_s: float, failure: Failure = Failure.TIMEOUT) -> Fault:
    """The rank's WorkerServer answers nothing for a while; the rank itself is well."""
    return lambda fleet: fleet.silent_until.update({RankName(rank): (fleet.now_s + for_s, failure)})


def unregister(group: str) -> Fault:
    return lambda fleet: vars(fleet).update(
        groups={name: ranks for name, ranks in fleet.groups.items() if name != group}
    )


def lighthouse_away(for_s: float) -> Fault:
    return lambda fleet: vars(fleet).update(lighthouse_away_until_s=fleet.now_s + for_s)


def fail_commits(
    groups: Iterable[str], for_s: float = 1e9, errored: Iterable[str] | None = None
) -> Fault:
    """Every second commit of these groups fails while others commit; all of them, if nobody does.

    A group that fails while another commits is behind, and heals with its next attempt.
    """
    named = tuple(groups)

    def do(fleet: SimFleet) -> None:
        fleet.failing = dict.fromkeys(named, fleet.now_s + for_s)
        fleet.erring = set(named if errored is None else errored)

    return do


def shut_out(group: str, for_s: float = 1e9) -> Fault:
    """The group beats, and its quorum requests lead nowhere."""

    def do(fleet: SimFleet) -> None:
        fleet.outside[group] = fleet.now_s + for_s
        fleet._leave(group)

    return do


def lighthouse_down(for_s: float) -> Fault:
    """The Lighthouse itself is gone: the monitor cannot see it, and no quorum forms."""

    def do(fleet: SimFleet) -> None:
        fleet.lighthouse_away_until_s = fleet.no_quorum_until_s = fleet.now_s + for_s

    return do


def lighthouse_restart(for_s: float, quorum_timeout_s: float = 60.0) -> Fault:
    """The Lighthouse is killed and comes back: what was asked of it is lost, and nobody asks again
    before the quorum timeout has passed."""
    return lambda fleet: vars(fleet).update(
        lighthouse_away_until_s=fleet.now_s + for_s,
        no_quorum_until_s=fleet.now_s + quorum_timeout_s,
        quorum_id=0,
    )


def late(by_s: float, ticks: int = 1) -> Fault:
    """The monitor's next ticks come late: the world goes on meanwhile."""
    return lambda fleet: vars(fleet).update(late_ticks=[by_s] * ticks)


def nan(rank: str, attempts: int = 10**9) -> Fault:
    """The rank's gradient is NaN, for so many attempts."""
    return sets(rank, nan_attempts=attempts)


def flip(rank: str, flaw: int | None = None) -> Fault:
    """A bit of the rank's weights flips; equal flaws are equal bits."""

    def do(fleet: SimFleet) -> None:
        fleet.flaws += 1
        fleet.rank(rank).flaw = fleet.flaws if flaw is None else flaw

    return do


def heal(group: str, source: str) -> Fault:
    """The group missed a step and took the weights of another."""
    return lambda fleet: fleet.heal(group, source)


def loss(ranks: Iterable[str], factor: float) -> Fault:
    """What the ranks report as their loss is so many times as high from now on."""
    named = tuple(ranks)

    def do(fleet: SimFleet) -> None:
        for rank in named:
            fleet.rank(rank).loss_factor = factor

    return do
