"""`lightkeeper dashboards`: push, list, export."""

import json
import re
import subprocess
import sys

import pytest
import yaml

from lightkeeper.dashboards import committed
from lightkeeper.dashboards.__main__ import main
from tests.dashboards.boards import ROOT

UIDS = ["lightkeeper-" + name
        for name in ("fleet", "groups", "incidents", "keeper", "rank", "stragglers")]  # fmt: skip


def command(grafana, token_file, *more):
    return main(["push", "--url", grafana.url, "--token-file", str(token_file), *more])


def test_the_command_pushes_what_is_committed_once(grafana, token_file, capsys):
    assert command(grafana, token_file) == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [
        ["created", uid] for uid in UIDS
    ]
    assert command(grafana, token_file) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["unchanged", uid] for uid in UIDS
    ]
    assert {uid: grafana.versions(uid) for uid in UIDS} == {uid: [1] for uid in UIDS}


def test_the_monitors_address_is_put_in_and_compared_with(grafana, token_file, capsys):
    where = ("--monitor-url", "https://keeper.example:8470/")
    assert command(grafana, token_file, *where) == 0
    stored = grafana.boards["lightkeeper-rank"]["dashboard"]["templating"]["list"]
    (variable,) = [listed for listed in stored if listed["name"] == "monitor_url"]
    assert (variable["query"], variable["current"]["value"]) == ("https://keeper.example:8470",) * 2

    capsys.readouterr()
    assert command(grafana, token_file, *where) == 0
    assert capsys.readouterr().out.count("unchanged") == len(UIDS)


def test_a_dry_run_looks_and_changes_nothing(grafana, token_file, capsys):
    grafana.add_board({**committed.read_boards()[0], "refresh": "1d"}, "")

    assert command(grafana, token_file, "--dry-run") == 0

    assert grafana.writes() == []
    out = capsys.readouterr().out
    assert f"would update  {UIDS[0]}\n" in out
    assert f"would create  {UIDS[1]}\n" in out


def test_what_is_refused_goes_to_stderr_and_exit_one(grafana, token_file, capsys):
    grafana.add_board({**committed.read_boards()[0], "refresh": "1d"}, "", provisioned="f.json")

    assert command(grafana, token_file) == 1

    printed = capsys.readouterr()
    assert printed.err.startswith(f"refused       {UIDS[0]}")
    assert printed.out.count("created") == len(UIDS) - 1


def test_a_missing_token_file_is_one_line_and_exit_one(grafana, tmp_path, capsys):
    assert command(grafana, tmp_path / "absent") == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_an_address_of_the_monitor_that_is_none_is_wrong_use(grafana, token_file, capsys):
    with pytest.raises(SystemExit, match="2"):
        command(grafana, token_file, "--monitor-url", "head:8470")
    assert "not an http(s):// URL" in capsys.readouterr().err


def test_exported_files_are_what_a_grafana_can_be_given(tmp_path, capsys):
    assert main(["export", str(tmp_path / "out"), "--monitor-url", "http://head:8470"]) == 0

    written = sorted(path.name for path in (tmp_path / "out" / "dashboards").glob("*.json"))
    assert written == sorted(f"{uid}.json" for uid in UIDS)
    assert '"http://head:8470"' in (tmp_path / "out/dashboards" / f"{UIDS[0]}.json").read_text()
    assert (tmp_path / "out/provisioning/dashboards/lightkeeper.yaml").exists()


@pytest.mark.parametrize(
    ("options", "page"),
    [
        ([], "http://127.0.0.1:8470/runbooks"),
        (["--monitor-url", "http://head:8470/"], "http://head:8470/runbooks"),
        (
            ["--monitor-url", "http://head:8470", "--runbooks-url", "https://wiki/lk"],
            "https://wiki/lk",
        ),
    ],
    ids=["default", "of the monitor", "of one's own"],
)
def test_exported_alerts_lead_to_the_runbooks_of_this_site(options, page, tmp_path):
    assert main(["export", str(tmp_path), *options]) == 0
    alerts = (tmp_path / "prometheus/alerts.yml").read_text()
    links = re.findall(r'runbook_url: "(.*)#\w+"', alerts)
    assert len(links) == alerts.count("- alert:")
    assert set(links) == {page}
    board = json.loads((tmp_path / "dashboards" / f"{UIDS[0]}.json").read_text())
    own = "https://wiki/lk" if "--runbooks-url" in options else "${monitor_url}/runbooks"
    assert [link["url"] for link in board["links"] if link["title"] == "Runbooks"] == [own]


def test_a_push_links_the_runbooks_of_this_site(grafana, token_file, capsys):
    assert command(grafana, token_file, "--runbooks-url", "https://wiki/lk") == 0
    stored = grafana.boards[UIDS[0]]["dashboard"]
    assert "https://wiki/lk" in [link["url"] for link in stored["links"]]


def test_the_one_command_of_lightkeeper_has_it_too():
    command = [sys.executable, "-m", "lightkeeper.monitor.cli", "dashboards", "list"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("lightkeeper-fleet  Lightkeeper: fleet")


def test_the_list_says_what_each_answers(capsys):
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("  ")[0] for line in lines[::2]] == UIDS
    assert lines[0].endswith("(12 panels)")
    assert all(line.strip() for line in lines[1::2])


def test_exported_objects_hold_the_exported_files(tmp_path):
    urls = ["--monitor-url", "http://head:8470", "--runbooks-url", "https://wiki/lk"]
    assert main(["export", str(tmp_path), *urls]) == 0
    rule = yaml.safe_load((tmp_path / "kubernetes/rules.yaml").read_text())
    groups = [
        group for name in ("rules.yml", "alerts.yml")
        for group in yaml.safe_load((tmp_path / "prometheus" / name).read_text())["groups"]
    ]  # fmt: skip
    assert (rule["kind"], rule["spec"]) == ("PrometheusRule", {"groups": groups})
    maps = yaml.safe_load((tmp_path / "kubernetes/dashboards.yaml").read_text())["items"]
    assert {item["metadata"]["labels"]["grafana_dashboard"] for item in maps} == {"1"}
    texts = {name: text for item in maps for name, text in item["data"].items()}
    assert texts.keys() == {f"{uid}.json" for uid in UIDS}
    for name, text in texts.items():
        assert json.loads(text) == json.loads((tmp_path / "dashboards" / name).read_text())
