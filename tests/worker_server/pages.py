"""Pages for tests: who is on them and when it is."""

from __future__ import annotations

import os

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.rank.page import layout
from lightkeeper.worker_server.rank.page.writer import StepFacts

NOW = 10**15
"""Later than any real CLOCK_MONOTONIC, so that ages are positive."""


def identity(**changes):
    usual = {
        "job": "job", "group": wire.GroupName("rg_1"), "group_rank": 0, "world_size": 2,
        "host": wire.Host("h"), "pid": os.getpid(), "incarnation": "abc",
    }  # fmt: skip
    return wire.Identity(**{**usual, **changes})


def write_step(page, n, loss_kind=layout.LOSS_FINITE):
    replica = page.intern("rg:x")
    facts = StepFacts(n, n, n, NOW - 1, n, n, False, True, replica, n, loss_kind, n, n, n)
    page.write_step(facts)


def enter(
    page, row, op="all_reduce", *, shapes=b"4>4", attempt=1, is_async=False, thread=1,
    root=layout.NONE, tag=layout.NONE,
):  # fmt: skip
    op_id, site = page.intern(op), page.intern("a.py:1")
    return page.enter(row, op_id, 0, 0, root, 7, attempt, site, is_async, thread, tag, shapes)
