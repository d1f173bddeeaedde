"""lightkeeper as a user has it: a wheel in an environment of its own, run in a folder of theirs."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
OURS = ("dashboards", "monitor", "trainer", "worker_server")
_HERE = Path(sysconfig.get_paths()["purelib"])


def built(kind: str, folder: Path) -> Path:
    """The wheel or sdist of this tree."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    [made] = folder.iterdir()
    return made


def installed(wheel: Path, folder: Path, *, extras: bool) -> Path:
    """The programs of a fresh environment with this wheel and, without the network, what it needs:
    with `extras` all that is installed here, else what a bare `pip install lightkeeper` brings.
    """
    venv.create(folder, symlinks=True)
    site = Path(next(folder.glob("lib/python*/site-packages")))
    if extras:
        (site / "here.pth").write_text(f"{_HERE}\n")
    else:
        for name in sorted(_needed("lightkeeper")):
            for file in importlib.metadata.files(name) or ():
                top = file.parts[0]
                if top not in ("..", "__pycache__") and not (site / top).exists():
                    (site / top).symlink_to(_HERE / top)
    command = [
        sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install",
        "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", str(wheel),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return folder / "bin"


def _needed(name: str, seen: frozenset[str] = frozenset()) -> set[str]:
    names = set[str]()
    for text in importlib.metadata.requires(name) or ():
        requirement = Requirement(text)
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if wanted and requirement.name not in seen | names:
            names |= {requirement.name, *_needed(requirement.name, seen | names)}
    return names


def strangers(folder: Path) -> Path:
    """A user's repository with packages of our names; whoever imports one is not us."""
    for name in OURS:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"raise SystemExit('a stranger: {name}')\n")
    return folder


@dataclass(frozen=True, slots=True)
class Shell:
    """Runs words in the user's folder, which is on PYTHONPATH as well."""

    bin: Path
    folder: Path
    state: Path

    def environ(self, **more: str) -> dict[str, str]:
        kept = {
            k: v for k, v in os.environ.items()
            if not k.startswith(("LIGHTKEEPER", "TORCHFT", "PYTHON", "VIRTUAL_ENV"))
        }  # fmt: skip
        path = f"{self.bin}{os.pathsep}{kept.get('PATH', '')}"
        own = {"PATH": path, "PYTHONPATH": ".", "XDG_STATE_HOME": str(self.state)}
        return {**kept, **own, "LIGHTKEEPER_RUN_DIR": str(self.state / "run"), **more}

    def run(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.bin / words[0]), *words[1:]],
            cwd=self.folder, env=self.environ(**more), capture_output=True, text=True,
            timeout=120, check=False,
        )  # fmt: skip
