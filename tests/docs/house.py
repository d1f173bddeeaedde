"""`python -m tests.docs.house`: draws docs/images/house.svg: the rooms on their floors.

Floors are those of the import contract, arrows are the imports of the code: of each two rooms, but
for those that a longer way over other rooms says too. Where rooms stand and lines run is here; a
test says which line is missing, or is none any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

import grimp

from tests.counts import ROOT, floors

PICTURE: Final = Path("docs/images/house.svg")
FLOOR: Final = 88
TOP: Final = 118
HEIGHT: Final = 58
WIDE: Final = 980
HELPERS: Final = ("clock", "background", "metric")
"""Small files on the lowest floor: no lines lead there."""


@dataclass(frozen=True)
class Place:
    left: int
    right: int
    note: str
    look: str = "room"
    """`pure`: no clock, socket, logger or thread; `world`: it asks or changes what is outside."""


ROOMS: Final[Mapping[str, Place]] = {
    "cli": Place(60, 230, "table of commands"),
    "commands": Place(290, 880, "what a person types: asks a monitor, starts one, reads files"),
    "service": Place(60, 840, "one process: opens all of this in order, closes it in reverse"),
    "loop": Place(60, 770, "observe, decide, act, write down, once a second", "both"),
    "journal": Place(60, 290, "ticks on disk, replayed"),
    "show": Place(576, 840, "pages, JSON, terminal, metrics"),
    "decide": Place(60, 470, "incidents over ticks, guards, rules, the view", "pure"),
    "rulebook": Place(534, 730, "the policy file"),
    "detect": Place(60, 420, "history, detectors: who, and why", "pure"),
    "act": Place(470, 790, "asks ranks, evicts, messages people", "world"),
    "offline": Place(820, 920, "timings", "pure"),
    "records": Place(60, 510, "dumps of flight records, read and analysed", "pure"),
    "store": Place(550, 740, "the database", "world"),
    "model": Place(330, 920, "the nouns, and the configuration", "pure"),
}
GATE: Final = "gate"
WIRE: Final = "wire"
MEETING: Final = {("loop", "decide"): "think", ("loop", "act"): "do"}
"""What decides and what acts meet in the loop alone: drawn, whatever other way there is."""
LINES: Final[Mapping[tuple[str, str], int | str]] = {
    ("cli", "commands"): "across",
    ("commands", "service"): 560,
    ("commands", "offline"): 862,
    ("service", "loop"): 400,
    ("service", "show"): 806,
    ("loop", "journal"): 175,
    ("loop", "decide"): 420,
    ("loop", "act"): 505,
    ("loop", "rulebook"): 550,
    ("journal", "decide"): 175,
    ("show", "rulebook"): 645,
    ("show", "act"): 762,
    ("rulebook", "decide"): "across",
    ("decide", "detect"): 240,
    ("detect", "records"): 240,
    ("act", "records"): 490,
    ("act", "store"): 645,
    ("offline", "model"): 870,
    ("records", "model"): 420,
    ("store", "model"): 645,
    ("act", GATE): "gate",
    (GATE, "model"): "gate",
    ("model", WIRE): 625,
}
"""Line -> where it runs down; `across`: on one floor."""


# -- what the code says ----------------------------------------------------------------------------


def room_of(module: str) -> str | None:
    """Of `lightkeeper.monitor.loop.evictions`: loop. None: not in the house."""
    match module.split(".")[1:]:
        case ["monitor", room, *_] if room not in HELPERS:
            return room
        case ["gate", *_]:
            return GATE
        case ["worker_server", "wire"]:
            return WIRE
    return None


def room_imports() -> set[tuple[str, str]]:
    """Who imports whom when it runs, lazily too."""
    graph = grimp.build_graph("lightkeeper", cache_dir=None, exclude_type_checking_imports=True)
    pairs = (
        (room_of(module), room_of(imported))
        for module in graph.modules
        for imported in graph.find_modules_directly_imported_by(module)
    )
    return {(a, b) for a, b in pairs if a and b and a != b}


def shortest(pairs: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """The pairs that no longer way says too."""
    pairs = set(pairs)

    def reached(room: str, without: tuple[str, str]) -> set[str]:
        nearer = {b for a, b in pairs if a == room and (a, b) != without}
        return nearer.union(*(reached(each, without) for each in nearer))

    return {(a, b) for a, b in pairs if b not in reached(a, (a, b))}


# -- the picture -----------------------------------------------------------------------------------

_STYLE: Final = """
    .card { fill: #ffffff; } .wall { fill: #f6f8fa; stroke: #8c959f; } .beam { stroke: #d0d7de; }
    .room { fill: #ffffff; stroke: #57606a; } .pure { fill: #ddf0ff; stroke: #0757ae; }
    .world { fill: #ffe9d6; stroke: #b35900; } .both { fill: url(#both); stroke: #57606a; }
    .ground { fill: #e7eaee; stroke: #8c959f; }
    .a { stop-color: #ddf0ff; } .b { stop-color: #ffe9d6; }
    text { fill: #1b1f24; } .name { font-weight: 600; } .note { font-size: 15px; fill: #424a53; }
    .line { stroke: #57606a; fill: none; } .tip { fill: #57606a; }
    .think { stroke: #0757ae; fill: none; } .thinktip { fill: #0757ae; }
    .do { stroke: #b35900; fill: none; } .dotip { fill: #b35900; }
    .thinknote { fill: #0757ae; font-weight: 600; } .donote { fill: #9a4b00; font-weight: 600; }
    @media (prefers-color-scheme: dark) {
      .card { fill: #0d1117; } .wall { fill: #161b22; stroke: #6e7681; } .beam { stroke: #30363d; }
      .room { fill: #21262d; stroke: #9aa4b0; } .pure { fill: #0f2f52; stroke: #79b8ff; }
      .world { fill: #4a2a0a; stroke: #ffb26b; } .ground { fill: #21262d; stroke: #6e7681; }
      .both { stroke: #9aa4b0; } .a { stop-color: #0f2f52; } .b { stop-color: #4a2a0a; }
      text { fill: #e6edf3; } .note { fill: #b6c0ca; } .line { stroke: #9aa4b0; }
      .tip { fill: #9aa4b0; } .think { stroke: #79b8ff; } .thinktip { fill: #79b8ff; }
      .do { stroke: #ffb26b; } .dotip { fill: #ffb26b; } .thinknote { fill: #79b8ff; }
      .donote { fill: #ffb26b; }
    }"""
_TIPS: Final = "".join(
    f'<marker id="{look}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="{size}" '
    f'markerHeight="{size}" orient="auto"><path class="{tip}" d="M0 0 8 4 0 8z"/></marker>'
    for look, tip, size in (("line", "tip", 7), ("think", "thinktip", 5), ("do", "dotip", 5))
)
_SAYS: Final = (
    "Eight floors, each importing only from floors below it: cli and commands; service; loop; "
    "journal and show; decide and rulebook; detect, act and offline; records and store; model. "
    "decide and act do not know each other: the loop asks the one and tells the other. All of it "
    "stands on the wire, the words of a rank. The gate is a process of its own."
)


def levels() -> dict[str, int]:
    """Room -> its floor, 0 the highest."""
    return {room: at for at, rooms in enumerate(floors()) for room in rooms}


def picture() -> str:
    level = levels()
    top = {room: TOP + FLOOR * at for room, at in level.items()}
    ground = TOP + FLOOR * (max(level.values()) + 1) - 12
    height = ground + 120
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {height}" role="img" '
        'aria-labelledby="t d" font-family="system-ui, sans-serif" font-size="18">'
    )
    stops = '<stop class="a" offset="0.3"/><stop class="b" offset="0.9"/>'
    return "\n".join([
        head,
        f'  <title id="t">The house of the monitor</title><desc id="d">{_SAYS}</desc>',
        f"  <style>{_STYLE}\n  </style>",
        f'  <defs>{_TIPS}<linearGradient id="both">{stops}</linearGradient></defs>',
        f'  <rect class="card" width="{WIDE}" height="{height}" rx="10"/>',
        *_walls(ground, max(level.values())),
        *(_line(pair, at, top, ground) for pair, at in sorted(LINES.items(), key=_loud)),
        *(_room(room, place, top[room]) for room, place in ROOMS.items()),
        *_beside(top, ground),
        *_legend(ground + 96),
        "</svg>\n",
    ])  # fmt: skip


def _loud(line: tuple[tuple[str, str], object]) -> bool:
    return line[0] in MEETING


def _walls(ground: int, lowest: int) -> Iterator[str]:
    yield f'  <path class="wall" d="M24 {TOP - 20} 490 22 956 {TOP - 20}z" stroke-width="1.5"/>'
    yield (
        f'  <rect class="wall" x="40" y="{TOP - 20}" width="900" height="{ground - TOP + 20}" '
        'stroke-width="1.5"/>'
    )
    for at in range(1, lowest + 1):
        yield f'  <path class="beam" d="M41 {TOP - 20 + FLOOR * at}H939"/>'
    yield _text(490, 72, "monitor/", "name", "middle", 22)
    yield _text(490, 91, "arrows are imports", "note", "middle")


def _room(name: str, place: Place, top: int) -> str:
    x = (place.left + place.right) // 2
    return (
        f'  <rect class="{place.look}" x="{place.left}" y="{top}" height="{HEIGHT}" '
        f'width="{place.right - place.left}" rx="7" stroke-width="1.5"/>'
        + _text(x, top + 24, name, "name", "middle")
        + _text(x, top + 43, place.note, "note", "middle")
    )


def _line(pair: tuple[str, str], at: int | str, top: Mapping[str, int], ground: int) -> str:
    look = MEETING.get(pair, "line")
    width = 3.5 if pair in MEETING else 1.5
    path = _path(pair, at, top, ground)
    return f'  <path class="{look}" marker-end="url(#{look})" stroke-width="{width}" d="{path}"/>'


def _path(pair: tuple[str, str], at: int | str, top: Mapping[str, int], ground: int) -> str:
    upper, lower = pair
    if pair == ("act", GATE):
        return f"M775 {top['act'] + HEIGHT}V{top['store'] + 14}H958V{ground + 13}"
    if pair == (GATE, "model"):
        return f"M890 {ground + 14}V{top['model'] + HEIGHT + 1}"
    if at == "across":
        a, b = ROOMS[upper], ROOMS[lower]
        y = top[upper] + HEIGHT // 2
        return f"M{a.right} {y}H{b.left - 1}" if a.left < b.left else f"M{a.left} {y}H{b.right + 1}"
    end = ground + 13 if lower == WIRE else top[lower] - 1
    return f"M{at} {top[upper] + HEIGHT}V{end}"


def _beside(top: Mapping[str, int], ground: int) -> Iterator[str]:
    """The small files, the ground and the gate; who goes by which thick line."""
    for name, x, width in zip(HELPERS, (60, 124, 234), (58, 104, 68), strict=True):
        yield (
            f'  <rect class="room" x="{x}" y="{top["model"] + 13}" width="{width}" height="32" '
            'rx="7" stroke-width="1"/>'
            + _text(x + width // 2, top["model"] + 34, name, "note", "middle")
        )
    yield f'  <rect class="ground" x="24" y="{ground + 14}" width="794" height="50" rx="7"/>'
    yield _text(421, ground + 44, "worker_server/wire.py: what a rank says, each number checked",
                "note", "middle")  # fmt: skip
    yield (
        f'  <rect class="world" x="834" y="{ground + 14}" width="138" height="50" rx="7" '
        'stroke-width="1.5"/>'
        + _text(903, ground + 35, "gate/", "name", "middle")
        + _text(903, ground + 55, "its own process", "note", "middle")
    )
    yield _text(411, top["journal"] + 36, "what to do?", "note thinknote", "end")
    yield _text(496, top["journal"] + 36, "do it", "note donote", "end")


def _legend(y: int) -> Iterator[str]:
    words = (
        ("pure", 40, "pure: facts and time in, values out"),
        ("world", 336, "touches the world"),
        ("both", 512, "the one place where deciding and acting meet"),
    )
    for look, x, text in words:
        yield f'  <rect class="{look}" x="{x}" y="{y - 12}" width="22" height="14" rx="3"/>'
        yield _text(x + 30, y, text, "note", "start")


def _text(x: int, y: int, text: str, look: str, anchor: str, size: int = 0) -> str:
    big = f' font-size="{size}"' if size else ""
    return f'<text class="{look}" x="{x}" y="{y}" text-anchor="{anchor}"{big}>{escape(text)}</text>'


def main() -> None:
    (ROOT / PICTURE).write_text(picture(), encoding="utf-8")


if __name__ == "__main__":
    main()
