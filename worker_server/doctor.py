"""`lightkeeper doctor`: what would keep lightkeeper from working here, before it is needed.

Beside ranks it looks at the environment that each was started with, beside a launcher at the one
that they would get. Nothing is changed. `lightkeeper check host` tries the network and the machine,
`lightkeeper status` says what a monitor that sees its ranks finds wrong.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, NamedTuple

import requests
from rich.console import Console
from rich.markup import escape

from lightkeeper.worker_server import home, run_dir
from lightkeeper.worker_server.command import OneLineParser
from lightkeeper.worker_server.home import misspelt
from lightkeeper.worker_server.plain_text import escaped
from lightkeeper.worker_server.rank.settings import SettingError, Settings, monitors_in, monitors_of
from lightkeeper.worker_server.sidecar.files import number_in

OK, WARNING, FAILED, UNKNOWN = "ok", "warning", "failed", "unknown"
_TIMEOUT_S: Final = 3.0
_TRIED: Final[Mapping[str, tuple[str, ...]]] = {
    "torch": ("2.13", "2.14", "2.15"),
    "torchft": ("0.2", "2026."),
}
"""Prefixes of the versions that the tests ran with (docs/versions.md)."""
_ENTRIES_LEAST: Final = 200
_CLOCK_S: Final = 2.0
"""Records of two hosts are ordered by their clocks."""
_NAMED_S: Final = 32.0
"""When the slowest of the usual hangs is named (docs/detection.md); eviction takes 6 s more."""
_BLOCKED_S: Final = 12.0
"""When a rank that two stacks show blocked is named: 9 s (docs/detection.md), and some for load."""
_MARKS: Final = {
    FAILED: ("✕", "red"),
    WARNING: ("▲", "yellow"),
    UNKNOWN: ("?", "cyan"),
    OK: ("●", "green"),
}
"""The worst first."""


class DoctorFinding(NamedTuple):
    check: str
    state: str
    said: str
    do: str = ""
    """How to fix it; empty where nothing is wrong."""
    where: str = "this host"


class RankHere(NamedTuple):
    """A rank found on this host, or (without `url`) one that would start here."""

    name: str
    environ: Mapping[str, str]
    url: str | None = None
    complaint: str | None = None
    """What its WorkerServer has to say to its user."""


def ranks_here(environ: Mapping[str, str]) -> list[RankHere]:
    """The ranks that have published themselves in this user's run directories."""
    ranks = []
    for folder in run_dir.candidates(environ):
        for path in sorted(folder.glob("*.json")):
            endpoint = run_dir.read_json(path)
            rank_environ = _environ_of(endpoint.get("pid"))
            if rank_environ is not None:
                name, url = str(endpoint.get("rank")), endpoint.get("url")
                ranks.append(RankHere(name, rank_environ, url, endpoint.get("complaint")))
    return ranks


def _environ_of(pid: object) -> dict[str, str] | None:
    """A process's initial environment; None if it is gone, or another user's."""
    if not isinstance(pid, int):
        return None
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return None
    return dict(line.split("=", 1) for line in text.split("\0") if "=" in line)


# -- the host ------------------------------------------------------------------------------------


def of_versions() -> Iterator[DoctorFinding]:
    """Versions of this Python's torch and TorchFT."""
    for name, tried in _TRIED.items():
        have = next(filter(None, map(_version, (name, f"{name}-nightly"))), None)
        if have is None:
            said = f"no {name} beside {sys.executable}"
            do = "run it with the Python that trains; a job without TorchFT needs no torchft"
            yield DoctorFinding("versions", UNKNOWN, said, do)
        elif have.startswith(tried):
            yield DoctorFinding("versions", OK, f"{name} {have}")
        else:
            do = f"known: {name} {', '.join(tried)}; see `unhooked` of /v1/state"
            yield DoctorFinding("versions", WARNING, f"{name} {have} was not tried", do)


def of_torchft_bugs(ranks: Sequence[RankHere]) -> Iterator[DoctorFinding]:
    """Known bugs of the installed TorchFT, by their numbers in docs/versions.md."""
    have = _version("torchft")
    jobs = [rank for rank in ranks if rank.environ.get("TORCHFT_LIGHTHOUSE")]
    if not jobs or have is None or not have.startswith("0.2.0"):
        return
    check, others = "TorchFT's known bugs", "2 to 6 of docs/versions.md"
    if all(rank.environ.get("LIGHTKEEPER_MEND_TORCHFT") == "1" for rank in jobs):
        yield DoctorFinding(check, OK, f"bug 1 is fixed by LIGHTKEEPER_MEND_TORCHFT; {others}")
    else:
        said = (
            "bug 1: with its DistributedDataParallel, groups that survive an eviction or a death "
            f"die of an AssertionError in ddp.py; and {others}"
        )
        do = "set LIGHTKEEPER_MEND_TORCHFT=1 for the ranks, or install torchft-nightly"
        yield DoctorFinding(check, WARNING, said, do)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def of_run_directory(environ: Mapping[str, str]) -> DoctorFinding:
    """Each rank publishes itself in a folder in memory."""
    check, troubles = "run directory", list[str]()
    do = "set LIGHTKEEPER_RUN_DIR to a folder in memory that only this user can enter"
    try:
        place = run_dir.first_usable(run_dir.candidates(environ), Path, troubles.append)
    except OSError as exc:
        return DoctorFinding(check, FAILED, str(exc), do)
    if troubles:
        return DoctorFinding(check, WARNING, f"{place}; {'; '.join(troubles)}", do)
    return DoctorFinding(check, OK, str(place))


def of_ptrace(proc: Path = Path("/proc")) -> DoctorFinding:
    """Stacks have to be taken from outside."""
    scope = number_in(proc / "sys/kernel/yama/ptrace_scope") or 0
    said = f"kernel.yama.ptrace_scope is {scope}"
    if scope <= 1:  # with 1, a rank allows its own WorkerServer to trace it
        return DoctorFinding("ptrace", OK, said)
    do = (
        "sysctl kernel.yama.ptrace_scope=1; in a container SYS_PTRACE. Without it "
        "hangs are named after 30 s instead of 12, and a held GIL without its line"
    )
    return DoctorFinding("ptrace", WARNING, f"{said}: no stacks from outside", do)


# -- the environment of a rank -------------------------------------------------------------------


def of_settings(rank: RankHere) -> Iterator[DoctorFinding]:
    """LIGHTKEEPER_*."""
    do = "docs/configuration.md lists them"
    if complaint := misspelt(rank.environ):
        yield DoctorFinding("variables", WARNING, complaint, do)
    try:
        settings = Settings.from_environ(rank.environ, 0)
    except SettingError as exc:
        yield DoctorFinding("settings", FAILED, str(exc), do)
        return
    if settings.token is None:
        do = (
            "start `lightkeeper monitor` here, or set LIGHTKEEPER_TOKEN_FILE: without a token "
            "nobody can evict through the WorkerServer"
        )
        yield DoctorFinding("token", WARNING, settings.no_token or "none", do)
    else:
        yield DoctorFinding("token", OK, "set")


def of_buffers(rank: RankHere) -> Iterator[DoctorFinding]:
    """Torch's recorders have to be on."""
    check, default = "flight recorder's size", rank.environ.get("TORCH_NCCL_TRACE_BUFFER_SIZE")
    text = rank.environ.get("TORCH_FR_BUFFER_SIZE", default or "2000")
    entries = int(text) if text.isdigit() else 0
    if entries >= _ENTRIES_LEAST:
        yield DoctorFinding(check, OK, text)
        return
    state, what = (WARNING, "holds hardly a step") if entries else (FAILED, "is off")
    do = "unset TORCH_FR_BUFFER_SIZE, or set 2000 or more"
    yield DoctorFinding(check, state, f"{text}: torch's recorder {what}", do)


def of_timeouts(rank: RankHere) -> Iterator[DoctorFinding]:
    """TorchFT's timeouts should outlast the naming of a hang, and the watchdog both."""

    def seconds(name: str, default: float) -> float:
        with suppress(ValueError):
            return float(rank.environ.get(name) or default)
        return default

    quorum_s = seconds("TORCHFT_QUORUM_TIMEOUT_SEC", 60.0)
    work_s = seconds("TORCHFT_TIMEOUT_SEC", 60.0)
    watchdog_s = seconds("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", 480.0)
    said = (
        f"TorchFT's collectives {work_s:g} s, quorum {quorum_s:g} s; NCCL's watchdog "
        f"{watchdog_s:g} s"
    )
    state, do = OK, ""
    if min(work_s, quorum_s) < _NAMED_S + 6:
        state = WARNING
        said += ": the others give up before a hang without phases is named and out"
        do = f"raise TorchFT's timeouts to more than {_NAMED_S + 6:g} s, or report phases"
    elif watchdog_s <= max(work_s, quorum_s):
        state = FAILED
        said += ": the watchdog ends healthy ranks that wait for a quorum"
        do = (
            "raise TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC above TorchFT's timeouts, and the timeout of "
            "init_process_group as well"
        )
    yield DoctorFinding("timeouts", state, said, do)


def of_program(rank: RankHere) -> Iterator[DoctorFinding]:
    """Its WorkerServer answers, and says the timeouts that the program set itself."""
    if rank.url is None:
        return
    try:
        state = _get(f"{rank.url}/v1/state", rank.environ).json()
        least_s = min(state.get("timeouts", {}).values(), default=_BLOCKED_S)
    except (requests.RequestException, ValueError, AttributeError) as exc:
        do = "its log stands in the run directory, NAME.log"
        yield DoctorFinding("WorkerServer", FAILED, f"{rank.url}: {_short(exc)}", do)
        return
    yield DoctorFinding("WorkerServer", OK, rank.url)
    if least_s < _BLOCKED_S:
        said = f"one of the program's is {least_s:g} s: too short to name a rank that blocks"
        do = f"give process groups and the Manager at least {_BLOCKED_S:g} s"
        yield DoctorFinding("timeouts", WARNING, said, do)


# -- the monitor -----------------------------------------------------------------------------------


def _get(url: str, environ: Mapping[str, str] | None = None) -> requests.Response:
    """An answer of 200; asked with the token of this environment, if there is one."""
    headers = {}
    with suppress(SettingError):
        if environ is not None and (token := Settings.from_environ(environ, 0).token) is not None:
            headers["Authorization"] = f"Bearer {token}"
    answer = home.ask("GET", url, headers=headers, timeout=_TIMEOUT_S)
    answer.raise_for_status()
    if answer.is_redirect:
        raise requests.HTTPError(f"it redirects to {answer.headers['Location'][:200]!r}")
    return answer


def _short(exc: Exception) -> str:
    """What the system said, if it did: requests wraps it three times."""
    cause: BaseException = exc
    while (inner := cause.__cause__ or cause.__context__) is not None:
        cause = inner
    return getattr(cause, "strerror", None) or f"{type(exc).__name__}: {exc}"[:160]


def of_monitors(
    ranks: Sequence[RankHere], environ: Mapping[str, str] | None = None
) -> Iterator[DoctorFinding]:
    """It answers us, and sees its ranks here; those of another monitor than the shell's: a note."""
    wanted = (environ or {}).get("LIGHTKEEPER_MONITOR")
    watched: dict[str, list[RankHere]] = {}
    for rank in ranks:
        named = monitors_in(rank.environ)
        if wanted and named != wanted and rank.url is not None:
            said = f"another job's: its monitor is {named or 'nobody'}"
            yield DoctorFinding("monitor", OK, said, where=rank.name)
            continue
        with suppress(SettingError):  # reported by `of_settings`
            urls = monitors_of(named) or ("",)
            for url in urls:
                watched.setdefault(url, []).append(rank)
    if watched.pop("", None):
        do = (
            "unset it where `lightkeeper monitor` runs on this host, or set it to the monitor's "
            "URL, before the ranks start"
        )
        yield DoctorFinding("monitor", FAILED, "LIGHTKEEPER_MONITOR is empty: nobody watches", do)
    for url, its in watched.items():
        yield from _of_monitor(url, [rank for rank in its if rank.url is not None])


def _of_monitor(url: str, alive: Sequence[RankHere]) -> Iterator[DoctorFinding]:
    began_s = time.time()
    try:
        answer = _get(f"{url}/healthz")
    except requests.RequestException as exc:
        do = (
            "is it up, and may this host reach it? the ranks register by themselves once it answers"
        )
        yield DoctorFinding("monitor", FAILED, f"{url}: {_short(exc)}", do)
        return
    yield DoctorFinding("monitor", OK, url)
    with suppress(ValueError):
        date = parsedate_to_datetime(answer.headers.get("Date", ""))
        # it has whole seconds
        apart_s = abs(date.timestamp() + 0.5 - (began_s + time.time()) / 2)
        if apart_s > _CLOCK_S:
            do = "run chrony or ntpd: records of two hosts are ordered by their clocks"
            yield DoctorFinding("clock", WARNING, f"{apart_s:.0f} s apart from the monitor's", do)
        else:
            yield DoctorFinding("clock", OK, "that of the monitor's host")
    if not alive:
        return
    check = "monitor sees the ranks"
    try:
        rows = _get(f"{url}/v1/ranks", alive[0].environ).json()["ranks"]
        seen = {row["url"]: (row["rank"], str(row.get("health"))) for row in rows}
    except (requests.RequestException, ValueError, KeyError, TypeError, AttributeError) as exc:
        said, do = f"{url}: {_short(exc)}", "give the ranks the monitor's token"
        yield DoctorFinding(check, UNKNOWN, said, do)
        return
    for rank in alive:
        name, health = seen.get(str(rank.url), (rank.name, "not registered"))
        if health in ("unreachable", "not registered"):
            do = (
                f"the monitor must reach {rank.url}: set LIGHTKEEPER_BIND, and open the "
                "port between the hosts"
            )
            yield DoctorFinding(check, FAILED, health, rank.complaint or do, name)
        else:
            yield DoctorFinding(check, OK, health, where=name)


# -- the command -----------------------------------------------------------------------------------


def examine(environ: Mapping[str, str]) -> list[DoctorFinding]:
    """All checks, of this host and of its ranks, or of a rank that would start here."""
    ranks = ranks_here(environ) or [RankHere("a rank started here", environ)]
    findings = [*of_versions(), of_run_directory(environ), of_ptrace()]
    for rank in ranks:
        for check in (of_settings, of_buffers, of_timeouts, of_program):
            findings += [finding._replace(where=rank.name) for finding in check(rank)]
    return [*findings, *of_torchft_bugs(ranks), *of_monitors(ranks, environ)]


def print_findings(findings: Iterable[DoctorFinding]) -> None:
    """The worst first; equal findings once, with their places."""
    console = Console(highlight=False, soft_wrap=True)
    places: dict[DoctorFinding, list[str]] = {}
    for finding in findings:
        places.setdefault(finding._replace(where=""), []).append(finding.where)
    for finding, names in sorted(
        places.items(), key=lambda pair: list(_MARKS).index(pair[0].state)
    ):
        mark, colour = _MARKS[finding.state]
        head = f"[{colour}]{mark}[/] [bold]{finding.check}[/] ({escape(escaped(', '.join(names)))})"
        console.print(f"{head}: {escape(escaped(finding.said))}")
        if finding.do:
            console.print(f"    -> {escape(escaped(finding.do))}")


def main(words: Sequence[str] | None = None) -> int:
    """Exit status 0: nothing failed; 1: something did; 2: usage error."""
    parser = OneLineParser(
        prog="lightkeeper doctor",
        description=(__doc__ or "").partition("\n\n")[2],
        epilog="Run it beside a rank, or in the shell that will start one. Exit status: 0 nothing "
        "failed, 1 something did.",
    )
    parser.add_argument("--format", choices=("text", "json"), default="text", help="text (default)")
    args = parser.parse_args(words)
    findings = examine(os.environ)
    if args.format == "json":
        rows = [finding._asdict() for finding in findings]
        print(json.dumps({"schema": 1, "findings": rows}, indent=2))  # noqa: T201
    else:
        print_findings(findings)
    return int(any(finding.state == FAILED for finding in findings))


if __name__ == "__main__":
    sys.exit(main())
