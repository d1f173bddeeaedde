"""The folder: names, retention, what is left of a write that failed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightkeeper.monitor.act.bundles import BundleDir, safe_name
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.names import IncidentId
from lightkeeper.monitor.records.files import parse_manifest, read_manifest

HOUR_S = 3600.0
LOTS = KeeperConfig()


def shelf_with(
    folder: Path, keep: KeeperConfig, ages_s: list[float], now_s: float = 1e9
) -> BundleDir:
    """Bundles `a`, `b`... of 800 KB, of these ages."""
    bundles = BundleDir(folder, keep)
    bundles.open()
    for name, age_s in zip("abcdef", ages_s, strict=False):
        bundles.write(IncidentId(name), lambda file: file.write(b"x" * 800_000) and None)
        os.utime(folder / f"{name}.zip", (now_s - age_s, now_s - age_s))
    bundles.open()
    return bundles


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("keep", "ages_s", "names"),
    [
        (LOTS, [1, 2, 3], "abc"),
        (KeeperConfig(evidence_count=2), [3, 1, 2], "bc"),
        (KeeperConfig(evidence_days=0.1), [3 * HOUR_S, 1, 2], "bc"),
        (KeeperConfig(evidence_total_mib=2), [3, 1, 2], "bc"),
        (KeeperConfig(evidence_total_mib=1), [3, 1, 2], "b"),
        (KeeperConfig(evidence_days=0.1), [3 * HOUR_S, 5 * HOUR_S, 4 * HOUR_S], ""),
    ],
    ids=["all", "by count", "by age", "by size", "the newest stays", "all too old"],
)
def test_the_oldest_go_first(
    keep: KeeperConfig, ages_s: list[float], names: str, tmp_path: Path
) -> None:
    bundles = shelf_with(tmp_path, keep, ages_s)
    bundles.tidy(1e9)
    assert left(tmp_path) == [f"{name}.zip" for name in names]
    assert bundles.nbytes == 800_000 * len(names)
    assert [name for name in "abc" if bundles.path(IncidentId(name))] == list(names)


def test_a_monitor_that_died_while_writing_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.zip.part").write_bytes(b"half")
    (tmp_path / "a.zip").write_bytes(b"whole")
    (tmp_path / "notes.txt").write_text("a person's")
    bundles = BundleDir(tmp_path, LOTS)
    bundles.open()
    assert left(tmp_path) == ["a.zip", "notes.txt"]
    assert bundles.view(IncidentId("a")) is not None
    assert bundles.path(IncidentId("notes.txt")) is None


def test_a_write_that_fails_leaves_the_former_bundle(tmp_path: Path) -> None:
    bundles = shelf_with(tmp_path, LOTS, [1])

    def fail(file) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        bundles.write(IncidentId("a"), fail)
    assert left(tmp_path) == ["a.zip"]
    assert (tmp_path / "a.zip").read_bytes() == b"x" * 800_000


def test_only_the_owner_reads_bundles(tmp_path: Path) -> None:
    shelf_with(tmp_path / "deep" / "evidence", LOTS, [1])
    made = tmp_path / "deep" / "evidence"
    assert made.stat().st_mode & 0o777 == 0o700
    assert (made / "a.zip").stat().st_mode & 0o777 == 0o600


ODD = ["", ".", "..", "../../etc/passwd", "/etc/passwd", "a/b", "a\\b", "a\0b", "%2e%2e", "ä" * 300,
       "\ud800", "a\nb", ".hidden", "C:", "x" * 1000]  # fmt: skip


@pytest.mark.parametrize("name", ODD, ids=[repr(name[:12]) for name in ODD])
def test_no_name_leads_out_of_the_folder(name: str, tmp_path: Path) -> None:
    bundles = BundleDir(tmp_path / "bundles", LOTS)
    bundles.open()
    assert bundles.path(IncidentId(name)) is None
    bundles.write(IncidentId(name), lambda file: file.write(b"x") and None)
    path = bundles.path(IncidentId(name))
    assert path is not None
    assert path.resolve().parent == (tmp_path / "bundles").resolve()
    assert path.read_bytes() == b"x"


@given(st.text(max_size=400), st.text(max_size=400))
def test_two_names_are_two_files(name: str, other: str) -> None:
    assert (safe_name(name) == safe_name(other)) == (name == other)
    assert len(safe_name(name)) <= 150


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(
        st.sampled_from(["format", "moments", "moment", "parts", "rank", "part", "file", "taken_s",
                         "began_s", "incident", "id", "status", "error"]), inner, max_size=6),
    max_leaves=20,
)  # fmt: skip


@settings(max_examples=50)
@given(JSON, st.sampled_from(["format", "id", "moments", "incident", "more"]))
def test_any_manifest_is_read_or_is_none(data: object, key: str) -> None:
    assert parse_manifest(data) is None
    whole = {"format": "lightkeeper-evidence", "id": "x", "moments": [], "incident": {}}
    made = parse_manifest({**whole, key: data})
    if made is not None:
        assert made.chosen() is None


@settings(max_examples=30)
@given(st.binary(max_size=300))
def test_any_bytes_are_no_bundle(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("x") / "a.zip"
    path.write_bytes(data)
    assert read_manifest(str(path)) is None
