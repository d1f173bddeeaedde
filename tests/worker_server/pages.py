"""Pages for tests: who is on them and when it is."""

from __future__ import annotations

import os

from worker_server import wire

NOW = 10**15
"""Later than any real CLOCK_MONOTONIC, so that ages are positive."""


def identity(**changes):
    known = {
        "job": "job", "group": wire.GroupName("rg_1"), "group_rank": 0, "world_size": 2,
        "host": wire.Host("h"), "pid": os.getpid(), "incarnation": "abc",
    }  # fmt: skip
    return wire.Identity(**{**known, **changes})
