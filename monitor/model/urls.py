"""Addresses as people write them, and what is shown of a URL that may hold a secret. Pure."""

from __future__ import annotations

from urllib.parse import urlsplit


def host_and_port(text: str) -> tuple[str, int] | None:
    """Of `HOST:PORT` or `[V6]:PORT`; None: it is no such address."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        return None
    return host, int(port)


def shown_url(url: str) -> str:
    """Scheme, host and port: what stands behind them may be the secret."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}" + ("" if parts.port is None else f":{parts.port}")


def without_secrets(url: str, text: str) -> str:
    """A text in which nothing of a URL stands but its host."""
    parts = urlsplit(url)
    clean = text.replace(url, shown_url(url))
    for secret in (parts.path, parts.query, parts.password or ""):
        clean = clean.replace(secret, "...") if len(secret) > 1 else clean
    return clean
