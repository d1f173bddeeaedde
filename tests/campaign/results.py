"""The results: one JSON object a line, appended as each run ends."""

from __future__ import annotations

import functools
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from tests.campaign.judge import Result


def append(path: Path, result: Result) -> None:
    """One more line; whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    more = {
        "machine": machine(),
        "load": round(os.getloadavg()[0], 1),
        "command": os.environ.get("LIGHTKEEPER_COMMAND", "python -m tests.campaign"),
        "code": code(),
    }
    line = json.dumps({**result, **more}) + "\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def read(path: Path) -> list[dict[str, Any]]:
    """All lines so far; of a key that was run twice the latest."""
    if not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return list({line["key"]: line for line in lines}.values())


@functools.cache
def code() -> str:
    """The commit that runs; `-dirty` after it where files differ."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    return told.stdout.strip() or "unknown"


def machine() -> str:
    """Where it runs."""
    return f"{os.cpu_count()} cores, {platform.system()} {platform.release()}"


def line(result: Result) -> str:
    """A result for people."""
    if not result["detected"]:
        head = "nothing fired"
    else:
        head = (
            f"{result['kind']} of {', '.join(result['culprits'])} after {_s(result['to_firing'])}"
        )
    marks = [
        f"{name} {_s(result[key])}"
        for name, key in (
            ("evict", "to_evict_asked"),
            ("survivors", "to_survivor_commit"),
            ("back", "to_rejoined"),
        )
    ]  # fmt: skip
    wrong = [f"{one['rank']} {one['state']} {one['kind']}" for one in result["wrong"]]
    return f"{'exact' if result['exact'] else 'NOT EXACT'}: {head}; {', '.join(marks)}" + (
        f"; WRONG: {'; '.join(wrong)}" if wrong else ""
    )


def _s(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"
