"""A PostgreSQL cluster of the tests' own: initdb in a temporary folder, loopback, never as root."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ports import free_port

PASSWORD = "open-sesame-17"
"""Nothing that is logged or shown may hold it."""


def binaries() -> Path | None:
    """Where `initdb` is; Debian keeps it out of PATH."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    initdb = str(debian[-1]) if debian else shutil.which("initdb")
    return None if initdb is None else Path(initdb).parent


def user() -> str | None:
    """Whom to run it as: root may not; None: as we are."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            pwd.getpwnam(name)
        except KeyError:
            continue
        return name
    return "nobody"


class Cluster:
    """One server until it is closed; stop and start it as a test likes."""

    def __init__(self, bin_dir: Path) -> None:
        self._bin, self._user = bin_dir, user()
        self.folder = Path(tempfile.mkdtemp(prefix="lk-pg-", dir="/tmp"))
        (self.folder / "password").write_text(PASSWORD)
        if self._user is not None:
            shutil.chown(self.folder, self._user)
            shutil.chown(self.folder / "password", self._user)
        self.port = free_port()
        self._numbers = itertools.count(1)
        self._data = self.folder / "data"
        self._run(
            "initdb", "-D", str(self._data), "-U", "keeper", "--auth=scram-sha-256",
            f"--pwfile={self.folder / 'password'}", "--no-sync", "-E", "UTF8", "--locale=C",
        )  # fmt: skip
        self.start()

    def _run(self, name: str, *words: str) -> None:
        done = subprocess.run(
            [str(self._bin / name), *words], user=self._user, cwd=self.folder, check=False,
            capture_output=True, text=True, timeout=60,
            env={"PATH": os.environ["PATH"], "HOME": str(self.folder), "LC_ALL": "C"},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self) -> None:
        options = (
            f"-p {self.port} -c listen_addresses=127.0.0.1 -c fsync=off -c unix_socket_directories="
        )
        self._run(
            "pg_ctl", "-D", str(self._data), "-w", "-l", str(self.folder / "log"), "-o", options,
            "start",
        )  # fmt: skip

    def stop(self) -> None:
        """At once, as when its host loses power."""
        self._run("pg_ctl", "-D", str(self._data), "-m", "immediate", "-w", "stop")

    def new_database(self) -> str:
        """The URL of an empty one, with the password."""
        import psycopg

        name = f"lk{next(self._numbers)}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as db:
            db.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def url(self, database: str) -> str:
        return f"postgresql://keeper:{PASSWORD}@127.0.0.1:{self.port}/{database}"

    def close(self) -> None:
        if (self._data / "postmaster.pid").exists():
            self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def cluster() -> Iterator[Cluster]:
    """For a fixture; skips where there is no PostgreSQL."""
    bin_dir = binaries()
    if bin_dir is None:
        pytest.skip("no PostgreSQL here (Debian: apt-get install postgresql)")
    pytest.importorskip("psycopg", reason="psycopg is not installed (lightkeeper[postgres])")
    made = Cluster(bin_dir)
    try:
        yield made
    finally:
        made.close()
