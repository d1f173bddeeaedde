"""What a release is made of, before there is one: number, notes, workflows, recorded sessions."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib

import pytest
import yaml

from tests.lightkeeper.installed import ROOT
from tests.screens.cast import OUT, STORIES

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
WORKFLOWS = ROOT / ".github" / "workflows"


def steps(name: str) -> list[dict[str, str]]:
    [job] = yaml.safe_load((WORKFLOWS / name).read_text())["jobs"].values()
    return job["steps"]


def test_a_change_has_to_pass_what_ci_runs_here():
    [command] = [step["run"] for step in steps("ci.yml") if "run" in step]
    assert os.access(ROOT / command, os.X_OK)


def test_the_notes_of_a_release_are_its_section_of_the_changelog(tmp_path):
    [script] = [step["run"] for step in steps("release.yml") if "notes.md" in step.get("run", "")]
    cut = script.splitlines()[0].replace("CHANGELOG.md", str(ROOT / "CHANGELOG.md"))
    subprocess.run(
        ["bash", "-c", cut], cwd=tmp_path, check=True, timeout=30,
        env={**os.environ, "GITHUB_REF_NAME": f"v{VERSION}"},
    )  # fmt: skip
    notes = (tmp_path / "notes.md").read_text()
    assert len(notes) > 1000
    assert "## [" not in notes


@pytest.mark.parametrize(("tag", "status"), [(f"v{VERSION}", 0), ("v9.9.9", 1)])
def test_a_tag_that_is_not_the_version_is_no_release(tag, status):
    [script] = [step["run"] for step in steps("release.yml") if "tomllib" in step.get("run", "")]
    done = subprocess.run(
        ["bash", "-c", script], cwd=ROOT, check=False, capture_output=True, timeout=30,
        env={**os.environ, "GITHUB_REF_NAME": tag},
    )  # fmt: skip
    assert done.returncode == status


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
