"""`lightkeeper completion`: what a shell needs to complete our words."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from monitor.commands.errors import DONE, FAILED, USAGE, CommandError

EXAMPLES: Final = """\
examples:
  bash   lightkeeper completion bash > ~/.local/share/bash-completion/completions/lightkeeper
  zsh    lightkeeper completion zsh > ~/.zfunc/_lightkeeper     with fpath=(~/.zfunc $fpath)
  tcsh   lightkeeper completion tcsh > ~/.lightkeeper.tcsh      and source it in ~/.tcshrc

Commands, options and their choices are in the script; names of groups, hosts, ranks and incidents
are asked of the monitor (LIGHTKEEPER_MONITOR) while you type, and are none when it is away.

exit status: 0 done, 1 the script cannot be made, 2 wrong arguments
"""
SHELLS: Final = ("bash", "zsh", "tcsh")
ELSEWHERE: Final = {
    "demo": "trainer.demo.options",
    "admit": "worker_server.admit",
    "dashboards": "dashboards.__main__",
}
"""Commands that read their own arguments, and who has their `parser`."""
_NAMES: Final = {
    "groups": ("/v1/groups", "groups", "group"),
    "hosts": ("/v1/hosts", "hosts", "host"),
    "ranks": ("/v1/ranks", "ranks", "rank"),
    "incidents": ("/v1/incidents?limit=50", "incidents", "id"),
}
_DYNAMIC: Final = {
    ("incidents", "id"): "incidents",
    ("*", "group"): "groups",
    ("*", "host"): "hosts",
    ("*", "incident"): "incidents",
}
"""Command and destination of an argument -> names that the monitor knows."""
_ASK_S: Final = 1.0
_MAKING_S: Final = 60.0
_BASH: Final = """
_lightkeeper_{what}() {{
  compgen -W "$(lightkeeper completion --names {what} 2>/dev/null)" -- "$1"
}}
"""
_ZSH: Final = """
_lightkeeper_{what}() {{
  compadd -- ${{(f)"$(lightkeeper completion --names {what} 2>/dev/null)"}}
}}
"""
Build = Callable[[], argparse.ArgumentParser]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The shell."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("shell", nargs="?", choices=SHELLS, help="whose script to print")
    what.add_argument("--names", choices=tuple(_NAMES), help="names that the monitor knows")
    parser.add_argument(
        "--monitor",
        metavar="URL",
        default=os.environ.get("LIGHTKEEPER_MONITOR", "http://127.0.0.1:8470"),
        help="the monitor to ask for names",
    )


def run(build: Build, args: argparse.Namespace) -> int:
    """The script, or names."""
    if args.names is not None:
        for name in names(args.monitor, args.names):
            sys.stdout.write(f"{name}\n")
        return DONE
    sys.stdout.write(script(build(), args.shell))
    return DONE


def names(monitors: str, what: str) -> Iterator[str]:
    """What a monitor knows, of several the first that answers; nothing when none does.

    By urllib and not by requests: somebody waits at a prompt.
    """
    path, many, one = _NAMES[what]
    for base in monitors.split(","):
        try:
            if urlsplit(base.strip()).scheme not in ("http", "https"):
                continue
            with urllib.request.urlopen(base.strip().rstrip("/") + path, timeout=_ASK_S) as said:  # noqa: S310
                rows = json.load(said)[many]
            yield from sorted({str(row[one]) for row in rows if _plain(str(row[one]))})
        except (OSError, ValueError, LookupError, TypeError):
            continue
        return


def _plain(name: str) -> bool:
    """A name that a shell reads as one word and as nothing else."""
    return name.isascii() and all(letter.isalnum() or letter in "._:@%+-" for letter in name)


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The shell's script for all commands.

    Raises:
        CommandError: shtab is not installed, or a command does not tell its options.
    """
    try:
        import shtab  # noqa: PLC0415 - only here is it needed
    except ImportError as exc:
        raise CommandError("shtab is missing: pip install shtab", FAILED) from exc
    for name, made in _commands(parser):
        if name in ELSEWHERE:
            _add(made, _told(ELSEWHERE[name]))
        _mark(name, made, shtab)
    helpers = {"bash": _BASH, "zsh": _ZSH}.get(shell, "")
    preamble = "".join(helpers.format(what=what) for what in _NAMES)
    if shell not in SHELLS:
        raise CommandError(f"no such shell: {shell}", USAGE)
    return str(shtab.complete(parser, shell=shell, preamble=preamble))


def _commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def _mark(command: str, parser: argparse.ArgumentParser, shtab: Any) -> None:
    """Which arguments are files, and which are names that the monitor knows."""
    for action in parser._actions:
        what = _DYNAMIC.get((command, action.dest)) or _DYNAMIC.get(("*", action.dest))
        if what is not None and not action.choices and action.nargs != 0:
            helper = f"_lightkeeper_{what}"
            action.complete = {"bash": helper, "zsh": helper}  # type: ignore[attr-defined]
        elif action.type is Path and not action.choices:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    for _, sub in _commands(parser):
        _mark(command, sub, shtab)


def _told(module: str) -> list[dict[str, Any]]:
    words = [sys.executable, "-m", "monitor.commands.options_of", module]
    try:
        said = subprocess.run(
            words, capture_output=True, text=True, timeout=_MAKING_S, check=True,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        told = json.loads(said.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as exc:
        raise CommandError(f"{module} does not tell its options", FAILED) from exc
    return list(told)


def _add(parser: argparse.ArgumentParser, told: list[dict[str, Any]]) -> None:
    """The arguments that another process told of."""
    for one in told:
        if one["sub"] is not None:
            actions = parser.add_subparsers(dest=one["dest"])
            for name, more in one["sub"].items():
                _add(actions.add_parser(name), more)
            continue
        options: Mapping[str, Any] = {"help": one["help"].replace("%", "%%")}
        if one["bare"]:
            options = {**options, "action": "store_true"}
        else:
            options = {**options, "choices": one["choices"], "type": Path if one["file"] else None}
        if one["flags"]:
            parser.add_argument(*one["flags"], dest=one["dest"], **options)
        else:
            parser.add_argument(one["dest"], nargs="*", **options)
