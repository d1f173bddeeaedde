"""The table of what clusters say of hosts (`cluster.toml`), and testimonies made by it. Pure."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from datetime import datetime
from math import inf
from pathlib import Path
from typing import Any, Final

from lightkeeper.monitor.model.names import one_line
from lightkeeper.monitor.model.queries import PrometheusQuery, query_from
from lightkeeper.worker_server.wire import Testimony, Weight

_TABLE: Final = tomllib.loads(Path(__file__).with_name("cluster.toml").read_text(encoding="utf-8"))
_READINGS: Final[dict[str, list[tuple[re.Pattern[str], PrometheusQuery]]]] = {}
"""By the first word of a fact."""
for _row in _TABLE["reading"]:
    _words = PrometheusQuery(_row["code"], "", Weight(_row["weight"]), _row["text"])
    _rows = _READINGS.setdefault(_row["match"].partition(" ")[0], [])
    _rows.append((re.compile(_row["match"]), _words))
QUERIES: Final[tuple[PrometheusQuery, ...]] = tuple(
    query for row in _TABLE["prometheus"] if (query := query_from(row, "", [])) is not None
)
Said = tuple[Sequence[str], Testimony]
"""Names of which the first that is known is the host's, and what is said of that host."""
Fact = tuple[str, str, float]
"""What the table matches, a detail, and for how many seconds it is so."""
_NAME: Final = re.compile(r"\{(\w+)\}")
UNKNOWN_S: Final = inf
"""Since when something is so, where the cluster does not say."""


def read_fact(witness: str, fact: str, detail: str, for_s: float) -> Testimony | None:
    """What a fact that a driver reads (`taint KEY` ...) testifies; None: nothing."""
    for pattern, row in _READINGS.get(fact.partition(" ")[0], ()):
        if (match := pattern.match(fact)) is not None:
            return worded(witness, row, {**match.groupdict(""), "detail": detail}, for_s)
    return None


def seconds_since(text: Any, now_s: float) -> float:
    """Seconds since a time in ISO format; without a zone it is in this host's."""
    try:
        return max(0.001, now_s - datetime.fromisoformat(text).timestamp())
    except (ValueError, TypeError, OverflowError):
        return UNKNOWN_S


def worded(witness: str, row: PrometheusQuery, words: Mapping[str, str], for_s: float) -> Testimony:
    """A testimony in the words of a row, where `{name}` stands for `words[name]`, and within the
    bounds of the wire.
    """

    def filled(template: str, most: int) -> str:
        whole = _NAME.sub(lambda match: words.get(match[1], ""), template)
        line = "".join(char if char.isprintable() else " " for char in whole)
        return one_line(line, most).rstrip(" :;,")

    code, text, device = filled(row.code, 32), filled(row.text, 200), filled(row.device, 32)
    return Testimony(witness, row.weight, code, text, for_s=for_s, device=device)
