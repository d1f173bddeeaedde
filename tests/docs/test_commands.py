"""No page shows a command, an option, an endpoint, a variable or a file that does not exist."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from importlib import import_module

import pytest
import yaml

import lightkeeper
from lightkeeper.worker_server.rank.reporter import Reporter
from tests.docs import known, shell
from tests.docs.pages import Block, evidence, manual, readmes
from tests.metrics_doc.catalogue import every

PAGES = [*manual(), *readmes()]
BLOCKS = [block for page in PAGES for block in page.blocks]
PROGRAMS = known.FOREIGN | {"lightkeeper", "make", "pip", "curl", "export"}


def starts(line: str) -> str:
    """The program that this line would start, if it is one we know."""
    word = re.sub(r"^(\w+=\S* +|\()+", "", line.strip()).partition(" ")[0]
    word = word.rpartition("/")[2] if "bin/" in word else word
    return word if word in PROGRAMS else ""


def kind(block: Block) -> str:
    """What it is: people see it, so must we."""
    if block.language:
        return {"sh": "shell", "bash": "shell"}.get(block.language, block.language)
    lines = block.text.splitlines()
    if lines[0].startswith("$ "):
        return "session"
    if lines[0].startswith("#!") or any(map(starts, lines[:2])):
        return "shell"
    try:
        tree = ast.parse(block.text)
    except SyntaxError:
        return "text"
    code = (ast.Call, ast.Import, ast.FunctionDef, ast.With)
    return "python" if any(isinstance(node, code) for node in ast.walk(tree)) else "text"


def typed(block: Block) -> str:
    """What a person types of it."""
    if kind(block) == "shell":
        return block.text
    lines, going = [], False
    for line in block.text.splitlines():
        if line.startswith("$ ") or going:
            lines.append(line.removeprefix("$ "))
            going = line.endswith("\\")
    return "\n".join(lines)


def of_kind(*kinds: str) -> list[Block]:
    return [block for block in BLOCKS if kind(block) in kinds]


def each(blocks: list[Block]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("block", blocks, ids=lambda block: block.where)


def mistakes(block: Block) -> Iterator[str]:
    for command in shell.commands(typed(block)):
        try:
            known.command(command)
        except known.Wrong as exc:
            yield str(exc)


def test_every_command_and_every_option_exists() -> None:
    wrong = []
    for block in of_kind("shell", "session"):
        words = ["bash", "-n", "-c", typed(block)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        refused = [done.stderr] if done.stderr else []
        wrong += [f"{block.where}: {mistake}" for mistake in (*refused, *mistakes(block))]
    assert wrong == []


def test_what_is_shown_as_output_hides_no_command() -> None:
    hidden = [
        f"{block.where}: {line}"
        for block in of_kind("text")
        for line in block.text.splitlines()
        if starts(line) and " -" in line
    ]
    assert hidden == []


@each(of_kind("python"))
def test_python_compiles_and_calls_what_exists(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.Import):
            for name in node.names:
                import_module(name.name)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            calls(node.func, {word.arg for word in node.keywords if word.arg})


def calls(function: ast.Attribute, keywords: set[str]) -> None:
    """A call of ours takes these keywords."""
    owner = function.value.id if isinstance(function.value, ast.Name) else ""
    if owner == "reporter":
        target = getattr(Reporter, function.attr, None) or getattr(
            import_module("lightkeeper.worker_server.rank.reporter").Annotations, function.attr
        )
    elif owner == "lightkeeper":
        target = getattr(lightkeeper, function.attr)
    else:
        return
    assert keywords <= set(inspect.signature(target).parameters), function.attr


@each(of_kind("yaml", "toml", "json"))
def test_data_parses(block: Block) -> None:
    read = {"yaml": lambda text: list(yaml.safe_load_all(text)), "toml": tomllib.loads,
            "json": json.loads}  # fmt: skip
    assert read[block.language](block.text)


def test_every_kind_of_block_is_looked_at() -> None:
    assert {kind(block) for block in BLOCKS} == {
        "shell",
        "session",
        "python",
        "text",
        "yaml",
        "toml",
        "diff",
    }


# -- within sentences -----------------------------------------------------------------------------


INLINE = [(f"{page.name}:{line}", code) for page in PAGES for line, code in page.inline]
"""Where it stands, and what."""


def test_commands_within_sentences_exist() -> None:
    wrong = []
    for where, code in INLINE:
        if "..." in code or not starts(code) or " " not in code:
            continue
        try:
            for command in shell.commands(code):
                known.command(command)
        except known.Wrong as exc:
            wrong.append(f"{where}: {exc}")
    assert wrong == []


FOREIGN_OPTIONS = frozenset(
    ["--max-restarts", "--nnodes", "--node-rank", "--master-addr", "--master-port", "--standalone",
     "--shutdown-timeout", "--min_replicas", "--heartbeat_timeout_ms", "--metrics.log_freq",
     "--debug.enable_structured_logging", "--module", "--fault_tolerance.process_group",
     "--parallelism.tensor_parallel_degree", "--compile.enable"]
)  # fmt: skip
"""torchrun's, TorchFT's and torchtitan's."""


@pytest.mark.integration  # torch
def test_options_within_sentences_exist() -> None:
    wrong = []
    for where, code in INLINE:
        if code.startswith("--"):
            option = re.split(r"[ =]", code)[0]
            if option.endswith("..."):
                there = any(
                    known_option.startswith(option[:-3]) for known_option in known.options()
                )
            else:
                there = option in known.options() | FOREIGN_OPTIONS
            if not there:
                wrong.append(f"{where}: {code}")
    assert wrong == []


def test_every_variable_of_ours_is_read_by_somebody() -> None:
    for page in (*PAGES, *evidence()):
        assert set(known.named_variables(page.text)) - known.variables() == set(), page.name


def test_every_endpoint_within_sentences_is_served() -> None:
    wrong = []
    for where, code in INLINE:
        match = re.fullmatch(
            r"(?:(GET|POST|PUT|DELETE) )?(/(?:v1/|healthz|readyz|metrics)\S*)", code
        )
        if match and "{" not in code and not known.endpoint(match[1] or "GET", match[2]):
            wrong.append(f"{where}: {code}")
    assert wrong == []


def test_every_file_within_sentences_is_there() -> None:
    wrong = []
    for where, code in INLINE:
        try:
            known.path(code)
        except known.Wrong as exc:
            wrong.append(f"{where}: {exc}")
    assert wrong == []


NO_METRICS = {"lightkeeper_config"}


def test_every_metric_is_exported() -> None:
    exported = {name for entry in every() for name in (*entry.names, entry.name)}
    for page in PAGES:
        named = set(re.findall(r"\blightkeeper_[a-z][a-z0-9_]*[a-z0-9]\b(?![*:/-])", page.text))
        unknown = [
            name for name in named - exported - NO_METRICS
            if not any(metric.startswith(f"{name}_") for metric in exported)
        ]  # fmt: skip
        assert unknown == [], page.name
