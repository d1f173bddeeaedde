"""How far an eviction came, told by two threads."""

from __future__ import annotations

from monitor.evictors.cases import Cases
from monitor.evictors.order import Order
from monitor.names import GroupName, IncidentId, ReplicaId
from monitor.policy import Evict
from monitor.snapshot import EvictionProgress
from tests.monitor.shell.doubles import HandClock


def order() -> Order:
    evict = Evict(IncidentId("i"), GroupName("rg_0"), ReplicaId("rg_0:uuid"), (), "hangs")
    return Order(evict, (), asked_s=HandClock().now_s())


def test_a_group_that_two_looks_see_leave_has_left_once_and_at_the_first() -> None:
    recorded: list[EvictionProgress] = []
    cases = Cases(HandClock(), recorded.append)
    case = cases.open(order())
    assert case is not None
    cases.update(case, left_quorum_s=5.0, how="it is in no quorum")
    cases.update(case, left_quorum_s=5.2, how="it is in no quorum")
    cases.update(case, gone_s=6.0, how="its processes are gone")
    (told,) = cases.progress()
    assert (told.left_quorum_s, told.confirmed) == (
        5.0,
        "it is in no quorum; its processes are gone",
    )
    assert recorded[-1] == told


def test_an_order_for_a_group_whose_eviction_is_under_way_is_refused_until_that_has_ended() -> None:
    cases = Cases(HandClock(), lambda _: None)
    case = cases.open(order())
    assert case is not None
    assert cases.open(order()) is None
    cases.end(case)
    assert [one.group for one in cases.take_ended()] == ["rg_0"]
    assert cases.open(order()) is not None
