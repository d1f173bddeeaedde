"""Calls through the gate: passed, refused, held, sent again. h2 on both ends, a virtual clock."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lightkeeper.gate.denylist import Denial, DenialScope
from lightkeeper.gate.proxy import KEPT_MAX, OWED_S
from lightkeeper.gate.upstream import ALIVE_S, FIRST_S, SETTLE_S
from lightkeeper.monitor.model.names import IncidentId, ReplicaId
from tests.gate.wires import Bench, Client, bench, field, grpc, heartbeat, quorum

REPLICA = Denial(DenialScope.REPLICA, "rg_1:a", "hang of rg_1.0 on host-1", None, IncidentId("i-7"))
HOST = Denial(DenialScope.HOST, "Node-7.", "bad memory")
GROUP = Denial(
    DenialScope.GROUP,
    "rg_1",
    "slow",
    admitted=frozenset({ReplicaId("rg_1:good")}),
    refused=frozenset({ReplicaId("rg_1:bad")}),
)


def test_a_heartbeat_and_a_quorum_request_arrive_byte_for_byte() -> None:
    with bench() as gate:
        client = gate.client()
        beat, ask = client.beat("rg_0:x"), client.ask("rg_0:x")
        [carried] = gate.carried
        assert [call[1:] for call in carried.calls()] == [
            ("/torchft.LighthouseService/Heartbeat", heartbeat("rg_0:x")),
            ("/torchft.LighthouseService/Quorum", quorum("rg_0:x")),
        ]
        carried.answer_all()
        assert client.status(beat) == client.status(ask) == ("0", "")


def test_unknown_calls_and_unknown_fields_pass_untouched() -> None:
    odd = quorum("rg_0:x", more=field(99, b"new") + field(100, 7))
    with bench() as gate:
        client = gate.client()
        client.call("/torchft.LighthouseService/Quorum", odd)
        client.call("/torchft.LighthouseService/GetConfig", b"\1whatever")
        [carried] = gate.carried
        assert [body for _, _, body in carried.calls()] == [odd, b"\1whatever"]
        assert gate.core.admission.replicas[ReplicaId("rg_0:x")].step is not None


def test_the_view_shows_what_a_quorum_request_says() -> None:
    with bench() as gate:
        gate.client().ask("rg_0:x", step=12)
        gate.sleep(1.5)
        [seen] = gate.core.view().replicas
        assert seen.step == 12
        assert seen.asking_for_s == pytest.approx(1.5)
        assert seen.heartbeat_age_s is None


def test_a_denied_replica_is_refused_and_told_why_and_the_others_are_not() -> None:
    why = "lightkeeper: rg_1:a is refused: hang of rg_1.0 on host-1 (incident i-7)"
    with bench() as gate:
        gate.core.deny([REPLICA])
        bad, good = gate.client(), gate.client()
        beat, ask, other = bad.beat("rg_1:a"), bad.ask("rg_1:a"), good.ask("rg_1:b")
        assert bad.status(ask) == ("7", why)
        assert bad.status(beat) is None, "late: its manager dials again at once after a failure"
        gate.sleep(1.1)
        assert bad.status(beat) == ("7", why)
        assert [body for _, _, body in gate.carried[0].calls()] == [quorum("rg_1:b")]
        assert good.status(other) is None
        assert gate.core.counts.refused[DenialScope.REPLICA] == 2


def test_a_denied_host_is_known_from_the_quorum_request_on() -> None:
    with bench() as gate:
        gate.core.deny([HOST])
        client = gate.client()
        client.beat("rg_1:a")
        assert len(gate.carried[0].calls()) == 1, "nobody knows yet where it lives"
        assert client.status(client.ask("rg_1:a", host="NODE-7")) == (
            "7",
            "lightkeeper: host node-7 is quarantined: bad memory",
        )
        beat = client.beat("rg_1:a")
        gate.sleep(1.1)
        assert client.status(beat) is not None


def test_an_admitted_incarnation_passes_and_a_refused_one_does_not() -> None:
    with bench() as gate:
        gate.core.deny([GROUP])
        client = gate.client()
        good, bad = client.ask("rg_1:good"), client.ask("rg_1:bad")
        assert client.status(bad) == ("7", "lightkeeper: rg_1 is quarantined: slow")
        assert client.status(good) is None
        assert [body for _, _, body in gate.carried[0].calls()] == [quorum("rg_1:good")]


def test_an_unknown_incarnation_waits_until_it_is_admitted() -> None:
    with bench() as gate:
        gate.core.deny([GROUP])
        client = gate.client()
        ask, beat = client.ask("rg_1:new"), client.beat("rg_1:new")
        gate.sleep(3)
        assert not gate.carried
        assert client.status(beat) == (
            "7",
            "lightkeeper: rg_1 is quarantined and rg_1:new not yet admitted: slow",
        )
        gate.do(
            gate.core.deny,
            [
                Denial(
                    DenialScope.GROUP, "rg_1", "slow", admitted=frozenset({ReplicaId("rg_1:new")})
                )
            ],
        )
        gate.turn()
        assert [body for _, _, body in gate.carried[0].calls()] == [quorum("rg_1:new")]
        gate.carried[0].answer_all()
        assert client.status(ask) == ("0", "")


def test_an_unknown_incarnation_that_is_then_refused_is_told_at_once() -> None:
    with bench() as gate:
        gate.core.deny([GROUP])
        client = gate.client()
        ask = client.ask("rg_1:new")
        gate.do(
            gate.core.deny,
            [Denial(DenialScope.GROUP, "rg_1", "slow", refused=frozenset({ReplicaId("rg_1:new")}))],
        )
        assert client.status(ask) == ("7", "lightkeeper: rg_1 is quarantined: slow")


def test_nobody_says_whether_a_held_one_may_pass_so_it_passes_with_its_heartbeats() -> None:
    with bench() as gate:
        gate.core.deny([GROUP])
        client = gate.client()
        client.ask("rg_1:new")
        gate.sleep(9.5)
        assert not gate.carried
        gate.sleep(0.7)
        assert [body for _, _, body in gate.carried[0].calls()] == [quorum("rg_1:new")]
        client.beat("rg_1:new")
        assert len(gate.carried[0].calls()) == 2
        assert gate.core.counts.waved == 1


def test_a_quorum_request_under_way_is_refused_when_its_replica_is_denied() -> None:
    with bench() as gate:
        client = gate.client()
        ask = client.ask("rg_1:a")
        gate.do(gate.core.deny, [REPLICA])
        assert client.status(ask) is not None
        [carried] = gate.carried
        assert any(type(event).__name__ == "StreamReset" for event in carried.pull())


def test_a_denial_ends_with_its_time() -> None:
    with bench() as gate:
        gate.core.deny([Denial(DenialScope.REPLICA, "rg_1:a", "x", until_s=gate.unix_s + 5)])
        client = gate.client()
        assert client.status(client.ask("rg_1:a")) is not None
        gate.sleep(5.2)
        ask = client.ask("rg_1:a")
        assert client.status(ask) is None
        assert gate.core.view().denied == ()


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(b"\1\0\0\0\2\x0a\x00", id="compressed"),
        pytest.param(grpc(b"\xff\xff\xff"), id="no-protobuf"),
        pytest.param(grpc(field(1, b"\xff\xfe")), id="no-text"),
        pytest.param(grpc(field(2, 7)), id="no-replica-id"),
        pytest.param(grpc(field(1, 7)), id="another-type"),
        pytest.param(grpc(b""), id="empty"),
        pytest.param(b"\0\0", id="cut-short"),
        pytest.param(b"", id="nothing"),
        pytest.param(heartbeat("rg_1:a") * 2, id="two-messages"),
        pytest.param(grpc(b"x" * (KEPT_MAX + 100_000)), id="more-than-is-kept"),
    ],
)
@pytest.mark.parametrize("method", ["Heartbeat", "Quorum"])
def test_what_cannot_be_read_passes_even_where_everybody_is_denied(
    method: str, message: bytes
) -> None:
    with bench() as gate:
        gate.core.deny([REPLICA, HOST, GROUP])
        client = gate.client()
        number = client.h2.get_next_available_stream_id()
        path = f"/torchft.LighthouseService/{method}"
        client.call(path, message[:1], end=False)
        sent = 1
        while sent < len(message) or sent == 1:
            client.pull()
            for carried in gate.carried:
                carried.calls()
                for event in carried.events:
                    if type(event).__name__ == "DataReceived" and not hasattr(event, "done"):
                        event.done = True
                        carried.h2.acknowledge_received_data(
                            event.flow_controlled_length, event.stream_id
                        )
                carried.pull()
            size = min(16_384, client.h2.local_flow_control_window(number), len(message) - sent)
            client.h2.send_data(number, message[sent : sent + size])
            sent += size
            client.push()
            if len(message) <= 1:
                break
        client.h2.end_stream(number)
        client.push()
        [carried] = gate.carried
        assert [body for _, _, body in carried.calls()] == [message]
        assert gate.core.counts.unread == 1


@pytest.mark.parametrize("away_s", [0, 1, 7])
def test_a_lighthouse_that_comes_back_is_asked_the_very_same_again(away_s: float) -> None:
    with bench() as gate:
        clients = [gate.client() for _ in range(3)]
        for number, client in enumerate(clients):
            client.beat(f"rg_{number}:x")
        for carried in gate.carried:
            carried.answer_all()
        asks = [client.ask(f"rg_{number}:x") for number, client in enumerate(clients)]
        gate.away()
        gate.sleep(away_s)
        beats = [client.beat(f"rg_{number}:x") for number, client in enumerate(clients)]
        gate.returns()
        back = gate.carried[3:]
        assert [[path[-9:] for _, path, _ in c.calls()] for c in back] == [["Heartbeat"]] * 3, (
            "heartbeats first: else the first to ask would be a quorum of one"
        )
        for carried in back:
            carried.answer_all()
        asked = {body for c in back for _, path, body in c.calls() if path.endswith("Quorum")}
        assert asked == {quorum(f"rg_{number}:x") for number in range(3)}
        for carried in back:
            carried.answer_all()
        assert [c.status(n) for c, n in zip(clients, asks, strict=True)] == [("0", "")] * 3
        assert [c.status(n) for c, n in zip(clients, beats, strict=True)] == [("0", "")] * 3
        assert gate.core.counts.resent == 3


def test_a_group_that_died_meanwhile_is_waited_for_two_seconds() -> None:
    with bench() as gate:
        alive, dead = gate.client(), gate.client()
        alive.beat("rg_0:x")
        dead.beat("rg_1:x")
        for carried in gate.carried:
            carried.answer_all()
        alive.ask("rg_0:x")
        gate.away()
        dead.leave()
        alive.beat("rg_0:x")
        gate.returns()
        [back] = gate.carried[2:]
        back.answer_all()
        assert len(back.calls()) == 1
        gate.sleep(2.1)
        assert len(back.calls()) == 2


def test_a_heartbeat_waits_two_seconds_for_the_lighthouse_and_is_then_told() -> None:
    with bench() as gate:
        gate.away()
        client = gate.client()
        beat, ask = client.beat("rg_0:x"), client.ask("rg_0:x", timeout="5S")
        gate.sleep(1.8)
        assert client.status(beat) is None
        gate.sleep(0.4)
        assert client.status(beat) == ("14", "lightkeeper: the Lighthouse at lh:1 is away")
        gate.sleep(2.5)
        assert client.status(ask) is None
        gate.sleep(0.5)
        assert client.status(ask) is not None
        assert client.status(ask)[0] == "4"


def test_an_answer_that_has_begun_is_never_asked_for_again() -> None:
    with bench() as gate:
        client = gate.client()
        ask = client.ask("rg_0:x")
        [carried] = gate.carried
        [(number, _, _)] = carried.calls()
        carried.h2.send_headers(number, [(":status", "200")])
        carried.h2.send_data(number, formed(7, "rg_0:x"))
        carried.pull()
        gate.away()
        gate.returns()
        assert client.body(ask) == formed(7, "rg_0:x")
        assert client.status(ask) == ("0", "")
        assert len(gate.carried) == 1


def test_an_answer_of_which_only_the_headers_came_is_asked_for_again() -> None:
    with bench() as gate:
        client = gate.client()
        ask = client.ask("rg_0:x")
        [carried] = gate.carried
        [(number, _, _)] = carried.calls()
        carried.h2.send_headers(number, [(":status", "200")])
        carried.pull()
        gate.away()
        gate.returns()
        gate.sleep(3)
        gate.carried[-1].answer_all()
        assert client.status(ask) == ("0", "")


def test_other_calls_are_not_sent_twice() -> None:
    with bench() as gate:
        client = gate.client()
        number = client.call("/torchft.LighthouseService/Something", b"once")
        gate.away()
        gate.returns()
        assert client.status(number) == ("14", "lightkeeper: the Lighthouse went away")
        assert len(gate.carried) == 1


def test_a_client_that_leaves_takes_its_calls_with_it() -> None:
    with bench() as gate:
        client = gate.client()
        client.beat("rg_0:x")
        client.ask("rg_0:x", more=field(4, 6))
        client.leave()
        [carried] = gate.carried
        carried.answer(carried.calls()[1][0])
        assert carried.wire.closed
        assert gate.core.view().replicas[0].asking_for_s is None


@pytest.mark.parametrize("cut", [True, False], ids=["cut", "dead"])
def test_the_same_quorum_request_from_a_new_connection_is_not_sent_twice(cut: bool) -> None:
    """A second one, just after a quorum with the first, is left for the next: with an old step."""
    with bench() as gate:
        clients = [gate.client(), gate.client()]
        asks = [clients[0].ask("rg_0:x"), clients[1].ask("rg_1:x")]
        first, there = gate.carried
        first.calls()
        there.calls()
        if cut:
            clients[1].leave()
        again = gate.client()
        ask = again.ask("rg_1:x")
        assert gate.core.view().replicas[1].asking_for_s == 0
        first.answer(asks[0], formed(7, "rg_0:x", "rg_1:x"))
        there.answer(asks[1], formed(7, "rg_0:x", "rg_1:x"))
        gate.sleep(0.1)
        assert (again.status(ask), again.body(ask)) == (("0", ""), clients[0].body(asks[0]))
        assert gate.carried[2].calls() == []
        assert there.wire.closed is cut
        there.die()
        assert len(gate.core.transports) == 3 - cut


def test_a_request_of_a_lost_connection_is_sent_again_where_the_lighthouse_lost_it_too() -> None:
    with bench() as gate:
        client = gate.client()
        client.ask("rg_0:x")
        client.leave()
        again = gate.client()
        ask = again.ask("rg_0:x")
        gate.carried[0].die()
        gate.sleep(0.1)
        gate.carried[1].answer_all()
        assert again.status(ask) == ("0", "")


def test_a_call_that_a_client_cancels_is_cancelled_at_the_lighthouse() -> None:
    with bench() as gate:
        client = gate.client()
        ask = client.ask("rg_0:x")
        client.h2.reset_stream(ask)
        client.push()
        [carried] = gate.carried
        assert any(type(event).__name__ == "StreamReset" for event in carried.pull())


def test_a_gate_that_took_over_from_nobody_lets_heartbeats_go_first() -> None:
    """The Lighthouse may have thought all groups dead: the first that asks would train alone."""
    with bench() as gate:
        gate.core.lighthouse.settle()
        first, other = gate.client(), gate.client()
        first.ask("rg_0:x")
        first.beat("rg_0:x")
        other.beat("rg_1:x")
        for carried in gate.carried:
            carried.answer_all()
        assert len(gate.carried[0].calls()) == 1
        gate.sleep(SETTLE_S + 0.1)
        assert len(gate.carried[0].calls()) == 2


def test_an_attempt_that_failed_is_looked_after_though_others_are_connected() -> None:
    """Else a new group would wait until everybody else has gone."""
    with bench() as gate:
        gate.client().beat("rg_0:x")
        lighthouse = gate.core.lighthouse
        knocked = asyncio.Event()

        async def knock() -> None:
            knocked.set()
            lighthouse._came()

        lighthouse._knock = knock  # type: ignore[method-assign]
        gate.do(lighthouse._failed)
        assert lighthouse.up is False

        async def watch() -> None:
            watching = asyncio.create_task(lighthouse.watch())
            await asyncio.wait_for(knocked.wait(), 10)
            watching.cancel()

        gate.loop.run_until_complete(watch())
        assert lighthouse.up


def formed(number: int, *members: str) -> bytes:
    """The Lighthouse's answer: who is in the quorum of that number."""
    inner = field(1, number) + b"".join(field(2, quorum(name)[7:]) for name in members)
    return grpc(field(1, inner + field(3, field(1, 1_000 + number))))


def test_who_is_in_a_quorum_is_told_so_though_the_lighthouse_dies_over_it() -> None:
    """The other members wait for it in a collective; the next quorum would wait for them."""
    with bench() as gate:
        answered, untold, new = gate.client(), gate.client(), gate.client()
        asks = [answered.ask("rg_0:x"), untold.ask("rg_1:x"), new.ask("rg_2:x")]
        gate.carried[0].calls()
        gate.carried[0].answer(asks[0], formed(7, "rg_0:x", "rg_1:x"))
        gate.away()
        gate.returns()
        for client in (answered, untold, new):
            client.beat("any")
        gate.sleep(3)
        assert untold.status(asks[1]) == ("0", "")
        assert untold.body(asks[1]) == answered.body(asks[0])
        assert gate.core.counts.told_again == 1
        assert new.status(asks[2]) is None, "it is no member: it waits for the next quorum"
        again = untold.ask("rg_1:x")
        gate.sleep(3)
        assert untold.status(again) is None, "the next request is for the next quorum"


def test_the_lighthouses_own_answer_comes_first() -> None:
    with bench() as gate:
        clients = [gate.client(), gate.client()]
        asks = [clients[0].ask("rg_0:x"), clients[1].ask("rg_1:x")]
        for carried in gate.carried:
            carried.calls()
            carried.answer(1, formed(7, "rg_0:x", "rg_1:x"))
        gate.sleep(3)
        bodies = [client.body(ask) for client, ask in zip(clients, asks, strict=True)]
        assert bodies == [formed(7, "rg_0:x", "rg_1:x")] * 2
        assert gate.core.counts.told_again == 0


def test_a_member_that_is_denied_meanwhile_is_not_told() -> None:
    with bench() as gate:
        answered, other = gate.client(), gate.client()
        asks = [answered.ask("rg_0:x"), other.ask("rg_1:x")]
        gate.carried[0].calls()
        gate.carried[0].answer(asks[0], formed(7, "rg_0:x", "rg_1:x"))
        gate.do(gate.core.deny, [Denial(DenialScope.REPLICA, "rg_1:x", "hang")])
        gate.sleep(3)
        status = other.status(asks[1])
        assert status is not None
        assert status[0] == "7"


def lost_over_an_answer(gate: Bench) -> tuple[Client, bytes]:
    """The other member of a quorum of two has its answer, this one's connection is cut."""
    answered, cut = gate.client(), gate.client()
    ask = answered.ask("rg_0:x")
    cut.ask("rg_1:x")
    gate.carried[0].calls()
    cut.leave()
    gate.carried[0].answer(ask, formed(7, "rg_0:x", "rg_1:x"))
    return answered, answered.body(ask)


def test_who_asks_again_gets_the_quorum_that_it_missed() -> None:
    """TorchFT connects anew and asks the same (TORCHFT_QUORUM_RETRIES)."""
    with bench() as gate:
        _, body = lost_over_an_answer(gate)
        again = gate.client()
        ask = again.ask("rg_1:x")
        assert (again.status(ask), again.body(ask)) == (("0", ""), body)
        following = again.ask("rg_1:x")
        assert again.status(following) is None, "it has the answer: this is for the next one"


@pytest.mark.parametrize("change", [{"step": 6}, {"host": "node-2"}], ids=["step", "address"])
def test_who_asks_anything_else_waits_where_it_may_have_its_answer(change: dict[str, Any]) -> None:
    """After a gate that was killed: nothing says whom it had answered."""
    with bench() as gate:
        lost_over_an_answer(gate)
        gate.core.quorum.sure = False
        again = gate.client()
        ask = again.ask("rg_1:x", **change)
        gate.sleep(3)
        assert again.status(ask) is None


def test_a_member_by_a_request_that_it_has_forgotten_gets_the_quorum_all_the_same() -> None:
    """The Lighthouse keeps a request whose connection is lost; the others wait for this member."""
    with bench() as gate:
        _, body = lost_over_an_answer(gate)
        again = gate.client()
        ask = again.ask("rg_1:x", step=6)
        assert (again.status(ask), again.body(ask)) == (("0", ""), body)


def test_after_a_change_one_request_goes_first_and_the_others_get_the_quorum_it_brings() -> None:
    """Sent at once they would be left at the Lighthouse, for a quorum after that."""
    with bench() as gate:
        gate.core.lighthouse.resume()
        first, other = gate.client(), gate.client()
        asks = [first.ask("rg_0:x"), other.ask("rg_1:x")]
        carried, unused = gate.carried
        carried.answer(carried.calls()[0][0], formed(7, "rg_0:x", "rg_1:x"))
        gate.sleep(FIRST_S + 0.1)
        assert other.body(asks[1]) == first.body(asks[0]) == formed(7, "rg_0:x", "rg_1:x")
        assert unused.calls() == []


def test_after_a_change_the_others_follow_the_first_where_it_brings_nothing() -> None:
    with bench() as gate:
        gate.core.lighthouse.resume()
        for name in ("rg_0:x", "rg_1:x", "rg_2:x"):
            gate.client().ask(name)
        assert sum(len(carried.calls()) for carried in gate.carried) == 1
        gate.sleep(FIRST_S + 0.1)
        assert sum(len(carried.calls()) for carried in gate.carried) == 3


@pytest.mark.parametrize("asks", [True, False], ids=["asks", "ends"])
def test_the_others_follow_whose_request_the_lighthouse_may_have_kept_for_the_next(
    asks: bool,
) -> None:
    """Its connection to the Lighthouse was cut as the quorum formed: the repetition came after it.

    The next quorum would form with the repetition, which has an old step, and let it heal.
    """
    with bench() as gate:
        names = [f"rg_{number}:x" for number in range(3)]
        clients = [gate.client() for _ in names]
        for client, name in zip(clients, names, strict=True):
            client.beat(name)
        for carried in gate.carried:
            carried.answer_all()
        first = [client.ask(name) for client, name in zip(clients, names, strict=True)]
        gate.carried[1].die()
        gate.turn()
        assert len(gate.carried[3].calls()) == 1, "the repetition"
        for number in (0, 2):
            gate.carried[number].calls()
            gate.carried[number].answer(first[number], formed(7, *names))
        second = clients[0].ask(names[0], step=6)
        gate.sleep(OWED_S + 0.1)
        assert clients[1].body(first[1]) == clients[0].body(first[0]) == formed(7, *names)
        before = len(gate.carried[0].calls())
        if asks:
            clients[1].ask(names[1], step=6)
            assert len(gate.carried[3].calls()) == 2
            assert len(gate.carried[0].calls()) == before, "it arrives first"
        gate.sleep(FIRST_S + 0.1 if asks else ALIVE_S)
        assert [number for number, _, _ in gate.carried[0].calls()][before:] == [second]


def test_an_answer_is_kept_before_any_member_gets_it() -> None:
    """Who is killed then has answered none that the next gate cannot answer the same."""
    with bench() as gate:
        client, kept = gate.client(), list[bytes]()
        ask = client.ask("rg_0:x")

        def keep(message: bytes) -> None:
            assert client.body(ask) == b""
            kept.append(message)

        gate.core.keep = keep
        gate.carried[0].answer(gate.carried[0].calls()[0][0], formed(7, "rg_0:x"))
        assert kept == [client.body(ask)] == [formed(7, "rg_0:x")]


def test_who_has_its_answer_asks_the_same_for_the_next_quorum() -> None:
    """A loop that skips a batch asks twice for one step."""
    with bench() as gate:
        answered, _ = lost_over_an_answer(gate)
        ask = answered.ask("rg_0:x")
        gate.sleep(3)
        assert answered.status(ask) is None
