"""Files of a rank in the run directory, and the removal of what dead ones left there.

A rank owns `NAME.page`, `NAME.sock` (torch's control plane), `NAME.json` (where its sidecar
listens) and `NAME.log`, where NAME is rank and incarnation. The directory is 0700: anyone who
can enter it can read and control the ranks.

It should be in memory: the rank writes its page at every step, so a page on a disk would be
flushed again and again. If the first choice cannot be used (missing, read-only, full, open to
others), the next one is used, with a warning.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from lightkeeper.worker_server.rank.page.layout import SharedPageError
from lightkeeper.worker_server.rank.page.reader import PageReader

_SHM = Path("/dev/shm")  # noqa: S108
_SOCKET_PATH_BYTES = 107
_LOG_KEPT_S = 86_400.0
_LOGS_KEPT = 32
"""The newest logs of dead ranks; each takes 128 KiB at most."""
_ROOM_BYTES = 192 * 1024
"""Two logs of 64 KiB, the endpoint file twice while it is replaced, and a margin."""
_COMING_S = 60.0
_BEATLESS_S = 600.0
"""A rank beats once a second. Without a beat for this long, and without a sidecar, it is gone, if
its process cannot be seen from here."""
T = TypeVar("T")


class RunDirError(OSError):
    """The run directory cannot be used safely."""


class RankFiles:
    """Paths of one incarnation of one rank."""

    def __init__(self, page: Path) -> None:
        self.page = page
        self.socket = page.with_suffix(".sock")
        self.endpoint = page.with_suffix(".json")
        self.log = page.with_suffix(".log")
        self.seen = page.with_suffix(".seen")
        """What only its sidecar knows of the rank, for its neighbours' `/v1/host`."""
        self.crash = page.with_suffix(".crash")
        """Python stacks at a fatal signal; empty until then."""
        self.sockets = page.with_suffix(".sockets")
        """What the rank opened its sockets for, by inode."""
        self.order = page.with_suffix(".order")
        """What the sidecar asks of the rank: to end the exchange of a quorum, say."""
        self.answer = page.with_suffix(".answer")
        """What the rank did about it."""

    @classmethod
    def of(cls, run_dir: Path, rank: str, incarnation: str) -> RankFiles:
        """Paths for a rank; its name may have any characters."""
        name = quote(rank, safe="")[:64]
        return cls(run_dir / f"{name}-{incarnation}.page")

    @property
    def socket_fits(self) -> bool:
        """True if the kernel accepts a socket path of this length."""
        return len(os.fsencode(self.socket)) <= _SOCKET_PATH_BYTES

    def write_endpoint(self, content: dict[str, Any]) -> None:
        write_json(self.endpoint, content)

    def read_endpoint(self) -> dict[str, Any]:
        """What the sidecar published; empty before that."""
        return read_json(self.endpoint)

    def endpoint_mark(self) -> int | None:
        """Changes while the sidecar answers its own checks; None: no such file."""
        try:
            return self.endpoint.stat().st_mtime_ns
        except OSError:
            return None

    def remove(self) -> None:
        """Remove everything but the log, which `sweep` removes a day later."""
        for path in vars(self).values():  # the page first: without it the others mean nothing
            if path != self.log:
                with contextlib.suppress(OSError):
                    path.unlink()


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a small file atomically, readable by its owner only."""
    draft = path.with_suffix(f"{path.suffix}.draft")
    draft.touch(mode=0o600)
    draft.write_text(json.dumps(content) + "\n", encoding="utf-8")
    draft.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """The content of such a file; empty if there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def sidecar_in(endpoint: Mapping[str, Any]) -> tuple[int, int] | None:
    """Pid and start ticks of the sidecar that published this; None: it says neither."""
    pid, ticks = endpoint.get("sidecar_pid"), endpoint.get("sidecar_ticks")
    return (pid, ticks) if isinstance(pid, int) and isinstance(ticks, int) else None


def candidates(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Where pages and sockets may go, the best place first; creates nothing.

    Another user may have made the known places first. The last has a name that nobody could guess:
    one that an earlier rank made, or a new one.
    """
    name = f"lightkeeper-{os.getuid()}"
    named = environ.get("LIGHTKEEPER_RUN_DIR")
    odd = os.urandom(8).hex()
    session, temporary = environ.get("XDG_RUNTIME_DIR"), environ.get("TMPDIR")
    places = [
        Path(named) if named else None,
        _SHM / name,
        Path(session) / name if session else None,
        Path(temporary) / name if temporary else None,
        Path("/tmp") / name,  # noqa: S108
        *(sorted(filter(_is_private, _SHM.glob(f"{name}-*"))) or [_SHM / f"{name}-{odd}"]),
    ]
    return tuple(dict.fromkeys(place.absolute() for place in places if place is not None))


def first_usable(
    places: tuple[Path, ...], use: Callable[[Path], T], warn: Callable[[str], None]
) -> T:
    """The result of `use` for the first place that can be prepared and used.

    A missing place counts as unusable. `warn` is called once if another place is used.

    Raises:
        RunDirError: none can be used; the message says why for each.
    """
    troubles: list[str] = []
    for place in places:
        try:
            prepare_folder(place)
            result = use(place)
        except OSError as exc:
            if exc.errno is None and not isinstance(exc, RunDirError):
                raise  # not the place's fault
            odd = isinstance(exc, RunDirError)
            troubles.append(str(exc) if odd else f"{place}: {exc.strerror or exc}")
            continue
        if troubles:
            warn(f"lightkeeper uses {place}, for {'; '.join(troubles)}")
        return result
    raise RunDirError("; ".join(troubles))


def check_room(run_dir: Path) -> None:
    """Check that the sidecar's endpoint file and log still fit beside the page.

    Raises:
        RunDirError: too little space is left.
    """
    space = os.statvfs(run_dir)
    if space.f_bavail * space.f_frsize < _ROOM_BYTES:
        raise RunDirError(f"{run_dir}: No space left for the sidecar's files")


def prepare_folder(run_dir: Path) -> None:
    """Create the run directory; it must be ours and private.

    Raises:
        RunDirError: it belongs to another user, or others may enter it.
    """
    run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = run_dir.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise RunDirError(f"{run_dir} is not a directory of ours")
    if not _is_private(run_dir):
        raise RunDirError(f"{run_dir} is open to others: chmod 700 it")


def _is_private(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        status = folder.lstat()
        return stat.S_ISDIR(status.st_mode) and (status.st_uid, status.st_mode & 0o077) == (
            os.getuid(), 0
        )  # fmt: skip
    return False


def start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; None when there is no such process."""
    return _stat_field(pid, 19)


def stack_of(pid: int) -> int:
    """Where a process's stack begins, which is elsewhere after an exec; 0: not known."""
    return _stat_field(pid, 25) or 0


def process_state(pid: int, start_ticks: int) -> str | None:
    """Letter of a process's state; None if it is gone, a zombie, or another process."""
    fields = stat_fields(pid)
    is_gone = len(fields) < 20 or fields[0] in "ZX" or fields[19] != str(start_ticks)
    return None if is_gone else fields[0]


def parent_of(pid: int, proc: Path = Path("/proc")) -> int | None:
    """The parent of a process; None when there is no such process."""
    return _stat_field(pid, 1, proc)


def _stat_field(pid: int, index: int, proc: Path = Path("/proc")) -> int | None:
    fields = stat_fields(pid, proc)
    return int(fields[index]) if index < len(fields) else None


def stat_fields(pid: int, proc: Path = Path("/proc")) -> list[str]:
    """Fields of /proc/PID/stat from the state (field 3) on; empty if there is no such process."""
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def family(pid: int) -> list[int]:
    """A process, its children, theirs and so on; at most 64."""
    pids = [pid]
    for each in pids:  # which grows meanwhile: `sh -c` waits for its own children
        with contextlib.suppress(OSError, ValueError):
            words = Path(f"/proc/{each}/task/{each}/children").read_text("ascii").split()
            pids += map(int, words[: 64 - len(pids)])
    return pids


def sockets(pid: int | str = "self") -> dict[int, int]:
    """Inode -> file descriptor of the sockets that a process holds open, as far as we may see."""
    descriptors: dict[int, int] = {}
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as files:
        for file in files:
            with contextlib.suppress(OSError, ValueError):
                kind, _, inode = os.readlink(file.path).partition(":[")
                if kind == "socket":
                    descriptors[int(inode[:-1])] = int(file.name)
    return descriptors


def pid_namespace() -> int | None:
    """Which processes are visible here: containers may share /dev/shm, and no processes."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return None


def processes(run_dir: Path, kinds: Iterable[str] = ("pid", "sidecar_pid")) -> set[int]:
    """Pids of the ranks and sidecars published here, in our PID namespace; `kinds`: of which."""
    endpoints = map(read_json, run_dir.glob("*.json"))
    visible = [endpoint for endpoint in endpoints if not is_elsewhere(endpoint)]
    pids = {endpoint.get(key) for endpoint in visible for key in kinds}
    return {pid for pid in pids if isinstance(pid, int)}


def is_elsewhere(endpoint: Mapping[str, Any]) -> bool:
    """True if the rank is in another PID namespace: not seeing its processes then means nothing."""
    namespace = endpoint.get("pid_namespace")
    return namespace is not None and namespace != pid_namespace()


def hold(page: Path) -> int | None:
    """Lock a page while this process lives; the lock is visible from any PID namespace."""
    with contextlib.suppress(OSError):  # a file system without locks
        fd = os.open(page, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return fd
    return None


def _is_held(page: Path) -> bool:
    try:
        fd = os.open(page, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return True  # not known
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def sweep(run_dir: Path, now_ns: int | None = None) -> int:
    """Remove the files of ranks that are gone, and their sidecars too; returns how many ranks.

    `now_ns`: the monotonic clock; None: read it here.
    """
    now_ns = time.monotonic_ns() if now_ns is None else now_ns
    removed = 0
    for path in sorted(run_dir.glob("*.page")):
        if _is_over(path, now_ns):
            RankFiles(path).remove()
            removed += 1
    logs = ((log, f"{log.name.rpartition('.log')[0]}.page") for log in run_dir.glob("*.log*"))
    dead = [log for log, page in logs if not (run_dir / page).exists()]
    for number, log in enumerate(sorted(dead, key=_age_s)):
        with contextlib.suppress(OSError):
            if number >= _LOGS_KEPT or _age_s(log) > _LOG_KEPT_S:
                log.unlink()
    return removed


def _is_over(path: Path, now_ns: int) -> bool:
    """True if a page's rank and its sidecar are gone, and no sidecar is still starting."""
    try:
        page = PageReader(path)
    except SharedPageError:
        return False  # another version's, or another user's: leave it
    endpoint = RankFiles(path).read_endpoint()
    for process in ((page.identity.pid, page.start_ticks), sidecar_in(endpoint)):
        if process is not None and start_ticks(process[0]) == process[1]:
            return False
    beat_age_s = page.beat_age_s(now_ns)  # 0: from an earlier boot
    if not endpoint and (_age_s(path) < _COMING_S or 0 < beat_age_s < _COMING_S):
        return False  # it died at once: its sidecar may still be starting
    if is_elsewhere(endpoint) and 0 < beat_age_s < _BEATLESS_S:
        return False
    return not _is_held(path)


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0
