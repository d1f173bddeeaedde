"""`python -m tests.complexity`: no function of the product is more complex than `MOST`.

Complexity is 1, plus 1 for each branch, loop, `except`, `case` and conditional expression, for each
`and` and `or`, and for each `for` of a comprehension; that of inner functions is counted with the
outer one. ruff's C901 counts neither boolean operators nor comprehensions.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PRODUCT: Final = ("lightkeeper", "gate", "monitor", "worker_server", "trainer", "dashboards")
MOST: Final = 15
OVER: Final[Mapping[str, int]] = {
    "monitor/model/quarantine.py:_record": 21,
    "worker_server/rank/collectives.py:Recorder.enter": 28,
}
"""Functions that are more complex, each with its complexity now. The list may only shrink: make a
function simpler, put its new number here or take it out."""

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_BRANCHES: Final = (
    ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.match_case,
    ast.comprehension,
)  # fmt: skip


def complexity(function: ast.AST) -> int:
    count = 1
    for node in ast.walk(function):
        if isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        else:
            count += isinstance(node, _BRANCHES)
    return count


def functions(tree: ast.AST, at: str = "") -> Iterator[tuple[str, _Function]]:
    """All functions, inner ones and methods too, by their qualified names."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr):  # has none, and most nodes are in one
            continue
        named = isinstance(node, _Function | ast.ClassDef)
        name = f"{at}{node.name}" if named else ""
        if isinstance(node, _Function):
            yield name, node
        yield from functions(node, f"{name}." if named else at)


def complexities(root: Path) -> dict[str, int]:
    """`path:function` -> complexity, of the whole product; of equal names the highest."""
    by_name: dict[str, int] = {}
    for package in PRODUCT:
        for path in sorted((root / package).rglob("*.py")):
            for name, function in functions(ast.parse(path.read_text("utf-8"))):
                key = f"{path.relative_to(root)}:{name}"
                by_name[key] = max(complexity(function), by_name.get(key, 0))
    return by_name


def problems(by_name: Mapping[str, int], over: Mapping[str, int]) -> Iterator[str]:
    """What is wrong with the product's functions or with the list, a line each."""
    for name, count in sorted(by_name.items()):
        listed = over.get(name)
        if listed is None and count > MOST:
            yield f"{name} has complexity {count}; at most {MOST}"
        elif listed is not None and count > listed:
            yield f"{name} has complexity {count}, it had {listed}: it may only become simpler"
        elif listed is not None and MOST < count < listed:
            yield f"{name} has complexity {count} now: write so in OVER"
        elif listed is not None and count <= MOST:
            yield f"{name} has complexity {count} now: take it out of OVER"
    for name in sorted(over.keys() - by_name.keys()):
        yield f"{name} is gone: take it out of OVER"


def main() -> int:
    lines = list(problems(complexities(ROOT), OVER))
    print(*lines, sep="\n", end="\n" if lines else "")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
