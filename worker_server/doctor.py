"""`lightkeeper doctor`: what would keep lightkeeper from working here, before it is needed.

Beside ranks it looks at each of them: the environment that it was started with, its WorkerServer,
its flight recorders. Beside a launcher, before there are any, at the environment that they would
get. Nothing is changed, and nobody is asked for longer than some seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, version
from ipaddress import ip_address
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import requests
from rich.console import Console
from rich.markup import escape

from lightkeeper.worker_server import home, run_dir, wire
from lightkeeper.worker_server.home import misspelt
from lightkeeper.worker_server.plain_text import escaped
from lightkeeper.worker_server.rank.settings import SettingError, Settings, monitors_in, monitors_of

OK, WARNING, FAILED, UNKNOWN = "ok", "warning", "failed", "unknown"
_TIMEOUT_S: Final = 3.0
_TRIED: Final[Mapping[str, tuple[str, ...]]] = {
    "torch": ("2.13", "2.14", "2.15"),
    "torchft": ("0.2", "2026."),
}
"""Prefixes of the versions that the tests ran with (docs/versions.md)."""
_ENTRIES_LEAST: Final = 200
_SHM_LEAST_BYTES: Final = 64 * 2**20
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
_SHOWN: Final = 3
_TORCHFT_S: Final = 60.0
"""TorchFT's default of each of its timeouts."""


class DoctorFinding(NamedTuple):
    check: str
    state: str
    said: str
    do: str = ""
    """How to fix it; empty where nothing is wrong."""
    where: str = "this host"


def _judged(check: str, said: str, *cases: tuple[object, str, str, str]) -> DoctorFinding:
    """The first case that holds, else OK. A case: whether it holds, the state, what it adds to
    `said`, and what to do.
    """
    for holds, state, more, do in cases:
        if holds:
            return DoctorFinding(check, state, said + more, do)
    return DoctorFinding(check, OK, said)


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
            endpoint = run_dir.read_json(path) or {}
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
    """Of this Python's torch and TorchFT."""
    for name, tried in _TRIED.items():
        have = next(filter(None, map(_version, (name, f"{name}-nightly"))), None)
        if have is None:
            said, do = f"no {name} beside {sys.executable}", "run it with the Python that trains"
            yield DoctorFinding("versions", UNKNOWN, said, do)
            continue
        do = f"known: {name} {', '.join(tried)}; see `unhooked` of /v1/state"
        unknown = not have.startswith(tried)
        yield _judged("versions", f"{name} {have}", (unknown, WARNING, " was not tried", do))


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


def of_host_name(
    ranks: Sequence[RankHere], lookup: Callable[[str], Iterable[str]] | None = None
) -> Iterator[DoctorFinding]:
    """Whether others can reach the names that TorchFT and gloo give them: this host's own, and
    that of the group's store.
    """
    here = ("", None, "localhost", "127.0.0.1", "::1")
    environs = [rank.environ for rank in ranks]
    far = [e for e in environs if urlsplit(e.get("TORCHFT_LIGHTHOUSE", "")).hostname not in here]
    stores = {environ["MASTER_ADDR"] for environ in far if "MASTER_ADDR" in environ}
    for name in [socket.gethostname(), *sorted(stores)] if far else ():
        yield of_name(name, lookup or _addresses)


def _addresses(name: str) -> list[str]:
    return [str(entry[4][0]) for entry in socket.getaddrinfo(name, None)]


def of_name(name: str, lookup: Callable[[str], Iterable[str]] = _addresses) -> DoctorFinding:
    """Whether this name leads to more than this host itself."""
    check = "host's name"
    try:
        addresses = sorted(set(lookup(name)))
    except OSError as exc:
        do = "add it to /etc/hosts or the DNS: TorchFT and gloo look it up"
        return DoctorFinding(check, FAILED, f"{name}: {exc.strerror}", do)
    said = f"{name} leads to {', '.join(addresses)}"
    local = all(ip_address(address.partition("%")[0]).is_loopback for address in addresses)
    why = ": on several hosts every heal ends with `connection refused`, or a timeout"
    do = (
        "let /etc/hosts give the name the address that the other hosts use, and torchrun's "
        "--master-addr be one that they reach"
    )
    return _judged(check, said, (local, WARNING, why, do))


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def of_memory(environ: Mapping[str, str]) -> Iterator[DoctorFinding]:
    """Where a rank's page goes."""
    check, troubles = "run directory", list[str]()
    try:
        place = run_dir.first_usable(run_dir.candidates(environ), Path, troubles.append)
    except OSError as exc:
        do = "set LIGHTKEEPER_RUN_DIR to a folder in memory that only this user can enter"
        yield DoctorFinding(check, FAILED, str(exc), do)
        return
    filesystem = os.statvfs(place)
    free_bytes = filesystem.f_bavail * filesystem.f_frsize
    said = f"{place}, {free_bytes >> 20} MiB free"
    mend = "a page on a disk costs a write at every step: mend the first place"
    grow = (
        "give the container more shared memory (docker --shm-size, an emptyDir of "
        "medium Memory): data loaders need it too"
    )
    yield _judged(
        check, said, (troubles, WARNING, f"; {'; '.join(troubles)}", mend),
        (free_bytes < _SHM_LEAST_BYTES, WARNING, "", grow),
    )  # fmt: skip


def of_ptrace(proc: Path = Path("/proc")) -> Iterator[DoctorFinding]:
    """Whether stacks can be taken from outside."""
    try:
        scope = int((proc / "sys/kernel/yama/ptrace_scope").read_text(encoding="ascii"))
    except (OSError, ValueError):
        scope = 0
    do = (
        "sysctl kernel.yama.ptrace_scope=1; in a container SYS_PTRACE. Without it "
        "hangs are named after 30 s instead of 12, and a held GIL without its line"
    )
    # with 1, a rank allows its own WorkerServer to trace it
    case = scope > 1, WARNING, ": no stacks from outside", do
    yield _judged("ptrace", f"kernel.yama.ptrace_scope is {scope}", case)


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
    """Whether torch's recorders are on."""
    check, do = "flight recorder's size", "unset it, or set 2000 or more"
    names = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
    name = next(filter(rank.environ.__contains__, names), None)
    text = "2000" if name is None else rank.environ[name]
    said = "torch's default" if name is None else f"{name}={text}"
    entries = int(text) if text.isdigit() else 0
    yield _judged(
        check, said, (not entries, FAILED, ": torch's recorder is off", do),
        (entries < _ENTRIES_LEAST, WARNING, ": torch's recorder holds hardly a step", do),
    )  # fmt: skip


def of_timeouts(rank: RankHere) -> Iterator[DoctorFinding]:
    """Whether TorchFT's timeouts outlast the naming of a hang, and the watchdog outlasts both."""
    quorum_s = _seconds(rank, "TORCHFT_QUORUM_TIMEOUT_SEC", _TORCHFT_S)
    work_s = _seconds(rank, "TORCHFT_TIMEOUT_SEC", _TORCHFT_S)
    watchdog_s = _seconds(rank, "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", 480.0)
    said = (
        f"TorchFT's collectives {work_s:g} s, quorum {quorum_s:g} s; NCCL's watchdog "
        f"{watchdog_s:g} s"
    )
    early = f"raise TorchFT's timeouts to more than {_NAMED_S + 6:g} s, or report phases"
    watchdog = (
        "raise TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC above TorchFT's timeouts, and the "
        "timeout of init_process_group as well"
    )
    yield _judged(
        "timeouts", said,
        (min(work_s, quorum_s) < _NAMED_S + 6, WARNING,
         ": the others give up before a hang without phases is named and out", early),
        (watchdog_s <= max(work_s, quorum_s), FAILED,
         ": the watchdog ends healthy ranks that wait for a quorum", watchdog),
        (True, OK, " (a script may set others)", ""),
    )  # fmt: skip


def _seconds(rank: RankHere, name: str, usual: float) -> float:
    try:
        return float(rank.environ.get(name) or usual)
    except ValueError:
        return usual


# -- its WorkerServer and its recorders ------------------------------------------------------------


def of_worker(rank: RankHere) -> Iterator[DoctorFinding]:
    """Whether it answers, what it can read, and what it cannot hook."""
    if rank.url is None:
        return
    try:
        state = _get(f"{rank.url}{wire.PATH_STATE}", rank.environ).json()
        newest = f"{rank.url}{wire.PATH_FLIGHT_RECORDER}?active=1"
        record = wire.parse_flight_record(_get(newest, rank.environ).json())
    except (requests.RequestException, ValueError) as exc:
        do = "its log stands in the run directory, NAME.log"
        yield DoctorFinding("WorkerServer", FAILED, f"{rank.url}: {_short(exc)}", do)
        return
    yield DoctorFinding("WorkerServer", OK, rank.url)
    if unhooked := state.get("unhooked"):
        said = f"it has no {', '.join(unhooked)}"
        do = "this TorchFT is newer than lightkeeper: upgrade lightkeeper"
        yield DoctorFinding("TorchFT's hooks", WARNING, said, do)
    if timeouts := state.get("timeouts"):
        yield _as_programmed(timeouts)
    for name, part in record.parts:
        check, recorder = "flight recorders", name or "fr_trace_json"
        if part.error is None:
            yield DoctorFinding(check, OK, f"{recorder} is read")
        elif "torch.distributed is not imported" in part.error:
            yield DoctorFinding(check, UNKNOWN, part.error, "ask again later")
        else:
            do = "its collectives are known by the rank's own ring alone"
            yield DoctorFinding(check, WARNING, f"{recorder}: {part.error}", do)


def _as_programmed(timeouts: Mapping[str, float]) -> DoctorFinding:
    """Whether a hang can be named before the program's own timeouts end the ranks that wait."""
    said = ", ".join(f"{name} {limit_s:g} s" for name, limit_s in sorted(timeouts.items()))
    early = (
        ": ranks give up before a rank that blocks is named, and before a save or an "
        "evaluation of that length is over"
    )
    do = f"give process groups and the Manager at least {_BLOCKED_S:g} s"
    case = min(timeouts.values()) < _BLOCKED_S, WARNING, early, do
    return _judged("timeouts of the program", said, case)


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


# -- the monitor and the Lighthouse ----------------------------------------------------------------


def of_monitors(
    ranks: Sequence[RankHere], environ: Mapping[str, str] | None = None
) -> Iterator[DoctorFinding]:
    """Both directions: it answers us, and it sees its ranks on this host. Where this shell names a
    monitor, ranks of another one are a note.
    """
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
    yield from _of_clock(answer.headers.get("Date"), (began_s + time.time()) / 2)
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


def _of_clock(date: str | None, here_s: float) -> Iterator[DoctorFinding]:
    try:
        there_s = parsedate_to_datetime(date or "").timestamp() + 0.5  # it has whole seconds
    except ValueError:
        return
    apart_s = abs(there_s - here_s)
    if apart_s > _CLOCK_S:
        do = "run chrony or ntpd: records of two hosts are ordered by their clocks"
        yield DoctorFinding("clock", WARNING, f"{apart_s:.0f} s apart from the monitor's", do)
    else:
        yield DoctorFinding("clock", OK, "that of the monitor's host")


def of_lighthouses(ranks: Sequence[RankHere]) -> Iterator[DoctorFinding]:
    """Whether it answers."""
    check = "Lighthouse"
    for url in dict.fromkeys(rank.environ.get("TORCHFT_LIGHTHOUSE", "") for rank in ranks):
        if not url:
            said = "none: a job without TorchFT, or its script passes lighthouse_addr"
            yield DoctorFinding(check, OK, said)
            continue
        try:
            _get(url)
        except requests.RequestException as exc:
            do = "start it before the ranks; their first quorum request fails without it"
            yield DoctorFinding(check, FAILED, f"{url}: {_short(exc)}", do)
        else:
            yield DoctorFinding(check, OK, url)


# -- the command -----------------------------------------------------------------------------------


def examine(environ: Mapping[str, str]) -> list[DoctorFinding]:
    """All checks, of this host and of its ranks, or of a rank that would start here."""
    ranks = ranks_here(environ) or [RankHere("a rank started here", environ)]
    findings = [*of_versions(), *of_memory(environ), *of_ptrace()]
    for rank in ranks:
        for check in (of_settings, of_buffers, of_timeouts, of_worker):
            findings += [finding._replace(where=rank.name) for finding in check(rank)]
    torchft = [*of_lighthouses(ranks), *of_torchft_bugs(ranks), *of_host_name(ranks)]
    return [*findings, *of_monitors(ranks, environ), *torchft]


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
        where = ", ".join(names[:_SHOWN])
        where += f" and {len(names) - _SHOWN} more" if names[_SHOWN:] else ""
        head = f"[{colour}]{mark}[/] [bold]{finding.check}[/] ({escape(escaped(where))})"
        console.print(f"{head}: {escape(escaped(finding.said))}")
        if finding.do:
            console.print(f"    -> {escape(escaped(finding.do))}")


def main(words: Sequence[str] | None = None) -> int:
    """Exit status 0: nothing failed; 1: something did; 2: usage error."""
    parser = argparse.ArgumentParser(
        prog="lightkeeper doctor",
        description=(__doc__ or "").partition("\n\n")[2],
        epilog="run it beside a rank, or in the shell that will start one. Exit status: 0 nothing "
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
