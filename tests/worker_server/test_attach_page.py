"""docs/attach.md says what the code does: manifests that parse, every variable, every option."""

from __future__ import annotations

import re

import pytest

from tests.worker_server.ranks import ROOT

PAGE = (ROOT / "docs" / "attach.md").read_text(encoding="utf-8")
VARIABLE = re.compile(r"\bLIGHTKEEPER(?:_[A-Z_]*[A-Z])?\b")


def sources():
    return "\n".join(path.read_text() for path in (ROOT / "worker_server").rglob("*.py"))


def test_every_variable_that_the_code_reads_has_its_row_and_no_other_has():
    table = PAGE.split("## The environment")[1].split("\n## ")[0]
    rows = {name for row in table.splitlines() if row.startswith("| `")
            for name in VARIABLE.findall(row.split("|")[1])}  # fmt: skip
    read = set(re.findall(r'"(LIGHTKEEPER(?:_[A-Z_]*[A-Z])?)"', sources()))
    assert rows == read


def test_every_variable_that_a_recipe_names_exists():
    assert set(VARIABLE.findall(PAGE)) <= set(re.findall(VARIABLE, sources()))


def test_every_launchers_variables_are_in_the_table_of_who_one_is():
    from worker_server.rank.identity import LAUNCHERS

    table = PAGE.split("## Who am I?")[1].split("\n## ")[0]
    for launcher in LAUNCHERS:
        assert f"`{launcher.rank}`" in table


def test_the_manifests_parse_and_pass_the_node_the_group_and_the_token():
    yaml = pytest.importorskip("yaml")
    manifests = [
        document
        for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
        for document in yaml.safe_load_all(block)
    ]
    assert [manifest["kind"] for manifest in manifests] == ["Job", "Service"]
    pod = manifests[0]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    environ = {one["name"]: one for one in container["env"]}
    field = environ["LIGHTKEEPER_HOST"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert field == "spec.nodeName"
    assert all(isinstance(one.get("value", ""), str) for one in environ.values())
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert set(mounts) == {volume["name"] for volume in pod["volumes"]}
    assert environ["LIGHTKEEPER_TOKEN_FILE"]["value"].startswith(mounts["token"])
    assert pod["subdomain"] == manifests[1]["metadata"]["name"]
