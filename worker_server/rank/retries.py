"""Behind a gate, TorchFT asks again for a quorum whose answer was lost."""

from __future__ import annotations

from collections.abc import Mapping
from http.client import HTTPException
from time import monotonic, sleep
from typing import Final

from lightkeeper.worker_server import home
from lightkeeper.worker_server.rank.settings import QUORUM_RETRIES
from lightkeeper.worker_server.wire import GATE_ANSWER, PATH_GATE

_QUORUM_S: Final = 60  # TorchFT's own quorum timeout
_STARTS_S: Final = 5.0
"""A job's Lighthouse, gate and ranks are often started together."""


def quorum_retries(environ: Mapping[str, str]) -> dict[str, str]:
    """The variable by which TorchFT asks again each second; empty: the user chose, or no gate
    answers.

    A manager whose request fails reports it to no rank, and they wait until their quorum timeout
    ends the group. It waits timeout / (retries + 1) before it asks again (TorchFT 0.2.0). Without
    a gate it may get a quorum's number again, with old addresses (evidence/quorum-retries.md).
    """
    if environ.get(QUORUM_RETRIES) or not _is_gate(environ.get("TORCHFT_LIGHTHOUSE", "")):
        return {}
    try:
        timeout_s = round(float(environ.get("TORCHFT_QUORUM_TIMEOUT_SEC") or _QUORUM_S))
    except (ValueError, OverflowError):
        timeout_s = _QUORUM_S
    return {QUORUM_RETRIES: str(max(1, timeout_s - 1))}


def _is_gate(url: str) -> bool:
    """True if `lightkeeper gate` answers there; one that is just being started is waited for."""
    until_s = monotonic() + _STARTS_S
    while url.startswith(("http://", "https://")):
        try:
            return home.request("GET", url.rstrip("/") + PATH_GATE, _STARTS_S)[1] == GATE_ANSWER
        except (HTTPException, ValueError):
            break  # a Lighthouse, or anybody else
        except OSError:
            if monotonic() > until_s:
                break
            sleep(0.2)
    return False
