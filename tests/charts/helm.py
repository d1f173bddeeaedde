"""Real helm: GOBIN=/var/tmp/helm/bin go install helm.sh/helm/v3/cmd/helm@v3.22.0, or on PATH."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import yaml

from tests.examples.fleet import Fleet, fleet_of

CHART: Final = Path(__file__).parents[2] / "charts/lightkeeper"
WHERE: Final = "/var/tmp/helm/bin"
RELEASE: Final = "lightkeeper"


def helm() -> str | None:
    """The program; None: it is not here."""
    return shutil.which("helm", path=f"{os.environ.get('PATH', '')}:{WHERE}")


def call(
    *words: str | Path, values: dict[str, Any] | None = None
) -> subprocess.CompletedProcess[str]:
    """helm with these words and values."""
    program = helm()
    assert program is not None
    given = ["--values", "-"] if values is not None else []
    return subprocess.run(
        [program, *map(str, words), *given], input=yaml.safe_dump(values or {}), check=False,
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def chart(values: dict[str, Any] | None = None, *, name: str = RELEASE) -> Fleet:
    """What the chart makes of these values, as a release in a namespace of its name."""
    done = call("template", name, CHART, "--namespace", name, values=values or {})
    assert done.returncode == 0, done.stderr
    return fleet_of(done.stdout)
