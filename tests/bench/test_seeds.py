"""What a heal and a reconfiguration take. Run with LIGHTKEEPER_BENCH=1 and `pytest -s`.

The rows that are committed, and more of them: `python -m tests.bench.seeds --help`.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.worker_server.ranks import ROOT

pytestmark = [
    pytest.mark.skipif(
        os.environ.get("LIGHTKEEPER_BENCH") != "1", reason="a benchmark: set LIGHTKEEPER_BENCH=1"
    ),
    pytest.mark.timeout(900),
]

OPTIONS = os.environ.get("LIGHTKEEPER_SEEDS", "").split()
"""Such as `--sizes 10 30`; see `--help`."""


def test_staging_loading_and_reconfiguring():
    """In a process of its own: what it forks must not inherit pytest's threads."""
    pytest.importorskip("torchft")
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.seeds", *OPTIONS],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=ROOT, text=True, check=False,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    print("\n" + done.stdout)
    assert done.returncode == 0
    assert "load" in done.stdout
    assert "reconfigure" in done.stdout
