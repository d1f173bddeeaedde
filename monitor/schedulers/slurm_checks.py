"""What `lightkeeper schedulers check` asks Slurm; nothing is changed by it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from monitor.schedulers.deadline import Deadline, TooLate
from monitor.schedulers.protocol import Check
from monitor.schedulers.running import Ran, Run, RunError

NOBODY: Final = "lightkeeper-no-such-node"
"""Slurm asks who we are before it looks for the node (seen, 22.05): so a node that is nowhere tells
whether we may."""
_REFUSED: Final = re.compile(r"Invalid user id|[Pp]ermission denied")


def checks(run: Run, deadline: Deadline) -> Iterator[Check]:
    """Each command, the controller, and the permission to drain."""
    for command in ("scontrol", "scancel", "sinfo"):
        yield _try(f"{command} is there", run, [command, "--version"], deadline)
    ping = _try("slurmctld answers", run, ["scontrol", "ping"], deadline)
    yield Check(ping.what, ping.ok and " UP" in ping.said, ping.said)
    yield _may_drain(run, deadline)


def _try(what: str, run: Run, argv: Sequence[str], deadline: Deadline) -> Check:
    said = _ask(run, argv, deadline)
    if isinstance(said, str):
        return Check(what, False, said)
    return Check(what, said.status == 0, said.said)


def _may_drain(run: Run, deadline: Deadline) -> Check:
    what = "nodes may be drained"
    argv = ["scontrol", "update", f"NodeName={NOBODY}", "State=UNDRAIN"]
    said = _ask(run, argv, deadline)
    if isinstance(said, str):
        return Check(what, False, said)
    if "Invalid node name" in said.said:
        return Check(what, True, "this user may update nodes")
    who = " (needs SlurmUser, root, an operator or administrator)"
    return Check(what, False, said.said + (who if _REFUSED.search(said.said) else ""))


def _ask(run: Run, argv: Sequence[str], deadline: Deadline) -> Ran | str:
    try:
        return run(argv, deadline.left_s())
    except (RunError, TooLate) as exc:
        return str(exc)
