"""The training scripts of examples/: as they are, and with the diff that their README shows."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.examples.fleet import EXAMPLES

_DIFF = re.compile(r"^```diff\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Example:
    """One folder of examples/."""

    name: str

    @property
    def script(self) -> Path:
        return EXAMPLES / self.name / "train.py"

    @property
    def diff(self) -> str:
        """The one that the README shows."""
        [diff] = _DIFF.findall((EXAMPLES / self.name / "README.md").read_text("utf-8"))
        return diff

    def changed_lines(self) -> int:
        """Lines that are added or taken away."""
        lines = [line for line in self.diff.splitlines() if not line.startswith(("---", "+++"))]
        return sum(line.startswith(("+", "-")) for line in lines)

    def patched(self, folder: Path) -> Path:
        """A copy of the script with the README's diff applied, by git and not by guess."""
        copy = folder / "patched" / "train.py"
        copy.parent.mkdir()
        shutil.copy(self.script, copy)
        subprocess.run(
            ["git", "apply", "--verbose", "-"], input=self.diff, text=True, cwd=copy.parent,
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", "GIT_CEILING_DIRECTORIES": str(folder)},
            check=True, timeout=30,
        )  # fmt: skip
        assert copy.read_text("utf-8") != self.script.read_text("utf-8")
        return copy


def texts(folder: Path, count: int) -> Path:
    """A folder of so many files that differ, for scripts that learn to guess the next byte."""
    folder.mkdir()
    for number in range(count):
        line = f"{number} green bottles hanging on the wall, "
        (folder / text_name(number)).write_text(line * 3, "utf-8")
    return folder


def text_name(number: int) -> str:
    """The file at this place, for scripts sort by name."""
    return f"text{number:04}.txt"


def same_weights(path: Path, other: Path) -> bool:
    """Whether two files of weights hold the same, to the last bit."""
    import torch

    mine, others = torch.load(path), torch.load(other)
    return mine.keys() == others.keys() and all(torch.equal(mine[k], others[k]) for k in mine)
