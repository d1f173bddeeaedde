"""What `lightkeeper gate` says to input that it cannot use."""

from __future__ import annotations

import configparser
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.monitor.commands.calling import Command
from tests.monitor.commands.parsing import parsed

GOOD = ["--lighthouse", "http://127.0.0.1:1", "--bind", "127.0.0.1:0", "--admin", "127.0.0.1:0"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--lighthouse", "head:29510"], "--lighthouse is 'head:29510', expected http://HOST:PORT"),
        (["--lighthouse", "https://head:1"], "expected http://HOST:PORT"),
        (["--lighthouse", "http://head"], "expected http://HOST:PORT"),
        (["--bind", "29511"], "--bind is '29511', expected HOST:PORT"),
        (["--admin", "x"], "--admin is 'x', expected HOST:PORT"),
        (["--token-file", "/nowhere"], "cannot read /nowhere"),
    ],
)
def test_wrong_options_are_one_line(words: list[str], line: str, command: Command) -> None:
    assert line in command.refused("gate", *GOOD, *words)


def test_a_gate_that_starts_again_waits_for_no_other_commands_imports() -> None:
    code = (
        "import sys, lightkeeper.monitor.cli\n"
        "lightkeeper.monitor.cli.main(['gate', '--help'])\n"
        "others = {'flask', 'numpy', 'rich', 'sqlalchemy', "
        "'lightkeeper.monitor.service', 'lightkeeper.monitor.records'}\n"
        "sys.exit(len(others & set(sys.modules)))"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.startswith("Usage: lightkeeper gate")) == (0, True)


EXAMPLES = Path(__file__).parents[3] / "examples"


def words_of(command: list[str]) -> dict[str, Any]:
    assert Path(command[0]).name == "lightkeeper"
    ctx = parsed(*command[1:])
    assert ctx.info_name == "gate"
    return ctx.params


def test_the_unit_of_systemd_is_reloaded_by_the_next_gate_and_starts_again() -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[method-assign,assignment]
    unit.read(EXAMPLES / "systemd" / "lightkeeper-gate.service")
    service = dict(unit["Service"])
    assert (service["Restart"], service["OOMPolicy"]) == ("always", "continue")
    assert service["ExecReload"].endswith("kill -HUP $MAINPID")
    assert (service["Type"], service["NotifyAccess"]) == ("notify", "all")  # MAINPID moves
    words_of(shlex.split(service["ExecStart"].replace("\\\n", " ").replace("\\", " ")))
    assert service["RemoveIPC"] == "no", "else systemd deletes what the next gate needs"


def test_in_kubernetes_there_is_one_gate_and_its_ports_are_those_it_is_told() -> None:
    path = EXAMPLES / "kubernetes" / "gate" / "gate.yaml"
    documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    [deployment] = [each["spec"] for each in documents if each["kind"] == "Deployment"]
    assert deployment["replicas"] == 1
    [container] = deployment["template"]["spec"]["containers"]
    args = words_of(container["args"])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert args["bind"] == f"0.0.0.0:{ports['groups']}"
    assert args["admin"] == f"0.0.0.0:{ports['admin']}"
    services = {each["metadata"]["name"]: each for each in documents if each["kind"] == "Service"}
    targets = services["lightkeeper-gate"]["spec"]["ports"]
    assert {port["targetPort"] for port in targets} == set(ports)
    for probe in ("readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/healthz", "port": "admin"}
