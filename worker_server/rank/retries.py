"""Behind a gate, TorchFT asks again for a quorum whose answer was lost."""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Final

from lightkeeper.worker_server.rank.settings import QUORUM_RETRIES
from lightkeeper.worker_server.wire import GATE_ANSWER, PATH_GATE

_QUORUM_S: Final = 60
"""TorchFT's own quorum timeout."""
_GATE_S: Final = 2.0


def quorum_retries(environ: Mapping[str, str]) -> dict[str, str]:
    """The variable that has TorchFT ask again about every second; empty where the user chose, or
    where no gate answers.

    A manager whose request fails (gate replaced, connection cut) reports it to no rank, and they
    wait until their quorum timeout ends the group. It waits timeout / (retries + 1) before it asks
    again (tried with TorchFT 0.2.0). Without a gate, a Lighthouse that is started again counts its
    quorums from 1. Who asks it again may get a number that it had before, with addresses that are
    gone (evidence/quorum-retries.md).
    """
    if environ.get(QUORUM_RETRIES) or not _is_gate(environ.get("TORCHFT_LIGHTHOUSE", "")):
        return {}
    try:
        timeout_s = round(float(environ.get("TORCHFT_QUORUM_TIMEOUT_SEC") or _QUORUM_S))
    except (ValueError, OverflowError):
        timeout_s = _QUORUM_S
    return {QUORUM_RETRIES: str(max(1, timeout_s - 1))}


def _is_gate(url: str) -> bool:
    """Whether `lightkeeper gate` answers there, within `_GATE_S`."""
    if not url.startswith(("http://", "https://")):
        return False
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(url.rstrip("/") + PATH_GATE, timeout=_GATE_S) as answer:
            return bool(answer.read(len(GATE_ANSWER) + 1) == GATE_ANSWER)
    except (OSError, ValueError, HTTPException):
        return False
