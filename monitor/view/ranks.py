"""What is wrong with one rank, by its own account, its silence or its stacks. Pure."""

from __future__ import annotations

from typing import Final

from monitor.detectors.wording import seconds
from monitor.snapshot import Observation, Unreachable
from worker_server.wire import Doing, Ending, Process, Witness

_DOES: Final = {
    Doing.LOCK: "waiting for a lock, a queue or another thread",
    Doing.SLEEP: "sleeping",
    Doing.IO: "reading or writing a file, a pipe or a socket",
    Doing.DATA: "waiting for its data loader",
    Doing.PROCESS: "waiting for another process",
    Doing.COLLECTIVE: "waiting for other ranks",
    Doing.COMPILE: "compiling",
    Doing.SAVE: "at a checkpoint",
    Doing.EVALUATE: "evaluating",
    Doing.START: "importing or downloading",
}


def ended(process: Process, ending: Ending | None) -> str:
    """How a dead process ended: `exit code 1, RuntimeError: no (train.py:66)`."""
    code = None if process.exit_code is None else f"exit code {process.exit_code}"
    how = [process.exit_signal or code]
    if ending is not None:
        how.append(ending.exception)
        if ending.exception is None and not any(how):
            how.append(ending.sentence)
    told = ", ".join(one for one in how if one)
    where = "" if ending is None or ending.frame is None else f" in {ending.frame}"
    return f"{told or 'nobody knows how'}{where}"


def stands(witness: Witness) -> str:
    """Where it stands: `stands in f (train.py:66), sleeping (3 stacks over 4 s, 1 s ago)`."""
    does = _DOES.get(witness.doing)
    how = f"{witness.samples} stacks over {seconds(witness.same_s)}" if witness.samples > 1 else (
        "one stack")  # fmt: skip
    doing = "" if does is None else f", {does}"
    return f"stands in {witness.frame}{doing} ({how}, {seconds(witness.age_s)} ago)"


def trouble_of(seen: Observation) -> str:
    """Empty: nothing is known to be wrong."""
    if isinstance(seen.outcome, Unreachable):
        return f"{seen.outcome.reason}: {seen.outcome.detail}"
    report = seen.outcome
    process, witness, step = report.process, report.witness, report.step
    if not process.alive:
        ago = "" if process.dead_age_s is None else f" {seconds(process.dead_age_s)} ago"
        return f"ended{ago} ({ended(process, report.ending)}){_before(process, witness)}"
    found = (
        process.tracer and f"traced by {process.tracer.name} (pid {process.tracer.pid})",
        process.stopped and f"its process is stopped ({process.state})",
        step and not step.loss_finite and "its loss is not finite",
        witness and stands(witness),
        step and step.errored and "this attempt has failed",
    )
    return next((one for one in found if isinstance(one, str)), "")


def _before(process: Process, witness: Witness | None) -> str:
    """Where it stood while it lived, which is not where it died."""
    if witness is None or process.dead_age_s is None:
        return ""
    before_s = max(0.0, witness.age_s - process.dead_age_s)
    return f"; {seconds(before_s)} before its end it stood in {witness.frame}"
