"""What each sink is sent, to the letter; and that no secret shows anywhere."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
from dataclasses import replace

import pytest

from lightkeeper.monitor.act.notices import (
    SIGNATURE,
    Alertmanager,
    Message,
    Notice,
    NoticeEnding,
    NoticeFacts,
    Status,
    Webhook,
    notices,
)
from lightkeeper.monitor.model.names import shown_url, without_secrets
from lightkeeper.monitor.model.plain import from_plain, to_plain
from lightkeeper.monitor.model.verdict import Severity
from tests.monitor.act.notify.scene import NOW_S, Bench, Receiver
from tests.monitor.fakes import page, wait_until
from tests.monitor.samples import incident


def notice(**changes) -> Notice:
    (made,) = notices(
        NoticeFacts(NOW_S, (incident(),), {}), url="http://head:8470", hold_s=0.0
    ).values()
    return replace(made, **changes)


def body_of(sink, message: Message):
    return json.loads(sink.post([message]).body)


FIRES = Message(notice(), NOW_S)
ENDS = Message(notice(), NOW_S, NoticeEnding(200.0, "recovered by itself"))


def test_the_webhooks_message() -> None:
    assert body_of(Webhook("webhook", "http://x/"), FIRES) == {
        "schema": 1,
        "id": notice().id(Status.FIRING),
        "event": "incident",
        "status": "firing",
        "key": "not_entered rg_1.0",
        "severity": "critical",
        "title": "rg_1.0: hang",
        "text": "rg_1.0 has not moved for 9 s",
        "since_s": 102.0,
        "ended_s": None,
        "resolution": None,
        "sent_s": NOW_S,
        "url": "http://head:8470/incidents/inc-1",
        "labels": {"kind": "not_entered", "replica_group": "rg_1"},
        "incident": {
            "id": "inc-1",
            "kind": "not_entered",
            "culprits": ["rg_1.0"],
            "candidates": [],
            "groups": ["rg_1"],
            "victims": ["rg_0.0"],
            "confidence": "likely",
            "fingerprint": "not_entered rg_1.0",
            "first_seen_s": 100.0,
            "acknowledged_by": None,
            "assignee": None,
        },
        "links": {},
    }


def test_a_receiver_can_check_the_signature_and_the_idempotency_key() -> None:
    post = Webhook("webhook", "http://x/", "s3cret").post([FIRES])
    right = hmac.new(b"s3cret", post.body, hashlib.sha256).hexdigest()
    assert post.headers[SIGNATURE] == f"sha256={right}"
    assert post.headers["Idempotency-Key"] == json.loads(post.body)["id"]
    later = Webhook("webhook", "http://x/", "s3cret").post([replace(FIRES, at_s=NOW_S + 9)])
    assert later.headers["Idempotency-Key"] == post.headers["Idempotency-Key"]
    assert SIGNATURE not in Webhook("webhook", "http://x/").post([FIRES]).headers


def test_alertmanagers_alert_and_its_end() -> None:
    sink = Alertmanager("am", "http://x:9093/", "Bearer t", {"cluster": "a"})
    post = sink.post([FIRES])
    assert post.url == "http://x:9093/api/v2/alerts"
    assert post.headers["Authorization"] == "Bearer t"
    assert json.loads(post.body) == [
        {
            "labels": {
                "alertname": "LightkeeperIncident",
                "severity": "critical",
                "kind": "not_entered",
                "replica_group": "rg_1",
                "incident": "inc-1",
                "cluster": "a",
            },
            "annotations": {
                "summary": "rg_1.0: hang",
                "description": "rg_1.0 has not moved for 9 s",
            },
            "startsAt": "1970-01-01T00:01:42.000Z",
            "endsAt": "1970-01-12T13:51:40.000Z",
            "generatorURL": "http://head:8470/incidents/inc-1",
        }
    ]
    (ended,) = body_of(sink, ENDS)
    assert (ended["endsAt"], ended["annotations"]["resolution"]) == (
        "1970-01-01T00:03:20.000Z", "recovered by itself",
    )  # fmt: skip
    (odd,) = body_of(sink, replace(ENDS, ended=NoticeEnding(1.0, "clocks")))
    assert odd["endsAt"] == odd["startsAt"]


@pytest.mark.parametrize("severity", list(Severity))
def test_as_loud_as_the_incident(severity: Severity) -> None:
    firing = replace(incident(), severity=severity)
    (made,) = notices(NoticeFacts(NOW_S, (firing,), {}), url="", hold_s=0.0).values()
    assert made.severity == severity.value


def test_what_accuses_nobody_bears_our_name() -> None:
    nobody = replace(incident(), culprits=(), groups=(), incarnations=())
    (made,) = notices(NoticeFacts(NOW_S, (nobody,), {}), url="", hold_s=0.0).values()
    assert made.title == "lightkeeper: Hang"


def test_a_notice_survives_the_store() -> None:
    assert from_plain(Notice, json.loads(json.dumps(to_plain(notice())))) == notice()


# -- secrets --------------------------------------------------------------------------------------


def test_no_secret_is_shown(make, receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secrets = ("T0/B0/XYZXYZ", "s3cret", "topsecret")
    receiver.answer = lambda _: page({"no": "T0/B0/XYZXYZ is unknown"}, 404)
    sinks = (
        Webhook("chat", f"{receiver.url}/services/T0/B0/XYZXYZ"),
        Webhook("webhook", f"{receiver.url}/hook?key=topsecret", "s3cret"),
        Alertmanager("am", "http://127.0.0.1:9/topsecret/", "Bearer s3cret"),
    )
    bench: Bench = make(*sinks)
    bench.tell(incident())
    wait_until(lambda: len(bench.notifier.troubles()) == 3, 10, "three troubles")
    shown = [
        *bench.notifier.troubles(), caplog.text, *map(repr, sinks),
        repr(sinks[0].post([FIRES])), json.dumps(list(bench.memory.notices.values())),
    ]  # fmt: skip
    for secret in secrets[1:]:
        assert not [text for text in shown if secret in text]
    assert not [text for text in shown if "/services/T0" in text]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://hooks.slack.com/services/T0/B0/X", "https://hooks.slack.com"),
        ("http://user:pw@h:9093/a?b=c", "http://h:9093"),
        ("http://[::1]:80/x", "http://[::1]:80"),
    ],
)
def test_of_a_url_only_the_host_is_shown(url: str, shown: str) -> None:
    assert shown_url(url) == shown
    assert without_secrets(url, f"not a URL: {url}") == f"not a URL: {shown}"
