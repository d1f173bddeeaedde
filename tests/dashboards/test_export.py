"""`lightkeeper dashboards`: list, export."""

import json
import re
import subprocess
import sys

import pytest

from lightkeeper.dashboards.__main__ import main
from tests.dashboards.boards import ROOT

UIDS = ["lightkeeper-" + name
        for name in ("fleet", "groups", "incidents", "keeper", "rank", "stragglers")]  # fmt: skip


def test_an_address_of_the_monitor_that_is_none_is_wrong_use(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["export", str(tmp_path), "--monitor-url", "head:8470"])
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


def test_the_one_command_of_lightkeeper_has_it_too():
    command = [sys.executable, "-m", "lightkeeper.monitor.cli", "dashboards", "list"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("lightkeeper-fleet  Lightkeeper: fleet")


def test_the_list_says_what_each_answers(capsys):
    assert main(["list", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["uid"] for row in rows] == UIDS
    assert rows[0]["panels"] == 9
    assert rows[0]["questions"] == [
        "Is it training, and can I trust the keeper?", "Who is bad now?",
        "Where does the time go?",
    ]  # fmt: skip
