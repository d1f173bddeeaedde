"""What a release is made of, before there is one: number, notes, workflows, recorded sessions."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.charts.helm import WHERE, call, helm
from tests.lightkeeper.installed import ROOT
from tests.screens.cast import OUT, STORIES

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
WORKFLOWS = ROOT / ".github" / "workflows"


def jobs(name: str) -> dict[str, Any]:
    return yaml.safe_load((WORKFLOWS / name).read_text())["jobs"]


def steps(name: str) -> list[dict[str, Any]]:
    return [step for job in jobs(name).values() for step in job["steps"]]


def script(words: str) -> str:
    """The one step of a release that has these words."""
    [run] = [step["run"] for step in steps("release.yml") if words in step.get("run", "")]
    return run


def play(words: str, folder: Path) -> None:
    """Run that step there."""
    given = {"GITHUB_SERVER_URL": "https://git.example", "GITHUB_REPOSITORY": "Some/Keeper",
             "GITHUB_REF_NAME": f"v{VERSION}"}  # fmt: skip
    path = f"{os.environ['PATH']}:{WHERE}"
    subprocess.run(
        ["bash", "-eo", "pipefail", "-c", script(words)], cwd=folder, check=True, timeout=60,
        capture_output=True, env={**os.environ, **given, "PATH": path},
    )  # fmt: skip


def test_a_change_has_to_pass_what_ci_runs_here():
    [command] = [step["run"] for step in steps("ci.yml") if "run" in step]
    assert os.access(ROOT / command, os.X_OK)


def test_the_notes_of_a_release_are_its_section_of_the_changelog(tmp_path):
    cut = script("notes.md").splitlines()[0].replace("CHANGELOG.md", str(ROOT / "CHANGELOG.md"))
    subprocess.run(
        ["bash", "-c", cut], cwd=tmp_path, check=True, timeout=30,
        env={**os.environ, "GITHUB_REF_NAME": f"v{VERSION}"},
    )  # fmt: skip
    notes = (tmp_path / "notes.md").read_text()
    assert len(notes) > 1000
    assert "## [" not in notes


@pytest.mark.parametrize(("tag", "status"), [(f"v{VERSION}", 0), ("v9.9.9", 1)])
def test_a_tag_that_is_not_the_version_is_no_release(tag, status):
    done = subprocess.run(
        ["bash", "-c", script("tomllib")], cwd=ROOT, check=False, capture_output=True, timeout=30,
        env={**os.environ, "GITHUB_REF_NAME": tag},
    )  # fmt: skip
    assert done.returncode == status


def test_project_urls_are_those_of_the_repository_that_releases(tmp_path):
    files = ["pyproject.toml", "trainer/pyproject.toml", "dashboards/pyproject.toml"]
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    play("[project.urls]", tmp_path)
    for file in files:
        before = tomllib.loads((ROOT / file).read_text())["project"]
        made = tomllib.loads((tmp_path / file).read_text())["project"]
        urls = made.pop("urls")
        assert made == before
        assert urls["Homepage"] == "https://git.example/Some/Keeper"
        assert urls["Changelog"] == f"{urls['Homepage']}/blob/v{VERSION}/CHANGELOG.md"
        assert before["authors"]
        assert before["keywords"]


@pytest.mark.skipif(helm() is None, reason="helm is neither on PATH nor in /var/tmp/helm/bin")
def test_a_released_chart_runs_the_released_image(tmp_path):
    for folder in ("charts", "dashboards", "examples"):  # it has links to these
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True)
    play("helm package", tmp_path)
    [package] = (tmp_path / "packaged").iterdir()
    done = call("template", "lightkeeper", package)
    images = set(re.findall(r"image: (\S+)", done.stdout))
    assert images == {f"ghcr.io/some/keeper:{VERSION}", "registry.example/train:1"}


def test_whoever_publishes_has_no_more_rights_than_that_and_no_secret():
    text = (WORKFLOWS / "release.yml").read_text()
    assert "secrets." not in text
    assert yaml.safe_load(text)["permissions"] == {}
    rights = {name: {right for right, level in job["permissions"].items() if level == "write"}
              for name, job in jobs("release.yml").items()}  # fmt: skip
    signs = {"id-token", "attestations"}
    assert rights == {
        "build": signs, "image": {*signs, "packages"}, "chart": {*signs, "packages"},
        "pypi": {"id-token"}, "release": {"contents"},
    }  # fmt: skip
    assert jobs("release.yml")["pypi"]["environment"]["name"] == "pypi"
    assert not any("run" in step for step in jobs("release.yml")["pypi"]["steps"])


def test_actions_are_pinned_by_commit_and_say_which_version_that_is():
    used = [line for file in WORKFLOWS.glob("*.yml") for line in file.read_text().splitlines()
            if "uses:" in line]  # fmt: skip
    assert len(used) > 10
    pinned = re.compile(r" +(- )?uses: [\w./-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+")
    assert not [line for line in used if not pinned.fullmatch(line)]


def test_all_that_is_published_is_signed():
    signed = [step["with"] for step in steps("release.yml")
              if step.get("uses", "").startswith("actions/attest-build-provenance@")]  # fmt: skip
    paths = {row.get("subject-path") for row in signed}
    assert paths == {"dist/*", "packaged/*", None}
    assert [row["push-to-registry"] for row in signed if "subject-digest" in row] == [True]
    [push] = [step["with"] for step in steps("release.yml") if step.get("id") == "push"]
    assert push["sbom"] is True
    assert push["file"] == "examples/container/Dockerfile"


@pytest.mark.skipif(
    shutil.which("actionlint", path=f"{os.environ['PATH']}:{WHERE}") is None,
    reason="GOBIN=/var/tmp/helm/bin go install github.com/rhysd/actionlint/cmd/actionlint@v1.7.12",
)
def test_a_linter_of_workflows_has_nothing_to_say():
    program = shutil.which("actionlint", path=f"{os.environ['PATH']}:{WHERE}")
    done = subprocess.run(
        [program, *WORKFLOWS.glob("*.yml")], check=False, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_images_in_the_examples_have_the_version_of_today():
    images = [
        (path, tag)
        for path in (ROOT / "examples").rglob("*")
        if path.is_file() and path.suffix not in (".lock", ".pyc")
        for tag in re.findall(r"lightkeeper:(\d+\.[\w.]+)", path.read_text())
    ]
    assert len(images) >= 4
    assert {tag for _, tag in images} == {VERSION}


@pytest.mark.parametrize("story", STORIES)
def test_a_recorded_session_can_be_played_and_has_the_commands_of_today(story):
    head, *events = map(json.loads, (OUT / f"{story}.cast").read_text().splitlines())
    assert head["version"] == 2
    times = [at for at, _, _ in events]
    assert times == sorted(times)
    assert {kind for _, kind, _ in events} == {"o"}
    typed = "".join(text for _, _, text in events)
    _, commands, _ = STORIES[story]
    for command in (*commands, "kill -STOP", "lightkeeper status"):
        assert f"$ {command.partition('{script}')[0]}" in typed, command
