"""Tables of reference have a row for everything that there is, and none for what is not."""

from __future__ import annotations

import re

import pytest
import yaml

from lightkeeper.monitor.decide.headline import JobState
from lightkeeper.monitor.decide.rules import DEFAULT
from lightkeeper.monitor.detect.self_health import Condition
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import Guard, Rung
from lightkeeper.monitor.model.verdict import FAULTS, RankHealth, Severity
from lightkeeper.worker_server.rank.identity import LAUNCHERS
from lightkeeper.worker_server.sidecar.app import ENDPOINTS
from tests.docs import known
from tests.docs.pages import DOCS, ROOT, Page

VARIABLE = re.compile(r"\bLIGHTKEEPER(?:_[A-Z_]*[A-Z])?\b")


def page(name: str) -> Page:
    return Page(DOCS / f"{name}.md")


def section(name: str, heading: str) -> str:
    return re.split(r"(?m)^#+ ", page(name).text.split(f"# {heading}\n", 1)[1])[0]


def first_cells(text: str) -> list[str]:
    return [row.split("|")[1].strip() for row in text.splitlines() if row.startswith("| ")]


def test_every_variable_that_a_rank_reads_has_its_row_and_no_other_has() -> None:
    table = section("configuration", "Environment of a rank")
    rows = {name for cell in first_cells(table) for name in VARIABLE.findall(cell)}
    sources = "\n".join(path.read_text() for path in (ROOT / "worker_server").rglob("*.py"))
    assert rows == set(re.findall(r'"(LIGHTKEEPER(?:_[A-Z_]*[A-Z])?)"', sources))


def test_thresholds_have_the_defaults_that_the_page_says() -> None:
    rows = re.findall(r"(?m)^\| `(\w+)` \| ([\d./]+) \|", section("configuration", "Thresholds"))
    assert len(rows) > 10
    for name, said in rows:
        top, _, bottom = said.partition("/")
        assert getattr(KeeperConfig(), name) == float(top) / float(bottom or 1), name


@pytest.mark.parametrize("name", ["detection", "eviction", "on-call", "phases", "offline"])
def test_every_threshold_that_a_sentence_names_is_one(name: str) -> None:
    fields = set(KeeperConfig.__dataclass_fields__)
    ends = ("_floor_s", "_factor", "_budget_s", "_hold_s", "_memory_s", "_after", "_share",
            "_down_s", "_inside_s", "_cost_s", "_ticks", "_grace_s", "_timeout_s",
            "_horizon_s")  # fmt: skip
    named = {code for _, code in page(name).inline if re.fullmatch(r"[a-z_]+", code)
             and code.endswith(ends)}  # fmt: skip
    assert named <= fields


def test_every_launcher_is_in_the_table_of_who_one_is() -> None:
    table = section("integrations", "Who am I?")
    for launcher in LAUNCHERS:
        assert f"`{launcher.rank}`" in table


def test_every_guard_has_its_row_in_the_order_in_which_they_are_asked() -> None:
    rows = [name for cell in first_cells(section("eviction", "Guards"))
            for name in re.findall(r"`(\w+)`", cell)]  # fmt: skip
    assert set(rows) == {str(guard) for guard in Guard}, "the table of docs/eviction.md#guards"


def test_every_step_of_an_eviction_has_its_row() -> None:
    rows = first_cells(section("eviction", "How an eviction goes"))
    without = {str(rung) for rung in Rung} - {cell.strip("`") for cell in rows}
    assert not without, f"add {without} to docs/eviction.md#how-an-eviction-goes"


def test_every_kind_of_fault_has_its_row_and_evicts_as_the_policy_says() -> None:
    rows = [cell.strip("`") for cell in first_cells(section("on-call", "Read an incident"))]
    without = {str(kind) for kind in FAULTS} - set(rows)
    assert not without, f"add {without} to docs/on-call.md#read-an-incident"
    for kind in FAULTS:
        row = next(
            line for line in page("on-call").text.splitlines() if line.startswith(f"| `{kind}`")
        )
        if DEFAULT.action(kind, Severity.CRITICAL) == "evict_and_quarantine":
            assert not row.endswith("| no |"), kind
        else:
            assert row.endswith("| no |"), kind


def test_every_state_of_a_rank_is_explained() -> None:
    table = section("ui", "The page")
    for health in RankHealth:
        assert f"| {health} |" in table


def test_every_headline_and_its_word_on_the_terminal_is_explained() -> None:
    table = section("ui", "The page")
    for state in JobState:
        assert state.label.rstrip(":").removeprefix("The job ") in table, state
        assert f"`{state.answer}`" in table, state


def test_every_state_of_the_monitors_own_health_is_explained() -> None:
    table = section("on-call", "When the monitor doubts itself")
    rows = {cell.strip("`") for cell in first_cells(table)}
    assert {str(condition) for condition in Condition} <= rows


def test_the_api_has_a_row_for_every_endpoint_of_the_monitor() -> None:
    table = section("security", "The HTTP API")
    said = set(re.findall(r"/[\w/]*", re.sub(r"(?<=/)[A-Z]+\b", "", table)))
    for rule in known.monitors().iter_rules():
        plain = re.sub(r"<[^>]+>", "", rule.rule)
        if plain.startswith(("/v1", "/metrics", "/healthz", "/readyz")):
            is_listed = plain in said or plain.rstrip("/") in said
            assert is_listed, f"add {rule.rule} to the table of docs/security.md#the-http-api"


def test_every_endpoint_of_a_rank_has_its_row() -> None:
    table = section("on-call", "Debug a rank with curl")
    for endpoint in ENDPOINTS:
        if endpoint.path != "/":
            is_listed = f"{endpoint.path}`" in table or f"{endpoint.path}?" in table
            assert is_listed, f"add {endpoint.path} to docs/on-call.md#debug-a-rank-with-curl"


def test_the_manifests_pass_the_node_the_group_and_the_token() -> None:
    manifests = [document for block in page("integrations").blocks if block.language == "yaml"
                 for document in yaml.safe_load_all(block.text)]  # fmt: skip
    assert [manifest["kind"] for manifest in manifests] == ["Job", "Service"]
    pod = manifests[0]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    environ = {variable["name"]: variable for variable in container["env"]}
    field = environ["LIGHTKEEPER_HOST"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert field == "spec.nodeName"
    assert all(isinstance(variable.get("value", ""), str) for variable in environ.values())
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert set(mounts) == {volume["name"] for volume in pod["volumes"]}
    assert environ["LIGHTKEEPER_TOKEN_FILE"]["value"].startswith(mounts["token"])
    assert pod["subdomain"] == manifests[1]["metadata"]["name"]
