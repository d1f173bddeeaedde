"""What a cluster says of hosts: whose it is, since when, for how long it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from lightkeeper.monitor.act.cluster import TIMEOUT_S, Cluster, ClusterSource, HostNames
from lightkeeper.monitor.act.schedulers.base import NotDone
from lightkeeper.monitor.act.testimonies import UNKNOWN_S, Said
from lightkeeper.worker_server import wire
from lightkeeper.worker_server.wire import Weight
from tests.monitor.fakes import identity, wait_until

FAULTY = wire.Testimony("Kubernetes", Weight.BROKEN, "xid", "GPU 3: Xid 79", device="GPU 3")


def dated(for_s: float, weight: Weight = Weight.BROKEN, code: str = "xid") -> wire.Testimony:
    return wire.Testimony("Kubernetes", weight, code, "words", for_s=for_s)


def target(host: str, **place: str):
    return SimpleNamespace(identity=SimpleNamespace(host=host, place=place))


@dataclass
class Script:
    """A source that says what it is told to."""

    says: list[Said] = field(default_factory=list)
    fails: str = ""
    name: str = "Kubernetes"
    every_s: float = 15.0
    looks: int = 0
    takes_s: float = 0.0
    time: World | None = None

    def testimonies(self, hosts, timeout_s):
        assert timeout_s == TIMEOUT_S
        self.looks += 1
        if self.time is not None:
            self.time.clock_s += self.takes_s
        yield from self.says
        if self.fails:
            raise NotDone(self.fails)


@dataclass
class World:
    """A registry and a clock."""

    hosts: Sequence[object] = (target("node1"), target("node2"))
    clock_s: float = 10_000.0
    began_s: float = 9_000.0

    def targets(self):
        return tuple(self.hosts)

    def run_age_s(self):
        return self.clock_s - self.began_s

    def now_s(self):
        return self.clock_s


@pytest.fixture
def world():
    return World()


def source(script: Script, world: World) -> ClusterSource:
    script.time = world
    return ClusterSource(script, world, world)


def look(looker: ClusterSource, world: World, after_s: float = 15.0):
    world.clock_s += after_s
    looker.look()
    return current(looker, world)


def current(looker: ClusterSource, world: World):
    return [(host, said.weight, said.code, said.for_s, said.age_s)
            for host, said in looker.current(world.clock_s)]  # fmt: skip


# -- names -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hosts", "name", "expected"),
    [
        (["node1"], "node1", "node1"),
        (["node1"], "NODE1", "node1"),
        (["node1"], "node1.a.example", "node1"),
        (["node1.a.example"], "node1", "node1.a.example"),
        (["node1.a.example"], "node1.b.example", None),
        (["node1.a", "node1.b"], "node1", None),
        (["node1.a", "node1.b"], "node1.b", "node1.b"),
        (["node1.a", "node1"], "node1", "node1"),
        (["10.0.0.1"], "10.0.0.1", "10.0.0.1"),
        (["10.0.0.1"], "10.0.0.2", None),
        (["10.0.0.1"], "10", None),
        (["node1"], "node11", None),
        (["node1"], "", None),
        ([], "node1", None),
    ],
)
def test_a_host_has_a_full_and_a_short_name(hosts, name, expected):
    assert HostNames(map(target, hosts)).find(name) == expected


def test_a_rank_that_tells_its_node_is_found_by_that():
    names = HostNames([target("pod:train-0", node="gpu-7"), target("h1", slurm_node="n1")])
    assert names.find("gpu-7") == "pod:train-0"
    assert names.find("n1") == "h1"
    assert names.hosts == {"pod:train-0", "h1"}


# -- since when --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "weight", "for_s"),
    [
        (dated(100.0), Weight.BROKEN, 100.0),
        (dated(5_000.0), Weight.CONTEXT, 5_000.0),
        (dated(5_000.0, Weight.LEAVING), Weight.LEAVING, 5_000.0),
        (dated(1e300), Weight.CONTEXT, 1e9),
        (dated(0.0), Weight.BROKEN, 0.0),
        (dated(UNKNOWN_S), Weight.CONTEXT, 1016.0),
        (dated(UNKNOWN_S, Weight.LEAVING), Weight.LEAVING, 1016.0),
    ],
)
def test_what_was_so_before_the_run_is_context_unless_the_host_leaves(world, said, weight, for_s):
    looker = source(Script([(("node1",), said)]), world)
    assert look(looker, world) == [("node1", weight, "xid", for_s, 0.0)]


def test_what_has_no_date_is_dated_by_the_first_look_that_saw_it(world):
    script = Script()
    looker = source(script, world)
    assert look(looker, world) == []
    script.says = [(("node1",), dated(UNKNOWN_S))]
    assert look(looker, world) == [("node1", Weight.BROKEN, "xid", 0.0, 0.0)]
    assert look(looker, world) == [("node1", Weight.BROKEN, "xid", 15.0, 0.0)]
    world.hosts = (*world.hosts, target("node3"))  # its annotation may be as old as the hills
    script.says.append((("node3",), dated(UNKNOWN_S)))
    assert look(looker, world)[1] == ("node3", Weight.CONTEXT, "xid", 1061.0, 0.0)


def test_the_next_run_does_not_inherit_what_is_still_said(world):
    looker = source(Script([(("node1",), dated(0.0))]), world)
    assert look(looker, world)[0][1] is Weight.BROKEN
    world.began_s = world.clock_s + 5.0
    assert look(looker, world)[0][1] is Weight.CONTEXT


# -- looks -------------------------------------------------------------------------------------


def test_only_hosts_of_the_fleet_and_the_first_name_that_is_one(world):
    script = Script([(("0", "node2:9100", "node2", "node1"), FAULTY), (("elsewhere",), FAULTY)])
    assert look(source(script, world), world) == [("node2", Weight.BROKEN, "xid", 0.0, 0.0)]


def test_the_first_of_a_code_and_device_counts(world):
    again = dated(0.0, Weight.CONTEXT)
    says = [(("node1",), dated(0.0)), (("node1",), again), (("node2",), again)]
    assert [row[:2] for row in look(source(Script(says), world), world)] == [
        ("node1", Weight.BROKEN),
        ("node2", Weight.CONTEXT),
    ]


def test_ages_advance_and_after_three_looks_nothing_is_left(world):
    looker = source(Script([(("node1",), dated(10.0))]), world)
    look(looker, world)
    world.clock_s += 45.0
    assert current(looker, world) == [("node1", Weight.BROKEN, "xid", 55.0, 45.0)]
    world.clock_s += 0.1
    assert current(looker, world) == []


def test_what_is_no_longer_said_is_gone_but_a_failed_look_proves_nothing(world):
    script = Script([(("node1",), dated(0.0)), (("node2",), dated(0.0))])
    looker = source(script, world)
    assert len(look(looker, world)) == 2
    script.says, script.fails = [(("node2",), dated(0.0))], "not within 20 s"
    assert look(looker, world) == [
        ("node1", Weight.BROKEN, "xid", 15.0, 15.0),
        ("node2", Weight.BROKEN, "xid", 15.0, 0.0),
    ]
    script.fails = ""
    assert [row[0] for row in look(looker, world)] == ["node2"]


def test_a_source_that_always_fails_and_always_says_something_else_fills_nothing(world):
    script = Script(fails="away")
    looker = source(script, world)
    for n in range(50):
        script.says = [(("node1",), dated(0.0, code=f"code-{n}"))]
        look(looker, world)
    assert len(looker._said) == 4


def test_a_first_look_that_failed_has_seen_nobody(world):
    script = Script(fails="away")
    looker = source(script, world)
    look(looker, world)
    script.says, script.fails = [(("node1",), dated(UNKNOWN_S))], ""
    assert look(looker, world)[0][1] is Weight.CONTEXT


def test_a_second_failure_in_a_row_is_told(world):
    script = Script(fails="the API server answers 403: nodes is\nforbidden")
    looker = source(script, world)
    look(looker, world)
    assert list(looker.troubles()) == []
    look(looker, world)
    (trouble,) = looker.troubles()
    assert trouble.removeprefix("Kubernetes cannot be read for what it says of hosts: ") == (
        "the API server answers 403: nodes is forbidden"
    )
    script.fails = ""
    look(looker, world)
    assert list(looker.troubles()) == []


def test_a_slow_source_is_looked_at_a_tenth_of_the_time_and_holds_longer(world):
    script = Script([(("node1",), dated(0.0))], takes_s=18.0)
    looker = source(script, world)
    assert looker.look() == 180.0
    world.clock_s += 500.0
    assert len(current(looker, world)) == 1


def test_without_hosts_nobody_is_asked(world):
    script = Script(fails="away")
    world.hosts = ()
    looker = source(script, world)
    look(looker, world)
    look(looker, world)
    assert script.looks == 0
    assert list(looker.troubles()) == []


def test_a_flood_is_bounded_and_costs_no_other_host(world):
    flood = [(("node1",), dated(0.0, code=f"code-{n}")) for n in range(10_000)]
    looker = source(Script([*flood, (("node2",), dated(0.0))]), world)
    rows = look(looker, world)
    assert len([row for row in rows if row[0] == "node1"]) == 64
    assert rows[-1][0] == "node2"
    assert len(looker._said) == 65


# -- all sources -------------------------------------------------------------------------------


def test_eight_a_host_the_weightiest_first_from_all_sources(world):
    slow = [(("node1",), dated(20.0 - n, Weight.SLOW, f"slow-{n}")) for n in range(9)]
    leaving = Script([(("node1",), dated(50.0, Weight.LEAVING, "drained"))], name="Slurm")
    broken = Script([(("node1.a",), dated(1.0)), (("node2",), FAULTY)], name="Prometheus")
    cluster = Cluster([Script(slow), leaving, broken], world, world)
    try:
        wait_until(lambda: len(cluster.current(world.clock_s)) == 2)
        wait_until(lambda: len(cluster.current(world.clock_s)["node1"]) == 8)
        wait_until(lambda: all(each._looked for each in cluster._sources))
        assert [said.code for said in cluster.current(world.clock_s)["node1"]] == [
            "xid", "drained", "slow-8", "slow-7", "slow-6", "slow-5", "slow-4", "slow-3",
        ]  # fmt: skip
    finally:
        cluster.close()
    assert list(cluster.troubles()) == []


def test_a_source_that_crashes_is_told_and_the_others_go_on(world, caplog):
    class Broken(Script):
        def testimonies(self, hosts, timeout_s):
            raise ZeroDivisionError("oh")

    cluster = Cluster([Broken(), Script([(("node1",), FAULTY)])], world, world)
    try:
        wait_until(lambda: list(cluster.troubles()))
        wait_until(lambda: cluster.current(world.clock_s))
        assert list(cluster.troubles()) == [
            "Kubernetes cannot be read for what it says of hosts: crashed: ZeroDivisionError: oh"
        ]
    finally:
        cluster.close()


def test_identities_are_what_names_are_made_of():
    assert HostNames([SimpleNamespace(identity=identity(host="node0"))]).hosts == {"node0"}
