"""The rules and alerts that are shipped for Prometheus, as other tests and generators need them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import yaml

from tests.prometheus.server import RULES

_UNITS: Final = {"s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True)
class Alert:
    """One alert, with recorded names written out."""

    group: str
    name: str
    expr: str
    for_s: int
    labels: dict[str, str]
    annotations: dict[str, str]


def _groups(file: str) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = yaml.safe_load((RULES / file).read_text())["groups"]
    return groups


@cache
def recorded() -> dict[str, str]:
    """Recorded name -> its expression, of plain metrics alone."""
    rules = [rule for group in _groups("rules.yml") for rule in group["rules"]]
    made: dict[str, str] = {}
    for rule in rules:
        made[rule["record"]] = written_out(rule["expr"], made)
    return made


def written_out(expr: str, names: dict[str, str]) -> str:
    """`expr` with the expressions of recorded names in their place."""
    for name, meaning in sorted(names.items(), key=lambda row: -len(row[0])):
        expr = re.sub(rf"(?<![\w:]){re.escape(name)}(?![\w:])", f"({meaning})", expr)
    return expr


@cache
def alerts() -> tuple[Alert, ...]:
    return tuple(
        Alert(
            group["name"], rule["alert"], written_out(rule["expr"], recorded()),
            seconds(rule.get("for", "0s")), rule["labels"], rule["annotations"],
        )
        for group in _groups("alerts.yml")
        for rule in group["rules"]
    )  # fmt: skip


def seconds(duration: str) -> int:
    return int(duration[:-1]) * _UNITS[duration[-1]]
