"""Signed requests: how ours are signed, and what a receiver does to know them. Pure.

One header, in the form that Stripe made common: `t=SECONDS,v1=HEX`, HMAC-SHA256 of
`SECONDS.BODY`. The time is signed along, so that an old request cannot be sent again later; several
`v1` may stand there while a secret is changed. (`monitor.notify` signs its messages to people
without a time: to hear one twice does no harm.) `docs/webhook.md` has `verify` as a sample.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

HEADER: Final = "X-Lightkeeper-Signature"
IDEMPOTENCY: Final = "Idempotency-Key"
WINDOW_S: Final = 300.0
"""Clocks of hosts differ by less, and nobody replays within it without being inside already."""


def sign(secret: bytes, body: bytes, at_s: int) -> str:
    """The header's value."""
    return f"t={at_s},v1={_digest(secret, body, str(at_s))}"


def verify(
    secret: bytes, body: bytes, header: str, now_s: float, window_s: float = WINDOW_S
) -> str | None:
    """Why a request is not to be believed; None when it is."""
    pairs = [part.strip().partition("=") for part in header.split(",")]
    times = [value for key, _, value in pairs if key == "t"]
    given = [value for key, _, value in pairs if key == "v1"]
    plain = len(times) == 1 and times[0].isascii() and times[0].isdigit() and len(times[0]) < 13
    if not plain or not given:
        return "no signature of the form t=SECONDS,v1=HEX"
    if abs(now_s - int(times[0])) > window_s:
        return "too old, or from the future"
    due = _digest(secret, body, times[0]).encode()
    # every comparison is made, and each takes as long whatever differs
    fits = [hmac.compare_digest(due, one.encode("utf-8", "replace")) for one in given]
    return None if any(fits) else "signed with another secret, or changed on the way"


def _digest(secret: bytes, body: bytes, at: str) -> str:
    return hmac.new(secret, f"{at}.".encode() + body, hashlib.sha256).hexdigest()
