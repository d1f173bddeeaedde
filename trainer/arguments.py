"""Command lines that answer a mistake with one line."""

from __future__ import annotations

import argparse
from typing import NoReturn


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line; the whole usage is a `--help` away."""

    def error(self, message: str) -> NoReturn:
        """End with status 2."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")
