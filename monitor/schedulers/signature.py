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


def sign(secret: bytes, body: bytes, at_s: int) -> str:
    """The header's value."""
    return f"t={at_s},v1={_digest(secret, body, str(at_s))}"


def _digest(secret: bytes, body: bytes, at: str) -> str:
    return hmac.new(secret, f"{at}.".encode() + body, hashlib.sha256).hexdigest()
