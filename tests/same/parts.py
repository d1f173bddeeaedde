"""What is asked, part by part, through doors that stay: command line, HTTP, files.

Each part has cases; each case gives one JSON value. The working directory is that of the inputs.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import json
import os
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import tomllib
import traceback
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from tests.ports import free_port
from tests.waiting import wait_for

ROOT: Final = Path(__file__).parents[2]
_DATA: Final = (ROOT / "../shared/data", Path("/work/shared/data"))
SHARED: Final = next((path for path in _DATA if path.exists()), None)
PRODUCT: Final = ("gate", "worker_server", "monitor", "trainer", "dashboards")
CLEAN: Final = {
    **{k: v for k, v in os.environ.items() if not (v and k.startswith(("LIGHTKEEPER", "TORCHFT")))},
    "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0", "TZ": "UTC", "COLUMNS": "120", "HOME": "/root",
}  # fmt: skip


@dataclass(frozen=True)
class Part:
    """`strict`: any difference counts; else numbers, reported. `alone`: with nothing beside it."""

    cases: Callable[[], Iterable[str]]
    answer: Callable[[str], Any]
    strict: bool = True
    alone: bool = False


# -- the command line ---------------------------------------------------------------------------


def door() -> tuple[str, str]:
    """Module and function of the `lightkeeper` command."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, name = scripts["lightkeeper"].partition(":")
    return module, name


def command(*words: str) -> list[str]:
    """The command line of a process of its own."""
    module, name = door()
    code = f"import sys; from {module} import {name} as main; sys.argv[0] = 'lightkeeper'"
    return [sys.executable, "-c", f"{code}; sys.exit(main())", *words]


def _call(words: tuple[str, ...]) -> int:
    module, name = door()
    sys.argv = ["lightkeeper", *words]
    try:
        return int(getattr(importlib.import_module(module), name)() or 0)
    except SystemExit as exc:
        return exc.code if isinstance(exc.code, int) else int(exc.code is not None)


@cache
def _import() -> None:
    """What the commands import that are asked most."""
    quiet = io.TextIOWrapper(io.BytesIO())
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        for name in ("analyze", "replay", "stragglers"):
            _call((name, "--help"))


def lightkeeper(*words: str, **environ: str) -> dict[str, Any]:
    """Exit code and output, of a fork of this process: it has imported already."""
    _import()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        sys.stdout.flush()
        child = os.fork()
        if not child:
            code = 99
            try:
                os.environ.update(environ)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
                code = _call(words)
            except BaseException:  # noqa: BLE001 told as its output
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code & 255)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said, err_text = (_all(file).decode(errors="replace") for file in (out, err))
    try:
        return {"exit": code, "json": json.loads(said), "err": err_text}
    except ValueError:
        return {"exit": code, "out": said.splitlines(), "err": err_text}


def _all(file: Any) -> bytes:
    file.seek(0)
    return bytes(file.read())


# -- analyze, stragglers, scoreboard ------------------------------------------------------------

MANIFEST: Final = "cases.json"


def corpus_cases() -> list[Any]:
    from tests.corpus.cases import coordinates

    return list(coordinates())


def write_case(number: int) -> tuple[str, Any] | None:
    """Write one case of the corpus; its words and its truth."""
    case = corpus_cases()[number]
    labelled = case.build()
    if labelled is None:
        return None
    folder = Path("corpus", case.name)
    labelled.write(folder)
    words = []
    if case.backend == "gloo":
        members = {team.name: team.members for team in labelled.run.programs.teams}
        Path(f"{folder}.members.json").write_text(json.dumps(members))
        words = ["--world-size", str(labelled.world), "--members", f"{folder}.members.json"]
    truth = labelled.truth
    return str(folder), {
        "words": words, "number": number, "faulty": bool(labelled.faults),
        "truth": [sorted(truth.must), sorted(truth.may), sorted(truth.kinds)],
    }  # fmt: skip


def write_captures() -> dict[str, Any]:
    """Unpack what real ranks left behind; their words."""
    from tests.corpus.gloo_captures import KINDS, Captures, truths

    Captures.unpack(Path("gloo"))
    captures: dict[str, Any] = {}
    for kind in KINDS:
        for name in truths():
            for path in (f"gloo/{name}/{kind}", f"gloo/{name}/{kind}.zip"):
                captures[path] = {"words": ["--world-size", "4"]}
    if SHARED is not None:
        for what in ("flight_recorder_nccl", "straggler_traces"):
            shutil.copytree(SHARED / what, what)
        captures.update(
            {str(path): {"words": []} for path in Path("flight_recorder_nccl").iterdir()}
        )
    return captures


@cache
def _manifest() -> dict[str, Any]:
    return dict(json.loads(Path(MANIFEST).read_text()))


def _analyze(path: str) -> Any:
    return lightkeeper("analyze", path, "--format", "json", *_manifest()[path]["words"])


def _text_cases() -> list[str]:
    analysed = [path for path in _manifest() if path.startswith(("flight", "gloo"))]
    return [*analysed, *(f"replay {name}" for name in _journals()), *_traces()]


def _text(case: str) -> Any:
    if case.startswith("replay "):
        return lightkeeper("replay", f"journals/{case.removeprefix('replay ')}")
    if case.endswith(".parquet"):
        return lightkeeper("stragglers", case)
    return lightkeeper("analyze", case, "--details", *_manifest()[case]["words"])


def _traces() -> list[str]:
    return sorted(map(str, Path("straggler_traces").glob("*.parquet")))


def _stragglers(path: str) -> Any:
    return lightkeeper("stragglers", path, "--format", "json")


def scoreboard(answers: Mapping[str, Any]) -> dict[str, Any]:
    """The scoreboard's numbers for ours, from the answers of `analyze`."""
    from tests.corpus.ask import OURS, Result
    from tests.corpus.rivals import Answer
    from tests.corpus.scoreboard import Board
    from tests.corpus.truth import Truth

    board, cases = Board(), corpus_cases()
    for path, case in sorted(_manifest().items()):
        if "truth" not in case or path not in answers:
            continue
        said = answers[path].get("json") or {}
        error = "" if said else str(answers[path])[:200]
        kinds = frozenset(verdict["kind"] for verdict in said.get("verdicts", ()))
        alarms = len(said.get("verdicts", ()))
        answer = Answer(frozenset(said.get("culprits", ())), kinds, error, alarms)
        truth = Truth(*map(frozenset, case["truth"]))
        labelled: Any = SimpleNamespace(truth=truth, faults=case["faulty"])
        board.add(Result(cases[case["number"]], labelled, {OURS: answer}))
    names = ("exact", "abstained", "wrong", "wrong_untold", "innocents", "kinds", "unusable")
    rows: dict[str, Any] = {
        f"{axis} {value}".strip(): {
            "cases": len(tally.marks), "tellable": len(tally.tellable),
            **{name: repr(getattr(tally, name)) for name in names},
        }
        for (_, axis, value), tally in board.tallies.items()
    }  # fmt: skip
    return {**rows, "misses": sorted(board.misses), "alarms": board.alarms}


# -- decisions ----------------------------------------------------------------------------------

TICKS: Final = 110
JOURNALLED: Final = 16


def _scripts() -> list[str]:
    from tests.same.product import BY_DEGREES, FAULTS, TELLS

    faults, tells = list(FAULTS), list(TELLS)
    scripts = [f"{way}: {fault}" for way in tells for fault in faults]
    for n in range(len(faults)):
        first, second = (faults[k % len(faults)] for k in (7 * n, 11 * n + 3))
        scripts.append(f"{tells[n % len(tells)]}: {first}, {second}")
    scripts += [f"{way}: {fault} #{n}" for way in ("phases", "torchft") for fault in BY_DEGREES
              for n in range(4)]  # fmt: skip
    return scripts


def _decide(name: str) -> Any:
    from tests.same.product import scripted

    return scripted(name, TICKS)


def _weeks(name: str) -> Any:
    from tests.same.product import weeks

    return weeks(name)


def journal_names() -> list[str]:
    """The scripts of which a journal is recorded."""
    names = _scripts()
    return names[:: len(names) // JOURNALLED]


def write_journal(name: str) -> None:
    from tests.same.product import journal

    journal(name, TICKS, Path("journals", name))


def _journals() -> list[str]:
    return sorted(path.name for path in Path("journals").iterdir())


def _replay(name: str) -> Any:
    words = ["replay", f"journals/{name}", "--format", "json"]
    return {
        "live": lightkeeper(*words, "--check"),
        "what if": lightkeeper(*words, "--set", "stall_floor_s=12", "--set", "min_replicas=2"),
    }


# -- help and wrong uses ------------------------------------------------------------------------

COMMANDS: Final = (
    "monitor", "gate", "status", "top", "get", "get ranks", "get groups", "get hosts", "incidents",
    "incidents list", "incidents show", "evict", "quarantine", "quarantine list", "quarantine add",
    "quarantine release", "quarantine history", "run", "policy", "policy show", "policy reload",
    "pause", "resume", "check", "check scheduler", "check notify", "check policy", "analyze",
    "stragglers", "replay", "dashboards", "demo", "doctor",
)  # fmt: skip
AWAY: Final = ("--monitor", "http://127.0.0.1:9")
WRONG: Final = (
    "", "nonsense", "--nonsense",
    *(f"{program} --nonsense" for program in COMMANDS if program != "run"),
    "analyze", "analyze nowhere", "analyze cases.json", "analyze corpus --world-size none",
    "stragglers nowhere", "stragglers cases.json", "replay nowhere", "replay corpus",
    "replay journals --set nonsense=1", "replay journals --set stall_floor_s=x",
    "monitor --bind nonsense", "monitor --tick 0", "monitor --set nonsense=1",
    "monitor --lighthouse nonsense", "monitor --policy nowhere",
    "monitor --no-token --bind 0.0.0.0:1", "gate", "gate --lighthouse nonsense", "evict",
    "evict rg_0", "evict rg_0 --reason why",
    "quarantine", "quarantine add", "quarantine remove", "policy", "check policy nowhere",
    "policy nonsense", "pause", "resume", "check", "check scheduler", "check notify",
    "check notify test", "dashboards", "dashboards nonsense", "demo --fault nonsense",
    "doctor nonsense", "run", "status", "get ranks", "get groups", "get hosts", "incidents",
    "incidents show nowhere", "incidents list --since nonsense", "get ranks nowhere", "top",
)  # fmt: skip


def _cli_cases() -> list[str]:
    return ["--help", *(f"{program} --help" for program in COMMANDS), *WRONG]


def _cli(line: str) -> Any:
    words = line.split()
    with tempfile.TemporaryDirectory() as home:
        ended = lightkeeper(*words, HOME=home, LIGHTKEEPER_MONITOR="http://127.0.0.1:9")
        out = "\n".join(ended.get("out", ())).replace(home, "HOME")
        err = ended["err"].replace(home, "HOME")
    if "--help" not in words:
        return {"exit": ended["exit"], "err": err.splitlines()[-3:], "says": bool(out)}
    paragraphs = [paragraph.split() for paragraph in re.split(r"\n\s*\n", out)]
    options = re.findall(r"^\s+(-.*?)(?:\s{2,}|$)", out, re.MULTILINE)
    return {
        "exit": ended["exit"], "about": " ".join([*paragraphs, [], []][1]),
        "options": sorted(set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", " ".join(options)))),
    }  # fmt: skip


# -- HTTP ---------------------------------------------------------------------------------------

_NAMES: Final = ((r"[\w]+-rg_\d[\w.,-]*", "{id}"), (r"rg_\d+\.\d+", "{rank}"),
                 (r"rg_\d+:\w+", "{replica}"), (r"rg_\d+", "{group}"), (r"node\d+", "{host}"),
                 (r"^\d+(\.\d+)?$", "{number}"), (r"\d{3,}", "{number}"))  # fmt: skip


def shape(value: Any, at: str = "") -> Iterator[tuple[str, str]]:
    """Paths and types of a JSON value, names of ranks and groups left out."""
    match value:
        case dict():
            yield at, "object"
            for key, inner in value.items():
                yield from shape(inner, f"{at}.{_general(key)}")
        case list():
            yield at, "list"
            for inner in value:
                yield from shape(inner, f"{at}[]")
        case bool():
            yield at, "bool"
        case int() | float():
            yield at, "number"
        case _:
            yield at, "null" if value is None else "text"


def _general(key: str) -> str:
    for pattern, name in _NAMES:
        key = re.sub(pattern, name, key)
    return key


def ask(url: str, method: str = "GET", body: Any = None, token: str = "") -> tuple[int, str, bytes]:
    """Status, content type, body; status 0: no answer."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    headers |= {"Content-Type": "application/json"} if data else {}
    question = urllib.request.Request(url, data, headers, method=method)
    try:
        with urllib.request.urlopen(question, timeout=20) as answer:
            return answer.status, answer.headers["Content-Type"] or "", answer.read()
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.headers["Content-Type"] or "", refusal.read()
    except OSError:
        return 0, "", b""


class Seen:
    """Shapes of the answers to each question, over a whole run."""

    def __init__(self, url: str, token: str) -> None:
        self.url, self.token = url, token
        self.shapes: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))

    def ask(self, what: str, name: str = "", body: Any = None) -> Any:
        """`METHOD PATH`; told as `name`."""
        method, _, path = what.partition(" ")
        token = "" if name.startswith("no token") else self.token
        status, kind, data = ask(self.url + path, method, body, token)
        shapes = self.shapes[name or what]
        shapes["answer"].add(f"{status} {kind.partition(';')[0]}")
        if kind.startswith("application/json"):
            value = json.loads(data)
            for at, type_ in shape(value):
                shapes[at].add(type_)
            return value
        if path.endswith("metrics"):
            for name_, labels in _families(data.decode()).items():
                shapes[name_] |= set(labels)
        return data

    def told(self) -> dict[str, dict[str, list[str]]]:
        return {what: {at: sorted(types) for at, types in shapes.items()}
                for what, shapes in self.shapes.items()}  # fmt: skip


_BY_CHANCE: Final = ("lightkeeper_poll_failures_total",)
"""Without labels where nothing failed."""


def _families(text: str) -> dict[str, list[str]]:
    """Metrics of an exposition: type, and all label names."""
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)", text, re.MULTILINE))
    types_by_name: dict[str, set[str]] = {name: {f"type {kind}"} for name, kind in kinds.items()}
    for name, labels in re.findall(r"^([a-zA-Z_:]+)(\{.*\})? ", text, re.MULTILINE):
        base = next((b for b in (name, re.sub(r"_(bucket|sum|count|total|created)$", "", name))
                     if b in types_by_name), name)  # fmt: skip
        names = re.findall(r'(\w+)="', labels)
        if base not in _BY_CHANCE:
            types_by_name.setdefault(base, set()).add(f"labels {','.join(sorted(names))}")
    return {name: sorted(types) for name, types in types_by_name.items()}


MONITOR_READS: Final = (
    "/healthz", "/readyz", "/metrics", "/v1/snapshot", "/v1/groups", "/v1/ranks",
    "/v1/incidents", "/v1/quarantine", "/v1/hosts", "/v1/sd",
    "/v1/policy", "/v1/admission?host=node0&group=rg_0", "/", "/incidents", "/groups/rg_1",
    "/hosts/node1", "/ranks/rg_1.0", "/v1/ranks/rg_0.0/steps", "/v1/ranks/rg_0.0/stacks",
    "/v1/ranks/rg_0.0/flight_recorder", "/v1/ranks/rg_0.0/last_words", "/v1/ranks/rg_0.0/nonsense",
    "/v1/ranks/nobody/steps", "/v1/incidents/nonsense", "/v1/quarantine/node9", "/nonsense",
    "/v1/incidents?since=nonsense", "/v1/incidents?since=1h&kind=not_entered&group=rg_1",
    "/v1/quarantine/groups/rg_1",
)  # fmt: skip
MONITOR_WRITES: Final = (
    ("PUT /v1/quarantine/node7", {"reason": "why", "author": "me"}),
    ("PUT /v1/quarantine/node7", {"hours": "x"}),
    ("PUT /v1/quarantine/groups/rg_7", {"reason": "why", "author": "me", "hours": 1}),
    ("GET /v1/quarantine", None), ("GET /v1/admission?host=node7&group=rg_7", None),
    ("DELETE /v1/quarantine/node7", None), ("DELETE /v1/quarantine/node8", None),
    ("DELETE /v1/quarantine/groups/rg_7", None), ("POST /v1/policy/reload", {}),
    ("POST /v1/pause", {"reason": "why", "author": "me", "hours": 1}), ("POST /v1/pause", {}),
    ("GET /v1/policy", None), ("DELETE /v1/pause", {"reason": "why", "author": "me"}),
    ("POST /v1/groups/rg_9/evict", {"reason": "why", "author": "me"}),
    ("POST /v1/groups/rg_0/evict", {}), ("POST /v1/register", {}),
    ("DELETE /v1/register/nobody", None), ("PATCH /v1/pause", None),
)  # fmt: skip


@contextlib.contextmanager
def monitored(*more: str, traced: Path | None = None) -> Iterator[Any]:
    """A job of three groups with a launcher, and a monitor process that watches it."""
    from tests.monitor.crash_story import TOKEN, World

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "token").write_text(TOKEN)
        Path(folder, "token").chmod(0o600)
        world = World()
        words = [
            "monitor", "--bind", f"127.0.0.1:{world.port}", "--store", f"{folder}/m.db",
            "--token-file", f"{folder}/token", "--lighthouse", world.lighthouse.url,
            "--tick", "0.2",
            *(word for name, value in _QUICK.items() for word in ("--set", f"{name}={value}")),
            *more,
        ]  # fmt: skip
        line = command(*words)
        if traced is not None:
            line = [sys.executable, "-m", "tests.same", "traced", str(traced), *words]
        log = Path(folder, "log")
        with log.open("wb") as err:
            process = subprocess.Popen(line, env=CLEAN, cwd=ROOT, stdout=err, stderr=err)
        seen = Seen(f"http://127.0.0.1:{world.port}", TOKEN)
        try:
            wait_for(lambda: ask(f"{seen.url}/readyz")[0] == 200 or process.poll() is not None,
                     within_s=60, what="the monitor is ready")  # fmt: skip
            assert process.poll() is None, log.read_text()
            step = world.training.ranks[0].step
            wait_for(lambda: world.training.ranks[0].step > step + 40, within_s=60, what="training")
            yield SimpleNamespace(world=world, seen=seen, process=process, folder=Path(folder))
        finally:
            process.terminate()
            process.wait(20)
            world.close()


_QUICK: Final = {
    "stall_floor_s": 1, "warm_up_commits": 0, "warm_up_budget_s": 0, "cool_down_s": 0,
    "restart_quiet_s": 1, "clear_s": 1, "lateness_ticks": 50,
}  # fmt: skip


def _evictions(run: Any) -> list[dict[str, Any]]:
    body = json.loads(ask(f"{run.seen.url}/v1/incidents", token=run.seen.token)[2] or b"{}")
    return [d for i in body.get("incidents", ()) for d in i["decisions"] if d["action"] == "evict"]


def _hung_and_evicted(run: Any) -> str:
    """A group hangs, and is put out; the incident."""
    run.world.training.hung.add("rg_1")
    wait_for(lambda: [row for row in _evictions(run) if row["state"] == "confirmed"],
             within_s=60, what="the eviction is confirmed")  # fmt: skip
    body = json.loads(ask(f"{run.seen.url}/v1/incidents", token=run.seen.token)[2])
    return str(body["incidents"][0]["id"])


def _settled(run: Any) -> bool:
    incidents = json.loads(ask(f"{run.seen.url}/v1/incidents", token=run.seen.token)[2])[
        "incidents"
    ]
    return all(incident["state"] == "resolved" for incident in incidents)


def _http_monitor() -> Any:
    with monitored() as run:
        seen = run.seen
        for path in MONITOR_READS:
            seen.ask(f"GET {path}")
        incident = _hung_and_evicted(run)
        wait_for(lambda: _settled(run), within_s=60, what="the job is whole again")
        wait_for(lambda: seen.ask("GET /v1/policy")["learned"]["eviction_cost_s"]["measured"],
                 within_s=30, what="the cost of the eviction is known")  # fmt: skip
        reads = [*MONITOR_READS, f"/v1/incidents/{incident}", f"/incidents/{incident}"]
        for path in reads:
            seen.ask(f"GET {path}", f"GET {path}".replace(incident, "ID"))
        for n, (what, body) in enumerate(MONITOR_WRITES):
            seen.ask(what, f"no token {n} {what}", body)
            seen.ask(what, f"{n} {what}", body)
        seen.ask("GET /metrics")
        page = seen.ask(f"GET /incidents/{incident}", "the page")
        return {**seen.told(), "the page names the culprit": "rg_1.0" in page.decode()}


def _http_rank() -> Any:
    from tests.same.product import TOKEN, RankUnderTest

    with tempfile.TemporaryDirectory(prefix="lk-", dir="/tmp") as folder:
        rank = RankUnderTest("steps", Path(folder), {"LIGHTKEEPER_TORCH": "0"}, Path(folder, "err"))
        try:
            rank.says("ready")
            seen = Seen(rank.endpoint["url"].rstrip("/"), TOKEN)
            wait_for(lambda: json.loads(ask(f"{seen.url}/v1/state")[2])["step"]["step"] > 30,
                     within_s=30, what="steps")  # fmt: skip
            document = seen.ask("GET /openapi.json")
            for path in ("/", "/healthz", "/v1/state", "/v1/steps?since=0", "/v1/host",
                         "/v1/last_words", "/v1/flight_recorder?active=1",
                         "/v1/flight_recorder?format=text", "/metrics", "/v1/steps?since=x",
                         "/v1/state?x=1", "/nonsense"):  # fmt: skip
                seen.ask(f"GET {path}")
            seen.ask("POST /v1/evict", "no token", {"reason": "why"})
            seen.ask("POST /v1/evict", "wrong", {"grace_s": "x"})
            seen.ask("POST /v1/evict", "evict", {"reason": "why", "grace_s": 0.1})
            wait_for(lambda: not json.loads(ask(f"{seen.url}/v1/state")[2])["process"]["alive"],
                     within_s=30, what="its end")  # fmt: skip
            seen.ask("GET /v1/last_words", "dead /v1/last_words")
            seen.ask("GET /v1/state", "dead /v1/state")
            shapes = seen.told()
            del shapes["GET /openapi.json"]
            return {**shapes, "openapi": document}
        finally:
            rank.end()


def _http_gate() -> Any:
    from tests.same.product import FakeLighthouse

    lighthouse, ports = FakeLighthouse(), [free_port(), free_port()]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "token").write_text("secret")
        Path(folder, "token").chmod(0o600)
        process = subprocess.Popen(
            command("gate", "--lighthouse", lighthouse.url, "--bind", f"127.0.0.1:{ports[0]}",
                    "--admin", f"127.0.0.1:{ports[1]}", "--token-file", f"{folder}/token"),
            env={**CLEAN, "HOME": folder, "XDG_STATE_HOME": folder}, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            seen = Seen(f"http://127.0.0.1:{ports[1]}", "secret")
            wait_for(lambda: ask(f"{seen.url}/healthz")[0], within_s=30, what="the gate answers")
            for path in ("/", "/healthz", "/v1/gate", "/metrics", "/nonsense"):
                seen.ask(f"GET {path}")
            denied = {"schema": 1, "denied": []}
            for n, body in enumerate(({}, denied, {"denied": [{"group": "rg_1"}]})):
                seen.ask("PUT /v1/gate/denied", f"no token {n}", body)
                seen.ask("PUT /v1/gate/denied", f"deny {n}", body)
            seen.ask("GET /v1/gate")
            return seen.told()
        finally:
            process.terminate()
            process.wait(20)
            lighthouse.close()


def _metrics_doc() -> Any:
    rows = re.findall(r"^\| `([\w:]+)(?:\{(.*?)\})?` \| (\w*) \| (.*?) \|",
                      (ROOT / "docs/metrics.md").read_text(), re.MULTILINE)  # fmt: skip
    return {name: list(rest) for name, *rest in rows}


_HTTP: Final = {"monitor": _http_monitor, "rank": _http_rank, "gate": _http_gate,
                "docs/metrics.md": _metrics_doc}  # fmt: skip


# -- cost, report only --------------------------------------------------------------------------

_TRIES: Final = 3


_MEASURE: Final = """
import json, resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss / 1024]))
"""
"""Run by a small process: a child counts the memory of who started it as its own."""


def _spent(line: list[str]) -> dict[str, float]:
    """CPU seconds (the least of some) and peak MiB of a process and those that it waited for."""
    measure = [sys.executable, "-S", "-c", _MEASURE, *line]
    costs = [
        json.loads(subprocess.run(measure, env=CLEAN, check=True, capture_output=True).stdout)
        for _ in range(_TRIES)
    ]
    cpu_s, peak_mib = zip(*costs, strict=True)
    return {"cpu_s": round(min(cpu_s), 3), "peak_mib": round(statistics.median(peak_mib), 1)}


def _cost(what: str) -> Any:
    match what:
        case "analyze, 128 ranks of 2,000 entries":
            return _spent(command("analyze", "big", "--format", "json"))
        case "lightkeeper --help":
            return _spent(command("--help"))
        case "import worker_server":
            return _spent([sys.executable, "-c", "import lightkeeper; lightkeeper.attach"])
        case "pipeline tick, 1,000 ranks":
            code = "import json; from tests.same.parts import tick; print(json.dumps(tick()))"
            costs = [
                json.loads(subprocess.run([sys.executable, "-c", code], env=CLEAN, cwd=ROOT,
                                          check=True, capture_output=True).stdout)
                for _ in range(2)
            ]  # fmt: skip
            return {key: min(cost[key] for cost in costs) for key in costs[0]}
    return _sidecar()


def tick() -> dict[str, float]:
    from tests.same.product import judged

    cpu_s, _ = judged(1000)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"cpu_s": round(cpu_s, 4), "peak_mib": round(peak_mib, 1)}


def _sidecar() -> dict[str, float]:
    """Of a sidecar that has answered some hundred times."""
    from tests.same.product import RankUnderTest

    with tempfile.TemporaryDirectory(prefix="lk-", dir="/tmp") as folder:
        rank = RankUnderTest("hang", Path(folder), {"LIGHTKEEPER_TORCH": "0"}, Path(folder, "err"))
        try:
            rank.says("ready")
            proc = Path("/proc", str(rank.endpoint["sidecar_pid"]))
            for path in ("v1/state", "metrics", "v1/flight_recorder") * 100:
                ask(f"{rank.endpoint['url'].rstrip('/')}/{path}")
            status, stat = (proc / "status").read_text(), (proc / "stat").read_text()
            used = stat.rpartition(")")[2].split()[11:13]
            peak = re.findall(r"VmHWM:\s+(\d+)", status)[0]
            return {"cpu_s": sum(map(int, used)) / os.sysconf("SC_CLK_TCK"),
                    "peak_mib": round(int(peak) / 1024, 1)}  # fmt: skip
        finally:
            rank.end()


# -- counts, report only ------------------------------------------------------------------------


def _modules(package: str) -> Any:
    root = ROOT / package
    files = [p for p in root.rglob("*.py") if "__pycache__" not in p.parts]
    lines = {str(p): p.read_text().count("\n") for p in files}
    classes = Counter(
        node.name for p in files for node in ast.walk(ast.parse(p.read_text()))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )  # fmt: skip
    return {
        "files": len(files), "lines": sum(lines.values()),
        "rooms": len({p.parent for p in files} - {root}),
        "median lines": statistics.median(lines.values()) if lines else 0,
        "class names used twice or more": sum(n > 1 for n in classes.values()),
    }  # fmt: skip


def _count(what: str) -> Any:
    return _executed(bare="bare" in what) if what.startswith("executed") else _modules(what)


def _executed(*, bare: bool) -> Any:
    """Our files of which a function is executed, for a hang and for its page."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "seen.json")
        more = ("--no-journal", "--set", "evidence_count=0") if bare else ()
        with monitored(*more, traced=out) as run:
            _trace(run, out, signal.SIGUSR1)
            incident = _hung_and_evicted(run)
            hang = _trace(run, out, signal.SIGUSR2)
            wait_for(lambda: _settled(run), within_s=60, what="the job is whole again")
            run.world._over.set()  # nobody registers any more: the next request is ours
            got = {}
            for name, path in (("page", "/incidents/"), ("JSON", "/v1/incidents/")):
                ask(f"{run.seen.url}{path}{incident}", token=run.seen.token)  # templates are read
                _trace(run, out, signal.SIGUSR1)
                ask(f"{run.seen.url}{path}{incident}", token=run.seen.token)
                got[name] = _trace(run, out, signal.SIGUSR2)

    def files(threads: list[list[str]], *, web: bool, path: str = "") -> list[str]:
        mine = [t for t in threads if any(f.endswith("flask/app.py") for f in t) == web]
        ours = {f for t in mine for f in t if f.startswith(f"{ROOT}/")}
        return sorted(str(Path(f).relative_to(ROOT)) for f in ours if "/.venv/" not in f
                      and Path(f).relative_to(ROOT).parts[0] in PRODUCT)  # fmt: skip

    executed = {"hang to eviction": files(hang, web=False)}
    executed |= {
        f"GET an incident's {name}": files(threads, web=True) for name, threads in got.items()
    }
    return {**{what: len(names) for what, names in executed.items()}, "files": executed}


def _trace(run: Any, out: Path, number: signal.Signals) -> list[list[str]]:
    run.process.send_signal(number)
    wait_for(out.exists, within_s=20, what="the traced process takes notice")
    threads: list[list[str]] = json.loads(out.read_text())
    out.unlink()
    return threads


def traced(out: Path, words: list[str]) -> int:
    """Run the command here; SIGUSR1 begins to note which files run, SIGUSR2 writes them out."""
    seen: dict[int, set[str]] = defaultdict(set)
    on = False

    def look(frame: Any, event: str, _: Any) -> None:
        if on and event == "call" and frame.f_code.co_name != "<module>":
            seen[threading.get_ident()].add(frame.f_code.co_filename)

    def turn(number: int, _: Any) -> None:
        nonlocal on
        on = False
        threads = [sorted(files) for files in list(seen.values())]
        seen.clear()
        fresh = out.with_suffix(".fresh")
        fresh.write_text(json.dumps(threads))
        on = number == signal.SIGUSR1
        fresh.rename(out)

    signal.signal(signal.SIGUSR1, turn)
    signal.signal(signal.SIGUSR2, turn)
    threading.setprofile(look)
    sys.setprofile(look)
    return _call(tuple(words))


_COSTS: Final = ("pipeline tick, 1,000 ranks", "analyze, 128 ranks of 2,000 entries",
                 "lightkeeper --help", "import worker_server", "sidecar")  # fmt: skip

PARTS: Final[dict[str, Part]] = {
    "weeks": Part(lambda: ("one of each", "1", "2"), _weeks),
    "http": Part(lambda: _HTTP, lambda what: _HTTP[what]()),
    "counts": Part(lambda: (*PRODUCT, "tests", "executed", "executed, bare"), _count, strict=False),
    "decisions": Part(_scripts, _decide),
    "replay": Part(_journals, _replay),
    "cli": Part(_cli_cases, _cli),
    "stragglers": Part(_traces, _stragglers),
    "analyze": Part(_manifest, _analyze),
    "text": Part(_text_cases, _text),
    "cost": Part(lambda: _COSTS, _cost, strict=False, alone=True),
}
