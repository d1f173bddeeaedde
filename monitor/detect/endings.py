"""How a rank ended, and whose doing that was. Pure.

An exception is a rank's own unless it was raised by what waits for other ranks: the WorkerServer
decides that by its frames and its type (`Ending.of_peers`). A signal says less. SIGTERM and SIGINT
come from a person or a launcher; SIGKILL, SIGHUP and others from anybody, the kernel too; SIGABRT
is what C++ does about an error of its own or of a peer, so without a message it says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from lightkeeper.monitor.detect.track import RankTrack
from lightkeeper.monitor.model.observation import stopped
from lightkeeper.monitor.model.wording import plural
from lightkeeper.worker_server.wire import FINISHED_PHASE


class End(StrEnum):
    """How a rank ended."""

    DONE = "done"  # its work is over: exit code 0, or it said so
    OWN = "own"  # by an error of its own
    PEERS = "peers"  # it gave up on other ranks, or lost one
    ASKED = "asked"  # SIGTERM or Ctrl-C
    KILLED = "killed"  # a signal from outside that asks for nothing
    UNKNOWN = "unknown"


_BY_ORIGIN: Final = {True: End.PEERS, False: End.OWN, None: End.UNKNOWN}
_BY_SIGNAL: Final = {
    "SIGKILL": End.KILLED, "SIGHUP": End.KILLED, "SIGQUIT": End.KILLED, "SIGUSR1": End.KILLED,
    "SIGUSR2": End.KILLED, "SIGXCPU": End.KILLED, "SIGSEGV": End.OWN, "SIGBUS": End.OWN,
    "SIGILL": End.OWN, "SIGFPE": End.OWN, "SIGALRM": End.OWN,
}  # fmt: skip


def is_gone(track: RankTrack) -> bool:
    """True if its process is known to have ended."""
    return track.died_s is not None


def finished(track: RankTrack) -> bool:
    """True if it had reported the end of its training, or ended with exit code 0."""
    exited = track.report is not None and track.report.process.exit_code == 0
    return track.doing == FINISHED_PHASE or exited


def end_of(track: RankTrack) -> End:
    """How an ended rank ended, as far as its WorkerServer knows."""
    report = track.report
    if report is None or finished(track):
        return End.UNKNOWN if report is None else End.DONE
    process, ending = report.process, report.ending
    if stopped(process, ending):
        return End.ASKED
    if ending is not None and ending.exception is not None:
        return _BY_ORIGIN[ending.of_peers]
    return _BY_SIGNAL.get(process.exit_signal or "", End.UNKNOWN)


def perhaps_asked(tracks: Sequence[RankTrack]) -> str:
    """What to add of ranks that ended with exit code 0 and may have been asked to end."""
    reports = [track.report for track in tracks if track.report is not None]
    if not reports or not all(report.process.handles_sigterm for report in reports):
        return ""
    asked = plural(reports, "it was asked to (it handles", "they were asked to (they handle")
    itself = plural(reports, "itself", "themselves")
    return f", perhaps because {asked} SIGTERM {itself})"


def end_in_words(track: RankTrack, launcher: bool = False) -> str:
    """`gave up after 8 s of waiting`, `was ended by its launcher (SIGTERM)`, `ended with exit code
    0`; `launcher`: a peer's end came first.
    """
    report = track.report
    process = None if report is None else report.process
    signal = None if process is None else process.exit_signal
    if signal is not None:
        return f"was ended by its launcher ({signal})" if launcher else f"was ended by {signal}"
    if process is not None and process.exit_code is not None:
        return f"ended with exit code {process.exit_code}"
    return "ended"
