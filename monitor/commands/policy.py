"""`lightkeeper policy` and `check policy`: what may be done, and when."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from lightkeeper.monitor.commands.ask import Monitor, asking, changing, login, show_answer, tell
from lightkeeper.monitor.commands.command import (
    DONE,
    FILE,
    USAGE,
    CommandError,
    F,
    as_json,
    command,
    option,
)
from lightkeeper.monitor.decide.rules import PolicyError
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.rulebook import effective
from lightkeeper.worker_server.plain_text import escaped


@command()
@click.argument("files", type=FILE, nargs=-1, required=True, metavar="FILE...")
@as_json
def check_policy(*, files: tuple[Path, ...], as_json: bool) -> int:
    """Can policy files be used? All that is wrong with them, one line each.

    examples:
      lightkeeper check policy policy.toml

    a file with every option and its default: examples/policy.toml

    exit status: 0 all can be used, 2 one cannot
    """
    wrong: tuple[str, ...] = ()
    for file in files:
        problems: tuple[str, ...] = ()
        try:
            effective(file, {}, loaded_s=0.0)
        except PolicyError as exc:
            problems = tuple(exc.problems)
        said = {"schema": 1, "file": str(file), "ok": not problems, "problems": problems}
        tell(said, "" if problems else f"{file}: a policy that can be used", as_json=as_json)
        wrong += problems
    if wrong and not as_json:
        raise refused(PolicyError(wrong))
    return USAGE if wrong else DONE


@command()
@as_json
@asking
def show_policy(*, monitor: Monitor, as_json: bool) -> None:
    """The policy in force, and who set each part."""
    show_answer(monitor, "/v1/policy", as_json=as_json)


@command()
@as_json
@changing
def reload_policy(*, monitor: Monitor, as_json: bool) -> None:
    """Make the monitor read its policy file again, as `kill -HUP` of it does.

    examples:
      lightkeeper policy reload --token-file token
    """
    body = {"author": login()}
    show_answer(monitor, "/v1/policy/reload", as_json=as_json, method="POST", body=body)


def refused(exc: PolicyError) -> CommandError:
    """Print every problem but the last on standard error; the last is the error returned."""
    for problem in exc.problems[:-1]:
        sys.stderr.write(f"error: {escaped(' '.join(problem.split()))}\n")
    return CommandError(exc.problems[-1])


# -- `--set NAME=VALUE`: a threshold of `monitor/model/config.py`, by its name --------------------


def threshold(about: str) -> Callable[[F], F]:
    """The option; its values are in `changed`."""
    return option("--set", "changed", multiple=True, metavar="NAME=VALUE", help=about)


def thresholds(changed: Iterable[str]) -> dict[str, Any]:
    """Values by name. The config checks whether the threshold exists, and its bounds.

    Raises:
        CommandError: not NAME=VALUE, or a value of another type.
    """
    chosen: dict[str, Any] = {}
    for text in changed:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            raise CommandError(f"--set is {text!r}, expected NAME=VALUE")
        chosen[name] = _value(name, value)
    return chosen


def _value(name: str, text: str) -> Any:
    default = getattr(KeeperConfig(), name, 0.0)
    if isinstance(default, bool):
        if text not in ("true", "false"):
            raise CommandError(f"--set {name} is {text!r}, expected true or false")
        return text == "true"
    try:
        return int(text) if isinstance(default, int) else float(text)
    except ValueError as exc:
        kind = "a whole number" if isinstance(default, int) else "a number"
        raise CommandError(f"--set {name} is {text!r}, expected {kind}") from exc
