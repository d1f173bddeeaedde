"""`lightkeeper check host` and `lightkeeper run --preflight`, beside a child that only says so."""

from __future__ import annotations

import json
import time

import pytest

from lightkeeper.worker_server import check_host
from lightkeeper.worker_server.check_host import (
    MATMUL,
    Figure,
    HostFigures,
    JobLaunch,
    launch_of,
    look,
)
from lightkeeper.worker_server.rank import admission

HERE = {"LIGHTKEEPER_HOST": "n0", "LIGHTKEEPER_MONITOR": ""}


def says(*lines, then=""):
    """A child that writes these lines."""
    text = "\n".join(map(json.dumps, lines))
    return ("-c", f"import os, sys, time; print({text!r}, flush=True); {then}")


def figure(value):
    return {"figure": [MATMUL, "GFLOP/s", value, ""]}


def report(host, value):
    return [host, [[MATMUL, "GFLOP/s", value, ""]], {}]


@pytest.fixture
def measured(monkeypatch):
    """Lets the next look hear these lines."""
    for name, value in HERE.items():
        monkeypatch.setenv(name, value)

    def hear(*lines):
        monkeypatch.setattr(
            check_host, "look",
            lambda launch, environ, limit_s: look(launch, environ, 20.0, says(*lines)),
        )  # fmt: skip

    return hear


# -- the launch ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "command", "launch"),
    [
        ({}, "python train.py", JobLaunch(1, "", 29501)),
        ({}, "torchrun --nnodes 4 --rdzv-endpoint n1:29400 t.py", JobLaunch(4, "n1", 29401)),
        ({}, "torchrun --nnodes=2:4 --node_rank=3 --master-addr=n1 t.py",
         JobLaunch(4, "n1", 29501)),
        ({"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "n1", "PET_MASTER_PORT": "7"},
         "torchrun t.py", JobLaunch(2, "n1", 8)),
        ({"SLURM_NNODES": "3", "SLURM_NODEID": "0", "MASTER_ADDR": "n1", "MASTER_PORT": "99"},
         "python t.py", JobLaunch(3, "n1", 100)),
        ({"SLURM_NNODES": "3"}, "python t.py", JobLaunch(1, "", 29501)),
        ({}, "torchrun --nnodes", JobLaunch(1, "", 29501)),
    ],
)  # fmt: skip
def test_what_the_launch_says_of_its_hosts(environ, command, launch):
    assert launch_of(environ, command.split()) == launch


# -- the child -----------------------------------------------------------------------------------


def test_what_the_child_measures_is_heard():
    lines = ({"doing": "disk"}, {"note": ["disk", "bad", "full"]}, figure(3.0))
    seen = look(JobLaunch(), HERE, 20.0, says(*lines))
    assert seen.reports == [HostFigures("n0", (Figure(MATMUL, "GFLOP/s", 3.0),))]
    assert seen.notes == [("disk", "bad", "full")]


def test_a_child_that_hangs_is_ended_and_what_hung_is_named():
    began_s = time.monotonic()
    child = says({"doing": "disk"}, figure(3.0), then="time.sleep(600)")
    seen = look(JobLaunch(), HERE, 2.0, child)
    assert time.monotonic() - began_s < 20
    assert seen.notes == [("disk", "bad", "did not end within 2 s")]
    assert seen.reports[0].figures, "what it measured before counts"


def test_a_child_that_dies_is_named():
    seen = look(JobLaunch(), HERE, 20.0, says({"doing": "all_reduce"}, then="os.abort()"))
    assert seen.notes == [("all_reduce", "bad", "the measuring ended: -6")]


def test_a_line_that_is_no_json_is_left_out():
    seen = look(JobLaunch(), HERE, 20.0, ("-c", "print('NCCL INFO'); print('{')"))
    assert seen.notes == []


# -- the command ---------------------------------------------------------------------------------


def test_a_host_that_stands_out_is_status_1_and_a_row_of_the_table(measured, capsys):
    measured(figure(20), {"reports": [report(f"n{i}", 20 if i == 0 else 90) for i in range(4)]})
    assert check_host.main([]) == 1
    table = capsys.readouterr().out
    assert "matrix multiplication" in table
    assert "stands out: n0: matrix multiplication 20 GFLOP/s, the other hosts: 90" in table


def test_another_host_that_stands_out_is_said_and_is_no_fault_of_this_one(measured, capsys):
    measured(figure(90), {"reports": [report(f"n{i}", 20 if i == 2 else 90) for i in range(4)]})
    assert check_host.main(["--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["fit"] is True
    assert answer["hosts"] == ["n0", "n1", "n2", "n3"]
    assert [row["host"] for row in answer["stands_out"]] == ["n2"]


def test_of_two_that_differ_it_says_that_it_cannot_tell(measured, capsys):
    measured(figure(20), {"reports": [report("n0", 20), report("n1", 90)]})
    assert check_host.main([]) == 0
    assert "cannot tell: n0: matrix multiplication 20 GFLOP/s" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [["--hosts", "2"], ["--store", "n1"], ["--limit", "0"], ["--hosts", "0"]]
)
def test_wrong_use_is_status_2(measured, words):
    with pytest.raises(SystemExit) as ended:
        check_host.main(words)
    assert ended.value.code == 2


def test_what_comes_from_outside_moves_no_terminal(measured, capsys):
    measured(figure(90), {"note": ["hosts", "missing", "\x1b[2J\n"]})
    check_host.main([])
    assert "\x1b" not in capsys.readouterr().out


# -- before a start ------------------------------------------------------------------------------

SLOW = {"reports": [report(f"n{i}", 20 if i == 0 else 90) for i in range(4)]}


@pytest.mark.parametrize(("wish", "status"), [(["refuse"], 75), (["warn"], 0), ([], 0)])
def test_run_refuses_an_unfit_host_only_if_asked_to(measured, capsys, wish, status):
    measured(SLOW)
    assert admission.main(["--preflight", *wish]) == status
    assert "stands out: n0" in capsys.readouterr().err


def test_run_starts_on_a_fit_host(measured):
    measured(figure(90))
    assert admission.main(["--preflight", "refuse"]) == 0


def test_a_preflight_that_fails_stops_nobody(measured, monkeypatch, capsys):
    monkeypatch.setattr(check_host, "look", lambda *_: 1 / 0)
    assert admission.main(["--preflight", "refuse"]) == 0
    assert "no preflight" in capsys.readouterr().err


def test_only_the_first_of_a_host_measures(measured, monkeypatch, capsys):
    monkeypatch.setenv("SLURM_LOCALID", "3")
    measured(SLOW)
    assert admission.main(["--preflight", "refuse"]) == 0
    assert "stands out" not in capsys.readouterr().err
