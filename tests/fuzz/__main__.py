"""`make fuzz`: both parsers under coverage-guided fuzzing (atheris), by default for ten minutes.

    python -m tests.fuzz [bytes|values] [SECONDS]

What it finds is left as crash-*, timeout-* or oom-* in the working directory; put it into
`test_found.py` and mend the parser.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["monitor.flight_recorder", "json"]):
    from tests.fuzz import records


def main() -> None:
    """Fuzz until the time is over; the exit status says whether anything was found."""
    target = sys.argv[1] if len(sys.argv) > 1 else "bytes"
    seconds = sys.argv[2] if len(sys.argv) > 2 else "600"
    with tempfile.TemporaryDirectory() as folder:
        if target == "bytes":
            for number, seed in enumerate(records.seeds()):
                Path(folder, str(number)).write_bytes(seed)
        # atheris itself grows by 1.5 KB a run, so what counts is the single allocation
        options = [f"-max_total_time={seconds}", "-timeout=10", "-malloc_limit_mb=1000",
                   "-rss_limit_mb=4000"]  # fmt: skip
        run = records.read_bytes if target == "bytes" else records.read_mutated
        atheris.Setup([sys.argv[0], *options, "-max_len=8192", folder], run)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
