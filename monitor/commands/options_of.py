"""`python -m monitor.commands.options_of MODULE`: the options of a command that reads its own, as
JSON. In a process of its own: the monitor imports neither the trainer nor the dashboards.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import sys
from pathlib import Path
from typing import Any


def told(parser: argparse.ArgumentParser) -> list[dict[str, Any]]:
    """Every argument but `--help`, and those of its subcommands."""
    return [
        _told(action) for action in parser._actions if not isinstance(action, argparse._HelpAction)
    ]


def _told(action: argparse.Action) -> dict[str, Any]:
    subs = action.choices if isinstance(action, argparse._SubParsersAction) else None
    choices = action.choices if subs is None else None
    return {
        "flags": action.option_strings,
        "dest": action.dest,
        "help": action.help or "",
        "bare": action.nargs == 0,
        "choices": [str(one) for one in choices] if choices else None,
        "file": action.type is Path,
        "sub": None if subs is None else {name: told(made) for name, made in subs.items()},
    }


def main(module: str) -> None:
    """Print them."""
    make = importlib.import_module(module).parser
    made = make({}) if inspect.signature(make).parameters else make()
    sys.stdout.write(json.dumps(told(made)))


if __name__ == "__main__":
    main(sys.argv[1])
