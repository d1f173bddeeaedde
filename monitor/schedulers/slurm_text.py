"""What `scontrol show` and `sinfo` say, as values. Pure.

The plain text and not JSON: it is the same in 20.11 to 25.05, JSON comes with a plugin that not
every cluster has, in a format that changes with each release.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252}[A-Za-z0-9])?")
"""A node's name; no list (`a[1-9]`, `a,b`), of which Slurm would take every one."""
NUMBER: Final = re.compile(r"[0-9]{1,10}")
_REASON: Final = re.compile(r"(?P<said>.*?)(?: \[(?P<who>[^\[\]@]*)@[^\[\]]*\])?")
_SUFFIXES: Final = "*~#!%$@^-"
NOT_RESPONDING: Final = "Not responding"
"""Slurm's own reason for a node that it lost; no person's."""


def is_node(name: str) -> bool:
    """Whether this can be one node. ALL is every node."""
    return NAME.fullmatch(name) is not None and name.upper() != "ALL"


@dataclass(frozen=True, slots=True)
class Node:
    """One node as `scontrol show node` says."""

    name: str
    states: frozenset[str]
    reason: str
    author: str

    @property
    def drained(self) -> bool:
        """Whether nothing new starts there until somebody says so."""
        return "DRAIN" in self.states

    @property
    def down(self) -> bool:
        """Whether it is out for another reason."""
        return bool(self.states & {"DOWN", "FAIL", "FAILING", "ERROR"})

    @property
    def by(self) -> str:
        """Who set the reason, and why, for a person."""
        who = f" by {self.author}" if self.author else ""
        return f"{who}: {self.reason}" if self.reason else f"{who}, without a reason"


def parse_node(text: str) -> Node | None:
    """The one node of this text; None when it is none."""
    name = re.search(r"^NodeName=(\S+)", text, re.MULTILINE)
    state = re.search(r"^\s+State=(\S+)", text, re.MULTILINE)
    if name is None or state is None or text.count("NodeName=") != 1:
        return None
    reason = re.search(r"^\s+Reason=(.*)$", text, re.MULTILINE)
    parts = None if reason is None else _REASON.fullmatch(reason.group(1).strip())
    said = "" if parts is None else parts["said"]
    return Node(
        name=name.group(1),
        states=frozenset(one.rstrip(_SUFFIXES) for one in state.group(1).split("+")),
        reason="" if said in ("(null)", "none") else said,
        author="" if parts is None else parts["who"] or "",
    )


@dataclass(frozen=True, slots=True)
class Job:
    """One job as `scontrol show job` says."""

    state: str
    name: str
    """By which it alone is meant: `12`, or `10_3` of an array, whose last task has the array's own
    number: `scancel` of that number ends all tasks (seen, 22.05)."""
    restarts: str
    requeues: bool
    whole: bool
    """False: a part of a heterogeneous job, whose end may end the others."""


def parse_job(text: str, number: str) -> Job | None:
    """The job of this number; None when it is not there. Asked for an array's number, which is
    that of its last task too, Slurm lists every task.
    """
    for block in text.split("\n\n"):
        words = _words(block)
        state = words.get("JobState")
        if words.get("JobId") != number or state is None:
            continue
        array, task = words.get("ArrayJobId"), words.get("ArrayTaskId")
        return Job(
            state=state,
            name=number if array is None or task is None else f"{array}_{task}",
            restarts=words.get("Restarts", "0"),
            requeues=words.get("Requeue") == "1" and words.get("BatchFlag") == "1",
            whole="HetJobId" not in words,
        )
    return None


def _words(text: str) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for word in text.split():
        key, equals, value = word.partition("=")
        if equals:
            found.setdefault(key, value)
    return found
