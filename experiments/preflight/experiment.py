"""`python -m experiments preflight`: does preflight name the slowed host of four, and nobody else?

Four hosts are network namespaces of this machine (root), each in a cgroup of its own (cpu, version
1) with four times the usual share: what else runs here is noise, and not a fifth host. Series:

- `equal`: nothing is slowed;
- `link`: what one host sends leaves at 50 Mbit/s (tbf);
- `cores`: one host's cgroup may use 10 ms of every 100 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from experiments import harness
from experiments.netlab.lab import Lab, why_not
from lightkeeper.worker_server.check_host import LINK, MATMUL, MEMORY

ROOT: Final = Path(__file__).parents[2]
HOSTS: Final = ("n1", "n2", "n3", "n4")
SERIES: Final = ("equal", "link", "cores")
_CPU: Final = Path("/sys/fs/cgroup/cpu")
_LIMIT_S: Final = 60.0
_WHY: Final = {"link": "link", "cores": "matrix multiplication"}


def _run(series: str, slowed: str | None, folder: Path) -> dict[str, Any]:
    """One preflight of four hosts; the line that is kept of it."""
    groups = {host: _CPU / f"preflight-{os.getpid()}-{host}" for host in HOSTS}
    for group in groups.values():
        group.mkdir()
        (group / "cpu.shares").write_text("4096")
    try:
        with Lab(folder, HOSTS) as lab:
            if series == "link" and slowed:
                lab.slow(slowed, rate="50mbit")
            if series == "cores" and slowed:
                (groups[slowed] / "cpu.cfs_quota_us").write_text("10000")
            return _judge(lab, groups, series, slowed, folder)
    finally:
        for group in groups.values():
            for pid in (group / "cgroup.procs").read_text().split():
                (_CPU / "cgroup.procs").write_text(pid)
            group.rmdir()


def _judge(
    lab: Lab, groups: dict[str, Path], series: str, slowed: str | None, folder: Path
) -> dict[str, Any]:
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    began_s = time.monotonic()
    for host in random.sample(HOSTS, len(HOSTS)):
        # waits until it is in its cgroup, for a limit holds from the first instruction on
        script = (
            f"while ! grep -q preflight- /proc/self/cgroup; do sleep 0.02; done; cd {folder}; "
            f"{sys.executable} -m lightkeeper.monitor.cli check host --json --hosts 4 "
            f"--store {lab.address('n1')}:29501 --limit {_LIMIT_S:g} > {folder}/{host}.json; "
            f"echo $? > {folder}/{host}.rc"
        )
        pid = lab.spawn(host, ["sh", "-c", script], environ, folder / f"{host}.log")
        (groups[host] / "cgroup.procs").write_text(str(pid))
    ends = [folder / f"{host}.rc" for host in HOSTS]
    seconds = None
    while time.monotonic() - began_s < _LIMIT_S + 20:
        if all(end.exists() and end.read_text().strip() for end in ends):
            seconds = round(time.monotonic() - began_s, 1)
            break
        time.sleep(0.05)
    said, checks, figures = {}, [], []
    for host in HOSTS:
        try:
            answer = json.loads((folder / f"{host}.json").read_text())
        except (OSError, ValueError):
            said[host] = ["no answer"]
            continue
        said[host] = [row["said"] for row in answer["stands_out"]]
        checks += [c for c in answer["checks"] if c["state"] in ("bad", "missing")]
        figures = answer["figures"]
    alike = len({json.dumps(each) for each in said.values()}) == 1
    named = sorted({line.partition(":")[0] for lines in said.values() for line in lines})
    reasons = {line for lines in said.values() for line in lines}
    right = named == ([slowed] if slowed else []) and alike and not checks
    if slowed:
        right = right and any(f"{slowed}: {_WHY[series]}" in line for line in reasons)
    statuses = {host: int((folder / f"{host}.rc").read_text() or -1) for host in HOSTS}
    whole = [row for row in figures if " of " not in row["figure"]]
    return {
        "series": series, "slowed": slowed, "right": right, "named": named, "alike": alike,
        "seconds": seconds, "said": said["n1"], "checks": checks, "statuses": statuses,
        "figures": {f"{row['host']} {row['figure']}": round(row["value"], 2) for row in whole},
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }  # fmt: skip


def _behind(runs: list[dict[str, Any]]) -> dict[tuple[str, bool], list[float]]:
    """Figure, of the slowed host or not -> how many times below the median of the others."""
    behind: dict[tuple[str, bool], list[float]] = {}
    for run in runs:
        for key, value in run["figures"].items():
            host, _, figure = key.partition(" ")
            if figure not in (MATMUL, MEMORY, LINK):  # of earlier versions
                continue
            others = [run["figures"][f"{each} {figure}"] for each in HOSTS if each != host]
            place = behind.setdefault((figure, host == run["slowed"]), [])
            place.append(median(others) / max(value, 1e-9))
    return behind


def _page(lines: list[dict[str, Any]]) -> str:
    rows = []
    for series in SERIES:
        runs = [line for line in lines if line["series"] == series]
        if runs:
            right = sum(run["right"] for run in runs)
            times = sorted(run["seconds"] or 999 for run in runs)
            loads = sorted(run["load"] for run in runs)
            least = min(_behind(runs).get((_WHY.get(series, ""), True), [0.0]))
            rows.append(f"| {series} | {right} of {len(runs)} | {times[0]:g} to {times[-1]:g} s | "
                        f"{loads[0]:g} to {loads[-1]:g} | "
                        f"{f'{least:.1f} times' if least else ''} |")  # fmt: skip
    text = (__doc__ or "").partition("\n\n")[2].rstrip()
    well = sorted((figure, max(times))
                  for (figure, slowed), times in _behind(lines).items() if not slowed)  # fmt: skip
    return "\n".join([
        "# Preflight on four hosts of one machine", "", text, "",
        "Right: every host said the same, named the slowed host by that figure, and nobody else.",
        "Made again by `python -m experiments preflight`.", "",
        "| series | right | took | load of 2 cores | slowed host, at least |",
        "|---|---|---|---|---|", *rows, "",
        "Hosts that were not slowed, at most below the median of the others: "
        + ", ".join(f"{figure} {most:.1f}" for figure, most in well) + " times.", "",
    ])  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One of a series."""

    name: str
    number: int

    @property
    def slowed(self) -> str | None:
        """The host that is made slow."""
        return None if self.name == "equal" else HOSTS[self.number % len(HOSTS)]

    @property
    def key(self) -> str:
        """Names it in the results."""
        return f"{self.name}#{self.number}"


class Runner(harness.Runner):
    """Four hosts for each run."""

    def run(self, case: Run) -> harness.Row:
        """Raises FleetError: there is no lab here."""
        folder = Path(tempfile.mkdtemp(prefix="preflight-", dir="/dev/shm"))
        try:
            return {"key": case.key, **_run(case.name, case.slowed, folder)}
        finally:
            shutil.rmtree(folder, ignore_errors=True)


class Preflight(harness.Experiment):
    name, what = "preflight", "Does preflight name the slowed host of four, and nobody else?"
    runs = 10

    def cases(self, args: argparse.Namespace) -> list[Run]:
        return [Run(series, number) for number in range(args.runs) for series in SERIES]

    def runner(self, args: argparse.Namespace) -> Runner:
        return Runner(args.folder)

    def why_not(self) -> str:
        return why_not() or ""

    def verdict(self, row: harness.Row) -> str:
        return "right" if row["right"] else "wrong"

    def told(self, row: harness.Row) -> str:
        names = ("series", "slowed", "right", "named", "seconds", "checks", "load")
        return json.dumps({name: row[name] for name in names})

    def page(self, out: Path) -> str:
        return _page(harness.read(out))
