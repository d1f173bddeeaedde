"""Rules, alerts and their runbooks: loaded, tried on made-up series, and explained."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
import yaml

from lightkeeper.monitor.model.verdict import Severity
from tests.dashboards.contract import EXPORTED
from tests.dashboards.promql import metrics
from tests.deep import DEEP
from tests.prometheus.server import RULES

DOCS = RULES.parents[1] / "docs"


def rules(name: str) -> list[dict]:
    return [rule for group in yaml.safe_load((RULES / name).read_text())["groups"]
            for rule in group["rules"]]  # fmt: skip


ALERTS = {rule["alert"]: rule for rule in rules("alerts.yml")}
RECORDED = {rule["record"]: rule for rule in rules("rules.yml")}
each_alert = pytest.mark.parametrize("name", ALERTS)


def promtool(*words: str, cwd: Path = RULES, given: str | None = None):
    binary = shutil.which("promtool")
    if binary is None:
        pytest.skip("promtool is not installed (apt-get install prometheus)")
    return subprocess.run(
        [binary, *words], cwd=cwd, input=given, capture_output=True, text=True, check=False,
        env={**os.environ, "GOGC": "400"},  # a fifth less CPU, and 100 MB more
    )  # fmt: skip


# -- tried by promtool -----------------------------------------------------------------------------


@pytest.mark.integration  # ten seconds of two cores
def test_every_rule_and_alert_does_on_made_up_series_what_it_says():
    done = promtool("test", "rules", "tests.yml")
    assert done.returncode == 0, done.stdout + done.stderr


@cache
def tries() -> list[dict]:
    blocks = yaml.safe_load((RULES / "tests.yml").read_text())["tests"]
    return [case for block in blocks for case in block["promql_expr_test"]]


@pytest.mark.parametrize("name", RECORDED)
def test_each_rule_is_tried(name):
    assert any(name in case["expr"] and case["exp_samples"] for case in tries())


@each_alert
def test_each_alert_is_tried_before_and_after_it_fires(name):
    asked = [case for case in tries() if f'ALERTS{{alertname="{name}",' in case["expr"]]
    assert {bool(case.get("exp_samples")) for case in asked} == {False, True}


@pytest.mark.skipif(DEEP == 1, reason="LIGHTKEEPER_DEEP=20: 20 s of CPU, and a test of tests")
def test_the_trials_fail_of_alerts_that_never_fire_or_always_do(tmp_path):
    for file in RULES.glob("*.yml"):
        shutil.copy(file, tmp_path)
    spoilt = yaml.safe_load((RULES / "alerts.yml").read_text())
    for number, rule in enumerate(
        listed for group in spoilt["groups"] for listed in group["rules"]
    ):
        never = f"({rule['expr']}) > Inf"
        always = f"({rule['expr']}) or label_replace(vector(1), 'instance', 'well', '', '')"
        rule["expr"] = always if number % 2 else never
    (tmp_path / "alerts.yml").write_text(yaml.safe_dump(spoilt))
    done = promtool("test", "rules", "tests.yml", cwd=tmp_path)
    assert done.returncode == 1
    failed = set(re.findall(r'alertname=\\?"(\w+)\\?"', done.stdout + done.stderr))
    assert failed == ALERTS.keys()


# -- what is asked for -----------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [*ALERTS.values(), *RECORDED.values()],
                         ids=[*ALERTS, *RECORDED])  # fmt: skip
def test_every_metric_is_exported_or_recorded(rule):
    named = metrics(rule["expr"])
    assert named
    assert named - EXPORTED - RECORDED.keys() == set()


@pytest.mark.parametrize("name", RECORDED)
def test_names_of_rules_say_level_metric_and_operation(name):
    assert re.fullmatch(r"[a-z_]+:lightkeeper_[a-z_]+:[a-z0-9_]+", name)


# -- what a person gets ----------------------------------------------------------------------------


_ON_CALL = (DOCS / "on-call.md").read_text().partition("## Runbooks")[2]
RUNBOOKS = {heading.lower() for heading in re.findall(r"(?m)^### (.+)$", _ON_CALL)}


@each_alert
def test_each_alert_has_a_severity_words_and_a_section_in_the_runbooks(name):
    alert = ALERTS[name]
    assert alert["labels"]["severity"] in set(Severity)
    words = alert["annotations"]
    assert len(words["summary"]) > 20
    assert len(words["description"]) > 40
    page, _, anchor = words["runbook_url"].partition("#")
    assert page == "http://127.0.0.1:8470/runbooks"
    assert anchor == name.lower()
    assert anchor in RUNBOOKS


@each_alert
def test_labels_in_the_words_of_an_alert_are_among_those_that_it_keeps(name):
    alert = ALERTS[name]
    said = set(re.findall(r"\$labels\.(\w+)", str(alert["annotations"])))
    kept = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", alert["expr"]))))
    recorded = {word for rule in metrics(alert["expr"]) & RECORDED.keys()
                for word in rule.partition(":")[0].split("_cause")}  # fmt: skip
    assert said <= kept | recorded | {"instance", "job"}


def test_there_is_no_section_without_its_alert():
    assert {name.lower() for name in ALERTS} == RUNBOOKS


def test_what_is_critical_is_routed_to_people_and_the_rest_is_not():
    routing = yaml.safe_load((RULES / "alertmanager.example.yml").read_text())
    receivers = {receiver["name"] for receiver in routing["receivers"]}
    routes = {tuple(route["matchers"]): route["receiver"] for route in routing["route"]["routes"]}
    assert routes == {(f"severity = {Severity.CRITICAL}",): "on-call"}
    assert {*routes.values(), routing["route"]["receiver"]} == receivers
    named = re.findall(r"Lightkeeper[A-Z]\w+", str(routing["inhibit_rules"]))
    assert set(named) <= ALERTS.keys()


def test_amtool_accepts_the_example_of_an_alertmanager():
    amtool = shutil.which("amtool")
    if amtool is None:
        pytest.skip("amtool is not installed (apt-get install prometheus-alertmanager)")
    done = subprocess.run(
        [amtool, "check-config", "alertmanager.example.yml"],
        cwd=RULES, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
