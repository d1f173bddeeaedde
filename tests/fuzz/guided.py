"""Both parsers of flight records under coverage-guided fuzzing (atheris), ten minutes by default.

    python -m tests.fuzz.guided [bytes|values] [SECONDS]

What it finds is left as crash-*, timeout-* or oom-* in the working directory; put it into
`tests/monitor/records/test_dump.py` and mend the parser.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["lightkeeper.monitor.records", "json"]):
    from tests.fuzz import records


SLICE_S = 60
"""A process of its own for each: atheris itself grows, by 1.5 to 6.5 KB a run (the parsers do not),
and in five minutes on a fast machine that alone comes to the limit of 4,000 MiB."""


def fuzz(target: str, seconds: int, folder: str) -> None:
    """Fuzz in this process, from what is in the folder; never returns."""
    options = [f"-max_total_time={seconds}", "-timeout=10", "-malloc_limit_mb=1000",
               "-rss_limit_mb=4000", "-max_len=8192"]  # fmt: skip
    run = records.read_bytes if target == "bytes" else records.read_mutated
    atheris.Setup([sys.argv[0], *options, folder], run)
    atheris.Fuzz()


def main() -> int:
    """Fuzz until the time is over; the exit status says whether anything was found."""
    target = sys.argv[1] if len(sys.argv) > 1 else "bytes"
    left_s = int(sys.argv[2]) if len(sys.argv) > 2 else 600
    if len(sys.argv) > 3:
        fuzz(target, left_s, sys.argv[3])
    with tempfile.TemporaryDirectory() as folder:
        if target == "bytes":
            for number, seed in enumerate(records.seeds()):
                Path(folder, str(number)).write_bytes(seed)
        while left_s > 0:
            words = [target, str(min(SLICE_S, left_s)), folder]
            ended = subprocess.run([sys.executable, "-m", "tests.fuzz.guided", *words], check=False)
            if ended.returncode:
                return ended.returncode
            left_s -= SLICE_S
    return 0


if __name__ == "__main__":
    sys.exit(main())
