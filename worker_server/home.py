"""What commands and ranks of one user on one host find without being told: the monitor's address
and the token.

The token lies in the user's state folder. `lightkeeper monitor` makes it, everything else reads it:
a file that others can read, or could have written, is no secret and is refused.

Whoever is first may listen on the default address, and a token goes to whoever listens. So it goes
to the default address only while the kernel says that a process of this user, or of root, has the
port. An address that somebody named is taken at their word.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

DEFAULT_PORT: Final = 8470
DEFAULT_MONITOR: Final = f"http://127.0.0.1:{DEFAULT_PORT}"
"""Where `lightkeeper monitor` listens, and where ranks and commands look, when nobody says."""

_LOOPBACK: Final = ("0100007F", "0" * 8, "0" * 32, "0000000000000000FFFF00000100007F")
"""Local addresses there that take what is sent to 127.0.0.1."""
_LISTENS: Final = "0A"
"""TCP_LISTEN in /proc/net/tcp."""


VARIABLES: Final = frozenset(
    f"LIGHTKEEPER_{name}"
    for name in (  # noqa: SIM905  one a line would be a page
        "ADMISSION ATTACH AUDIT_LOG BIND CA_FILE CLOSED_READS FINGERPRINT_EVERY GATE GRADIENTS "
        "GROUP_TOKENS HOST HOST_PORT JOB KUBE_CONTEXT KUBE_FORCE KUBE_GRACE_S LAUNCH LINGER_S "
        "MONITOR NOTIFY_ALERTMANAGER_AUTH NOTIFY_ALERTMANAGER_AUTH_FILE NOTIFY_SLACK "
        "NOTIFY_SLACK_FILE NOTIFY_WEBHOOK_SECRET NOTIFY_WEBHOOK_SECRET_FILE OPEN_READS PLACE "
        "PORT_BASE PRIMUS_SAFE PUBLIC_URL RUN_DIR SCHEDULERS SCHEDULER_CA_FILE SCHEDULER_NAME "
        "SCHEDULER_WEBHOOK_SECRET SLURM_REMOVAL STORE TLS_CERT TLS_KEY TOKEN TOKEN_FILE TORCH"
    ).split()
)
"""All that ranks, commands and launchers read."""
_NEAR: Final = 0.93
"""One letter that is missing, too many or swapped; not what another program calls its own."""


def misspelt(environ: Mapping[str, str]) -> str:
    """What to say of variables that nobody reads and that look like ours; empty: there are none."""
    unread = sorted(name for name in environ if name.startswith("LIGHT") and name not in VARIABLES)
    if not unread:
        return ""
    from difflib import get_close_matches  # noqa: PLC0415  ranks seldom need it

    similar = {name: get_close_matches(name, sorted(VARIABLES), 1, _NEAR) for name in unread}
    suggestions = [f"{name} (did you mean {names[0]}?)" for name, names in similar.items() if names]
    return f"nothing reads {', '.join(suggestions)}" if suggestions else ""


class TokenFileError(ValueError):
    """The file is no place for a secret, or holds none; the message is one line with a remedy."""


def state_folder(environ: Mapping[str, str]) -> Path:
    """Of this user."""
    state = environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "lightkeeper"


def own_token_file(environ: Mapping[str, str]) -> Path | None:
    """Where this user's token lies, or would; None: a user without a home."""
    try:
        return state_folder(environ) / "token"
    except RuntimeError:
        return None


def read_token_file(path: Path) -> str:
    """The token in a file that this user or root owns and others can neither read nor write. Its
    group may read it: Kubernetes gives volumes one (fsGroup).

    Raises:
        TokenFileError: it is none.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        if status.st_uid not in (os.geteuid(), 0):
            raise TokenFileError(
                f"{path} belongs to another user (uid {status.st_uid}): use a copy of your own"
            )
        if stat.S_ISREG(status.st_mode) and status.st_mode & 0o027:
            raise TokenFileError(f"{path} holds a token that others can read: chmod 600 {path}")
        content = file.read(4096)
    try:
        token = content.decode("ascii").strip()
    except UnicodeDecodeError:
        token = ""
    if not token.isprintable() or not token or " " in token:
        raise TokenFileError(f"{path} does not hold one plain word")
    return token


def make_token_file(path: Path) -> str:
    """The token in this file, which is made where there is none; of two who make it one wins.

    Raises:
        TokenFileError: it cannot be made, or what is there is no place for a secret.
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
    draft = path.with_name(f"token.{os.getpid()}.{secrets.token_hex(4)}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32) + "\n")
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()


def find_token(
    environ: Mapping[str, str],
    file: Path | None = None,
    own: Callable[[Path], str] = read_token_file,
) -> str | None:
    """From this file, the one that LIGHTKEEPER_TOKEN_FILE names, the variable LIGHTKEEPER_TOKEN, or
    what `own` gives for the user's own file. Both variables empty: none.

    Raises:
        TokenFileError: what was named is no token; no message has a part of it.
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
    """Whether the variables say which token, or that there is none."""
    return "LIGHTKEEPER_TOKEN_FILE" in environ or "LIGHTKEEPER_TOKEN" in environ


def _plain(text: str) -> str | None:
    """What travels in a header: clients do not agree on how to send anything but ASCII there."""
    token = text.strip()
    if not token.isascii() or not token.isprintable() or " " in token:
        raise TokenFileError("it is no token: expected one plain word")
    return token or None


def not_ours(net: Path = Path("/proc/net")) -> str | None:
    """Why the default address is not to be talked to; None: this user, or root, listens there."""
    owners = set[int]()
    for table in ("tcp", "tcp6"):
        try:
            lines = (net / table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for words in map(str.split, lines):
            address, _, port = words[1].partition(":")
            is_default = address in _LOOPBACK and int(port, 16) == DEFAULT_PORT
            if is_default and words[3] == _LISTENS:
                owners.add(int(words[7]))
    if not owners:
        return "nobody listens there"
    strangers = owners - {os.geteuid(), 0}
    return f"uid {min(strangers)} listens there, not you" if strangers else None
