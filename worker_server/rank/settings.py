"""Settings of the sidecar from the environment; the rank's identity is in `identity`."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from msgspec import Meta, ValidationError, convert

from lightkeeper.worker_server import home

LOOPBACK = "127.0.0.1"
QUORUM_RETRIES = "TORCHFT_QUORUM_RETRIES"


class SettingError(ValueError):
    """A variable with an invalid value; the message names it."""


_Port = Annotated[int, Meta(ge=0, lt=65536)]
_Flag = Literal["0", "1"]
_Seconds = Annotated[float, Meta(ge=0, lt=1e9)]
_READ_BY: Final[Mapping[Any, tuple[Callable[[str], object], str]]] = {
    int: (int, "a whole number"),
    _Port: (int, "a port, 0 to 65535"),
    _Flag: (str, "0 or 1"),
    _Seconds: (float, "a number of seconds >= 0"),
}


def read_setting(environ: Mapping[str, str], name: str, kind: Any, usual: Any = 0) -> Any:
    """The variable's value; the usual one if it is not set, or empty.

    Raises:
        SettingError: it is not of this kind.
    """
    text, (read, expected) = environ.get(name, "").strip(), _READ_BY[kind]
    try:
        return convert(read(text), kind) if text else usual
    except (ValueError, ValidationError) as exc:
        raise SettingError(f"{name}={text!r} is not {expected}") from exc


@dataclass(frozen=True, slots=True)
class Settings:
    bind: str = LOOPBACK
    port: int = 0
    """0: the kernel picks one."""
    linger_s: float = 120.0
    """How long a dead rank's endpoints still answer. Longer keeps evidence for people who look
    late; shorter frees the memory (about 30 MB) of hosts that restart ranks often."""
    monitors: tuple[str, ...] = ()
    """In the order they are asked."""
    unnamed: bool = False
    """True if `monitors` is the default, none being set: only this user's own gets the token."""
    token: str | None = field(default=None, repr=False)
    no_token: str = ""
    """Why the user's own token file is unusable; empty: nothing is wrong with it."""
    host_port: int = 0
    """Where `/v1/host` is served, whichever ranks the host has; 0: nowhere. One sidecar of the host
    has this port at a time, in addition to its own."""
    open_reads: bool = False
    """True if reading needs no token even if other machines can reach the port."""
    closed_reads: bool = False
    """True if reading needs the token even on loopback: others have accounts on this machine."""
    tls_cert: Path | None = None
    """Certificate chain (PEM); if set, with `tls_key`, the server speaks only TLS."""
    tls_key: Path | None = None
    machine: bool = True
    """True if a process beside the sidecars hears the host's witnesses."""

    @property
    def scheme(self) -> str:
        return "http" if self.tls_cert is None else "https"

    @property
    def loopback(self) -> bool:
        """True if only this machine can reach the server."""
        if self.bind == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.bind).is_loopback
        except ValueError:
            return False

    @classmethod
    def from_environ(cls, environ: Mapping[str, str], group_rank: int) -> Settings:
        """Settings from LIGHTKEEPER_*.

        Raises:
            SettingError: a variable is invalid, or the token file cannot be read.
        """
        try:
            monitors = monitors_of(monitors_in(environ))
        except SettingError as exc:
            raise SettingError(f"LIGHTKEEPER_MONITOR: {exc}") from exc
        cert, key = _tls(environ)
        base = read_setting(environ, "LIGHTKEEPER_PORT_BASE", _Port)
        if base + group_rank >= 65536:
            raise SettingError(f"LIGHTKEEPER_PORT_BASE={base} leads to port {base + group_rank}")
        open_reads = read_setting(environ, "LIGHTKEEPER_OPEN_READS", _Flag) == "1"
        token, no_token = _token(environ)
        closed_reads = read_setting(environ, "LIGHTKEEPER_CLOSED_READS", _Flag) == "1"
        if closed_reads and (open_reads or token is None):
            raise SettingError(
                "LIGHTKEEPER_CLOSED_READS=1 needs LIGHTKEEPER_TOKEN_FILE, and no "
                "LIGHTKEEPER_OPEN_READS=1"
            )
        return cls(
            bind=environ.get("LIGHTKEEPER_BIND") or LOOPBACK,
            port=base and base + group_rank,
            linger_s=read_setting(environ, "LIGHTKEEPER_LINGER_S", _Seconds, 120.0),
            monitors=monitors,
            unnamed="LIGHTKEEPER_MONITOR" not in environ,
            token=token,
            no_token=no_token,
            host_port=read_setting(environ, "LIGHTKEEPER_HOST_PORT", _Port),
            open_reads=open_reads,
            closed_reads=closed_reads,
            tls_cert=cert,
            tls_key=key,
            machine=read_setting(environ, "LIGHTKEEPER_MACHINE", _Flag, "1") == "1",
        )


def monitors_in(environ: Mapping[str, str]) -> str:
    """The configured monitors: none if the variable is empty, the default if it is unset."""
    return environ.get("LIGHTKEEPER_MONITOR", home.DEFAULT_MONITOR)


def monitors_of(text: str) -> tuple[str, ...]:
    """The monitors of `URL` or `URL,URL`; a standby receives the same reports.

    Raises:
        SettingError: one is not an address.
    """
    urls = tuple(part.strip().rstrip("/") for part in text.split(",") if part.strip())
    for url in urls:
        try:
            parts = urlsplit(url)
            good = parts.scheme in ("http", "https") and bool(parts.hostname)
            good = good and (parts.port is None or parts.port > 0)
        except ValueError:
            good = False
        if not good:
            raise SettingError(f"{url!r} is no monitor's address, expected http://HOST:PORT[,URL]")
    return urls


def _tls(environ: Mapping[str, str]) -> tuple[Path | None, Path | None]:
    """Certificate and key: both or none, both readable. The sidecar checks what they hold."""
    paths = []
    names = ("LIGHTKEEPER_TLS_CERT", "LIGHTKEEPER_TLS_KEY")
    for name, other in zip(names, reversed(names), strict=True):
        text = environ.get(name, "").strip()
        if text and not environ.get(other):
            raise SettingError(f"{name} is set and {other} is not: TLS needs both")
        if text and not os.access(text, os.R_OK):
            raise SettingError(f"{name}={text}: no such file, or it cannot be read")
        paths.append(Path(text) if text else None)
    return paths[0], paths[1]


_FILES = ("LIGHTKEEPER_TOKEN_FILE", "LIGHTKEEPER_TLS_CERT", "LIGHTKEEPER_TLS_KEY")


def for_sidecar(environ: Mapping[str, str]) -> dict[str, str]:
    """The rank's environment with absolute paths: its sidecar works in another folder."""
    files = {name: str(Path(environ[name]).absolute()) for name in _FILES if environ.get(name)}
    return {**environ, **files}


def _token(environ: Mapping[str, str]) -> tuple[str | None, str]:
    """The token, or why the user's own file gives none."""
    try:
        return home.find_token(environ), ""
    except home.TokenFileError as exc:
        if home.is_named(environ):
            name = "LIGHTKEEPER_TOKEN"
            name += "_FILE" if environ.get("LIGHTKEEPER_TOKEN_FILE") else ""
            raise SettingError(f"{name}: {exc}") from exc
        return None, str(exc)
