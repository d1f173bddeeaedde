"""What the environment says of the sidecar; who the rank is stands in `identity`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


class SettingError(ValueError):
    """A variable that cannot be understood; the message names it."""


def _whole(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name) or str(default)
    try:
        return int(text)
    except ValueError as exc:
        raise SettingError(f"{name}={text!r} is not a whole number") from exc


def _seconds(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name) or str(default)
    try:
        value = float(text)
    except ValueError as exc:
        raise SettingError(f"{name}={text!r} is not a number of seconds") from exc
    if not 0 <= value < 1e9:
        raise SettingError(f"{name}={text!r} is not a number of seconds >= 0")
    return value


@dataclass(frozen=True, slots=True)
class Settings:
    """What the sidecar is to do."""

    bind: str = "127.0.0.1"
    port: int = 0
    """0: one that the kernel picks."""
    linger_s: float = 120.0
    """How long a dead rank's endpoints go on answering. Longer keeps evidence for people who
    come late; shorter frees the memory (about 30 MB) of hosts that restart ranks often."""
    monitor: str | None = None
    token: str | None = field(default=None, repr=False)

    @classmethod
    def from_environ(cls, environ: Mapping[str, str], group_rank: int) -> Settings:
        """Settings by LIGHTKEEPER_*.

        Raises:
            SettingError: a variable makes no sense, or the token file cannot be read.
        """
        base = _whole(environ, "LIGHTKEEPER_PORT_BASE", 0)
        port = base + group_rank if base else 0
        if not 0 <= port < 65536:
            raise SettingError(f"LIGHTKEEPER_PORT_BASE={base} leads to port {port}")
        monitor = environ.get("LIGHTKEEPER_MONITOR") or None
        if monitor is not None and not monitor.startswith(("http://", "https://")):
            raise SettingError(f"LIGHTKEEPER_MONITOR={monitor!r} is not http(s)://host:port")
        return cls(
            bind=environ.get("LIGHTKEEPER_BIND") or "127.0.0.1",
            port=port,
            linger_s=_seconds(environ, "LIGHTKEEPER_LINGER_S", 120.0),
            monitor=monitor,
            token=_token(environ),
        )


def _token(environ: Mapping[str, str]) -> str | None:
    path = environ.get("LIGHTKEEPER_TOKEN_FILE")
    if not path:
        return environ.get("LIGHTKEEPER_TOKEN") or None
    try:
        return Path(path).read_text(encoding="utf-8").strip() or None
    except (OSError, ValueError) as exc:
        raise SettingError(f"LIGHTKEEPER_TOKEN_FILE={path}: {exc}") from exc
