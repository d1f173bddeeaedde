"""A real Prometheus finds real ranks by a real monitor, judges them, and lets them go."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests

from tests.dashboards import contract
from tests.monitor.process import TOKEN, Monitor
from tests.ports import free_port
from tests.prometheus.server import RULES, Prometheus, example_config, prometheus
from tests.waiting import wait_for
from tests.worker_server.ranks import RankUnderTest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

GROUPS = ("rg_0", "rg_1", "rg_2")
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Site:
    """Everything that runs."""

    monitor: Monitor
    ranks: dict[str, RankUnderTest]
    prom: Prometheus


def impatient(folder: Path) -> Path:
    """Our alerts, without the time that they wait for people's sake."""
    text = (RULES / "alerts.yml").read_text()
    hasty = folder / "alerts.yml"
    hasty.write_text(re.sub(r"\n        for: \w+", "", text))
    return hasty


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed (apt-get install prometheus)")
    folder = tmp_path
    token = folder / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    with ExitStack() as stack:
        monitor = Monitor(
            "--store", str(folder / "m.db"), "--token-file", str(token), "--no-journal",
            "--set", "warm_up_commits=3", port=free_port(),
        )  # fmt: skip
        stack.callback(monitor.end)
        ranks = {}
        for group in GROUPS:
            environ = {
                "REPLICA_GROUP": group, "LIGHTKEEPER_MONITOR": monitor.url,
                "LIGHTKEEPER_TOKEN": TOKEN, "LIGHTKEEPER_JOB": "job",
                "LIGHTKEEPER_LINGER_S": "2" if group == "rg_2" else "60",
            }  # fmt: skip
            ranks[group] = RankUnderTest("steps", folder / group, environ, forked=True)
            stack.callback(ranks[group].end)
        monitor.ready()
        config = example_config(monitor.url, RULES / "rules.yml", impatient(folder))
        yield Site(monitor, ranks, stack.enter_context(prometheus(config)))


def values(site: Site, expr: str, label: str) -> dict[str, float]:
    return {sample.labels.get(label, ""): sample.value for sample in site.prom.query(expr)}


def found_and_scraped(site: Site) -> None:
    wait_for(
        lambda: (
            values(site, 'up{job="lightkeeper-ranks"}', "replica_group")
            == dict.fromkeys(GROUPS, 1.0)
        ),
        within_s=PATIENCE_S,
        what="up == 1 of every rank",
    )
    site.prom.wait_for('up{job="lightkeeper"} == 1', within_s=PATIENCE_S)
    (target_up,) = site.prom.query('up{replica_group="rg_1"}')
    assert (target_up.labels["rank"], target_up.labels["job"]) == ("0", "lightkeeper-ranks")
    labels = {
        tuple(sorted(sample.labels)) for sample in site.prom.query("lightkeeper_rank_commits_total")
    }
    assert labels == {("__name__", "instance", "job", "job_id", "rank", "replica_group", "run")}


def judged_by_the_rules(site: Site) -> None:
    (steps,) = site.prom.wait_for("instance:lightkeeper_steps:rate1m > 5", within_s=PATIENCE_S)
    assert steps.value < 100
    site.prom.wait_for("instance:lightkeeper_tokens:rate1m > 1000", within_s=PATIENCE_S)
    site.prom.wait_for("instance:lightkeeper_goodput:ratio_rate5m > 0.2", within_s=PATIENCE_S)
    site.prom.wait_for("job_id:lightkeeper_monitor_active:max == 1", within_s=PATIENCE_S)
    (age,) = site.prom.wait_for("job_id:lightkeeper_since_last_commit_seconds:min")
    assert age.value < 30
    groups = site.prom.api("rules")["groups"]
    sick = [(rule["name"], rule["lastError"]) for group in groups for rule in group["rules"]
            if rule["health"] == "err"]  # fmt: skip
    assert sick == []


def with_a_page_that_promtool_likes(url: str) -> None:
    page = requests.get(f"{url}/metrics", timeout=10).text
    names = {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")}
    assert len(names) > 15, sorted(names)
    assert names - contract.FAMILIES == set()
    promtool = shutil.which("promtool")
    assert promtool is not None, "Debian ships it with Prometheus"
    done = subprocess.run(
        [promtool, "check", "metrics"], input=page, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def alarmed_by_a_killed_rank(site: Site) -> None:
    assert "LightkeeperIncidentStays" not in site.prom.alerts()
    site.ranks["rg_1"].kill()
    site.prom.wait_for(
        'ALERTS{alertname="LightkeeperIncidentStays",alertstate="firing",kind="dead"}',
        within_s=PATIENCE_S,
    )
    (alert,) = [listed for listed in site.prom.api("alerts")["alerts"]
               if listed["labels"]["alertname"] == "LightkeeperIncidentStays"]  # fmt: skip
    assert (
        alert["annotations"]["summary"] == "An incident of kind dead has been firing for 5 minutes"
    )
    (suspect,) = site.prom.query("lightkeeper_rank_suspect")
    assert (suspect.labels["replica_group"], suspect.labels["rank"]) == ("rg_1", "0")
    # its WorkerServer outlives it: what it said last can still be scraped, if not in each second
    site.prom.wait_for('lightkeeper_rank_alive{replica_group="rg_1"} == 0', within_s=PATIENCE_S)


def without_an_evicted_group(site: Site) -> None:
    answer = site.monitor.call("POST", "/v1/groups/rg_2/evict", json={"reason": "a test"})
    assert answer.status_code < 300, answer.text
    wait_for(
        lambda: "rg_2" not in values(site, 'up{job="lightkeeper-ranks"}', "replica_group"),
        within_s=90,
        what="rg_2 leaves",
    )
    assert values(site, 'up{job="lightkeeper-ranks"}', "replica_group")["rg_0"] == 1.0
    active = site.prom.api("targets", state="active")["activeTargets"]
    assert "rg_2" not in {target["labels"].get("replica_group") for target in active}


def test_a_fleet_from_its_first_scrape_to_an_eviction(site: Site) -> None:
    found_and_scraped(site)
    judged_by_the_rules(site)
    with_a_page_that_promtool_likes(site.monitor.url)
    with_a_page_that_promtool_likes(site.ranks["rg_0"].endpoint["url"])
    alarmed_by_a_killed_rank(site)
    without_an_evicted_group(site)
