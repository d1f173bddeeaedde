"""`lightkeeper` under an audit hook of the interpreter: what it connects to, writes, starts, ends.

    python -m tests.integration.observed.audited LOG monitor --observe ...

Beside the recorder this says that there is no other way by which something reached the fleet.
SQLite writes its file in C: of it the opening alone is noted.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_LOOKS = frozenset({"os.listdir", "os.scandir", "os.walk", "os.fwalk", "os.add_dll_directory"})
_TOLD = ("os.", "subprocess.", "signal.", "sqlite3.connect", "shutil.", "pty.", "fcntl.")
_NETWORK = frozenset(
    {"socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg"}
)  # fmt: skip


def told(event: str, words: tuple[Any, ...]) -> bool:
    """Whether it may change something outside of this process."""
    if event == "open":
        return bool(words[2] & _WRITING)
    return event in _NETWORK or (event.startswith(_TOLD) and event not in _LOOKS)


def hook(log: int) -> Any:
    """For `sys.addaudithook`."""

    def note(event: str, words: tuple[Any, ...]) -> None:
        if told(event, words):
            said = [word if isinstance(word, (int, str)) else repr(word) for word in words]
            if event in _NETWORK:
                said = list(words[1][:2]) if isinstance(words[1], tuple) else [repr(words[1])]
            os.write(log, json.dumps([event, *said]).encode() + b"\n")

    return note


def main() -> None:
    """Put the hook in, and be `lightkeeper`."""
    log = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    from lightkeeper.monitor.cli import main as lightkeeper

    sys.dont_write_bytecode = True
    note = hook(log)
    sys.addaudithook(note)
    send = signal.pidfd_send_signal

    def sends(*words: Any) -> None:  # the interpreter audits every other way, not this one
        note("signal.pidfd_send_signal", words)
        send(*words)

    signal.pidfd_send_signal = sends
    sys.exit(lightkeeper(sys.argv[2:]))


if __name__ == "__main__":
    main()
