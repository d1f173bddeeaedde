"""What exists: commands and their options, targets of make, endpoints, variables, extras."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import sys
import tomllib
import warnings
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from typing import Any
from unittest import mock

import click
import yaml
from flask import Flask
from werkzeug.exceptions import MethodNotAllowed, NotFound
from werkzeug.routing import Map, Rule

from lightkeeper.monitor.cli import Elsewhere, Ours, cli
from lightkeeper.monitor.show.web.changing import changing
from lightkeeper.monitor.show.web.paging import paging
from lightkeeper.monitor.show.web.reading import reading
from lightkeeper.worker_server.sidecar.app import ENDPOINTS
from tests.docs.pages import ROOT
from tests.docs.shell import Command

ELSEWHERE = {
    "doctor": "lightkeeper.worker_server.doctor", "run": "lightkeeper.worker_server.rank.admission",
    "host": "lightkeeper.worker_server.check_host",
    "demo": "lightkeeper.trainer.demo", "dashboards": "lightkeeper.dashboards",
}  # fmt: skip
"""Commands that read their own words, and the module that does."""
FOREIGN = frozenset(
    ["accelerate", "amtool", "awk", "cat", "cd", "chmod", "cp", "cut", "docker", "echo",
     "exit", "grep", "helm", "jq", "kill", "kubectl", "ls", "mkdir", "mkfifo", "mv", "openssl",
     "prometheus", "promtool", "pytest", "python", "python3", "python3.11", "sacctmgr", "sbatch",
     "scontrol", "sed", "sh", "sleep", "srun", "systemctl", "torchft_lighthouse", "torchrun",
     "umask", "wait", "zcat"]
)  # fmt: skip
"""Programs that are not ours."""
_GATE = ("/v1/gate", "/v1/gate/denied", "/metrics", "/healthz")
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
_VARIABLE = re.compile(r"\bLIGHTKEEPER(?:_[A-Z0-9]+)*\b")
_PLACEHOLDER = re.compile(r"^(\$\w+|GATE|MONITOR|https?://[\w.$-]+(?::[\w$]+)?|localhost:\d+)")


class Wrong(Exception):  # noqa: N818 - what a page says, not an accident of ours
    """A page shows something that does not exist."""


# -- the command line -----------------------------------------------------------------------------


def ours(words: list[str]) -> None:
    """The words behind `lightkeeper`: command, options and arguments exist."""
    command_named, path, left = _found(words)
    if isinstance(command_named, Elsewhere):
        elsewhere(path.split()[-1], left)
    elif command_named is not None:
        _parsed(command_named, path, left)


def _found(words: list[str]) -> tuple[click.Command | None, str, list[str]]:
    """The command that they name, its path, and what is left; None for `COMMAND`."""
    command: click.Command = cli
    left, path = list(words), "lightkeeper"
    while isinstance(command, click.Group) and left and not left[0].startswith("-"):
        name = left.pop(0)
        if name.isupper():  # stands for any
            return None, path, left
        path += f" {name}"
        if name not in command.commands:
            raise Wrong(f"{path}: no such command")
        subcommand = command.commands[name]
        command = subcommand.imported() if isinstance(subcommand, Ours) else subcommand
    return command, path, left


def _parsed(command: click.Command, path: str, words: list[str]) -> None:
    ctx = click.Context(command, info_name=path)
    try:
        values, rest, _ = command.make_parser(ctx).parse_args(list(words))
        for option in command.params:
            given = values.get(option.name or "")
            if isinstance(option.type, click.Choice) and isinstance(given, str):
                option.type.convert(given, option, ctx)
    except click.UsageError as exc:
        raise Wrong(f"{path}: {exc.format_message()}") from exc
    if rest and not any(isinstance(parameter, click.Argument) for parameter in command.params):
        raise Wrong(f"{path} takes no {rest}")


def elsewhere(name: str, words: list[str]) -> None:
    """The same for a command with a parser of its own: what its help does not have is not there."""
    if "--" in words:
        words = words[: words.index("--")]
    parts = [word for word in words[:1] if name == "dashboards" and not word.startswith("-")]
    said = help_of(ELSEWHERE[name], *parts)
    for option in (word.partition("=")[0] for word in words if word.startswith("--")):
        if not re.search(rf"(?<![\w-]){option}(?![\w-])", said):
            raise Wrong(f"lightkeeper {name} {option}: no such option")


@cache
def help_of(module: str, *words: str) -> str:
    """What `python -m MODULE --help` says, in this process, which has most of its imports."""
    said = io.StringIO()
    with (
        mock.patch.object(sys, "argv", [module, *words, "--help"]),
        contextlib.redirect_stdout(said),
        warnings.catch_warnings(action="ignore", category=RuntimeWarning),  # it is imported already
    ):
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as exc:
            if exc.code:
                raise Wrong(f"python -m {module} {' '.join(words)} --help: {exc.code}") from exc
    return said.getvalue()


@cache
def commands() -> Mapping[str, click.Command]:
    """All that click reads, by their paths."""
    by_path: dict[str, click.Command] = {}

    def walk(path: str, command: click.Command) -> None:
        if isinstance(command, Ours):
            command = command.imported()
        by_path[path] = command
        if isinstance(command, click.Group):
            for name, subcommand in command.commands.items():
                walk(f"{path} {name}", subcommand)

    walk("lightkeeper", cli)
    return by_path


@cache
def options() -> frozenset[str]:
    """All long options of ours, whichever command has them."""
    names = {name for command in commands().values() for option in command.params
             for name in (*option.opts, *option.secondary_opts)}  # fmt: skip
    for module in (
        *ELSEWHERE.values(),
        "lightkeeper.worker_server",
        "lightkeeper.trainer.supervisor",
        "lightkeeper.trainer.train",
    ):
        names.update(_OPTION.findall(help_of(module)))
    for part in ("push", "export", "list"):
        names.update(_OPTION.findall(help_of("lightkeeper.dashboards", part)))
    return frozenset(names)


# -- other programs -------------------------------------------------------------------------------


@cache
def targets() -> frozenset[str]:
    """Of make."""
    return frozenset(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))


@cache
def extras() -> frozenset[str]:
    """Of pip install 'lightkeeper[...]'."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return frozenset(project["optional-dependencies"])


def command(typed: Command) -> None:
    """Raises Wrong unless everything in it that is ours exists."""
    for name in typed.variables:
        variable(name)
    program, words = typed.program, list(typed.words[1:])
    program = program.rpartition("/")[2] if "bin/" in program else program
    if program == "lightkeeper":
        ours(words)
    elif program == "make":
        make(words)
    elif program == "curl":
        curl(words)
    elif program == "pip":
        pip(words)
    elif program in {"python", "python3", "python3.11", "pytest", "sh", "torchrun", "srun"}:
        nested(words)
    elif program == "helm":
        chart(words)
    elif program not in FOREIGN | {"export", "SUBSTITUTED"}:
        raise Wrong(f"{program} is no program that we know")
    for word in typed.words:
        path(word)


def chart(words: list[str]) -> None:
    """Values of the chart."""
    for flag, setting in pairwise(words):
        value: Any = yaml.safe_load((ROOT / "charts/lightkeeper/values.yaml").read_text())
        for part in setting.partition("=")[0].split(".") if flag == "--set" else ():
            if part not in value:
                raise Wrong(f"the chart has no value {setting}")
            value = value[part]


def nested(words: list[str]) -> None:
    """A program that starts another one, or a module."""
    if "lightkeeper" in words:
        ours(words[words.index("lightkeeper") + 1 :])
    elif "-m" in words[:-1]:
        module = words[words.index("-m") + 1]
        if (
            module.partition(".")[0] in {"lightkeeper", "tests", "experiments"}
            and find_spec(module) is None
        ):
            raise Wrong(f"there is no module {module}")
        if module == "lightkeeper.worker_server":
            own = words[words.index("-m") + 2 :]
            for option in (word for word in own[: _script(own)] if word.startswith("--")):
                if option not in help_of("lightkeeper.worker_server"):
                    raise Wrong(f"python -m lightkeeper.worker_server {option}: no such option")


OURS = frozenset(
    {
        "lightkeeper",
        "gate",
        "monitor",
        "worker_server",
        "trainer",
        "dashboards",
        "tests",
        "experiments",
    }
)


def _script(words: list[str]) -> int:
    """Where the script's own words begin."""
    scripts = (at for at, word in enumerate(words) if word.endswith(".py") or word == "-m")
    return next(scripts, len(words))


def make(words: list[str]) -> None:
    goals = [word for word in words if "=" not in word and not word.startswith("-")]
    for goal in goals:
        if goal not in targets():
            raise Wrong(f"make {goal}: no such target")
    for word in words:
        name, _, value = word.partition("=")
        if name == "ARGS" and goals == ["demo"]:
            elsewhere("demo", value.split())


def pip(words: list[str]) -> None:
    for word in words:
        named = re.search(r"(?:^|/)(?:lightkeeper|\.)[^\[]*\[([\w,]+)\]", word)
        for extra in named[1].split(",") if named else ():
            if extra not in extras():
                raise Wrong(f"lightkeeper[{extra}]: no such extra")


# -- HTTP -----------------------------------------------------------------------------------------


@cache
def monitors() -> Map:
    app = Flask("monitor", static_folder=None)
    for routes in (reading, paging, changing):
        app.register_blueprint(routes)
    return app.url_map


@cache
def ranks() -> Map:
    return Map(
        [Rule(route.path, endpoint=route.name, methods=[route.method]) for route in ENDPOINTS]
    )


@cache
def gates() -> Map:
    return Map([Rule(path, endpoint=path, methods=["GET", "PUT"]) for path in _GATE])


def serves(served: Map, method: str, url: str) -> bool:
    try:
        served.bind("host").match(url.partition("?")[0] or "/", method)
    except (NotFound, MethodNotAllowed):
        return False
    return True


def curl(words: list[str]) -> None:
    method = words[words.index("-X") + 1] if "-X" in words else "GET"
    urls = [word for word in words if _PLACEHOLDER.match(word)]
    if not urls:
        raise Wrong(f"curl {words}: no address")
    for url in urls:
        base = _PLACEHOLDER.match(url)
        assert base is not None
        path = url[base.end() :]
        if "8471" in base[0] or base[0] == "GATE":
            served = gates()
        elif "8470" in base[0] or "MONITOR" in base[0]:
            served = monitors()
        else:
            served = ranks()
        if not serves(served, method, path):
            raise Wrong(f"{method} {path} of {base[0]}: no such endpoint")


def endpoint(method: str, path: str) -> bool:
    """Whether anybody of ours serves it; capital letters stand for names."""
    return any(serves(served, method, path) for served in (monitors(), ranks(), gates()))


# -- names ----------------------------------------------------------------------------------------


@cache
def variables() -> frozenset[str]:
    """LIGHTKEEPER_* that some program of ours, or a test, reads."""
    files = [path for folder in OURS for path in (ROOT / folder).rglob("*.py")
             if "tests/docs/" not in str(path)]  # fmt: skip
    return frozenset(name for path in files for name in _VARIABLE.findall(path.read_text()))


def variable(name: str) -> None:
    if name.startswith("LIGHTKEEPER") and name not in variables():
        raise Wrong(f"{name}: nobody reads it")


def named_variables(text: str) -> list[str]:
    return _VARIABLE.findall(text)


_FOLDERS = ("docs/", "evidence/", "examples/", "dashboards/", "experiments/", "gate/", "monitor/",
            "tests/", "trainer/", "worker_server/", "lightkeeper/")  # fmt: skip


def path(word: str) -> None:
    """A file or folder of the repository."""
    if not word.startswith(_FOLDERS) or any(sign in word for sign in "<>{}$ ") or "NAME" in word:
        return
    name = word.partition("::")[0].rstrip(".,;:").partition("#")[0]
    if name == "examples/kubernetes/my-job":  # what the line before it makes
        return
    if "*" in name:
        if not list(ROOT.glob(name)):
            raise Wrong(f"{word}: no such files")
    elif not (ROOT / name).exists() and not _attribute(name):
        raise Wrong(f"{word}: no such file")


def _attribute(name: str) -> bool:
    """`monitor/detect/pace` without its ending."""
    return (ROOT / f"{name}.py").exists()
