"""Text that would move a terminal, reorder a line or forge one, and where it must not come."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click
import pytest

from lightkeeper.monitor.cli import cli
from tests.http_server import FakeServer

FORGED = "2026-11-25 22:00:00,000 WARNING forged"
EVIL = (
    f"x\n{FORGED}\r\x1b[2J\x1b]0;title\x07\x9b1m\u202eabc\u2066\u2069\u2028{FORGED}\u2029"
    "\x85\x00\x7f"
)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def spoilt(value: Any) -> Any:
    """The same JSON, with `EVIL` in every text that is no key."""
    if isinstance(value, str):
        return value + EVIL
    if isinstance(value, dict):
        return {key: spoilt(each) for key, each in value.items()}
    return [spoilt(each) for each in value] if isinstance(value, list) else value


def check_harmless(text: str, *, colours: bool = False) -> None:
    """No character that controls a terminal, and no line that somebody else wrote."""
    shown = _COLOURS.sub("", text) if colours else text
    odd = {char for char in shown if not char.isprintable()} - {"\n", "\t"}
    assert not odd, (odd, shown)
    assert not [line for line in shown.split("\n") if line.startswith(FORGED[:10])]


def commands(
    group: click.Group = cli, before: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command of the command line."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*before, name))
        else:
            yield (*before, name), command


ASK = {
    "status": [], "get ranks": ["--wide"], "get groups": [], "get hosts": [], "get runs": [],
    "incidents list": [], "incidents show": ["x"],
    "incidents ack": ["x"], "incidents assign": ["x", "bob"], "incidents comment": ["x", "text"],
    "incidents resolve": ["x", "--reason", "it is returned"], "incidents label": ["x", "true"],
    "silence list": [], "silence end": ["x"],
    "silence add": ["--kind", "dead", "--hours", "1", "--reason", "r"],
    "evict": ["rg_0", "--yes", "--wait", "0"],
    "quarantine list": [], "quarantine add": ["node0", "--reason", "r"],
    "quarantine release": ["node0"], "quarantine history": ["node0"], "pause": ["--reason", "r"],
    "resume": [], "policy show": [], "policy reload": [],
}  # fmt: skip
"""Every command that asks a monitor, with what it needs; `top` needs a terminal."""
OTHERS = {
    "monitor", "top", "run", "analyze", "stragglers", "replay", "doctor", "gate",
    "check host", "check scheduler", "check notify", "check policy", "dashboards", "demo", "mcp",
}  # fmt: skip


S = TypeVar("S", bound=FakeServer)


@contextmanager
def in_a_monitors_place(server: S, monkeypatch: pytest.MonkeyPatch) -> Iterator[S]:
    """Commands ask this server."""
    monkeypatch.setenv("LIGHTKEEPER_MONITOR", server.url)
    monkeypatch.setenv("LIGHTKEEPER_TOKEN", "secret")
    yield server
    server.close()
