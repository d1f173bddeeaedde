"""One gate follows another: what is handed over, when clients are sent away, who leaves when."""

from __future__ import annotations

import json
import socket

import h2.events
import pytest

from lightkeeper.gate import overlap as overlap_module
from lightkeeper.gate.denylist import Denial, DenialScope, wire_json
from lightkeeper.gate.listener import GateOptions
from lightkeeper.gate.overlap import (
    LEAVE_S,
    LONGEST_S,
    LOST_S,
    Handover,
    Overlap,
    Predecessor,
    PredecessorError,
    Successor,
    go_on,
)
from lightkeeper.gate.proxy import QUIET_S
from lightkeeper.monitor.model.plain import from_plain
from tests.gate.test_calls import formed
from tests.gate.wires import Bench, Client, bench, quorum

DENIAL = Denial(DenialScope.REPLICA, "rg_9:x", "hang")
EVERYWHERE = "0.0.0.0"
NEXT_POD = Successor("10.0.0.8", (EVERYWHERE, 29511), (EVERYWHERE, 8471), same_host=False)
SAME_PORT = Successor("127.0.0.1", (EVERYWHERE, 29511), ("127.0.0.1", 8471), same_host=True)


def overlap(gate: Bench, *, grace_s: float = 60.0) -> tuple[Overlap, list[str]]:
    stopped: list[str] = []
    options = GateOptions(
        ("lh", 1), (EVERYWHERE, 29511), ("127.0.0.1", 8471), ("127.0.0.1", 8471), grace_s=grace_s
    )
    made = Overlap(gate.core, options, lambda: stopped.append("listening"))
    return made, stopped


def cut_by_us(gate: Bench) -> None:
    """The loop tells of the connections to the Lighthouse that the gate closed."""
    for carried in [carried for carried in gate.carried if carried.wire.closed]:
        gate.carried.remove(carried)
        carried.die()


def follow(gate: Bench, to: Successor = NEXT_POD) -> tuple[Overlap, Handover]:
    made, _ = overlap(gate)
    state: list[Handover] = []
    gate.do(lambda: state.append(made.hand_over(to)))
    cut_by_us(gate)
    return made, from_plain(Handover, json.loads(json.dumps(wire_json(state[0]))))


def sent_away(client: Client) -> bool:
    return any(isinstance(event, h2.events.ConnectionTerminated) for event in client.pull())


# -- taking over -------------------------------------------------------------------------------


def test_the_next_gate_knows_the_list_the_numbers_and_who_has_no_answer_yet() -> None:
    with bench() as old, bench() as new:
        old.do(old.core.deny, [DENIAL])
        clients = [old.client(), old.client()]
        ask = clients[0].ask("rg_0:x")
        clients[1].ask("rg_1:x")
        old.carried[0].calls()
        old.carried[0].answer(ask, formed(7, "rg_0:x", "rg_1:x"))
        _, state = follow(old)
        new.do(go_on, new.core, state)
        assert new.core.denylist.denials == (DENIAL,)
        assert new.core.quorum_ids.highest == 7
        answered, owed = new.client(), new.client()
        again = answered.ask("rg_0:x")
        missed = owed.ask("rg_1:x")
        assert owed.body(missed) == formed(7, "rg_0:x", "rg_1:x")
        assert answered.status(again) is None, "it has the answer"


def test_what_is_open_at_the_old_one_is_asked_at_the_new_one_and_judged_there() -> None:
    with bench() as old:
        old.do(old.core.deny, [DENIAL])
        client = old.client()
        ask = client.ask("rg_0:x")
        follow(old)
        [carried] = old.carried
        assert (old.core.lighthouse.host, old.core.lighthouse.port) == ("10.0.0.8", 29511)
        assert [body for _, _, body in carried.calls()] == [quorum("rg_0:x")]
        carried.answer_all()
        assert client.status(ask) == ("0", "")
        refused = client.ask("rg_9:x")
        assert carried.calls()[-1][2] == quorum("rg_9:x"), "the new one judges"
        assert client.status(refused) is None


def test_a_request_that_the_old_one_held_is_held_by_the_new_one() -> None:
    with bench() as old:
        old.do(old.core.deny, [Denial(DenialScope.GROUP, "rg_1", "slow")])
        old.client().ask("rg_1:x")
        assert old.carried == []
        follow(old)
        assert [body for _, _, body in old.carried[0].calls()] == [quorum("rg_1:x")]


def test_both_tell_one_number_though_the_lighthouse_restarts_while_they_overlap() -> None:
    with bench() as old, bench() as new:
        first = old.client()
        ask = first.ask("rg_0:x")
        old.carried[0].answer(old.carried[0].calls()[0][0], formed(7, "rg_0:x"))
        _, state = follow(old)
        new.do(go_on, new.core, state)
        at_new, ask = new.client(), first.ask("rg_0:x", step=6)
        there = at_new.ask("rg_0:x", step=6)  # as the old one passes it on
        restarted = formed(1, "rg_2:x").replace(b"\x08\xe9\x07", b"\x08\xf0\x07")  # made later
        new.carried[0].answer(new.carried[0].calls()[-1][0], restarted)
        body = at_new.body(there)
        assert new.core.quorum_ids.highest == 8
        old.carried[0].answer(old.carried[0].calls()[-1][0], body)
        assert first.body(ask) == body
        assert old.core.quorum_ids.highest == 8


def test_an_old_one_whose_successor_is_gone_serves_again_above_all_numbers() -> None:
    with bench() as old:
        old.do(old.core.deny, [DENIAL])
        client = old.client()
        client.ask("rg_0:x")
        old.carried[0].answer(old.carried[0].calls()[0][0], formed(7, "rg_0:x"))
        made, _ = follow(old)
        old.away()
        assert not gone(old, made, LOST_S - 0.5)
        assert made.successor is not None
        assert not gone(old, made, 1.0)
        assert made.successor is None
        assert (old.core.lighthouse.host, old.core.denylist.denials) == ("lh", (DENIAL,))
        assert old.core.quorum_ids.floor == 7


# -- when a client is sent away ----------------------------------------------------------------


def leaving(gate: Bench) -> None:
    gate.core.leaving = True


def test_a_client_goes_in_the_moment_after_its_quorum_and_never_while_it_waits() -> None:
    with bench() as gate:
        client = gate.client()
        ask = client.ask("rg_0:x")
        leaving(gate)
        for _ in range(50):  # as long as it takes: its heartbeats come and go
            beat = client.beat("rg_0:x")
            carried = gate.carried[0]
            carried.answer(carried.calls()[-1][0])
            assert client.status(beat) == ("0", "")
            gate.sleep(0.1)
            assert not sent_away(client)
        carried.answer(carried.calls()[0][0], formed(7, "rg_0:x"))
        assert client.status(ask) == ("0", "")
        assert sent_away(client)


def test_a_heartbeat_under_way_is_answered_before_its_client_goes() -> None:
    with bench() as gate:
        client = gate.client()
        client.ask("rg_0:x")
        beat = client.beat("rg_0:x")
        leaving(gate)
        carried = gate.carried[0]
        asked, beaten = (number for number, _, _ in carried.calls())
        carried.answer(asked, formed(7, "rg_0:x"))
        assert not sent_away(client)
        carried.answer(beaten)
        assert client.status(beat) == ("0", "")
        assert sent_away(client)


def test_a_client_whose_next_request_may_come_at_any_moment_stays() -> None:
    """Between the moment after a quorum, and a step that is known to be long."""
    with bench() as gate:
        client = gate.client()
        client.ask("rg_0:x")
        gate.carried[0].answer_all()
        gate.sleep(0.1)
        leaving(gate)
        gate.sleep(QUIET_S - 0.3)
        assert not sent_away(client)
        gate.sleep(0.4)
        assert sent_away(client)


def test_what_a_client_sends_all_the_same_is_served() -> None:
    with bench() as gate:
        client = gate.client()
        client.ask("rg_0:x")
        leaving(gate)
        client.push = lambda: None  # type: ignore[method-assign]
        late = client.ask("rg_0:x", step=6)  # on its way when it is sent away
        del client.push  # type: ignore[method-assign]
        data = client.h2.data_to_send()
        gate.carried[0].answer_all()
        gate.do(client.side.data_received, data)
        gate.turn()
        number, _, body = gate.carried[0].calls()[-1]
        assert body == quorum("rg_0:x", step=6)
        gate.sleep(QUIET_S * 2)
        assert not client.wire.closed
        gate.carried[0].answer(number)
        assert late not in client.side.calls
        gate.sleep(QUIET_S + 0.2)
        assert client.wire.closed, "it does not go by itself"


# -- who leaves when ---------------------------------------------------------------------------


def gone(gate: Bench, made: Overlap, seconds: float, *, stopping: bool = False) -> bool:
    """Whether it is not needed at some time within these seconds."""
    ended: list[bool] = []
    for _ in range(round(seconds / 0.1)):
        gate.do(lambda: ended.append(made.gone(stopping=stopping)))
        cut_by_us(gate)
        gate.sleep(0.1)
    return any(ended)


def test_one_that_is_told_to_end_waits_for_another_one_as_long_as_it_may() -> None:
    with bench() as gate:
        made, _ = overlap(gate, grace_s=30)
        gate.client().ask("rg_0:x")
        assert not gone(gate, made, 29, stopping=True)
        assert gone(gate, made, 2, stopping=True)


def test_one_without_clients_ends_when_it_is_told() -> None:
    with bench() as gate:
        made, _ = overlap(gate)
        assert not gone(gate, made, 60)
        assert gone(gate, made, 0.3, stopping=True)


def test_one_that_was_followed_in_another_pod_goes_on_until_it_is_told_and_nobody_comes() -> None:
    with bench() as gate:
        client = gate.client()
        made, _ = follow(gate)
        assert not gone(gate, made, 60), "a rollout may take its time"
        client.leave()
        assert not gone(gate, made, LEAVE_S - 1, stopping=True)
        late = gate.client()  # a Service sent it here: it is served
        beat = late.beat("rg_0:x")
        gate.carried[-1].answer_all()
        assert late.status(beat) == ("0", "")
        assert not gone(gate, made, LEAVE_S, stopping=True)
        late.leave()
        assert gone(gate, made, LEAVE_S + 0.5, stopping=True)


def test_on_one_host_it_stops_to_listen_and_leaves_by_itself() -> None:
    with bench() as gate:
        made, stopped = overlap(gate)
        client = gate.client()
        client.ask("rg_0:x")
        gate.do(made.hand_over, SAME_PORT)
        assert stopped == ["listening"]
        cut_by_us(gate)
        assert not gone(gate, made, 30)
        gate.carried[0].answer_all()
        assert sent_away(client)
        client.leave()
        assert gone(gate, made, 0.5)


@pytest.mark.parametrize("bind", [("10.0.0.7", 29511), (EVERYWHERE, 29512)], ids=str)
def test_one_that_listens_elsewhere_on_the_host_is_followed_there(bind: tuple[str, int]) -> None:
    with bench() as gate:
        made, stopped = overlap(gate)
        to = Successor("127.0.0.1", bind, ("127.0.0.1", 8471), same_host=True)
        gate.do(made.hand_over, to)
        assert stopped == []
        host, port = gate.core.lighthouse.host, gate.core.lighthouse.port
        assert (host, port) == ("10.0.0.7" if bind[0] != EVERYWHERE else "127.0.0.1", bind[1])


def test_on_one_host_it_does_not_wait_for_ever() -> None:
    with bench() as gate:
        made, _ = overlap(gate)
        gate.client().ask("rg_0:x")
        gate.do(made.hand_over, SAME_PORT)
        cut_by_us(gate)
        gone(gate, made, 0.1)
        gate.now_s += LONGEST_S
        assert gone(gate, made, 0.1)


def test_names_that_are_not_there_yet_are_waited_for(monkeypatch):
    """A Service's name comes with its first pod, which may be this gate's own."""
    answers = [socket.gaierror(socket.EAI_AGAIN, "try again"), socket.gaierror(socket.EAI_NONAME)]

    def resolve(*_: object, **__: object) -> list[object]:
        raise answers.pop(0)

    monkeypatch.setattr(overlap_module.socket, "getaddrinfo", resolve)
    monkeypatch.setattr(overlap_module, "_AGAIN_S", 0.0)
    options = GateOptions(("lh", 1), (EVERYWHERE, 1), (EVERYWHERE, 2), ("pods", 2))
    assert Predecessor.find(options) is None
    assert answers == []
    answers.append(socket.gaierror(socket.EAI_AGAIN, "try again"))
    monkeypatch.setattr(overlap_module, "_NAMES_S", -1.0)
    with pytest.raises(PredecessorError, match="cannot resolve pods"):
        Predecessor.find(options)
