"""`lightkeeper COMMAND` in the process of the test: its status, its output, its line of error."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lightkeeper.monitor.cli import main


class Command:
    """The fixture `command`."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str, status: int = 0) -> str:
        """What it prints; it has nothing to complain of."""
        assert main(list(words)) == status
        said = self._capsys.readouterr()
        assert said.err == ""
        return said.out

    def json(self, *words: str, status: int = 0) -> dict[str, Any]:
        return json.loads(self(*words, "--format", "json", status=status))

    def failed(self, *words: str, status: int) -> str:
        """What it says on standard error, whatever it printed before."""
        assert main(list(words)) == status
        return self._capsys.readouterr().err

    def refused(self, *words: str, status: int = 2) -> str:
        """The one line that it says, and nothing else, to what it cannot use."""
        assert main(list(words)) == status
        said = self._capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith("error: ")
        assert said.err.count("\n") == 1
        assert "\x1b" not in said.err
        return said.err
