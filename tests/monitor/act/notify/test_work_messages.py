"""What messages say of the work on an incident, and what a silence keeps back."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from lightkeeper.monitor.act.http import Answer
from lightkeeper.monitor.act.notices import Alertmanager, Message, Webhook
from lightkeeper.monitor.model.work import Work, WorkAction, WorkRow
from tests.monitor.act.notify.scene import NOW_S, Bench, Receiver, held, over
from tests.monitor.act.notify.test_delivery import FAILED, said, webhook
from tests.monitor.act.notify.test_sinks import FIRES
from tests.monitor.fakes import wait_until
from tests.monitor.samples import incident

JSON = "application/json"


def work(*rows: tuple[str, dict]) -> Work:
    about = {"about": "inc-1", "kind": "not_entered", "fingerprint": incident().fingerprint}
    return Work(tuple(
        WorkRow(WorkAction(action), "ann", NOW_S - 1, **(about | more), id=f"{action}-{number}")
        for number, (action, more) in enumerate(rows)
    ))  # fmt: skip


ACK = ("ack", {"text": "looking"})
RESOLVED = ("resolve", {"text": "by design"})
SILENCE = ("silence", {"about": "", "match": {"group": "rg_1"}, "until_s": NOW_S + 60})


@pytest.fixture
def bench(make, receiver: Receiver) -> Bench:
    return make(webhook(receiver), hold_s=10.0)


def test_who_acknowledged_it_is_one_more_message(bench, receiver) -> None:
    bench.tell(incident())
    bench.sent("webhook", 1)
    for _ in range(2):
        bench.tell(incident(), work=work(ACK))
        bench.sent("webhook", 2)
    bench.tell(incident(), work=work(ACK, ("assign", {"to": "bob"})))
    bench.sent("webhook", 3)
    bench.tell(over(incident()), work=work(ACK))
    bench.sent("webhook", 4)
    assert [status for _, status, _ in said(receiver)] == [
        "firing", "acknowledged", "acknowledged", "resolved",
    ]  # fmt: skip
    first, second, third, _ = receiver.bodies
    assert second["text"].endswith(". Acknowledged by ann: looking")
    assert second["incident"]["acknowledged_by"] == "ann"
    assert third["incident"]["assignee"] == "bob"
    assert len({body["id"] for body in receiver.bodies}) == 4
    assert first["since_s"] == second["since_s"]


def test_what_was_told_of_it_is_not_told_again_after_a_restart(make, receiver) -> None:
    before: Bench = make(webhook(receiver))
    before.tell(incident(), work=work(ACK))
    before.sent("webhook", 1)
    after: Bench = make(webhook(receiver))
    after.tell(incident(), work=work(ACK))
    after.tell(over(incident()), work=work(ACK))
    after.sent("webhook", 1)
    assert [status for _, status, _ in said(receiver)] == ["acknowledged", "resolved"]


def test_a_person_that_resolves_it_ends_it_with_the_reason_while_the_fault_stands(
    bench, receiver
) -> None:
    rows = held(incident())
    bench.tell(incident(), decisions=rows)
    bench.sent("webhook", 2)
    for _ in range(2):
        bench.tell(incident(), decisions=rows, work=work(RESOLVED))
        bench.sent("webhook", 3)
    bench.tell(over(incident()), work=work(RESOLVED))
    body = receiver.bodies[2]
    assert (body["event"], body["status"]) == ("incident", "resolved")
    assert (body["resolution"], body["ended_s"]) == ("resolved by ann: by design", NOW_S - 1)
    bench.tell(incident("inc-2"), work=work(RESOLVED))  # seen again after it was gone
    bench.sent("webhook", 4)
    assert (said(receiver)[3][1], receiver.bodies[3]["incident"]["id"]) == ("firing", "inc-2")


def test_one_that_names_others_by_now_is_told_though_a_person_has_resolved_it(
    bench, receiver
) -> None:
    bench.tell(incident(), work=work(RESOLVED))
    bench.tell(replace(incident(), fingerprint="not_entered rg_2.0"), work=work(RESOLVED))
    bench.sent("webhook", 1)
    assert said(receiver) == [("incident", "firing", "not_entered rg_2.0")]


def test_an_acknowledgement_opens_it_again(bench, receiver) -> None:
    bench.tell(incident(), work=work(RESOLVED))
    bench.tell(incident(), work=work(RESOLVED, ACK))
    bench.sent("webhook", 1)
    assert said(receiver)[0][:2] == ("incident", "acknowledged")


def test_an_eviction_that_fails_is_told_though_a_person_has_resolved_its_incident(
    make, receiver
) -> None:
    bench: Bench = make(webhook(receiver), hold_s=0.0)
    bench.tell(incident(), evictions=[FAILED], work=work(RESOLVED))
    bench.sent("webhook", 1)
    assert said(receiver)[0][:2] == ("eviction_failed", "firing")


def test_a_silence_keeps_the_news_back_until_it_is_over(bench, receiver) -> None:
    for now_s in (NOW_S, NOW_S + 59):
        bench.tell(incident(), now_s=now_s, work=work(SILENCE))
    bench.tell(incident(), now_s=NOW_S + 61, work=work(SILENCE))
    bench.sent("webhook", 1)
    assert receiver.bodies[0]["sent_s"] >= NOW_S + 61


def test_what_begins_and_ends_in_silence_is_never_told(bench, receiver) -> None:
    bench.tell(incident(), work=work(SILENCE))
    bench.tell(over(incident()), work=work(SILENCE))
    bench.tell(over(incident()), now_s=NOW_S + 61, work=work(SILENCE))
    bench.tell(incident("inc-2"), now_s=NOW_S + 61, work=work(SILENCE))
    bench.sent("webhook", 1)
    assert receiver.bodies[0]["incident"]["id"] == "inc-2"


def test_a_silence_is_no_end_and_the_end_of_what_was_told_is_told(bench, receiver) -> None:
    bench.tell(incident())
    bench.sent("webhook", 1)
    bench.tell(incident(), work=work(SILENCE, ACK))
    bench.tell(over(incident()), work=work(SILENCE, ACK))
    bench.sent("webhook", 2)
    assert [status for _, status, _ in said(receiver)] == ["firing", "resolved"]


def test_an_alert_that_was_sent_does_not_expire_in_silence(make, receiver) -> None:
    bench: Bench = make(Alertmanager("am", receiver.url, expire_s=4.0))
    bench.tell(incident())
    bench.sent("am", 1)
    bench.tell(incident(), now_s=NOW_S + 2, work=work(SILENCE))
    bench.sent("am", 2)
    again = receiver.bodies[1][0]
    assert again["startsAt"] == receiver.bodies[0][0]["startsAt"]


def test_the_alert_says_who_acknowledged_it(make, receiver) -> None:
    bench: Bench = make(Alertmanager("am", receiver.url))
    bench.tell(incident(), work=work(ACK))
    bench.sent("am", 1)
    assert "Acknowledged by ann: looking" in receiver.bodies[0][0]["annotations"]["description"]


# -- where a message is ---------------------------------------------------------------------------


def test_where_the_receiver_put_the_message_is_noted(make, receiver) -> None:
    place = {"url": "https://chat.example/t/42"}
    receiver.answer = lambda _: (200, JSON, json.dumps(place).encode())
    bench: Bench = make(webhook(receiver))
    bench.tell(incident())
    bench.sent("webhook", 1)
    wait_until(lambda: bench.places, 10, "the place")
    bench.tell(incident(), work=work(ACK))
    bench.sent("webhook", 2)
    assert bench.places == [("inc-1", "webhook", "https://chat.example/t/42")]


@pytest.mark.parametrize(
    ("body", "link"),
    [
        (b'{"permalink": "https://x.slack.com/archives/C1/p2"}',
         "https://x.slack.com/archives/C1/p2"),
        (b'{"html_url": "http://git/1"}', "http://git/1"), (b"ok", ""), (b"[]", ""),
        (b'{"url": 7}', ""), (b'{"url": "javascript:alert(1)"}', ""),
        (b'{"url": "https://x/a b"}', ""), (b'{"url": "https://x/.../1"}', ""),
        (b'{"url": "https://x/' + b"a" * 600 + b'"}', ""), (b"[" * 100_000, ""),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_only_a_plain_url_is_a_link(body: bytes, link: str) -> None:
    message = Message(FIRES.notice, NOW_S)
    assert Webhook("webhook", "http://x/").link(message, Answer(200, body, JSON, 0.1)) == link


def test_alertmanagers_link_leads_to_its_page_without_a_password() -> None:
    sink = Alertmanager("am", "http://me:pw@am:9093/alerts/")
    assert sink.link(FIRES, Answer(200, b"", "", 0.1)) == (
        "http://am:9093/alerts/#/alerts?filter=%7Bincident%3D%22inc-1%22%7D"
    )
