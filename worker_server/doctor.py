"""`lightkeeper doctor`: what would keep lightkeeper from working here, before it is needed.

Beside ranks it looks at each of them: the environment that it was started with, its WorkerServer,
its flight recorders. Beside a launcher, before there are any, at the environment that they would
get. Nothing is changed, and nobody is asked for longer than some seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import requests
from rich.console import Console
from rich.markup import escape

from worker_server import run_dir, wire
from worker_server.home import misspelt
from worker_server.rank.settings import SettingError, Settings, monitors_in, monitors_of

OK, WARNING, FAILED, UNKNOWN = "ok", "warning", "failed", "unknown"
_TIMEOUT_S: Final = 3.0
_HERE: Final = "this host"
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
    OK: ("●", "green"),
    WARNING: ("▲", "yellow"),
    FAILED: ("✕", "red"),
    UNKNOWN: ("?", "cyan"),
}
_SHOWN: Final = 3
_TORCHFT_S: Final = 60.0
"""TorchFT's default of each of its timeouts."""


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    check: str
    where: str
    state: str
    said: str
    do: str = ""
    """How to fix it; empty where nothing is wrong."""


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """Creates the findings of one check."""

    check: str
    where: str = _HERE

    def ok(self, said: str) -> DoctorFinding:
        return DoctorFinding(self.check, self.where, OK, said)

    def warns(self, said: str, do: str) -> DoctorFinding:
        """It works, but not as well as it could."""
        return DoctorFinding(self.check, self.where, WARNING, said, do)

    def fails(self, said: str, do: str) -> DoctorFinding:
        return DoctorFinding(self.check, self.where, FAILED, said, do)

    def unknown(self, said: str, do: str) -> DoctorFinding:
        """It could not be determined."""
        return DoctorFinding(self.check, self.where, UNKNOWN, said, do)


@dataclass(frozen=True, slots=True)
class RankHere:
    """A rank found on this host, or (without `url`) one that would start here."""

    name: str
    environ: Mapping[str, str]
    url: str | None = None


def ranks_here(environ: Mapping[str, str]) -> list[RankHere]:
    """The ranks that have published themselves in this user's run directories."""
    ranks = []
    for folder in run_dir.candidates(environ):
        for path in sorted(folder.glob("*.json")):
            endpoint = run_dir.read_json(path) or {}
            rank_environ = _environ_of(endpoint.get("pid"))
            if rank_environ is not None:
                ranks.append(RankHere(str(endpoint.get("rank")), rank_environ, endpoint.get("url")))
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
    check = DoctorCheck("versions")
    for name, tried in _TRIED.items():
        have = next(filter(None, map(_version, (name, f"{name}-nightly"))), None)
        if have is None:
            yield check.unknown(
                f"no {name} beside {sys.executable}", "run it with the Python that trains"
            )
        elif have.startswith(tried):
            yield check.ok(f"{name} {have}")
        else:
            yield check.warns(
                f"{name} {have} was not tried",
                f"known: {name} {', '.join(tried)}; see `unhooked` of /v1/state",
            )


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def of_memory(environ: Mapping[str, str]) -> Iterator[DoctorFinding]:
    """Where a rank's page goes."""
    check = DoctorCheck("run directory")
    troubles: list[str] = []
    try:
        place = run_dir.first_usable(run_dir.candidates(environ), Path, troubles.append)
    except OSError as exc:
        yield check.fails(
            str(exc), "set LIGHTKEEPER_RUN_DIR to a folder in memory that only this user can enter"
        )
        return
    filesystem = os.statvfs(place)
    free_bytes = filesystem.f_bavail * filesystem.f_frsize
    text = f"{place}, {free_bytes >> 20} MiB free"
    if troubles:
        yield check.warns(
            f"{text}; {troubles[0]}",
            "a page on a disk costs a write at every step: mend the first place",
        )
    elif free_bytes < _SHM_LEAST_BYTES:
        yield check.warns(
            text,
            "give the container more shared memory (docker --shm-size, an emptyDir of "
            "medium Memory): data loaders need it too",
        )
    else:
        yield check.ok(text)


def of_ptrace(proc: Path = Path("/proc")) -> Iterator[DoctorFinding]:
    """Whether stacks can be taken from outside."""
    check = DoctorCheck("ptrace")
    try:
        scope = int((proc / "sys/kernel/yama/ptrace_scope").read_text(encoding="ascii"))
    except (OSError, ValueError):
        scope = 0
    if scope <= 1:  # a rank allows its own WorkerServer to trace it
        yield check.ok(f"kernel.yama.ptrace_scope is {scope}")
    else:
        yield check.warns(
            f"kernel.yama.ptrace_scope is {scope}: no stacks from outside",
            "sysctl kernel.yama.ptrace_scope=1; in a container SYS_PTRACE. Without it "
            "hangs are named after 30 s instead of 12, and a held GIL without its line",
        )


# -- the environment of a rank -------------------------------------------------------------------


def of_settings(rank: RankHere) -> Iterator[DoctorFinding]:
    """LIGHTKEEPER_*."""
    if complaint := misspelt(rank.environ):
        yield DoctorCheck("variables", rank.name).warns(
            complaint, "docs/configuration.md lists them"
        )
    try:
        settings = Settings.from_environ(rank.environ, 0)
    except SettingError as exc:
        yield DoctorCheck("settings", rank.name).fails(str(exc), "docs/configuration.md lists them")
        return
    if settings.token is None:
        yield DoctorCheck("token", rank.name).warns(
            settings.no_token or "none",
            "start `lightkeeper monitor` here, or set LIGHTKEEPER_TOKEN_FILE: without a token "
            "nobody can evict through the WorkerServer",
        )
    else:
        yield DoctorCheck("token", rank.name).ok("set")


def of_buffers(rank: RankHere) -> Iterator[DoctorFinding]:
    """Whether torch's recorders are on."""
    names = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
    set_here = [(name, rank.environ[name]) for name in names if name in rank.environ]
    name, text = set_here[0] if set_here else ("", "2000")
    said = f"{name}={text}" if name else "torch's default"
    entries = int(text) if text.isdigit() else 0
    check = DoctorCheck("flight recorder's size", rank.name)
    advice = "unset it, or set 2000 or more"
    if entries >= _ENTRIES_LEAST:
        yield check.ok(said)
    elif entries:
        yield check.warns(f"{said}: torch's recorder holds hardly a step", advice)
    else:
        yield check.fails(f"{said}: torch's recorder is off", advice)


def of_timeouts(rank: RankHere) -> Iterator[DoctorFinding]:
    """Whether TorchFT's timeouts outlast the naming of a hang, and the watchdog outlasts both."""
    check = DoctorCheck("timeouts", rank.name)
    quorum_s = _quorum_s(rank)
    work_s = _seconds(rank, "TORCHFT_TIMEOUT_SEC", _TORCHFT_S)
    watchdog_s = _seconds(rank, "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", 480.0)
    said = (
        f"TorchFT's collectives {work_s:g} s, quorum {quorum_s:g} s; NCCL's watchdog "
        f"{watchdog_s:g} s"
    )
    least_s = min(work_s, quorum_s)
    if least_s < _NAMED_S + 6:
        yield check.warns(
            f"{said}: the others give up before a hang without phases is named and out",
            f"raise TorchFT's timeouts to more than {_NAMED_S + 6:g} s, or report phases",
        )
    elif watchdog_s <= max(work_s, quorum_s):
        yield check.fails(
            f"{said}: the watchdog ends healthy ranks that wait for a quorum",
            "raise TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC above TorchFT's timeouts, and the "
            "timeout of init_process_group as well",
        )
    else:
        yield check.ok(f"{said} (a script may set others)")


def _quorum_s(rank: RankHere) -> float:
    return _seconds(rank, "TORCHFT_QUORUM_TIMEOUT_SEC", _TORCHFT_S)


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
        state = _get(f"{rank.url}{wire.PATH_STATE}", rank.environ)
        record = wire.parse_flight_record(
            _get(f"{rank.url}{wire.PATH_FLIGHT_RECORDER}?active=1", rank.environ)
        )
    except (requests.RequestException, ValueError) as exc:
        yield DoctorCheck("WorkerServer", rank.name).fails(
            f"{rank.url}: {_short(exc)}", "its log stands in the run directory, NAME.log"
        )
        return
    yield DoctorCheck("WorkerServer", rank.name).ok(rank.url)
    if unhooked := state.get("unhooked"):
        yield DoctorCheck("TorchFT's hooks", rank.name).warns(
            f"it has no {', '.join(unhooked)}",
            "this TorchFT is newer than lightkeeper: upgrade lightkeeper",
        )
    if timeouts := state.get("timeouts"):
        yield _as_programmed(rank, timeouts)
    check = DoctorCheck("flight recorders", rank.name)
    for name, part in record.parts:
        recorder = name or "fr_trace_json"
        if part.error is None:
            yield check.ok(f"{recorder} is read")
        elif "torch.distributed is not imported" in part.error:
            yield check.unknown(part.error, "ask again later")
        else:
            yield check.warns(
                f"{recorder}: {part.error}",
                "its collectives are known by the rank's own ring alone",
            )


def _as_programmed(rank: RankHere, timeouts: Mapping[str, float]) -> DoctorFinding:
    """Whether a hang can be named before the program's own timeouts end the ranks that wait."""
    check = DoctorCheck("timeouts of the program", rank.name)
    said = ", ".join(f"{name} {limit_s:g} s" for name, limit_s in sorted(timeouts.items()))
    if min(timeouts.values()) >= _BLOCKED_S:
        return check.ok(said)
    return check.warns(
        f"{said}: ranks give up before a rank that blocks is named, and before a save or an "
        "evaluation of that length is over",
        f"give process groups and the Manager at least {_BLOCKED_S:g} s",
    )


def _get(url: str, environ: Mapping[str, str]) -> Any:
    headers = {}
    with suppress(SettingError):
        if (token := Settings.from_environ(environ, 0).token) is not None:
            headers["Authorization"] = f"Bearer {token}"
    answer = requests.get(url, headers=headers, timeout=_TIMEOUT_S)
    answer.raise_for_status()
    return answer.json()


def _short(exc: Exception) -> str:
    """What the system said, if it did: requests wraps it three times."""
    cause: BaseException = exc
    while (inner := cause.__cause__ or cause.__context__) is not None:
        cause = inner
    return getattr(cause, "strerror", None) or f"{type(exc).__name__}: {exc}"[:160]


# -- the monitor and the Lighthouse ----------------------------------------------------------------


def of_monitors(ranks: Sequence[RankHere]) -> Iterator[DoctorFinding]:
    """Both directions: it answers us, and it sees the ranks of this host."""
    settings = dict.fromkeys(monitors_in(rank.environ) for rank in ranks)
    try:
        urls = [url for text in settings for url in monitors_of(text)]
    except SettingError:
        return  # reported by `of_settings`
    if not urls:
        yield DoctorCheck("monitor").fails(
            "LIGHTKEEPER_MONITOR is empty: nobody watches",
            "unset it where `lightkeeper monitor` runs on this host, or set it to the monitor's "
            "URL, before the ranks start",
        )
    for url in dict.fromkeys(urls):
        yield from _of_monitor(url, ranks)


def _of_monitor(url: str, ranks: Sequence[RankHere]) -> Iterator[DoctorFinding]:
    check = DoctorCheck("monitor")
    began_s = time.time()
    try:
        answer = requests.get(f"{url}/healthz", timeout=_TIMEOUT_S)
        answer.raise_for_status()
    except requests.RequestException as exc:
        yield check.fails(
            f"{url}: {_short(exc)}",
            "is it up, and may this host reach it? the ranks register by themselves once "
            "it answers",
        )
        return
    yield check.ok(url)
    yield from _of_clock(answer.headers.get("Date"), (began_s + time.time()) / 2)
    alive = [rank for rank in ranks if rank.url is not None]
    if not alive:
        return
    sees = "monitor sees the ranks"
    try:
        listed = {row["rank"]: row for row in _get(f"{url}/v1/ranks", alive[0].environ)["ranks"]}
    except (requests.RequestException, ValueError, KeyError, TypeError) as exc:
        yield DoctorCheck(sees).unknown(
            f"{url}: {_short(exc)}", "give the ranks the monitor's token"
        )
        return
    for rank in alive:
        health = str((listed.get(rank.name) or {}).get("health", "not registered"))
        if health in ("unreachable", "not registered"):
            yield DoctorCheck(sees, rank.name).fails(
                health,
                f"the monitor must reach {rank.url}: set LIGHTKEEPER_BIND, and open the "
                "port between the hosts",
            )
        else:
            yield DoctorCheck(sees, rank.name).ok(health)


def _of_clock(date: str | None, here_s: float) -> Iterator[DoctorFinding]:
    check = DoctorCheck("clock")
    try:
        there_s = parsedate_to_datetime(date or "").timestamp() + 0.5  # it has whole seconds
    except ValueError:
        return
    apart_s = abs(there_s - here_s)
    if apart_s > _CLOCK_S:
        yield check.warns(
            f"{apart_s:.0f} s apart from the monitor's",
            "run chrony or ntpd: records of two hosts are ordered by their clocks",
        )
    else:
        yield check.ok("that of the monitor's host")


def of_lighthouses(
    ranks: Sequence[RankHere], proc: Path = Path("/proc")
) -> Iterator[DoctorFinding]:
    """Whether it answers and, if it runs on this host, how long it keeps a dead group."""
    lighthouse = DoctorCheck("Lighthouse")
    for url in dict.fromkeys(rank.environ.get("TORCHFT_LIGHTHOUSE", "") for rank in ranks):
        if not url:
            yield lighthouse.warns(
                "TORCHFT_LIGHTHOUSE is not set",
                "set it, unless the script passes lighthouse_addr to its Manager",
            )
            continue
        try:
            requests.get(url, timeout=_TIMEOUT_S).raise_for_status()
        except requests.RequestException as exc:
            yield lighthouse.fails(
                f"{url}: {_short(exc)}",
                "start it before the ranks; their first quorum request fails without it",
            )
        else:
            yield lighthouse.ok(url)
    check = DoctorCheck("Lighthouse's timeouts")
    for flags in _lighthouse_flags(proc):
        beat_ms = flags.get("--heartbeat_timeout_ms", 5000)
        join_ms = flags.get("--join_timeout_ms", 60_000)
        said = f"heartbeat timeout {beat_ms} ms, join timeout {join_ms} ms"
        if beat_ms < 500:
            yield check.warns(
                f"{said}: groups beat each 100 ms, a busy host loses healthy ones",
                "--heartbeat_timeout_ms 1500 (docs/eviction.md)",
            )
        elif join_ms > 1000 * (quorum_s := max(_quorum_s(rank) for rank in ranks)):
            yield check.warns(
                f"{said}: a quorum waits longer for a group that hangs than its members wait for "
                f"the quorum ({quorum_s:g} s)",
                "--join_timeout_ms at most TORCHFT_QUORUM_TIMEOUT_SEC",
            )
        elif beat_ms > 2000:
            yield check.ok(
                f"{said}; 1500 would let the others go on {(beat_ms - 1500) / 1000:g} s "
                "sooner after an eviction"
            )
        else:
            yield check.ok(said)


def _lighthouse_flags(proc: Path) -> Iterator[dict[str, int]]:
    for path in proc.glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if any(Path(word).name == "torchft_lighthouse" for word in words[:2]):
            pairs = [word.split("=", 1) for word in words if "=" in word]
            pairs += [list(pair) for pair in pairwise(words)]
            yield {name: int(text) for name, text in pairs if name[:2] == "--" and text.isdigit()}


# -- the command -----------------------------------------------------------------------------------


def examine(environ: Mapping[str, str]) -> list[DoctorFinding]:
    """All checks, of this host and of its ranks, or of a rank that would start here."""
    ranks = ranks_here(environ) or [RankHere("a rank started here", environ)]
    findings = [*of_versions(), *of_memory(environ), *of_ptrace()]
    for rank in ranks:
        for check in (of_settings, of_buffers, of_timeouts, of_worker):
            findings += check(rank)
    return [*findings, *of_monitors(ranks), *of_lighthouses(ranks)]


def together(findings: Iterable[DoctorFinding]) -> Iterator[tuple[DoctorFinding, list[str]]]:
    """The worst first; equal findings once, with their places."""
    places: dict[DoctorFinding, list[str]] = {}
    for finding in findings:
        places.setdefault(replace(finding, where=""), []).append(finding.where)
    order = (FAILED, WARNING, UNKNOWN, OK)
    yield from sorted(places.items(), key=lambda pair: order.index(pair[0].state))


def _show(findings: Iterable[DoctorFinding]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for finding, places in together(findings):
        mark, colour = _MARKS[finding.state]
        names = ", ".join(places[:_SHOWN])
        if places[_SHOWN:]:
            names += f" and {len(places) - _SHOWN} more"
        head = f"[{colour}]{mark}[/] [bold]{escape(finding.check)}[/] ({escape(names)})"
        console.print(f"{head}: {escape(finding.said)}")
        if finding.do:
            console.print(f"    -> {escape(finding.do)}")


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
        rows = [asdict(finding) for finding in findings]
        print(json.dumps({"schema": 1, "findings": rows}, indent=2))  # noqa: T201
    else:
        _show(findings)
    return int(any(finding.state == FAILED for finding in findings))


if __name__ == "__main__":
    sys.exit(main())
