"""What reaches a fleet: byte-level pass-throughs that note every request line that goes in.

Nothing is changed but one word: the address in a rank's registration becomes that of a
pass-through before it, so that the monitor comes to the rank by way of it.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from lightkeeper.worker_server.wire import PATH_REGISTER

UNREADABLE = "UNREADABLE"


@dataclass
class Requests:
    """One connection's bytes, client to server, as request lines."""

    data: bytes = b""
    lost: bool = False

    def feed(self, data: bytes) -> Iterator[str]:
        """Requests whose head has come as a whole; their bodies are skipped."""
        self.data += data
        while not self.lost and b"\r\n\r\n" in self.data:
            head, _, rest = self.data.partition(b"\r\n\r\n")
            line, *fields = head.decode("latin-1").split("\r\n")
            named = {
                k.lower(): v.strip() for k, _, v in (header.partition(":") for header in fields)
            }
            length = named.get("content-length", "0")
            if "transfer-encoding" in named or not length.isdecimal():
                self.lost = True
                yield f"{UNREADABLE} {line}"
                return
            if len(rest) < int(length):
                return
            self.data = rest[int(length) :]
            method, path, *_ = line.split(" ")
            yield f"{method} {path.partition('?')[0]}"


class Recorder:
    """Pass-throughs on one event loop of their own. Close it when done."""

    def __init__(self) -> None:
        self.asked: dict[str, list[str]] = {}
        """What each server was asked for, by the name given to it."""
        self.fronts: dict[str, str] = {}
        """Real address -> that of its pass-through."""
        self._loop = asyncio.new_event_loop()
        self._servers: list[asyncio.Server] = []
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def front(self, name: str, url: str) -> str:
        """The URL by which to reach the server at `url`."""
        if url not in self.fronts:
            work = asyncio.run_coroutine_threadsafe(self._front(name, url), self._loop)
            self.fronts[url] = f"http://127.0.0.1:{work.result(10)}"
        return self.fronts[url]

    def ports(self) -> set[int]:
        """Where the pass-throughs listen."""
        return {urlsplit(url).port or 0 for url in self.fronts.values()}

    async def _front(self, name: str, url: str) -> int:
        to, noted = urlsplit(url), self.asked.setdefault(name, [])

        async def through(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                back, on = await asyncio.open_connection(to.hostname, to.port)
            except OSError:
                writer.close()
                return
            requests = Requests()

            def note(data: bytes) -> None:
                noted.extend(requests.feed(data))

            await asyncio.gather(_pump(reader, on, note), _pump(back, writer, lambda _: None))

        server = await asyncio.start_server(through, "127.0.0.1", 0)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """End all of it."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, note: Any) -> None:
    try:
        while data := await reader.read(1 << 16):
            note(data)
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        with suppress(OSError, RuntimeError):
            writer.close()


@dataclass
class Registry:
    """Stands before the monitor: what ranks and launchers ask goes on to it as it is, but for the
    addresses under which ranks want to be asked."""

    monitor: str
    recorder: Recorder
    url: str = field(init=False)

    def __post_init__(self) -> None:
        registry, to = self, urlsplit(self.monitor).netloc

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.command == "POST" and self.path == PATH_REGISTER:
                    registration = json.loads(body)
                    who = registration["identity"]
                    rank = f"{who['group']}.{who['group_rank']}"
                    registration["url"] = registry.recorder.front(rank, registration["url"])
                    body = json.dumps(registration).encode()
                kept = {k: v for k, v in self.headers.items() if k == "Authorization"}
                onward = HTTPConnection(to, timeout=5)
                try:
                    onward.request(self.command, self.path, body, kept)
                    answer = onward.getresponse()
                    status, said = answer.status, answer.read()
                except OSError:
                    self.close_connection = True
                    return
                finally:
                    onward.close()
                with suppress(OSError):
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(said)))
                    self.end_headers()
                    self.wfile.write(said)

            do_POST = do_DELETE = do_GET  # noqa: N815

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)
