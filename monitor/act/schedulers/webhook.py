"""Any other scheduler: one signed JSON request per action, to a service that the user runs.

docs/deploy.md says what the receiver must do; in short: check the signature, do the action unless
it is done already, and answer `{"done": true, "detail": "..."}`. A request is repeated, with the
same Idempotency-Key, if it gets no answer, a 5xx (except 501) or a 429.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lightkeeper.monitor.act.http import Answer, Fetcher, FetchError, Question
from lightkeeper.monitor.act.schedulers.base import (
    Check,
    Deadline,
    Everyone,
    NotDone,
    Outcome,
    Owner,
    Place,
    Scheduler,
    Why,
    plain_line,
    retrying,
)
from lightkeeper.monitor.model.names import GroupName, Host, shown_url, without_secrets

# How requests are signed, and how a receiver verifies them.
#
# One header, in the form that Stripe made common: `t=SECONDS,v1=HEX`, HMAC-SHA256 of
# `SECONDS.BODY`. The signature covers the time, so that an old request cannot be sent again later.
# There may be several `v1` while a secret is being changed. (`act.notices` signs messages to people
# without a time: a repeated message does no harm.) `docs/deploy.md` has `verify` as a sample.

HEADER: Final = "X-Lightkeeper-Signature"
IDEMPOTENCY: Final = "Idempotency-Key"


def sign_request(secret: bytes, body: bytes, at_s: int) -> str:
    """The header's value."""
    digest = hmac.new(secret, f"{at_s}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at_s},v1={digest}"


SCHEMA: Final = 1
ANSWER_MAX_BYTES: Final = 1024 * 1024
REASON_MAX_CHARS: Final = 400


class WebhookScheduler(Scheduler):
    def __init__(
        self,
        url: str,
        secret: bytes,
        fetcher: Fetcher,
        everyone: Everyone,
        owner: Owner,
        *,
        name: str = "webhook",
    ) -> None:
        """`owner` names our quarantine list in each request; `close` closes `fetcher`."""
        super().__init__(everyone, owner)
        self.name = name
        self._url = url
        self._secret = secret
        self._fetcher = fetcher

    def checks(self, timeout_s: float) -> Sequence[Check]:
        """Check that the receiver takes a signed ping, and refuses a forged one."""
        deadline = self._deadline(timeout_s)
        where = shown_url(self._url)
        signed, forged = f"{where} takes a signed ping", f"{where} refuses a forged one"
        try:
            said = self._answer("ping", {}, deadline)
        except NotDone as exc:
            return (Check(signed, False, str(exc)),)
        taken = Check(signed, True, _line(str(said.get("detail") or "accepted")))
        try:
            self._answer("ping", {}, deadline, uuid.uuid4().bytes)
        except NotDone as exc:
            return taken, Check(forged, True, str(exc))
        return taken, Check(forged, False, "it takes what anybody sends: does it verify?")

    def close(self) -> None:
        """End what is under way, and the fetcher's thread."""
        self._fetcher.close()

    # -- one request ---------------------------------------------------------------------------

    def _cordon(self, host: Host, why: Why, deadline: Deadline) -> Outcome:
        return self._ask("cordon", {"host": host, **_told(why)}, deadline)

    def _uncordon(self, host: Host, reason: str, deadline: Deadline) -> Outcome:
        return self._ask("uncordon", {"host": host, "reason": _line(reason)}, deadline)

    def _remove(
        self, group: GroupName, places: Sequence[Place], others: Sequence[Place], why: Why,
        deadline: Deadline,
    ) -> Outcome:  # fmt: skip
        labels = [place.labels for place in places if place.labels]
        if not labels:
            raise NotDone("none of its ranks tells its place")
        for other in others:
            if other.labels in labels:  # what ends one ends both
                raise NotDone(f"{other.rank} runs in the same place")
        body = {
            "group": group,
            "places": [
                {"rank": place.rank, "host": place.host, "labels": dict(place.labels)}
                for place in places
            ],
            **_told(why),
        }
        return self._ask("remove", body, deadline)

    def _cordoned(self, deadline: Deadline) -> Sequence[Host] | None:
        """The hosts that the receiver lists as ours; None without a list (404, 501: `NotDone`)."""
        hosts = self._answer("list", {}, deadline).get("hosts")
        if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts):
            return None
        return hosts

    def _crash(self, exc: Exception) -> str:
        """Only the type: the message may hold the URL."""
        return type(exc).__name__

    def _ask(self, action: str, body: Mapping[str, Any], deadline: Deadline) -> Outcome:
        said = self._answer(action, body, deadline)
        detail = _line(str(said.get("detail") or "accepted"))
        done, ours = said.get("done", True) is True, said.get("ours", True) is not False
        return Outcome(done, detail, ours=ours)

    def _answer(
        self, action: str, body: Mapping[str, Any], deadline: Deadline, secret: bytes | None = None
    ) -> Mapping[str, Any]:
        whole = {"schema": SCHEMA, "action": action, "owner": self._owner(), **body}
        key = self._key(action, whole)
        raw = json.dumps({**whole, "idempotency_key": key}, separators=(",", ":")).encode()

        def post() -> Mapping[str, Any]:
            signature = sign_request(secret or self._secret, raw, int(time.time()))
            headers = {"Content-Type": "application/json", IDEMPOTENCY: key, HEADER: signature}
            left_s = deadline.left_s()
            try:
                return _said(self._fetcher.ask(Question(
                    self._url, left_s, ANSWER_MAX_BYTES, "POST", body=raw, headers=headers,
                )))  # fmt: skip
            except FetchError as exc:
                raise NotDone(without_secrets(self._url, str(exc)), 0.0) from exc

        return retrying(post, deadline)

    def _key(self, action: str, body: Mapping[str, Any]) -> str:
        """The idempotency key: the same whenever a removal is repeated for the same incident, so
        that it never hits what has started since; a new key for every other request.
        """
        if action == "remove" and body.get("incident_id"):
            said = json.dumps([body["owner"], body["incident_id"], body["group"], body["places"]])
            return hashlib.sha256(said.encode()).hexdigest()[:32]
        return uuid.uuid4().hex


def _said(answer: Answer) -> Mapping[str, Any]:
    """The answer's JSON object; an empty body means yes."""
    if not 200 <= answer.status < 300:
        passes = answer.status == 429 or (answer.status >= 500 and answer.status != 501)
        retry_s = (answer.retry_after_s or 0.0) if passes else None
        raise NotDone(_line(f"it {answer.summary}"), retry_s)
    return answer.json_object


def _told(why: Why) -> dict[str, Any]:
    return {"reason": _line(why.reason), "incident_id": why.incident_id}


def _line(text: str) -> str:
    return plain_line(text, REASON_MAX_CHARS)
