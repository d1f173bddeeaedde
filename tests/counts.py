"""`python -m tests.counts`: how large the house is, and how far a reader walks in it.

Each figure has a ceiling, which `tests/test_counts.py` holds. A road is the Python files of the
product in which a function runs between two calls, in any thread: what a reader has to open. The
road to a page is counted when it is walked the second time, without what is compiled at first.
Modules are ours in `sys.modules` when the command is over, packages too.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from graphlib import CycleError, TopologicalSorter
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType
from typing import Any, Final

import grimp

from tests.complexity import MOST, PRODUCT, complexity, functions

ROOT: Final = Path(__file__).parents[1]


def python_files(*folders: str) -> Iterator[Path]:
    """Files of the repository; links to the packages, in lightkeeper/, are not followed."""
    for folder in folders:
        beside = [ROOT / "_lightkeeper.py"] if folder == "lightkeeper" else []
        for path in sorted((ROOT / folder).rglob("*.py")) + beside:
            if path.resolve() == path:
                yield path


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes())


def lines(*folders: str) -> int:
    return sum(path.read_bytes().count(b"\n") for path in python_files(*folders))


# -- names -----------------------------------------------------------------------------------------

SHARED: Final = {
    "main": "of a command: `python -m` runs it",
    "install": "of a hook: the attach calls one after the other",
    **dict.fromkeys(
        ("attach", "autoload", "fabric_callbacks", "lightning_callbacks",
         "pytorch_lightning_callbacks"), "the face has the name of what it calls",
    ),
}  # fmt: skip
"""Public functions that several modules have, each with the reason."""


def shared_names(*kinds: type[ast.stmt]) -> set[str]:
    """Public names that more than one module of the product defines."""
    files: dict[str, list[Path]] = {}
    for path in python_files(*PRODUCT):
        for node in parsed(path).body:
            if isinstance(node, kinds) and not (name := node.name).startswith("_"):
                files.setdefault(name, []).append(path)
    return {name for name, places in files.items() if len(places) > 1}


# -- prose that is parsed --------------------------------------------------------------------------

FOREIGN: Final[Mapping[str, str]] = {
    "gate/listener.py": "a line of HTTP",
    "monitor/act/lighthouse.py": "TorchFT's page, which has no other form",
    "monitor/act/schedulers/kubernetes.py": "Python's words for a certificate; those of "
    "act/cluster.toml, which a person writes too",
    "monitor/act/schedulers/slurm.py": "Slurm's words",
    "monitor/commands/printing.py": "words of ours get a colour; nothing is decided by it",
    "monitor/show/web/stacks.py": "py-spy's form of stacks, which the rank's own have too",
    "worker_server/rank/last_words.py": "faulthandler's words",
    "worker_server/sidecar/last_words.py": "the words of Python, torch, gloo and C++",
    "worker_server/sidecar/witnesses/cgroup.py": "the kernel's words",
    "worker_server/sidecar/witnesses/kernel_log.py": "the kernel's words",
}
"""Files that read somebody else's sentences, and whose."""
_PHRASE: Final = re.compile(r"[A-Za-z]{2,}[:,]? | [A-Za-z]{2,}")
_SEARCHES: Final = frozenset((
    "removeprefix", "removesuffix", "startswith", "endswith", "partition", "rpartition", "split",
    "rsplit", "replace", "find", "index", "count", "compile", "match", "fullmatch", "search",
    "finditer", "findall", "sub",
))  # fmt: skip


def _texts(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str | bytes):
            yield each.value if isinstance(each.value, str) else each.value.decode("latin1")


def phrases_sought(tree: ast.AST) -> Iterator[str]:
    """Literal phrases that a text is searched for, split by or compared with."""
    for node in ast.walk(tree):
        sought: list[ast.AST] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            sought = list(node.args[:1]) if node.func.attr in _SEARCHES else []
        elif isinstance(node, ast.Compare):
            sides = (node.left, *node.comparators)
            sought = [side for side in sides if isinstance(side, ast.Constant)]
        yield from (text for each in sought for text in _texts(each) if _PHRASE.search(text))


def prose_parsers() -> dict[str, list[str]]:
    """File -> the phrases that it looks for."""
    by_file = {
        str(path.relative_to(ROOT)): [*phrases_sought(parsed(path))]
        for path in python_files(*PRODUCT)
    }
    return {file: phrases for file, phrases in by_file.items() if phrases}


# -- floors, rooms, circles ------------------------------------------------------------------------


def contracts() -> list[dict[str, Any]]:
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return configuration["tool"]["importlinter"]["contracts"]  # type: ignore[no-any-return]


def floors() -> list[list[str]]:
    """The monitor's floors, the highest first, each with its rooms."""
    [layers] = [each["layers"] for each in contracts() if each["name"].startswith("The floors")]
    return [re.split(r" [:|] ", floor) for floor in layers]


def rooms() -> list[str]:
    """The monitor's folders, and the gate beside it."""
    folders = (ROOT / "monitor").iterdir()
    return sorted({path.name for path in folders if (path / "__init__.py").is_file()} | {"gate"})


@cache
def imports() -> dict[str, set[str]]:
    """File of the product -> files that it imports, lazily or for types too."""
    graph = grimp.build_graph("lightkeeper", cache_dir=None)
    return {
        module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules
    }


def circle_of(imported: Mapping[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as exc:
        return list(exc.args[1])
    return []


# -- roads -----------------------------------------------------------------------------------------


@dataclass
class Road:
    """Notes files while it is `walked`, from the call of a function to that of another one, by the
    thread that begins.
    """

    begin: str = ""
    end: str = ""
    files: set[str] = field(default_factory=set)
    _open: bool = False
    _thread: int = 0

    def walked(self, walk: Callable[[], object]) -> list[str]:
        self._open = not self.begin
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            walk()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        return sorted(self.files)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_flags & CO_OPTIMIZED:  # of a module, or a class
            return
        if code.co_qualname in (self.begin, self.end):
            self._open = code.co_qualname == self.begin
            self._thread = threading.get_ident()
        elsewhere = self.begin and threading.get_ident() != self._thread
        if self._open and not elsewhere and code.co_filename.startswith(str(ROOT)):
            path = os.path.relpath(os.path.realpath(code.co_filename), ROOT)
            if path.split(os.sep)[0] in PRODUCT and path.endswith(".py"):
                self.files.add(path)


def decision_to_disk() -> list[str]:
    """From the decision that a tick took to the evictor, who gets it when it is on disk."""
    from lightkeeper.monitor.act.http import Fetcher
    from tests.monitor.fakes import FakeFleet, FakeLighthouse
    from tests.monitor.loop.test_loop import Bench

    fleet, lighthouse, fetcher = FakeFleet(), FakeLighthouse(), Fetcher()

    def walk() -> None:
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(Path(folder) / "m.db", fetcher, lighthouse)
            bench.registry.register(fleet.add("rg_1", replica_id="rg_1:uuid1").registration())
            lighthouse.form("rg_1:uuid1")
            bench.judged(1)
            bench.keeper.tick()
            bench.close()

    try:
        return Road("Acting._take", "Evictors.submit").walked(walk)
    finally:
        for each in (fleet, lighthouse, fetcher):
            each.close()


def incident_to_page(*, http: bool) -> list[str]:
    """The page of an incident that has been evicted, as HTML; with HTTP, from the request on."""
    from lightkeeper.monitor.act.http import Fetcher
    from lightkeeper.monitor.show.web.incident_page import BundleStacks, incident_page
    from tests.monitor.api import app_client
    from tests.monitor.decide.scene import hang
    from tests.monitor.fakes import FakeFleet
    from tests.monitor.show.test_incident_page import scene

    fleet, fetcher = FakeFleet(), Fetcher()

    def way() -> Callable[[], object]:
        """With its own view: none has a page yet."""
        view = scene(hang())
        client = app_client(fleet.add(), fetcher, view=lambda: view,
                            stacks=lambda _: BundleStacks())  # fmt: skip
        if http:
            return lambda: client.get("/incidents/inc-1").get_data()
        report = view.report
        return lambda: incident_page(view, report(view.incidents[0]), BundleStacks(), "http://m")

    try:
        way()()
        return Road().walked(way())
    finally:
        fleet.close()
        fetcher.close()


@cache
def modules_of(*words: str) -> list[str]:
    """Ours that a command loads, when a monitor has answered it."""
    from tests.http_server import FakeServer, Handler

    class Answering(FakeServer):
        def serve(self, handler: Handler, method: str, path: str, body: bytes) -> None:
            said = {"schema": 1, "text": ["it trains"], "training": {"is": "yes"},
                    "monitor": {"is": "trusted"}}  # fmt: skip
            handler.reply(200, "application/json", json.dumps(said).encode())

    code = (
        "import sys, lightkeeper; status = lightkeeper.main(sys.argv[1:]); "
        "sys.stderr.write(' '.join(m for m in sys.modules if m.split('.')[0] == 'lightkeeper')); "
        "sys.exit(status)"
    )
    server = Answering()
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, *words, "--monitor", server.url],
            capture_output=True, text=True, timeout=60, check=True, cwd=ROOT,
        )  # fmt: skip
    finally:
        server.close()
    return sorted(done.stderr.split())


# -- all of them -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figure:
    what: str
    count: int
    most: int
    """The ceiling: what it is now, or the goal."""
    places: tuple[str, ...] = ()
    """What is counted, where that is a list."""


def figures() -> Iterator[Figure]:
    yield Figure("lines of the product", lines(*PRODUCT), 75_380)
    for package, most in PACKAGES.items():
        yield Figure(f"  of these {package}", lines(package), most)
    yield Figure("lines of monitor and gate", lines("monitor", "gate"), 52_230)
    yield Figure("lines of tests and experiments", lines("tests", "experiments"), 113_760)
    hard = [
        f"{path.relative_to(ROOT)}:{name}"
        for path in python_files(*PRODUCT)
        for name, function in functions(parsed(path))
        if complexity(function) > MOST
    ]
    yield Figure(f"functions over complexity {MOST}", len(hard), 5, (*hard,))
    yield Figure("floors of the monitor", len(floors()), 8)
    yield Figure("rooms of the monitor, with the gate", len(rooms()), 12, (*rooms(),))
    circle = circle_of(imports())
    yield Figure("files in a circle", len(circle), 0, (*circle,))
    functions_twice = shared_names(ast.FunctionDef, ast.AsyncFunctionDef)
    twice = sorted((functions_twice - SHARED.keys()) | shared_names(ast.ClassDef))
    yield Figure("public names twice", len(twice), 0, (*twice,))
    parsers = prose_parsers().keys()
    ours = sorted(parsers - FOREIGN.keys())
    yield Figure("files that parse prose of ours", len(ours), 0, (*ours,))
    idle = sorted((SHARED.keys() - functions_twice) | (FOREIGN.keys() - parsers))
    yield Figure("exceptions that are none any more", len(idle), 0, (*idle,))
    for what, files, most in (
        ("files from a decision to disk", decision_to_disk(), 20),
        ("files from an incident to its page", incident_to_page(http=False), 12),
        ("files from a request for it to its page", incident_to_page(http=True), 16),
        ("modules of `lightkeeper status`", modules_of("status"), 12),
        ("modules of `lightkeeper incidents list`", modules_of("incidents", "list"), 15),
    ):
        yield Figure(what, len(files), most, (*files,))


PACKAGES: Final = {
    "monitor": 48_760, "worker_server": 18_950, "gate": 3_470, "trainer": 2_150,
    "dashboards": 1_950, "lightkeeper": 140,
}  # fmt: skip


def main() -> int:
    over = False
    for figure in figures():
        over |= figure.count > figure.most
        mark = "  OVER" if figure.count > figure.most else ""
        print(f"{figure.what:44} {figure.count:8,}  at most {figure.most:8,}{mark}")
        if "-v" in sys.argv or mark:
            print(*(f"    {place}" for place in figure.places), sep="\n")
    return int(over)


if __name__ == "__main__":
    sys.exit(main())
