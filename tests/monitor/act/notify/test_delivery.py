"""Who is told what, how often, and what a sick sink costs the others."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from lightkeeper.monitor.act import notify
from lightkeeper.monitor.act.notices import Alertmanager, Webhook
from lightkeeper.monitor.model.eviction import Eviction, Guard
from lightkeeper.monitor.model.names import GroupName, IncidentId
from lightkeeper.monitor.model.verdict import Severity
from tests.http_server import Hang
from tests.monitor.act.notify.scene import NOW_S, Bench, Receiver, another, held, over
from tests.monitor.fakes import page, wait_until
from tests.monitor.samples import incident

FAILED = Eviction(
    IncidentId("inc-1"), GroupName("rg_1"), None, NOW_S - 5, (), failed="not gone after 25 s"
)


def said(receiver: Receiver) -> list[tuple[str, str, str]]:
    return [(body["event"], body["status"], body["key"]) for body in receiver.bodies]


def webhook(receiver: Receiver) -> Webhook:
    return Webhook("webhook", receiver.url)


@pytest.fixture
def bench(make, receiver: Receiver) -> Bench:
    return make(webhook(receiver))


# -- what is told ---------------------------------------------------------------------------------


def test_an_incident_is_told_once_and_so_is_its_end(bench, receiver) -> None:
    for _ in range(5):
        bench.tell(incident())
    bench.sent("webhook", 1)
    for _ in range(2):
        bench.tell(over(incident()))
    bench.sent("webhook", 2)
    first, second = receiver.bodies
    assert said(receiver) == [
        ("incident", "firing", "not_entered rg_1.0"),
        ("incident", "resolved", "not_entered rg_1.0"),
    ]
    assert (second["ended_s"], second["resolution"]) == (200.0, "recovered by itself")
    assert first["id"] != second["id"]
    assert bench.memory.notices == {}


def test_two_incidents_with_one_fingerprint_are_one_message(bench, receiver) -> None:
    bench.tell(another("a", "same"), another("b", "same"), another("c"))
    bench.sent("webhook", 2)
    assert sorted(body["key"] for body in receiver.bodies) == ["fingerprint of c", "same"]


def test_an_incident_that_names_others_by_now_is_a_new_message(bench, receiver) -> None:
    bench.tell(another("a", "rg_1.0"))
    bench.sent("webhook", 1)
    bench.tell(another("a", "rg_2.0"))
    bench.sent("webhook", 3)
    assert sorted(said(receiver)[1:]) == [
        ("incident", "firing", "rg_2.0"), ("incident", "resolved", "rg_1.0"),
    ]  # fmt: skip


def test_an_incident_that_got_worse_is_told_again_and_one_that_got_better_is_not(
    make, receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "_LOOK_AGAIN_S", 600.0)  # at once, not at the next look
    bench: Bench = make(webhook(receiver))
    sure = incident()
    unsure = replace(sure, severity=Severity.WARNING)
    for version in (unsure, unsure, sure, sure, unsure):
        bench.tell(version)
        wait_until(lambda: receiver.posts, 10, "the first")
        if version is sure:
            bench.sent("webhook", 2)
    bench.tell(over(sure))
    bench.sent("webhook", 3)
    states = [(body["status"], body["severity"]) for body in receiver.bodies]
    assert states == [("firing", "warning"), ("firing", "critical"), ("resolved", "critical")]
    assert len({body["id"] for body in receiver.bodies}) == 3


def test_a_guard_that_needs_a_person_pages_after_a_while(make, receiver) -> None:
    bench: Bench = make(webhook(receiver), hold_s=10.0)
    firing = incident()
    bench.tell(firing, decisions=held(firing, at_s=NOW_S - 9))
    bench.sent("webhook", 1)
    bench.tell(firing, decisions=held(firing, at_s=NOW_S - 11))
    bench.sent("webhook", 2)
    body = receiver.bodies[-1]
    assert (body["event"], body["labels"]["guard"]) == ("held", "unsure")
    assert body["title"] == "rg_1: nobody is evicted, a person has to decide"
    bench.tell(firing)  # the guard is lifted for a moment
    bench.tell(firing, decisions=held(firing))
    bench.tell(over(firing))
    bench.sent("webhook", 3)
    assert said(receiver)[-1][:2] == ("incident", "resolved")


PASSING = {
    Guard.ALREADY_GONE, Guard.NOT_WORTH_IT, Guard.IN_FLIGHT, Guard.COOL_DOWN,
    Guard.WATCH_ONLY,
}  # fmt: skip
NOBODY = replace(incident(), culprits=(), groups=(), incarnations=())


@pytest.mark.parametrize(
    ("subject", "guard", "messages"),
    [*((incident(), guard, 1 if guard in PASSING else 2) for guard in Guard),
     (NOBODY, Guard.UNSURE, 1)],
    ids=[*Guard, "accuses nobody"],
)  # fmt: skip
def test_a_guard_pages_unless_it_passes_by_itself_or_nobody_is_accused(
    subject, guard, messages, bench
) -> None:
    bench.tell(subject, decisions=held(subject, guard))
    bench.sent("webhook", messages)


def test_an_eviction_that_failed_is_told_once_each_time(make, receiver) -> None:
    bench: Bench = make(webhook(receiver), hold_s=0.0)
    for _ in range(3):
        bench.tell(incident(), evictions=[FAILED])
    bench.sent("webhook", 2)
    body = next(posted for posted in receiver.bodies if posted["event"] == "eviction_failed")
    assert (body["title"], body["text"], body["severity"]) == (
        "rg_1: its eviction failed", "not gone after 25 s", "critical",
    )  # fmt: skip
    bench.tell(incident(), evictions=[replace(FAILED, asked_s=NOW_S)])
    bench.sent("webhook", 3)


def test_an_eviction_that_a_restart_cut_short_is_asked_again_and_pages_nobody(
    make, receiver
) -> None:
    bench: Bench = make(webhook(receiver), hold_s=10.0)
    cut = replace(FAILED, ended_s=NOW_S, failed="the monitor restarted during the eviction")
    bench.tell(incident(), evictions=[cut])
    bench.tell(incident(), evictions=[cut], now_s=NOW_S + 9)
    bench.tell(incident(), evictions=[replace(cut, failed=None)], now_s=NOW_S + 11)
    again = replace(cut, ended_s=NOW_S + 12)
    bench.tell(incident(), evictions=[again], now_s=NOW_S + 12)
    bench.sent("webhook", 1)
    bench.tell(incident(), evictions=[again], now_s=NOW_S + 23)
    bench.sent("webhook", 2)


def test_an_eviction_by_hand_that_failed_is_told_though_there_is_no_incident(
    make, receiver
) -> None:
    bench: Bench = make(webhook(receiver), hold_s=0.0)
    bench.tell(evictions=[replace(FAILED, incident_id=IncidentId("by_hand-1"))])
    bench.sent("webhook", 1)
    bench.tell(evictions=[replace(FAILED, incident_id=IncidentId("by_hand-1"))], now_s=NOW_S + 7200)
    wait_until(lambda: bench.memory.notices == {}, 10, "it is forgotten")
    assert len(receiver.posts) == 1


# -- over a restart -------------------------------------------------------------------------------


def test_a_restart_sends_nothing_twice(make, receiver) -> None:
    firing = incident()
    by_hand = replace(FAILED, incident_id=IncidentId("by_hand-1"))
    first: Bench = make(webhook(receiver), hold_s=0.0)
    first.tell(firing, decisions=held(firing), evictions=[FAILED, by_hand])
    first.sent("webhook", 4)
    first.notifier.close()
    again: Bench = make(webhook(receiver))
    again.tell(firing, decisions=held(firing), evictions=[FAILED, by_hand])
    again.tell(firing, another("new"), decisions=held(firing), evictions=[FAILED, by_hand])
    again.tell(firing, another("new"), evictions=[FAILED, by_hand], now_s=NOW_S + 20)
    again.sent("webhook", 1)
    assert receiver.bodies[-1]["incident"]["id"] == "new"


def test_an_incident_that_ended_while_nobody_looked_is_resolved_at_the_first_tick(
    bench, make, receiver
) -> None:
    bench.tell(incident())
    bench.sent("webhook", 1)
    bench.notifier.close()
    make(webhook(receiver)).notifier.close()  # nothing before
    assert len(receiver.posts) == 1
    again: Bench = make(webhook(receiver))
    again.tell(over(incident(), "restarted: its ranks are other processes now"))
    again.sent("webhook", 1)
    assert receiver.bodies[-1]["resolution"] == "restarted: its ranks are other processes now"


def test_what_was_not_delivered_before_the_restart_is_delivered_after_it(make, receiver) -> None:
    receiver.answer = lambda _: page({}, 503)
    first: Bench = make(webhook(receiver))
    first.tell(incident())
    wait_until(lambda: first.counted("webhook", "failed") >= 1, 10, "a try")
    first.notifier.close()
    receiver.answer = lambda _: page({})
    again: Bench = make(webhook(receiver))
    again.tell(incident())
    again.sent("webhook", 1)
    assert len({body["id"] for body in receiver.bodies}) == 1  # the same idempotency key


def test_rows_of_a_sink_that_is_gone_and_rows_that_cannot_be_read_are_forgotten(
    make, receiver, memory
) -> None:
    memory.save_notice("old", "key", {"notice": {}})
    memory.save_notice("webhook", "odd", {"notice": {"key": "odd"}, "sent_s": 1, "dropped": False})
    memory.save_notice("webhook", "odder", {})
    make(webhook(receiver))
    assert memory.notices == {}


# -- sick sinks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [500, 503, 429, 401, 404])
def test_a_failure_that_may_pass_is_tried_again(status: int, bench, receiver) -> None:
    receiver.answer = lambda n: page({"error": "no"}, status) if n < 4 else page({})
    bench.tell(incident())
    bench.sent("webhook", 1)
    assert bench.counted("webhook", "failed") == 3
    assert len({body for _, _, body in receiver.posts}) <= 4
    assert bench.notifier.troubles() == ()


def test_a_sink_that_says_when_to_come_again_is_left_alone_until_then(bench, receiver) -> None:
    receiver.headers = {"Retry-After": "1"}
    receiver.answer = lambda n: page({}, 429) if n == 1 else page({})
    began = time.monotonic()
    bench.tell(incident())
    bench.sent("webhook", 1)
    assert time.monotonic() - began >= 1.0


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_message_that_a_sink_will_never_take_is_dropped_and_the_next_is_sent(
    status: int, bench, receiver
) -> None:
    receiver.answer = lambda n: page({}, status) if n == 1 else page({})
    bench.tell(incident(), another("b"))
    bench.sent("webhook", 1)
    assert bench.counted("webhook", "dropped") == 1
    bench.tell(over(incident()), another("b"))
    bench.tell(over(incident()), over(another("b")))
    bench.sent("webhook", 2)
    assert len(receiver.posts) == 3  # nobody hears the end of what nobody was told


def test_a_dead_sink_holds_up_neither_the_tick_nor_another_sink(make, receiver) -> None:
    dead = Receiver()

    def hang(_: int):
        raise Hang

    dead.answer = hang
    try:
        bench: Bench = make(
            Webhook("webhook", dead.url),
            Webhook("nobody", "http://127.0.0.1:9/"),
            Webhook("well", receiver.url),
        )
        began = time.monotonic()
        for _ in range(50):
            bench.tell(incident())
        assert time.monotonic() - began < 5.0  # one that waits does for 10 s
        bench.sent("well", 1)
        wait_until(bench.notifier.troubles, 10, "it is said")
        (trouble,) = bench.notifier.troubles()
        assert trouble.startswith("notify nobody: refused: ")
    finally:
        dead.close()


def test_old_news_is_dropped(make, receiver) -> None:
    receiver.answer = lambda _: page({}, 503)
    bench: Bench = make(webhook(receiver), give_up_s=60.0)
    bench.tell(incident())
    wait_until(lambda: bench.counted("webhook", "failed") >= 2, 10, "two tries")
    bench.tell(incident(), now_s=NOW_S + 61)
    wait_until(lambda: bench.counted("webhook", "dropped") == 1, 10, "it is given up")
    receiver.answer = lambda _: page({})
    bench.tell(over(incident()), another("b"), now_s=NOW_S + 62)
    bench.sent("webhook", 1)
    assert receiver.bodies[-1]["incident"]["id"] == "b"


def test_a_storm_is_cut_and_counted(bench, receiver) -> None:
    receiver.answer = lambda _: page({}, 503)
    storm = [another(f"i{n}") for n in range(300)]
    bench.tell(*storm)
    wait_until(lambda: bench.counted("webhook", "dropped") == 300 - 256, 10, "the rest is dropped")


def test_what_began_and_ended_before_it_could_be_told_is_not_told(bench, receiver) -> None:
    receiver.answer = lambda _: page({}, 503)
    bench.tell(incident())
    wait_until(lambda: bench.counted("webhook", "failed") >= 1, 10, "a try")
    bench.tell(over(incident()), another("b"))
    wait_until(lambda: receiver.bodies[-1]["incident"]["id"] == "b", 10, "a try of the other")
    receiver.answer = lambda _: page({})
    bench.sent("webhook", 1)
    assert receiver.bodies[-1]["incident"]["id"] == "b"


def test_an_alert_is_sent_again_before_it_would_expire(make, receiver) -> None:
    sink = Alertmanager("alertmanager", receiver.url, expire_s=0.4)
    bench: Bench = make(sink)
    bench.tell(incident())
    wait_until(lambda: bench.counted("alertmanager", "sent") >= 3, 20, "it is sent again")
    bodies = receiver.bodies
    assert {len(body) for body in bodies} == {1}
    assert len({tuple(sorted(body[0]["labels"].items())) for body in bodies}) == 1
    assert len({body[0]["endsAt"] for body in bodies}) == len(bodies)
    assert len({body[0]["startsAt"] for body in bodies}) == 1


def test_one_bad_alert_takes_no_other_along(make, receiver) -> None:
    def answer(_: int):
        return page({}, 400) if b"inc-bad" in receiver.posts[-1][2] else page({})

    receiver.answer = answer
    bench: Bench = make(Alertmanager("alertmanager", receiver.url))
    bench.tell(another("inc-a"), another("inc-bad"), another("inc-c"))
    bench.sent("alertmanager", 2)
    wait_until(lambda: bench.counted("alertmanager", "dropped") == 1, 10, "the bad one is dropped")
    assert [len(body) for body in receiver.bodies] == [3, 1, 1, 1]
