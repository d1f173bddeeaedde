"""`lightkeeper check scheduler`."""

from __future__ import annotations

import json

import pytest

from lightkeeper.monitor.cli import main
from tests.monitor.act.schedulers.receiver import SECRET, Receiver, served

CHECK = ["check", "scheduler"]


pytestmark = pytest.mark.usefixtures("bare_environment")


def test_the_check_of_a_good_webhook_succeeds_and_shows_no_path(monkeypatch, capsys):
    monkeypatch.setenv("LIGHTKEEPER_SCHEDULER_WEBHOOK_SECRET", SECRET.decode())
    with served(Receiver()) as url:
        status = main([*CHECK, "--format", "json", "--scheduler", f"webhook={url}"])
    out, err = capsys.readouterr()
    assert (status, err) == (0, "")
    assert [row["ok"] for row in json.loads(out)["checks"]] == [True, True]
    assert "s3cret" not in out
    assert SECRET.decode() not in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--scheduler", "pbs"],
         "--scheduler is 'pbs', expected slurm, kubernetes or webhook=URL"),
        (["--scheduler", "webhook"],
         "--scheduler is 'webhook', expected slurm, kubernetes or webhook=URL"),
        (["--scheduler", "slurm="],
         "--scheduler is 'slurm=', expected slurm, kubernetes or webhook=URL"),
        (["--scheduler", "webhook=http://127.0.0.1:1/x"],
         ("--scheduler webhook=URL needs --scheduler-webhook-secret-file: unsigned, anybody could "
         "drain hosts there")),
        (["--scheduler", "webhook=http://far.example/s3cret"],
         "--scheduler webhook=... is http to far.example: https is needed beyond this host"),
        (["--scheduler", "webhook=ftp://x"],
         "--scheduler webhook=... is no http:// or https:// URL"),
        (["--scheduler", "kubernetes", "--primus-safe", "a/b"],
         "--primus-safe is 'a/b', expected an id such as 901"),
        ([], "no scheduler: see lightkeeper check scheduler --help"),
    ],
    ids=["unknown", "no-url-given", "url-of-none", "no-secret", "plain-http", "no-url",
         "primus", "none"],
)  # fmt: skip
def test_a_bad_option_is_one_line(words, said, capsys):
    assert main([*CHECK, *words]) == 2
    assert capsys.readouterr().err == f"error: {said}\n"


def test_slurm_that_is_not_installed_is_said_and_the_check_fails(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main([*CHECK, "--scheduler", "slurm", "--format", "json"]) == 1
    first = json.loads(capsys.readouterr().out)["checks"][0]
    assert first == {
        "scheduler": "slurm", "check": "scontrol is there", "ok": False,
        "said": "scontrol is not installed here",
    }  # fmt: skip


def test_the_environment_names_schedulers_too(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("LIGHTKEEPER_SCHEDULERS", "slurm, slurm")
    assert main([*CHECK, "--format", "json"]) == 1
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert {row["scheduler"] for row in checks} == {"slurm"}
    assert len(checks) == 5


def test_a_table_is_shown_to_people(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    main([*CHECK, "--scheduler", "slurm"])
    assert "nodes may be drained" in capsys.readouterr().out
