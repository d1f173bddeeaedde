from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lightkeeper.worker_server.rank.page.reader import PageReader
from lightkeeper.worker_server.rank.page.writer import PageWriter
from lightkeeper.worker_server.rank.reporter import Reporter
from tests.nursery import nursery
from tests.worker_server.admissions import FakeMonitor
from tests.worker_server.pages import identity
from tests.worker_server.ranks import Ended, RankUnderTest, environment


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """A run directory with a path short enough for unix sockets."""
    folder = Path(tempfile.mkdtemp(prefix="lk-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def module_dir() -> Iterator[Path]:
    """The same for all tests of a file."""
    folder = Path(tempfile.mkdtemp(prefix="lk-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def torch_python() -> Callable[..., Ended]:
    """Runs a module of these tests, with a folder and words, where torch is imported."""

    def run(module: str, folder: Path, *words: Any) -> Ended:
        out, err = (folder / f"{module}.{stream}" for stream in (1, 2))
        done = nursery("distributed").start(
            ["-m", f"tests.worker_server.{module}", folder, *words],
            environment(None, GLOO_SOCKET_IFNAME="lo"), out=out, err=err,
        )  # fmt: skip
        return Ended(done.wait(90), out.read_text(), err.read_text(), folder)

    return run


@pytest.fixture
def start_rank(run_dir: Path) -> Iterator[type]:
    """Starts rank processes and ends them, and their sidecars, whatever happens.

    They are forks, unless it matters how they are started and where they belong.
    """
    started: list[RankUnderTest] = []

    def start(
        action: str, stderr_to: Path | None = None, *, forked: bool = True, **environ: str
    ) -> RankUnderTest:
        rank = RankUnderTest(action, run_dir, environ, stderr_to, forked=forked)
        started.append(rank)
        return rank

    yield start
    for rank in started:
        rank.end()


@pytest.fixture
def page(tmp_path: Path) -> PageWriter:
    """A page of a rank that started at tick 42."""
    return PageWriter.create(tmp_path / "a.page", identity(), 42)


@pytest.fixture
def reader(page: PageWriter, tmp_path: Path) -> PageReader:
    """The other side of `page`."""
    return PageReader(tmp_path / "a.page")


@pytest.fixture
def reporter(page: PageWriter) -> Reporter:
    """What reports to `page`."""
    return Reporter(page)


@pytest.fixture
def recording(reporter: Reporter) -> Iterator[Reporter]:
    """The same, with TorchFT and all collectives recorded."""
    from lightkeeper.worker_server.rank import (  # they need torch
        collectives,
        process_groups,
        torchft,
    )

    collectives.install(reporter)
    process_groups.install()
    torchft.install(reporter)
    yield reporter
    collectives._stop()


@pytest.fixture
def monitor() -> Iterator[Callable[..., FakeMonitor]]:
    """Starts monitors that admit or refuse, one answer after the other."""
    made: list[FakeMonitor] = []

    def start(*answers: Any, **options: Any) -> FakeMonitor:
        made.append(FakeMonitor(*answers, **options))
        return made[-1]

    yield start
    for fake in made:
        fake.close()
