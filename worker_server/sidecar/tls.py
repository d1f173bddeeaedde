"""TLS inside waitress's own loop: the handshake is a part of the first request's time.

Waitress has no TLS. A front that relays (stunnel, an asyncio thread) would need limits and
deadlines of its own, a second socket for each connection, and would hide the client's address.
Here each connection is an SSL socket that never blocks: `recv` does the handshake by the way, and
whatever OpenSSL cannot do yet is tried again when the socket is ready. So `http_server` holds for
TLS as it is. OpenSSL's objects are not made for two threads, and waitress reads in its main thread
and writes in its workers: a lock for each connection.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from pathlib import Path
from typing import Any, Final

from worker_server.http_server import Channel, PatientServer

_RECORD_BYTES: Final = 16 * 1024
"""The most that one TLS record holds: reading so much leaves nothing behind in OpenSSL, of which
poll() knows nothing."""
_NOT_YET: Final = (ssl.SSLWantReadError, ssl.SSLWantWriteError)


class TlsError(Exception):
    """The certificate or the key cannot be used; the message says which file and why."""


def server_context(cert: Path, key: Path) -> ssl.SSLContext:
    """TLS 1.2 or newer with this certificate.

    Raises:
        TlsError: the files are no certificate and key that belong together.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # each would cost as much as a handshake
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except (OSError, ValueError) as exc:  # ssl.SSLError is an OSError
        files = f"LIGHTKEEPER_TLS_CERT={cert}, LIGHTKEEPER_TLS_KEY={key}"
        raise TlsError(f"{files}: not a certificate and its key, in PEM: {exc}") from exc
    return context


def _no_password() -> str:
    raise ValueError("the key is encrypted: give one without a password")


class TlsChannel(Channel):
    """One TLS connection; `tls_channel` gives the class its context."""

    context: ssl.SSLContext

    def __init__(self, server: PatientServer, sock: socket.socket, *args: Any, **kw: Any) -> None:
        self._tls = threading.Lock()
        self._wants_write = False
        sock.setblocking(False)
        wrapped = self.context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        super().__init__(server, wrapped, *args, **kw)

    def writable(self) -> bool:
        """Whether to be called when the socket takes bytes."""
        return self._wants_write or bool(super().writable())

    def handle_write(self) -> None:
        """The socket takes bytes: a handshake may want that too."""
        if self._wants_write:
            self.handle_read()
        if super().writable():
            super().handle_write()

    def handle_read(self) -> None:
        """Bytes have come: of a handshake, or of a request."""
        self._wants_write = False
        try:
            with self._tls:
                data = self.socket.recv(_RECORD_BYTES)
        except _NOT_YET as exc:
            self._wants_write = isinstance(exc, ssl.SSLWantWriteError)
        except OSError:  # a bad handshake, or the client is gone
            self.handle_close()
        else:
            if data:
                self.received(data)
            else:
                self.handle_close()

    def send(self, data: bytes, do_close: bool = True) -> int:
        """Send what OpenSSL takes; it wants the same bytes again after a refusal, and gets them:
        waitress forgets only what was sent.
        """
        try:
            with self._tls:
                sent = self.socket.send(data)
        except _NOT_YET:
            return 0
        except OSError:
            if do_close:
                self.handle_close()
            else:
                self.will_close = True
            return 0
        self.note_sent()
        return int(sent)

    def handle_close(self) -> None:
        """Say goodbye as TLS wants it, without waiting for the other side's.

        A client that breaks off is closed twice: what it left is to be read, and it hung up.
        """
        sock = self.socket
        if sock is not None:
            with contextlib.suppress(OSError, ValueError), self._tls:
                sock.unwrap()
        super().handle_close()


def tls_channel(context: ssl.SSLContext) -> type[Channel]:
    """The class of connections that speak TLS with this context."""
    return type("OurTlsChannel", (TlsChannel,), {"context": context})
