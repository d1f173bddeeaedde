"""Defaults that one user's commands and ranks on a host share: the monitor's address and the token.

The token is in the user's state folder. `lightkeeper monitor` creates it, everything else reads it.
A file that others can read, or could have written, is no secret and is refused.

Any user can listen on the default address first, and would receive the token. So the token is sent
to the default address only while the kernel says that a process of this user, or of root, has the
port. An address that was set explicitly is trusted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import ssl

    import requests

DEFAULT_PORT: Final = 8470
DEFAULT_MONITOR: Final = f"http://127.0.0.1:{DEFAULT_PORT}"
"""Where `lightkeeper monitor` listens, and where ranks and commands look, by default."""

_LOOPBACK: Final = ("0100007F", "0" * 8, "0" * 32, "0000000000000000FFFF00000100007F")
"""Local addresses there that accept connections to 127.0.0.1."""
_PIPE_MS: Final = 1000
_LISTENS: Final = "0A"
"""TCP_LISTEN in /proc/net/tcp."""


VARIABLES: Final = frozenset(
    f"LIGHTKEEPER_{name}"
    for name in (  # noqa: SIM905  one a line would be a page
        "ADMISSION ASK_AGAIN ATTACH BIND CA_FILE CLOSED_READS FINGERPRINT_EVERY GATE GRADIENTS "
        "GROUP_TOKENS HOST HOST_PORT JOB KUBE_CONTEXT KUBE_FORCE LAUNCH LINGER_S LOG_FORMAT "
        "LOG_LEVEL MACHINE MEND_TORCHFT MONITOR NOTIFY_ALERTMANAGER_AUTH "
        "NOTIFY_ALERTMANAGER_AUTH_FILE NOTIFY_WEBHOOK_SECRET NOTIFY_WEBHOOK_SECRET_FILE "
        "OPEN_READS PLACE PORT_BASE PRIMUS_SAFE PROMETHEUS PROMETHEUS_AUTH PROMETHEUS_AUTH_FILE "
        "PUBLIC_URL RUN RUN_DIR SCHEDULERS SCHEDULER_CA_FILE SCHEDULER_NAME "
        "SCHEDULER_WEBHOOK_SECRET SLURM_REMOVAL STORE TLS_CERT TLS_KEY TOKEN TOKEN_FILE TORCH"
    ).split()
)
"""Every variable that ranks, commands and launchers read."""
_NEAR: Final = 0.93
"""Matches one missing, extra or swapped letter, but not another program's variable."""


def ask(method: str, url: str, **more: Any) -> requests.Response:
    """As `requests.request`, for what carries a token: past every proxy, without .netrc, and a
    redirect is an answer. Authorities to trust may still come from REQUESTS_CA_BUNDLE.
    """
    import requests  # noqa: PLC0415  ranks do without

    bundle = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or True
    with requests.Session() as session:
        session.trust_env = False
        return session.request(method, url, allow_redirects=False, verify=bundle, **more)


def request(
    method: str, url: str, within_s: float, *, body: bytes | None = None,
    headers: Mapping[str, str] | None = None, context: ssl.SSLContext | None = None,
) -> tuple[int, bytes]:  # fmt: skip
    """Status and the first 64 KiB of an answer, by the standard library: no proxy, no redirect.

    Raises:
        OSError, http.client.HTTPException, ValueError: there is no answer.
    """
    from http import client  # noqa: PLC0415  ranks do without

    parts, connection = urlsplit(url), None
    if parts.scheme == "https":
        connection = client.HTTPSConnection(parts.netloc, timeout=within_s, context=context)
    with contextlib.closing(
        connection or client.HTTPConnection(parts.netloc, timeout=within_s)
    ) as link:
        link.request(method, url.partition(parts.netloc)[2], body, dict(headers or {}))
        answer = link.getresponse()
        return answer.status, answer.read(64 * 1024)


def open_file(path: Path) -> BinaryIO:
    """Open a file for reading; a pipe or a device may never end, or never begin.

    Raises:
        OSError: it cannot be read, or is no file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return open(fd, "rb")
    os.close(fd)
    raise OSError(errno.EINVAL, "no regular file (a pipe or a device may never end)")


def misspelt(environ: Mapping[str, str]) -> str:
    """A warning about variables that look like ours but that nothing reads; empty: none."""
    unread = sorted(name for name in environ if name.startswith("LIGHT") and name not in VARIABLES)
    if not unread:
        return ""
    from difflib import get_close_matches  # noqa: PLC0415  ranks seldom need it

    similar = {name: get_close_matches(name, sorted(VARIABLES), 1, _NEAR) for name in unread}
    suggestions = [f"{name} (did you mean {names[0]}?)" for name, names in similar.items() if names]
    return f"nothing reads {', '.join(suggestions)}" if suggestions else ""


class TokenFileError(ValueError):
    """The file is not safe for a secret, or holds none; the message is one line with a remedy."""


def state_folder(environ: Mapping[str, str]) -> Path:
    state = environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "lightkeeper"


def own_token_file(environ: Mapping[str, str]) -> Path | None:
    """Where this user's token is, or would be; None: a user without a home."""
    try:
        return state_folder(environ) / "token"
    except RuntimeError:
        return None


def is_open(status: os.stat_result) -> bool:
    """True if others can read or write a secret; its group may read (Kubernetes' fsGroup)."""
    return bool(status.st_mode & 0o027)


def read_token_file(path: Path) -> str:
    """The token in a file that this user or root owns and that is not open (`is_open`).

    Raises:
        TokenFileError: it is not such a file.
        OSError: it cannot be read.
    """
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb", 0) as file:
        status = os.fstat(file.fileno())
        if status.st_uid not in (os.geteuid(), 0):
            raise TokenFileError(
                f"{path} belongs to another user (uid {status.st_uid}): use a copy of your own"
            )
        if stat.S_ISREG(status.st_mode) and is_open(status):
            raise TokenFileError(f"{path} holds a token that others can read: chmod 600 {path}")
        waiting = select.poll()  # a pipe may have no writer
        waiting.register(file, select.POLLIN)
        waiting.poll(_PIPE_MS)
        content = file.read(4096) or b""
    try:
        token = content.decode("ascii").strip()
    except UnicodeDecodeError:
        token = ""
    if not token.isprintable() or not token or " " in token:
        raise TokenFileError(f"{path} does not hold one plain word")
    return token


def make_token_file(path: Path) -> str:
    """The token in this file, created if missing; of two processes that create it, one wins.

    Raises:
        TokenFileError: it cannot be created, or the file is not safe for a secret.
        OSError: it cannot be read.
    """
    with contextlib.suppress(FileNotFoundError):
        return read_token_file(path)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make(path)
    except OSError as exc:
        raise TokenFileError(f"cannot make {path}: {exc.strerror}") from exc
    return read_token_file(path)


def _make(path: Path) -> None:
    draft = path.with_name(f"token.{os.getpid()}.{os.urandom(4).hex()}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "w", encoding="ascii") as file:
            file.write(os.urandom(32).hex() + "\n")
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()


def find_token(
    environ: Mapping[str, str],
    file: Path | None = None,
    own: Callable[[Path], str] = read_token_file,
) -> str | None:
    """The token from this file, that of LIGHTKEEPER_TOKEN_FILE, the variable LIGHTKEEPER_TOKEN, or
    what `own` returns for the user's own file. Both variables set but empty: none.

    Raises:
        TokenFileError: what was named is no token; no message quotes any of it.
    """
    named = environ.get("LIGHTKEEPER_TOKEN_FILE")
    file = file or (Path(named) if named else None)
    try:
        if file is not None:
            return read_token_file(file)
        if is_named(environ):
            return _plain(environ.get("LIGHTKEEPER_TOKEN", ""))
        path = own_token_file(environ)
        return None if path is None else own(path)
    except FileNotFoundError as exc:
        if file is None:
            return None
        raise TokenFileError(f"cannot read {file}: {exc.strerror}") from exc
    except OSError as exc:
        raise TokenFileError(f"{exc.filename or file}: {exc.strerror}") from exc


def is_named(environ: Mapping[str, str]) -> bool:
    """True if a variable sets the token, or says that there is none."""
    return "LIGHTKEEPER_TOKEN_FILE" in environ or "LIGHTKEEPER_TOKEN" in environ


def _plain(text: str) -> str | None:
    """A token fit for a header: clients disagree on how to send non-ASCII text there."""
    token = text.strip()
    if not token.isascii() or not token.isprintable() or " " in token:
        raise TokenFileError("it is no token: expected one plain word")
    return token or None


def not_ours(net: Path = Path("/proc/net")) -> str | None:
    """Why the default address is not to be trusted; None: this user, or root, listens there."""
    rows = listening(DEFAULT_PORT, net)
    owners = {int(row[7]) for row in rows if row[1].partition(":")[0] in _LOOPBACK}
    if not owners:
        return "nobody listens there"
    strangers = owners - {os.geteuid(), 0}
    return f"uid {min(strangers)} listens there, not you" if strangers else None


def listening(port: int, net: Path) -> list[list[str]]:
    """The rows of /proc/net/tcp, in words, of the sockets that listen on this port."""
    rows: list[list[str]] = []
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            rows += map(str.split, (net / table).read_text(errors="replace").splitlines()[1:])
    listeners = (row for row in rows if len(row) > 9 and row[3] == _LISTENS)
    return [row for row in listeners if int(row[1].rpartition(":")[2], 16) == port]
