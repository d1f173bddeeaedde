"""What stands behind the question mark, and in the body, checked: a typing error is a 400."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Final

from flask import request
from msgspec import UNSET, DecodeError, Meta, UnsetType, ValidationError
from msgspec.json import decode

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


@dataclass(frozen=True, slots=True)
class EvictionOrder:
    """Why, and how politely."""

    reason: Annotated[str, Meta(pattern=r"\S")]
    """Not empty."""
    grace_s: Annotated[float, Meta(ge=0.0, le=MAX_GRACE_S)] = 2.0
    """Between SIGTERM and SIGKILL."""
    incarnation: Annotated[str, Meta(examples=["32bfd68baf"])] | UnsetType = UNSET
    """Refuse when another process bears the name by now."""


def eviction(body: bytes, identity: wire.Identity) -> tuple[str, float]:
    """Reason and grace of `POST /v1/evict`.

    Raises:
        RefusalError: 400, or 409 when another incarnation is meant.
    """
    try:
        order = decode(body, type=EvictionOrder)
    except ValidationError as exc:
        raise RefusalError(400, f"the body is no order to evict: {exc}") from exc
    except (DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise RefusalError(400, f"the body is not JSON: {exc}") from exc
    if order.incarnation not in (UNSET, identity.incarnation):
        # A port may be taken over between the accusation and the kill.
        raise RefusalError(
            409,
            f"meant for incarnation {order.incarnation!r:.80}, this is {identity.incarnation!r}",
        )
    return " ".join(order.reason.split())[:_MAX_REASON], order.grace_s
