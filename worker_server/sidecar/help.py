"""The page at `/`: a line for curl for everything, as text and for a browser."""

from __future__ import annotations

from html import escape
from typing import Final, NamedTuple

from worker_server import wire


class Line(NamedTuple):
    """One thing to ask for."""

    path: str
    """With an example of its parameters."""
    what: str
    token: bool = False
    """Whether it needs the token even on loopback."""
    body: str | None = None


LINES: Final = (
    Line(wire.PATH_STATE, "step, phase, process, process groups"),
    Line(f"{wire.PATH_STEPS}?since=0", "the last attempts of steps, with seconds by phase"),
    Line(f"{wire.PATH_FLIGHT_RECORDER}?active=1", "collectives: ours and torch's record"),
    Line(f"{wire.PATH_FLIGHT_RECORDER}?format=text", "the same as a table for people"),
    Line(wire.PATH_STACKS, "Python stacks, from outside (?native=1: with C frames)"),
    Line(wire.PATH_LAST_WORDS, "how the process ended and what it said last"),
    Line(wire.PATH_HOST, "the states of all ranks of this host"),
    Line(wire.PATH_WAIT_COUNTERS, "torch's wait counters"),
    Line(wire.PATH_METRICS, "Prometheus"),
    Line(wire.PATH_HEALTHZ, "this server answers"),
    Line(wire.PATH_OPENAPI, "all of this for programs"),
    Line(f"{wire.PATH_PROFILE}?duration=2", "torch's profiler, a Chrome trace", token=True),
    Line(wire.PATH_EVICT, "ends the rank's process", True, '{"reason": "why", "grace_s": 2}'),
)
_HEADER: Final = '-H "Authorization: Bearer $LIGHTKEEPER_TOKEN"'
_WIDTH: Final = 64


def _curl(base: str, line: Line) -> str:
    url = f"'{base}{line.path}'" if "?" in line.path else base + line.path
    words = ["curl", "-X POST" if line.body else "", url, _HEADER if line.token else ""]
    if line.body:
        words.append(f"-d '{line.body}'")
    return " ".join(filter(None, words))


def _title(identity: wire.Identity) -> str:
    return (
        f"WorkerServer of rank {identity.rank} (job {identity.job}, host {identity.host}, "
        f"pid {identity.pid})"
    )


_ABOUT: Final = "It answers while the rank hangs, is stopped, or is dead."


def help_text(identity: wire.Identity, url: str) -> str:
    """For curl."""
    base = url.rstrip("/")
    rows = []
    for line in LINES:
        command = _curl(base, line)
        wide = len(command) >= _WIDTH
        rows.append(f"# {line.what}\n{command}" if wide else f"{command:<{_WIDTH}}  {line.what}")
    return "\n".join([_title(identity), _ABOUT, "", *rows, ""])


def help_html(identity: wire.Identity, url: str) -> str:
    """For a browser; needs nothing from anywhere else."""
    base = url.rstrip("/")
    rows = "\n".join(_row(base, line) for line in LINES)
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{escape(str(identity.rank))}</title>
<style>body{{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:60em;padding:0 1em}}
td{{padding:.2em 1em .2em 0;vertical-align:top}}code{{font-size:13px}}
@media(prefers-color-scheme:dark){{body{{background:#16181c;color:#ddd}}a{{color:#8ab4f8}}}}</style>
<h1>{escape(_title(identity))}</h1>
<p>{_ABOUT}</p>
<table>
{rows}
</table>
</html>
"""


def _row(base: str, line: Line) -> str:
    if line.token:
        shown = f"<code>{escape(_curl(base, line))}</code>"
    else:
        shown = f'<a href="{escape(line.path)}"><code>{escape(line.path)}</code></a>'
    return f"<tr><td>{shown}</td><td>{escape(line.what)}</td></tr>"
