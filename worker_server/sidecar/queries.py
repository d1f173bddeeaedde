"""What stands behind the question mark, and in the body, checked: a typing error is a 400."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

from flask import request

from worker_server import wire
from worker_server.sidecar.answers import RefusalError

MAX_GRACE_S: Final = 60.0
MAX_PROFILE_S: Final = 60.0
MAX_SINCE: Final = 2**63 - 1
MAX_CURSOR: Final = 200
_MAX_REASON: Final = 500
_WHOLE: Final = re.compile(r"[0-9]{1,19}")
_NUMBER: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?")


def only(*names: str) -> None:
    """The request asks with no other parameters than these, and with each once.

    Raises:
        RefusalError: 400; a parameter that is not understood must not be taken for obeyed.
    """
    for name in request.args:
        if name not in names:
            known = ", ".join(names) or "none"
            raise RefusalError(400, f"unknown parameter {name!r:.80}, expected {known}")
        if len(request.args.getlist(name)) > 1:
            raise RefusalError(400, f"{name!r} is given more than once")


def flag(name: str) -> bool:
    """A parameter that is 0 or 1; absent is 0.

    Raises:
        RefusalError: 400.
    """
    text = request.args.get(name, "0")
    if text not in ("0", "1"):
        raise RefusalError(400, f"{name!r} is {text!r:.80}, expected 1 or 0")
    return text == "1"


def since_attempt() -> int:
    """`?since=ATTEMPT`; absent is 0.

    Raises:
        RefusalError: 400.
    """
    text = request.args.get("since", "0")
    if not _WHOLE.fullmatch(text) or int(text) > MAX_SINCE:
        raise RefusalError(400, f"'since' is {text!r:.80}, expected the number of an attempt")
    return int(text)


def cursor() -> str | None:
    """`?since=CURSOR` of a former answer.

    Raises:
        RefusalError: 400.
    """
    text = request.args.get("since")
    if text is not None and not 0 < len(text) <= MAX_CURSOR:
        raise RefusalError(400, "'since' is no 'cursor' of a former answer")
    return text


def as_text() -> bool:
    """`?format=text`.

    Raises:
        RefusalError: 400.
    """
    text = request.args.get("format", "json")
    if text not in ("json", "text"):
        raise RefusalError(400, f"'format' is {text!r:.80}, expected json or text")
    return text == "text"


def duration_s() -> float:
    """`?duration=S` of a profile.

    Raises:
        RefusalError: 400.
    """
    text = request.args.get("duration", "")
    value = float(text) if _NUMBER.fullmatch(text) else 0.0
    if not 0 < value <= MAX_PROFILE_S:
        raise RefusalError(
            400, f"'duration' is {text!r:.80}, expected seconds: more than 0, at most "
            f"{MAX_PROFILE_S:g}",
        )  # fmt: skip
    return value


def eviction(body: bytes, identity: wire.Identity) -> tuple[str, float]:
    """Reason and grace of `POST /v1/evict`.

    Raises:
        RefusalError: 400, or 409 when another incarnation is meant.
    """
    try:
        data: Any = json.loads(body)
    except (ValueError, RecursionError) as exc:
        raise RefusalError(400, f"the body is not JSON: {exc}") from exc
    if not isinstance(data, dict):
        raise RefusalError(400, "the body is not a JSON object")
    reason, grace_s = data.get("reason"), data.get("grace_s", 2.0)
    if not isinstance(reason, str) or not reason.strip():
        raise RefusalError(400, "'reason' is not a text: say why the rank is evicted")
    if isinstance(grace_s, bool) or not isinstance(grace_s, int | float):
        raise RefusalError(400, "'grace_s' is not a number")
    if not 0 <= grace_s <= MAX_GRACE_S or not math.isfinite(grace_s):
        raise RefusalError(400, f"'grace_s' is {grace_s!r:.40}, expected 0 to {MAX_GRACE_S:g}")
    meant = data.get("incarnation", identity.incarnation)
    if not isinstance(meant, str):
        raise RefusalError(400, "'incarnation' is not a text")
    if meant != identity.incarnation:
        # A port may be taken over between the accusation and the kill.
        raise RefusalError(
            409, f"meant for incarnation {meant!r:.80}, this is {identity.incarnation!r}"
        )
    return " ".join(reason.split())[:_MAX_REASON], float(grace_s)
