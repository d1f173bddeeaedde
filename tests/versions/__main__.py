"""`python -m tests.versions`: the tests that versions can break, in a venv for each pair of them.

Venvs are made outside of the tree and kept (a CUDA build of torch is 5.5 GB). Each pair's results
are a line in evidence/versions.jsonl; docs/versions.md is made of the latest line of each pair.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from experiments import harness
from tests.versions import page

ROOT: Final = Path(__file__).resolve().parents[2]
HOURS_S: Final = 3 * 3600.0
TORCHES: Final = ("2.13.0", "2.15.0")
TORCHFTS: Final = ("0.2.0", "nightly")
CASES: Final = (
    "lock", "gil", "skips-allreduce", "skips-backward", "shapes", "orphans", "nan", "gdb-10s",
    "other-order", "both-ranks-dead-disk", "fsdp-lock", "clean-end", "evaluation",
)  # fmt: skip
"""Of the field suite: each way in which a job stands, ends or trains on, and habits."""
DEMOS: Final = (
    ("--fault", "gil"), ("--fault", "hang"), ("--ranks-per-group", "2", "--fault", "mismatch"),
)  # fmt: skip
_ASK: Final = (
    "import json, torch, importlib.metadata as m\n"
    "names = {d.metadata['Name']: d.version for d in m.distributions()}\n"
    "names = {name.replace('_', '-'): version for name, version in names.items()}\n"
    "print(json.dumps([torch.__version__, names.get('torchft-nightly', names.get('torchft'))]))"
)


@dataclass(frozen=True, slots=True)
class Pair:
    """A torch and a TorchFT."""

    torch: str
    torchft: str

    @property
    def name(self) -> str:
        """As in the page and in file names."""
        return f"{self.torch}+{self.torchft}"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="tests.versions", description=__doc__)
    add = top.add_argument
    add("--torch", nargs="+", default=TORCHES, metavar="VERSION")
    add("--torchft", nargs="+", default=TORCHFTS, metavar="VERSION", help="or `nightly`")
    add(
        "--venvs",
        type=Path,
        default=Path.home() / ".cache" / "lightkeeper-versions",
        metavar="DIR",
        help="where the venvs are made, and found again (%(default)s)",
    )
    add(
        "--python",
        action="append",
        default=[],
        metavar="TORCH+TORCHFT=PYTHON",
        help="an interpreter that has this pair already; repeatable",
    )
    add("--part", action="append", choices=tuple(PARTS), help="only this; repeatable")
    add("--page-only", action="store_true", help="write the page again, run nothing")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run every pair; 0 when all that ran has passed."""
    args = parser().parse_args(argv)
    out, written = ROOT / "evidence" / "versions.jsonl", ROOT / "docs" / "versions.md"
    given = dict(setting.split("=", 1) for setting in args.python)
    good = True
    pairs = [] if args.page_only else itertools.product(args.torch, args.torchft)
    for pair in (Pair(*versions) for versions in pairs):
        python = Path(given.get(pair.name) or _venv(args.venvs, pair))
        line: dict[str, Any] = {
            "key": pair.name, "found": _found(python), "at": time.strftime("%Y-%m-%d"),
            "machine": harness.machine(), "code": harness.code(),
        }  # fmt: skip
        line["parts"] = _kept(out, pair) if args.part else {}
        for name in args.part or PARTS:
            print(f"{pair.name}: {name} ...", flush=True)
            line["parts"][name] = part = PARTS[name](python, args.venvs / f"{pair.name}.out")
            good = good and not part["failed"]
            print(f"{pair.name}: {name}: {page.told(part)}", flush=True)
        with out.open("a") as lines:
            lines.write(json.dumps(line) + "\n")
        written.write_text(page.text(written.read_text(), harness.read(out)))
    written.write_text(page.text(written.read_text(), harness.read(out)))
    return 0 if good else 1


def _kept(out: Path, pair: Pair) -> dict[str, Any]:
    return next((dict(row["parts"]) for row in harness.read(out) if row["key"] == pair.name), {})


def _venv(folder: Path, pair: Pair) -> Path:
    """The interpreter of the pair's venv, which is made where it is missing."""
    home = folder / pair.name
    python = home / "bin" / "python"
    if (home / "made").exists():
        return python
    print(f"making {home} (a CUDA build of torch: 5.5 GB)", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
    torchft = "--pre torchft-nightly" if pair.torchft == "nightly" else f"torchft=={pair.torchft}"
    for wanted in (f"torch=={pair.torch}", torchft, f"numpy -e {ROOT}[stacks,grafana,dev]"):
        subprocess.run([str(python), "-m", "pip", "install", "-q", *wanted.split()], check=True)
    (home / "made").touch()
    return python


def _found(python: Path) -> list[str]:
    """Versions of torch and of TorchFT as they say themselves."""
    return json.loads(_run([str(python), "-c", _ASK]).stdout.splitlines()[-1])


def _run(command: Sequence[str], **more: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("LIGHTKEEPER_")} | more
    return subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=HOURS_S, check=False
    )


def _pytest(*chosen: str) -> Any:
    def run(python: Path, out: Path) -> Mapping[str, Any]:
        report = Path(f"{out}.xml")
        report.unlink(missing_ok=True)
        report.parent.mkdir(parents=True, exist_ok=True)
        done = _run(
            [str(python), "-m", "pytest", "-q", "-n", "2", "--dist", "loadscope",
             f"--junitxml={report}", *chosen],
            PYTHONHASHSEED="0",
        )  # fmt: skip
        Path(f"{out}.log").write_text(done.stdout + done.stderr)
        if not report.exists():
            return {"passed": 0, "skipped": 0, "failed": [done.stdout[-300:]], "seconds": 0}
        suite = ET.parse(report).getroot()[0]
        bad = [
            f"{case.get('classname', '')}::{case.get('name', '')}"
            for case in suite.iter("testcase")
            if case.find("failure") is not None or case.find("error") is not None
        ]
        skipped = int(suite.get("skipped", 0))
        total = int(suite.get("tests", 0))
        return {
            "passed": total - skipped - len(bad), "skipped": skipped, "failed": sorted(bad),
            "seconds": round(float(suite.get("time", 0))),
        }  # fmt: skip

    return run


def _field(python: Path, out: Path) -> Mapping[str, Any]:
    """Bugs and habits of the field suite, one run of each."""
    records, begun_s = Path(f"{out}.jsonl"), time.monotonic()
    records.unlink(missing_ok=True)
    only = [word for case in CASES for word in ("--only", case)]
    _run(
        [str(python), "-m", "experiments", "field", "--runs", "1", "--out", str(records),
         "--page", f"{out}.md", "--folder", f"{out}.jobs", *only]
    )  # fmt: skip
    said = harness.read(records)
    good = [record for record in said if record["verdict"] == "exact"]
    bad = [f"{record['key']}: {record['verdict']}" for record in said if record not in good]
    missing = len(CASES) - len(said)
    bad += [f"{missing} cases did not run"] if missing else []
    return {"passed": len(good), "skipped": 0, "failed": bad,
            "seconds": round(time.monotonic() - begun_s)}  # fmt: skip


def _demo(python: Path, out: Path) -> Mapping[str, Any]:
    """The demo's faults."""
    begun_s = time.monotonic()
    bad = []
    for options in DEMOS:
        done = _run([str(python), "-m", "lightkeeper.monitor.cli", "demo", *options])
        if done.returncode:
            Path(f"{out}.demo.log").write_text(done.stdout + done.stderr)
            bad.append(f"demo {' '.join(options)}: exit status {done.returncode}")
    return {"passed": len(DEMOS) - len(bad), "skipped": 0, "failed": bad,
            "seconds": round(time.monotonic() - begun_s)}  # fmt: skip


PARTS: Final[Mapping[str, Any]] = {
    "WorkerServer, unit": _pytest("tests/worker_server", "-m", "not integration"),
    "WorkerServer, real ranks": _pytest("tests/worker_server", "-m", "integration"),
    "field suite": _field,
    "demo": _demo,
}


if __name__ == "__main__":
    sys.exit(main())
