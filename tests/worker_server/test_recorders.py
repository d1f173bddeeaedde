"""Every flight recorder that torch's control plane has: real HTTP, handlers of the test's."""

from __future__ import annotations

import contextlib
import json
import socketserver
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.rank.page import layout
from lightkeeper.worker_server.rank.page.reader import PageReader
from lightkeeper.worker_server.run_dir import RankFiles
from lightkeeper.worker_server.sidecar import SilentError
from lightkeeper.worker_server.sidecar.black_box import BlackBox
from lightkeeper.worker_server.sidecar.recorders import ControlPlane, Recorders
from lightkeeper.worker_server.sidecar.text import answer_text
from tests.waiting import wait_for
from tests.worker_server.doubles import FakeProcess, FakeStacks

GLOO = {"version": "2.10", "entries": [{"record_id": 0, "time_created_ns": 5, "state": "scheduled",
                                        "profiling_name": "gloo:all_reduce"}]}  # fmt: skip
NCCL = {"version": "2.10", "entries": [{"record_id": 0, "time_created_ns": 7, "state": "started",
                                        "profiling_name": "nccl:all_gather"}]}  # fmt: skip
COMMS = {"version": "2.10", "entries": [{"record_id": 3, "time_created_ns": 9, "state": "completed",
                                         "profiling_name": "ncclx:broadcast"}]}  # fmt: skip

ROOT = Path(__file__).resolve().parents[2]

Handler = Callable[[dict[str, str]], object]


class FakePlane(socketserver.ThreadingUnixStreamServer):
    """Torch's control plane with handlers of the test's."""

    daemon_threads = True

    def __init__(self, path: Path, handlers: dict[str, Handler]) -> None:
        self.handlers = handlers
        self.asked: list[str] = []
        super().__init__(str(path), _Request)


class _Request(BaseHTTPRequestHandler):
    server: FakePlane

    def do_GET(self) -> None:
        assert self.path == "/handler/"
        self._answer(sorted(self.server.handlers))

    def do_POST(self) -> None:
        self.server.asked.append(self.path.removeprefix("/handler/"))
        url = urlsplit(self.path)
        given = {name: values[0] for name, values in parse_qs(url.query).items()}
        self._answer(self.server.handlers[url.path.removeprefix("/handler/")](given))

    def _answer(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "unix"

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def serve(tmp_path):
    servers = []

    def start(**handlers: Handler) -> FakePlane:
        server = FakePlane(tmp_path / "plane.sock", handlers)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def recorders(tmp_path):
    made = Recorders(
        ControlPlane(tmp_path / "plane.sock"),
        lambda: wire.Process(alive=True, state="S"),
        lambda: ["gloo", "nccl", "../../etc"],
    )

    def read(max_age_s: float = 0.0) -> dict[str, object]:
        made.refresh(max_age_s, 1)
        return {name: recorder.error or recorder.record for name, recorder in made.kept.items()}

    read.made = made
    return read


def one_record(record):
    return lambda _: record


def by_backend(given):
    return {"gloo": GLOO, "nccl": NCCL}.get(given.get("backend", "gloo"), {"version": "2.10"})


def test_a_cuda_build_before_2_15_has_nccls_under_its_own_handler(serve, recorders):
    plane = serve(fr_trace_json=one_record(GLOO), dump_nccl_trace_json=one_record(NCCL))
    assert recorders() == {"fr_trace_json": GLOO, "dump_nccl_trace_json": NCCL}
    recorders()
    # it ignores ?backend=, and is not asked for that again; the handler takes no parameter
    assert plane.asked == [
        "fr_trace_json", "fr_trace_json?backend=nccl", "dump_nccl_trace_json",
        "fr_trace_json", "dump_nccl_trace_json",
    ]  # fmt: skip


def test_only_nccls(serve, recorders):
    serve(dump_nccl_trace_json=one_record(NCCL))
    assert recorders() == {
        "fr_trace_json": "this torch has no fr_trace_json", "dump_nccl_trace_json": NCCL
    }  # fmt: skip


def test_since_2_15_each_backend_has_its_own(serve, recorders):
    plane = serve(fr_trace_json=by_backend)
    assert recorders() == {"fr_trace_json": GLOO, "fr_trace_json?backend=nccl": NCCL}
    assert plane.asked == ["fr_trace_json", "fr_trace_json?backend=nccl"]


def test_torchcomms_has_one_of_its_own(serve, recorders):
    serve(fr_trace_json=by_backend, torchcomms_fr_trace_json=one_record(COMMS))
    assert recorders()["torchcomms_fr_trace_json"] == COMMS


def test_one_that_hangs_costs_the_others_nothing_and_is_asked_again_once_it_has_answered(
    serve, recorders, monkeypatch
):
    monkeypatch.setattr(ControlPlane.ask, "__defaults__", (0.2,))
    over, answered = threading.Event(), threading.Event()

    def hangs(_):
        over.wait(30)
        answered.set()
        return NCCL

    plane = serve(
        fr_trace_json=one_record(GLOO), dump_nccl_trace_json=hangs,
        torchcomms_fr_trace_json=one_record(COMMS),
    )  # fmt: skip
    said = recorders()
    assert (said["fr_trace_json"], said["torchcomms_fr_trace_json"]) == (GLOO, COMMS)
    assert said["dump_nccl_trace_json"] == "dump_nccl_trace_json: no answer within 0.2 s"
    for _ in range(3):
        assert recorders()["dump_nccl_trace_json"].endswith("not asked again")
    assert plane.asked.count("dump_nccl_trace_json") == 1
    over.set()
    assert answered.wait(10)
    wait_for(lambda: recorders()["dump_nccl_trace_json"] == NCCL, within_s=10, what="it is asked")


def test_what_came_is_kept_and_told_with_why_nothing_came_since(serve, recorders):
    handlers = {"dump_nccl_trace_json": one_record(NCCL)}
    serve(**handlers).handlers["dump_nccl_trace_json"] = one_record(["odd"])
    recorders()
    assert recorders.made.kept["dump_nccl_trace_json"].record is None
    assert (
        recorders.made.kept["dump_nccl_trace_json"].error == "dump_nccl_trace_json: not an object"
    )


def test_two_readers_within_a_second_cost_each_handler_one_question(serve, recorders):
    plane = serve(fr_trace_json=by_backend)
    recorders(1.0)
    recorders(1.0)
    assert len(plane.asked) == 2


# -- the whole answer ---------------------------------------------------------------------------


def test_the_answer_has_each_recorders_entries_and_says_whose_an_entrys_are(page, serve, tmp_path):
    row = page.group_row("default", 2, (0, 1))
    page.write_text(layout.W_BACKENDS, "gloo,nccl")
    op = page.intern("all_gather")
    before_ns = time.time_ns()
    page.enter(row, op, 0, 0, layout.NONE, 0, 0, 0, False, 1, layout.NONE, b"")
    nccl = {"version": "2.10", "entries": [
        {"record_id": 0, "time_created_ns": time.time_ns(), "state": "started",
         "profiling_name": "nccl:all_gather", "process_group": ["0", "default_pg"]},
        {"record_id": 1, "time_created_ns": before_ns - 10**9, "state": "completed",
         "profiling_name": "nccl:broadcast", "process_group": ["0", "default_pg"]},
    ]}  # fmt: skip
    records = {"gloo": GLOO, "nccl": nccl}
    serve(
        fr_trace_json=lambda given: records[given.get("backend", "gloo")],
        torchcomms_fr_trace_json=one_record(COMMS),
    )
    box = a_box(tmp_path)
    record = wire.parse_flight_record(json.loads(json.dumps(wire.to_json(box.flight_record()))))
    assert record.torch == GLOO
    assert {name: recorder.record for name, recorder in record.recorders.items()} == {
        "fr_trace_json?backend=nccl": nccl, "torchcomms_fr_trace_json": COMMS,
    }  # fmt: skip
    (entry,) = record.ring
    assert (entry.recorder, entry.torch_ids) == ("fr_trace_json?backend=nccl", (0,))
    assert record.recorders["fr_trace_json?backend=nccl"].only == (1,)
    text = answer_text(record, 20)
    assert "fr_trace_json?backend=nccl: taken" in text
    assert text.count("all_gather") == 2  # its line, and the one that says what is unfinished
    active = box.flight_record(only_active=True).recorders["fr_trace_json?backend=nccl"]
    assert [row["record_id"] for row in active.record["entries"]] == [0]


STANDS = {"last_started_collective": 4, "last_enqueued_collective": 4}
WORLD = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}


def nccl_with_status(completed):
    entries = [
        {
            "record_id": 0,
            "pg_id": 0,
            "process_group": ["0", "default_pg"],
            "collective_seq_id": 4,
            "is_p2p": False,
            "profiling_name": "nccl:all_reduce",
        }
    ]
    status = {"0": {**STANDS, "last_completed_collective": completed}}
    whole = {"version": "2.10", "pg_config": WORLD, "pg_status": status}

    def answer(given):
        rows = {} if given.get("includecollectives") == "false" else {"entries": entries}
        return whole | rows

    return answer


def box_of(page, serve, tmp_path, **handlers):
    page.write_text(layout.W_BACKENDS, "gloo,nccl")
    plane = serve(fr_trace_json=by_backend, **handlers)
    return a_box(tmp_path), plane


def a_box(folder):
    stacks = FakeStacks()
    stacks.error = "none here"
    plane, path = ControlPlane(folder / "plane.sock"), folder / "a.page"
    return BlackBox(PageReader(path), FakeProcess(), plane, stacks, RankFiles(path))


def test_the_state_has_nccls_heads_with_their_age_from_the_header_alone(page, serve, tmp_path):
    box, plane = box_of(page, serve, tmp_path, dump_nccl_trace_json=nccl_with_status(4))
    box.tick()  # learns what there is
    assert [(h.name, h.completed) for h in box.state().heads] == [("nccl:default_pg", 4)]
    plane.handlers["dump_nccl_trace_json"] = nccl_with_status(3)

    def moved():
        box.tick()
        head = box.state().heads[0]
        return head.completed != 4 and head

    head = wait_for(moved, within_s=10, what="the header is read")
    assert (head.inside, head.enqueued, head.started, head.op) == (4, 4, 4, "all_reduce")
    assert 0 <= head.read_age_s < 10
    whole = [question for question in plane.asked if question == "dump_nccl_trace_json"]
    assert len(whole) == 1
    assert plane.asked[-1] == "dump_nccl_trace_json?includecollectives=false"


def test_a_header_that_hangs_costs_the_state_nothing(page, serve, tmp_path, monkeypatch):
    monkeypatch.setattr(ControlPlane.ask, "__defaults__", (0.2,))
    over = threading.Event()
    said = nccl_with_status(4)

    def answer(given):
        if given:
            over.wait(30)
        return said(given)

    box, plane = box_of(page, serve, tmp_path, dump_nccl_trace_json=answer)
    header = "dump_nccl_trace_json?includecollectives=false"
    wait_for(lambda: box.tick() or header in plane.asked, within_s=10, what="it is asked")
    for _ in range(5):
        box.tick()
    assert [h.enqueued for h in box.state().heads] == [4]
    assert plane.asked.count(header) == 1
    over.set()

    def asked_again():
        with contextlib.suppress(SilentError):
            box.recorders.plane.ask(header)
        return plane.asked.count(header) > 1

    wait_for(asked_again, within_s=10, what="what it answers at last ends that connection")


def test_a_control_plane_whose_socket_had_too_long_a_path_is_told_from_one_that_comes_later(
    tmp_path: Path,
) -> None:
    for folder, why in ((tmp_path, "is not imported"), (tmp_path / ("x" * 99), "is too long: set")):
        plane = ControlPlane(RankFiles.of(folder, "rg_0.0", "abc").socket)
        with pytest.raises(SilentError, match=f"not up .*{why}"):
            plane.handlers()
