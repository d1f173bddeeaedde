"""How the commands print: JSON as it came, or tables."""

from __future__ import annotations

import datetime
import json
import math
import sys
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

_STYLES: Final = {
    "healthy": "green",
    "waiting": "yellow",
    "starting": "cyan",
    "stalled": "bold red",
    "dead": "bold red",
    "unreachable": "magenta",
    "firing": "bold red",
    "evicting": "bold yellow",
    "pending": "yellow",
    "resolved": "green",
    "critical": "bold red",
    "warning": "yellow",
    "info": "cyan",
    "unknown": "magenta",
}


def console() -> Console:
    """Standard output; as wide as it needs when it is not a terminal."""
    return Console(soft_wrap=False, width=None if sys.stdout.isatty() else 200)


def print_json(body: Any) -> None:
    """For programs."""
    sys.stdout.write(json.dumps(body, indent=2) + "\n")


def table(title: str, *columns: str) -> Table:
    """An empty table."""
    made = Table(title=title, title_justify="left", header_style="bold", expand=False)
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def word(value: Any) -> Text:
    """A state or health, coloured; nothing in it is taken for markup."""
    text = show(value)
    return Text(text, style=_STYLES.get(text, ""))


def show(value: Any) -> str:
    """A value for a cell; a dash for what is not known."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.4g}"
        case list():
            return ", ".join(show(one) for one in value) or "-"
        case _:
            return " ".join(str(value).split())


def cell(value: Any) -> Text:
    """A cell; nothing in it is taken for markup."""
    return Text(show(value))


def figure(value: Any) -> Any:
    """A number as people read it: 0.3333333333333333 is 0.3333."""
    if not isinstance(value, float) or not math.isfinite(value):
        return value
    return round(value) if abs(value) >= 1000 else float(f"{value:.4g}")


def age(seconds: float | None) -> str:
    """A short age."""
    if seconds is None:
        return "-"
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h"


def moment(at_s: float | None) -> str:
    """A local date and time."""
    if at_s is None:
        return "-"
    at = datetime.datetime.fromtimestamp(at_s, tz=datetime.UTC).astimezone()
    return at.strftime("%Y-%m-%d %H:%M:%S")
