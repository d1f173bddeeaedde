"""One sink's thread: sends what its ledger says is due, and tries again, ever more slowly."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from monitor.fetch import Answer, Fetcher, FetchError, Question
from monitor.metrics import Instruments
from monitor.notify.ledger import Ledger, Wanted
from monitor.notify.sinks import Message, Sink
from monitor.urls import without_secrets

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 10.0
ANSWER_MAX_BYTES: Final = 64 * 1024
_FIRST_S: Final = 1.0
_LONGEST_S: Final = 300.0
"""Between two tries: a sink that comes back is told within five minutes."""
_BAD_MESSAGE: Final = frozenset({400, 413, 422})
"""The message is at fault, so sending it again is no use. Any other failure may pass: a token that
was revoked, a channel that was archived."""
_TROUBLE_AFTER: Final = 2
"""Failures in a row; one is the network's ordinary life."""
_BREATH_S: Final = 5.0
"""How often it looks whether something has to be sent again, or more often where that is soon."""


def send(fetcher: Fetcher, sink: Sink, messages: Sequence[Message]) -> Answer:
    """One request.

    Raises:
        FetchError: no answer; like the answer it never shows the URL, which may be the secret.
    """
    post = sink.post(messages)
    question = Question(
        post.url,
        TIMEOUT_S,
        ANSWER_MAX_BYTES,
        method="POST",
        body=post.body,
        headers=post.headers,
    )
    try:
        answer = fetcher.ask(question)
    except FetchError as exc:
        raise FetchError(exc.failure, without_secrets(post.url, exc.detail)) from None
    said = without_secrets(post.url, answer.body.decode(errors="replace"))
    return replace(answer, body=said.encode())


def told(answer: Answer) -> str:
    """What an answer says, in one line."""
    words = " ".join(answer.body[:200].decode(errors="replace").split())
    return f"answered {answer.status}" + (f": {words}" if words else "")


class Courier:
    """Delivers to one sink. Close it when done."""

    def __init__(
        self,
        sink: Sink,
        ledger: Ledger,
        fetcher: Fetcher,
        instruments: Instruments,
        *,
        stored: Callable[[], object],
        first_s: float = _FIRST_S,
    ) -> None:
        """`stored` writes to disk what was sent; `first_s` is the wait after the first failure."""
        self.sink = sink
        self.trouble: str | None = None
        self._ledger = ledger
        self._fetcher = fetcher
        self._instruments = instruments
        self._stored = stored
        self._first_s = first_s
        self._failures = 0
        self._breath_s = min(_BREATH_S, (sink.resend_s or _BREATH_S) / 2)
        self._backing_off = False
        self._wanted: Wanted | None = None
        self._wanted_at = 0.0
        self._changed = threading.Condition()
        self._closing = False
        self._hurry = False
        self._next = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"notify {sink.name}", daemon=True)
        self._thread.start()

    def push(self, wanted: Wanted) -> None:
        """What should be known now; never waits."""
        with self._changed:
            before, self._wanted = self._wanted, wanted
            self._wanted_at = time.monotonic()
            if before is None or before.notices.keys() != wanted.notices.keys():
                self._hurry = True
                self._changed.notify_all()

    def close(self, timeout_s: float = 1.0) -> None:
        """Stop; what is under way gets `timeout_s`."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            wanted = self._wait()
            if wanted is None:
                return
            try:
                wait_s = self._deliver(wanted)
            except Exception as exc:
                log.exception("notify %s crashed", self.sink.name)
                self.trouble = f"notify {self.sink.name} crashed: {type(exc).__name__}: {exc}"
                wait_s = _LONGEST_S
            self._next = time.monotonic() + wait_s

    def _wait(self) -> Wanted | None:
        """What is wanted when it is time: at once for news, unless the sink is failing."""
        with self._changed:
            while not self._closing:
                left_s = self._next - time.monotonic()
                news = self._hurry and not self._backing_off
                latest = self._now()
                if latest is not None and (left_s <= 0 or news):
                    self._hurry = False
                    return latest
                self._changed.wait(left_s if left_s > 0 else self._breath_s)
            return None

    def _now(self) -> Wanted | None:
        """The latest, with the time that has passed since: the tick may stand still."""
        latest = self._wanted
        if latest is None:
            return None
        passed_s = time.monotonic() - self._wanted_at
        return replace(latest, now_s=latest.now_s + passed_s)

    def _deliver(self, wanted: Wanted) -> float:
        """Send what is due; seconds until the next try."""
        messages, given_up = self._ledger.due(wanted)
        self._count("dropped", given_up)
        self._instruments.notify_pending.labels(self.sink.name).set(len(messages))
        while messages and not self._closing:
            batch, messages = messages[: self.sink.at_once], messages[self.sink.at_once :]
            failed = self._send(batch)
            self._backing_off = failed is not None
            if failed is not None:
                return failed
            self._instruments.notify_pending.labels(self.sink.name).set(len(messages))
        self._backing_off = False
        self._stored()
        return self._breath_s

    def _send(self, batch: Sequence[Message]) -> float | None:
        """None when these are off the list; else how long to wait before the next try."""
        try:
            answer = send(self._fetcher, self.sink, batch)
        except FetchError as exc:
            return self._failed(str(exc), None)
        if 200 <= answer.status < 300:
            self._ledger.sent(batch)
            self._stored()
            self._count("sent", len(batch))
            self._failures, self.trouble = 0, None
            return None
        if answer.status in _BAD_MESSAGE and len(batch) > 1:
            return self._one_by_one(batch)
        if answer.status in _BAD_MESSAGE:
            log.warning("notify %s refuses a message: %s", self.sink.name, told(answer))
            self._ledger.refused(batch)
            self._count("dropped", len(batch))
            return None
        return self._failed(told(answer), answer.retry_after_s)

    def _one_by_one(self, batch: Sequence[Message]) -> float | None:
        """One bad message among many must not take the others along."""
        for message in batch:
            failed = self._send([message])
            if failed is not None:
                return failed
        return None

    def _failed(self, why: str, retry_after_s: float | None) -> float:
        self._count("failed", 1)
        self._failures += 1
        if self._failures >= _TROUBLE_AFTER:
            said = f"notify {self.sink.name}: {why}"
            if self.trouble is None:
                log.warning("%s", said)
            self.trouble = said
        wait_s = min(self._first_s * 2.0 ** min(self._failures - 1, 20), _LONGEST_S)
        wait_s *= random.uniform(0.8, 1.2)  # noqa: S311 - several monitors should not try in step
        return max(wait_s, min(retry_after_s or 0.0, _LONGEST_S))

    def _count(self, outcome: str, number: int) -> None:
        if number:
            self._instruments.notifications.labels(self.sink.name, outcome).inc(number)
