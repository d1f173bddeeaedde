"""The webhook's driver against a receiver that owes what docs/deploy.md says."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from lightkeeper.monitor.act.http import Fetcher
from lightkeeper.monitor.act.schedulers.webhook import sign_request
from tests.monitor.act.schedulers.conformance import INCIDENT, NODE, RG_1, SOON_S, WHY, Conformance
from tests.monitor.act.schedulers.receiver import SECRET, Receiver, WebhookWorld, served, verify

pytestmark = pytest.mark.integration  # servers on loopback, real deadlines
DOC = Path(__file__).parents[4] / "docs" / "deploy.md"


@pytest.fixture(scope="module")
def fetcher():
    made = Fetcher()
    yield made
    made.close()


@pytest.fixture
def world(fetcher):
    receiver = Receiver()
    with served(receiver) as url:
        yield WebhookWorld(receiver, url, fetcher)


class TestConformance(Conformance):
    pass


def test_a_request_says_what_why_and_for_whom(world):
    world.scheduler.cordon(NODE, WHY, SOON_S)
    ((body, headers),) = world.receiver.requests
    key = body.pop("idempotency_key")
    assert body == {
        "schema": 1, "action": "cordon", "owner": "a1b2c3", "host": "node1",
        "reason": "rg_1.0 stands still in data; 3 others wait", "incident_id": INCIDENT,
    }  # fmt: skip
    assert headers["Idempotency-Key"] == key
    assert re.fullmatch(r"t=\d+,v1=[0-9a-f]{64}", headers["X-Lightkeeper-Signature"])


def test_a_removal_names_rank_host_and_labels_of_every_place(world):
    place = world.start("rg_1.0", NODE)
    world.scheduler.remove(RG_1, [place], WHY, SOON_S)
    (body, _) = world.receiver.requests[-1]
    assert body["places"] == [{"rank": "rg_1.0", "host": "node1", "labels": {"task": "t-0"}}]


def test_a_retry_has_the_same_key_and_a_new_signature_and_happens_once(world):
    world.receiver.answers = [(500, {}, b""), (429, {"Retry-After": "1"}, b"")]
    assert world.scheduler.cordon(NODE, WHY, SOON_S).done
    assert len({headers["Idempotency-Key"] for _, headers in world.receiver.requests}) == 1
    assert len(world.receiver.requests) == 3


def test_the_same_removal_of_the_same_incident_has_the_same_key_and_all_else_another(world):
    first, second = world.start("rg_1.0", NODE), world.start("rg_1.0", NODE)
    for place in (first, first, second):
        world.scheduler.remove(RG_1, [place], WHY, SOON_S)
    for _ in range(2):  # an uncordon may lie between
        world.scheduler.cordon(NODE, WHY, SOON_S)
    keys = [headers["Idempotency-Key"] for _, headers in world.receiver.requests]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 4


@pytest.mark.parametrize(
    ("answer", "done", "said"),
    [
        ((200, {}, b""), True, "accepted"),
        ((202, {}, b"ok"), True, "accepted"),
        ((200, {}, b'{"done": false, "detail": "not\\nnow"}'), False, "not now"),
        ((200, {}, b"[" * 20_000), True, "accepted"),
        ((200, {}, b'{"done": "yes"}'), False, "accepted"),
        ((403, {}, b"who are you?"), False,
         "node1 not cordoned: it answered 403: who are you?"),
        ((301, {"Location": "http://127.0.0.1:1/"}, b""), False,
         "node1 not cordoned: it answered 301"),
    ],
    ids=["empty", "accepted", "no", "nested", "odd", "forbidden", "redirect"],
)  # fmt: skip
def test_answers(world, answer, done, said):
    world.receiver.answers = [answer]
    outcome = world.scheduler.cordon(NODE, WHY, SOON_S)
    assert (outcome.done, outcome.detail) == (done, said)
    assert len(world.receiver.requests) == 1


def test_a_receiver_that_keeps_no_list_is_taken_at_its_word(world):
    world.receiver.answers = [(404, {}, b"")]
    assert world.scheduler.cordoned(SOON_S) is None


def test_neither_secret_nor_path_is_in_a_log_or_an_outcome(world, caplog):
    caplog.set_level(logging.DEBUG)
    world.receiver.answers = [(500, {}, b"")] * 100
    said = world.scheduler.cordon(NODE, WHY, 0.3).detail
    world.receiver.hanging = True
    said += world.scheduler.cordon(NODE, WHY, 0.2).detail
    said += "".join(check.said + check.what for check in world.scheduler.checks(0.2))
    said += repr(world.scheduler) + caplog.text
    assert SECRET.decode() not in said
    assert "s3cret" not in said


def test_the_check_finds_another_secret_and_a_receiver_that_verifies_nothing(world, monkeypatch):
    checks = world.made(secret=b"another").checks(SOON_S)
    assert [check.ok for check in checks] == [False]
    assert "signed with another secret" in checks[0].said
    monkeypatch.setattr("tests.monitor.act.schedulers.receiver.verify", lambda *args: True)
    failed = [check for check in world.scheduler.checks(SOON_S) if not check.ok]
    assert [check.said for check in failed] == ["it takes what anybody sends: does it verify?"]


# -- the signature ------------------------------------------------------------------------------

BODY = b'{"action":"cordon"}'
AT = 1_795_282_164
HEADER = sign_request(SECRET, BODY, AT)
CASES = [
    pytest.param(BODY, HEADER, AT + 299, True, id="fresh"),
    pytest.param(BODY, HEADER, AT + 301, False, id="replayed-later"),
    pytest.param(BODY, HEADER, AT - 301, False, id="from-the-future"),
    pytest.param(BODY + b" ", HEADER, AT, False, id="changed-body"),
    pytest.param(BODY, HEADER.replace(f"t={AT}", f"t={AT + 1}"), AT, False, id="changed-time"),
    pytest.param(BODY, sign_request(b"other", BODY, AT), AT, False, id="other-secret"),
    pytest.param(BODY, f"{sign_request(b'old', BODY, AT)},{HEADER.split(',')[1]}", AT, True,
                 id="one-of-two-secrets"),
    pytest.param(BODY, "", AT, False, id="none"),
    pytest.param(BODY, f"t={AT}", AT, False, id="no-digest"),
    pytest.param(BODY, f"t={AT},t={AT},{HEADER.split(',')[1]}", AT, False, id="two-times"),
    pytest.param(BODY, f"t=x,{HEADER.split(',')[1]}", AT, False, id="no-number"),
    pytest.param(BODY, f"t={'9' * 500},{HEADER.split(',')[1]}", AT, False, id="huge-number"),
    pytest.param(BODY, f"t={AT},v1=\u00e9", AT, False, id="not-ascii"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "header", "now_s", "good"), CASES)
def test_the_receivers_sample_in_the_docs_believes_who_is_to_be_believed(body, header, now_s, good):
    assert verify(SECRET, body, header, now_s) is good
