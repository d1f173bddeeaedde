"""What ranks, people and files say moves nobody's terminal and forges no line: each surface."""

from __future__ import annotations

import dataclasses
import gzip
import json
import pickle
import re
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from lightkeeper.dashboards.__main__ import main as dashboards
from lightkeeper.monitor.act.http import Tokens
from lightkeeper.monitor.cli import main
from lightkeeper.monitor.decide.pipeline import Pipeline
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.observation import Pause
from lightkeeper.monitor.show.web.server import create_app
from lightkeeper.worker_server import doctor, wire
from lightkeeper.worker_server.plain_text import escaped_body
from lightkeeper.worker_server.rank import admission
from lightkeeper.worker_server.sidecar.app import ENDPOINTS
from lightkeeper.worker_server.sidecar.stacks import Stacks
from lightkeeper.worker_server.sidecar.text import answer_text
from tests.corpus.cases import Case
from tests.deep import crossed
from tests.http_server import FakeServer, Handler
from tests.monitor.api import TOKEN, app_client, app_context
from tests.monitor.bodies import hung, incident, observed
from tests.monitor.fakes import FakeFleet
from tests.monitor.fleet import Drive, SimFleet, at, hang
from tests.monitor.journal.tape import Tape
from tests.monitor.offline.jobs import OPS, Recorded, Slow, write_csv
from tests.security.words import ASK, EVIL, check_harmless, in_a_monitors_place, spoilt
from tests.worker_server.boxes import FakeBox, app_of, host_report

ROOT = Path(__file__).resolve().parents[2]
CURL = {"Accept": "*/*"}


# -- the monitor's own words -----------------------------------------------------------------------


def evil_view() -> Any:
    waits = {"phase": f"data{EVIL}", "phase_age_s": 14.2, "last_commit_age_s": 14.0}
    seen = [observed(f"rg_{n}", 0, 1, **waits) for n in range(2)]
    accused = incident(reason=EVIL, culprits=(f"rg_1.0{EVIL}",))
    verdict = dataclasses.replace(accused.verdict, evidence={EVIL: EVIL})
    view = hung(incidents=(dataclasses.replace(accused, verdict=verdict),))
    snapshot = dataclasses.replace(
        view.snapshot, observations=tuple(seen), pause=Pause(EVIL, EVIL, 0.0, None)
    )
    return dataclasses.replace(view, snapshot=snapshot, troubles=(EVIL,))


def evil_app(view: Any = None) -> Any:
    context = app_context(
        view=evil_view if view is None else lambda: view, evict=lambda *_: "incident",
        fetcher=SimpleNamespace(tokens=Tokens("secret")),
    )  # fmt: skip
    context.pause.press(EVIL, EVIL, None)
    return create_app(context)


def test_no_answer_of_the_monitor_moves_a_terminal() -> None:
    app = evil_app()
    paths = {rule.rule for rule in app.url_map.iter_rules() if "GET" in (rule.methods or ())}
    assert {"/", "/v1/status", "/metrics"} < paths
    for path in paths:
        where = re.sub(r"<[^>]*>", "not_ent", path)
        said = app.test_client().get(where, headers={**CURL, **TOKEN})
        if said.mimetype != "text/html":
            check_harmless(said.get_data(as_text=True))


def test_json_means_the_same_to_a_program() -> None:
    for text in (EVIL, "Grüße, 世界", "\U000e0001", "a"):
        body = json.dumps({"a": text}, ensure_ascii=False).encode()
        assert json.loads(escaped_body(body, "application/json")) == {"a": text}
    assert escaped_body(b"\xff\x9b\n", "text/plain") == "��\n".encode()
    assert escaped_body(EVIL.encode(), "text/html") == EVIL.encode()


# -- the monitor passes a rank's answer on ---------------------------------------------------------


@pytest.mark.parametrize("kind", ["text/plain", "application/json", "text/html", "x/y"])
def test_what_a_rank_says_is_passed_on_without_its_escapes(fleet: FakeFleet, fetcher, kind) -> None:
    rank = fleet.add("rg_0")
    rank.stacks = json.dumps({"a": EVIL}, ensure_ascii=False).encode() + b"\x1b[2J"
    fleet._page = lambda handler, _rank, rest: handler.reply(200, kind, rank.stacks)  # type: ignore[method-assign]
    client = app_client(rank, fetcher)
    said = client.get("/v1/ranks/rg_0.0/stacks", headers=TOKEN)
    check_harmless(said.get_data(as_text=True))
    raw = client.get("/v1/ranks/rg_0.0/stacks?raw=1", headers=TOKEN)
    assert raw.data == rank.stacks
    assert [path.partition("?")[2] for path, _ in rank.asked] == ["", "raw=1"]


# -- the WorkerServer ------------------------------------------------------------------------------


def evil(value: Any) -> Any:
    """The same answer, with `EVIL` in every text that its type allows."""
    if isinstance(value, str) and type(value) is str:
        return value + EVIL
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(map(evil, value))
    if isinstance(value, dict):
        return {evil(key): evil(each) for key, each in value.items()}
    if isinstance(value, msgspec.Struct):
        kept = {name: evil(getattr(value, name)) for name in value.__struct_fields__}
        kept |= {"rank": value.rank} if isinstance(value, wire.HostEntry) else {}
        return msgspec.structs.replace(value, **kept)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: evil(getattr(value, f.name)) for f in dataclasses.fields(value)}
        fields |= {"rank": value.rank} if isinstance(value, wire.HostEntry) else {}
        if isinstance(value, wire.Identity):
            fields["place"] = {}
        return dataclasses.replace(value, **fields)
    return value


class EvilBox(FakeBox):
    """Of a rank whose every name is chosen to deceive."""

    def __getattribute__(self, name: str) -> Any:
        method = super().__getattribute__(name)
        if name in ("state", "steps", "flight_record", "last_words", "stacks"):
            return lambda *a, **k: evil(method(*a, **k))
        return evil(method) if name == "identity" else method


@pytest.mark.parametrize("endpoint", [e for e in ENDPOINTS if not e.acts], ids=lambda e: e.name)
def test_no_answer_of_a_workerserver_moves_a_terminal(endpoint) -> None:
    client = app_of(EvilBox()).test_client()
    asked = (
        [endpoint.path]
        if endpoint.query is None
        else [endpoint.path, endpoint.path + endpoint.example]
    )
    for path in asked:
        said = client.get(path, headers=CURL)
        text = said.get_data(as_text=True)
        if endpoint.name in ("stacks", "last_words"):  # lines of the process's own
            assert {c for c in text if not c.isprintable()} <= {"\n", "\t"}
        else:
            check_harmless(text)


@pytest.mark.parametrize("name", ["state", "steps", "flight_record", "host"])
def test_no_name_makes_a_row_of_its_own(name: str) -> None:
    def lines(answer: Any) -> int:
        """But for those of a long value, which are indented."""
        return sum(not line.startswith("  ") for line in answer_text(answer, 0).splitlines())

    answer = host_report() if name == "host" else getattr(FakeBox(), name)()
    assert lines(evil(answer)) == lines(answer) > 1


def test_stacks_as_they_are_on_request() -> None:
    client = app_of(EvilBox()).test_client()
    assert "\x1b" in client.get(f"{wire.PATH_STACKS}?raw=1").get_data(as_text=True)
    assert "\x1b" not in client.get(wire.PATH_STACKS).get_data(as_text=True)


def test_the_name_of_a_thread_makes_no_frame() -> None:
    thread = {
        "thread_name": EVIL, "os_thread_id": 7, "active": True, "owns_gil": False,
        "frames": [{"name": EVIL, "filename": EVIL, "short_filename": EVIL, "line": 3}],
    }  # fmt: skip
    done = subprocess.CompletedProcess([], 0, json.dumps([thread]), "")
    look = Stacks(7, find=lambda: "py-spy", run=lambda *_, **__: done).look()
    check_harmless(look.taken.text)
    assert look.taken.text.count("\n") == 2


# -- the command line ------------------------------------------------------------------------------


class Spoiler(FakeServer):
    """A monitor's answers, with `EVIL` in every text."""

    def __init__(self) -> None:
        super().__init__()
        self.app = evil_app(hung())

    def serve(self, handler: Handler, method: str, path: str, body: bytes) -> None:
        said = self.app.test_client().open(path, method=method, data=body, headers=TOKEN)
        text = json.dumps(spoilt(said.get_json()), ensure_ascii=False).encode()
        handler.reply(said.status_code, "application/json", text)


@pytest.fixture
def spoiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spoiler]:
    with in_a_monitors_place(Spoiler(), monkeypatch) as made:
        yield made


@pytest.mark.parametrize(("words", "colour"), crossed(ASK, [False, True]))
def test_no_command_prints_what_moves_a_terminal(
    words: str, colour: bool, spoiler: Spoiler, capsys, monkeypatch
) -> None:
    if colour:
        monkeypatch.setenv("FORCE_COLOR", "1")
    for more in [[]] if colour else [[], ["--format", "json"]]:  # JSON has no colours
        main([*words.split(), *ASK[words], *more])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        check_harmless(said.out.replace("\x7f", "") if more else said.out, colours=colour)
        check_harmless(said.err)


def test_a_refused_launcher_prints_one_plain_line(monkeypatch, capsys) -> None:
    class Refuses(FakeServer):
        def serve(self, handler: Handler, method: str, path: str, body: bytes) -> None:
            text = json.dumps({"admit": False, "reason": EVIL}).encode()
            handler.reply(200, "application/json", text)

    server = Refuses()
    monkeypatch.setenv("LIGHTKEEPER_MONITOR", server.url)
    assert admission.main(["--host", "node7"]) == admission.REFUSED_STATUS
    server.close()
    said = capsys.readouterr()
    check_harmless(said.err)
    assert said.err.count("\n") == 1


@pytest.mark.parametrize("status", [200, 500])
def test_no_word_of_a_grafana_is_printed_as_it_is(status: int, tmp_path: Path, capsys) -> None:
    class Says(FakeServer):
        def serve(self, handler: Handler, method: str, path: str, body: bytes) -> None:
            said = {"status": "error", "error": EVIL, "message": EVIL, "uid": EVIL, "title": EVIL}
            handler.reply(status, "application/json", json.dumps(said).encode())

    server, token = Says(), tmp_path / "token"
    token.write_text("glsa_x")
    dashboards(["push", "--url", server.url, "--token-file", str(token), "--dry-run"])
    server.close()
    said = capsys.readouterr()
    assert said.err
    check_harmless(said.out)
    check_harmless(said.err)


def test_doctor_prints_no_word_of_others_as_it_is(capsys) -> None:
    doctor.print_findings([doctor.DoctorFinding("monitor", doctor.FAILED, EVIL, EVIL, EVIL)])
    check_harmless(capsys.readouterr().out)


# -- logs ------------------------------------------------------------------------------------------


def test_every_log_is_written_by_the_formatter_that_escapes() -> None:
    """A handler that a new process sets up itself would not."""
    made = re.compile(r"logging\.(basicConfig|StreamHandler|FileHandler|handlers\.\w+)\(")
    files = [
        p for part in ("worker_server", "monitor", "gate") for p in (ROOT / part).rglob("*.py")
    ]
    texts = {path.relative_to(ROOT): path.read_text() for path in files}
    where = {str(path) for path, text in texts.items() if made.search(text)}
    assert where == {"worker_server/plain_text.py", "worker_server/sidecar/serve.py"}
    assert all("setFormatter(" in texts[Path(path)] for path in where)
    assert all("formatter(" in texts[Path(path)] for path in where)


# -- files of others -------------------------------------------------------------------------------


def _dumps(folder: Path, keys: frozenset[str]) -> list[str]:
    built = Case("not_entered", "DP", "full", blocking=True).build()
    assert built is not None
    built.write(folder)
    for path in folder.iterdir():
        data = pickle.loads(path.read_bytes())
        for entry in data["entries"]:
            entry |= {key: spoilt(entry[key]) for key in keys & entry.keys()}
        path.write_text(json.dumps(data))
    return ["analyze", str(folder), "--details"]


def _answers(folder: Path, _: frozenset[str]) -> list[str]:
    record = FakeBox().flight_record()
    for rank in range(2):
        who = dataclasses.replace(record.identity, group_rank=rank)
        body = wire.to_json(evil(dataclasses.replace(record, identity=who)))
        (folder / f"rank_{rank}.json").write_text(json.dumps(body))
    return ["analyze", str(folder)]


def _timings(folder: Path, _: frozenset[str]) -> list[str]:
    table = Recorded(dp=4, pp=2, microbatches=4, steps=6, slow=(Slow(1, 1, 1.5),)).columns()
    ops = tuple(f"{op}\x1b[2J\u202e\x9b" for op in OPS)
    return ["stragglers", str(write_csv(folder / "t.csv", table, ops))]


def _policy(folder: Path, _: frozenset[str]) -> list[str]:
    (folder / "p.toml").write_text(f"[guards]\n{json.dumps(EVIL)} = 3\n'a\u202eb' = 1\n")
    return ["check", "policy", str(folder / "p.toml")]


def _journal(folder: Path, _: frozenset[str]) -> list[str]:
    config = KeeperConfig()
    tape = Tape(Pipeline(config), config, turn_every=60)
    Drive(SimFleet(3, 1, [at(20, hang("rg_1.0"))]), config, pipeline=tape).run(60)
    bodies = [line[9:] for line in zlib.decompress(tape.packed(0), 31).splitlines()]
    bodies = [body.replace(b'"forward"', json.dumps(f"f{EVIL}").encode()) for body in bodies]
    lines = b"".join(b"%08x %s\n" % (zlib.crc32(body), body) for body in bodies)
    (folder / "journal-20260101T000000.000000Z-0001.gz").write_bytes(gzip.compress(lines))
    return ["replay", str(folder)]


NAMES = frozenset({"process_group", "profiling_name", "frames"})


@pytest.mark.parametrize("made", [_dumps, _answers, _timings, _policy, _journal])
def test_no_file_moves_the_terminal_of_who_reads_it(made, tmp_path: Path, capsys) -> None:
    words = made(tmp_path, NAMES)
    assert main(words) in (0, 1, 2)
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    assert said.out + said.err
    check_harmless(said.out)
    check_harmless(said.err)
