"""The connections of this rank's process groups, and their end on the monitor's order.

Theory of operation. Gloo opens one connection for each peer when a group is made, so the sockets
that appear while `configure` or `init_process_group` runs are that group's. They are known by inode
and file, and a file counts only while it is still that socket. When the monitor has seen that a
member of a quorum is gone (its host is lost, or it was evicted and its sockets stay open), the
others would wait for TorchFT's timeout. The monitor orders the end of that quorum's exchange: the
connections across replica groups are shut down, which gloo sees as a closed peer (0.2 ms for 5
ranks, 2026-11-28). TorchFT then does what it does after any error: vote no, new quorum. A listening
socket is never touched: gloo ends the process if accept fails. Other backends have `abort`, which
is what TorchFT itself calls at its timeout; gloo's `abort` does nothing.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

from lightkeeper.worker_server.rank import gentle_end
from lightkeeper.worker_server.run_dir import RankFiles, read_json, sockets, write_json

JOINING: Final = "joining"
WITHIN: Final = "within"
ACROSS: Final = "across"
_NOTED_MOST: Final = 256

Sockets = dict[int, int]
"""Inode -> file descriptor."""

_within: Sockets = {}
_across: dict[int, tuple[Callable[[], Any], Sockets, str]] = {}
"""By the id of a group across replica groups: the group, its sockets, its store's port."""
_files: RankFiles | None = None
_obeyed: object = None
"""The last order's id."""


def install(files: RankFiles) -> None:
    """Publish sockets to these files from now on."""
    global _files  # noqa: PLW0603  the wrappers outlive any one attach
    _within.clear()
    _across.clear()
    _files = files


def obey() -> None:
    """A chore of the beat: carry an order out, once, in a thread of its own; `abort` may block."""
    global _obeyed  # noqa: PLW0603
    order = read_json(_files.order) if _files is not None and _files.order.exists() else {}
    if order and order.get("id") != _obeyed:
        _obeyed = order.get("id")
        threading.Thread(target=_obey, args=(_files, order), daemon=True).start()


def _obey(files: RankFiles, order: Mapping[str, Any]) -> None:
    if "park" in order:
        park, wait_s = order["park"] is True, float(order.get("wait_s", 0.0))
        ended, said = 0, gentle_end.end(park=park, wait_s=wait_s)
    elif "shut" in order:
        ended, said = shut(order["shut"] or ())
    else:
        ended, said = end_exchange(order.get("quorum_id"), order.get("addresses") or ())
    with contextlib.suppress(OSError):
        write_json(files.answer, {"id": order.get("id"), "ended": ended, "said": said})


@contextlib.contextmanager
def opening_within() -> Iterator[None]:
    """What is opened in here belongs to a group of the rank's own replica group."""
    before = sockets()
    yield
    with contextlib.suppress(Exception):
        _within.update(_new(before))
        _publish()


@contextlib.contextmanager
def opening_across(group: Any, store: str) -> Iterator[None]:
    """What is opened in here belongs to this group across replica groups; `store`: HOST:PORT/..."""
    before = sockets()
    with contextlib.suppress(Exception):
        _publish(joining=store.partition("/")[0])
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):
            _publish()  # it joins no longer
        raise
    with contextlib.suppress(Exception):  # a group of the user's own may be any object
        port = store.partition("/")[0].rpartition(":")[2]
        for key in [key for key, (alive, *_) in _across.items() if alive() is None]:
            del _across[key]
        _across[id(group)] = weakref.ref(group), _new(before), port
        _publish()


def _new(before: Sockets) -> Sockets:
    return {inode: file for inode, file in sockets().items() if inode not in before}


def _publish(joining: str = "") -> None:
    """`joining`: the store to which a group connects now, HOST:PORT."""
    uses = dict.fromkeys(list(_within)[-_NOTED_MOST:], WITHIN)
    for _, opened, _ in _across.values():
        uses |= dict.fromkeys(list(opened)[:_NOTED_MOST], ACROSS)
    if _files is not None:
        with contextlib.suppress(OSError):
            named = {str(inode): use for inode, use in uses.items()}
            write_json(_files.sockets, {**named, **({JOINING: joining} if joining else {})})


def end_exchange(quorum: object, addresses: Collection[object]) -> tuple[int, str]:
    """End this quorum's exchange with other replica groups.

    Args:
        quorum: id; nothing is ended in any other.
        addresses: of the job's hosts; a connection to another address is none of the group's.

    Returns:
        How many connections were ended, and what was done in words. Never raises.
    """
    now = gentle_end.groups_now()
    groups = [group for group, configured_for in now if configured_for == quorum]
    if not groups:
        return 0, f"it is in quorum {quorum} no longer"
    ended, aborted = 0, []
    for group in groups:
        backend = _backend(group)
        if "gloo" in backend and "baby" not in backend:
            _, opened, port = _across.get(id(group), (None, Sockets(), ""))
            ended += sum(_shut(inode, file, port, addresses) for inode, file in opened.items())
        else:
            try:
                group.abort()
                aborted.append(backend)
            except Exception as exc:  # noqa: BLE001  TorchFT waits for its timeout, as without us
                return ended, f"abort failed: {exc!r}"
    if aborted:
        return ended + len(aborted), f"aborted its {aborted[0]} group"
    return ended, f"ended {ended} connection{'s' * (ended != 1)}"


def shut(inodes: Collection[object]) -> tuple[int, str]:
    """Shut these sockets, whatever they are for; one that still connects gives up.

    Returns:
        How many, and what was done in words. Never raises.
    """
    ended = sum(_shut(inode, file) for inode, file in sockets().items() if inode in inodes)
    return ended, f"shut {ended} connection{'s' * (ended != 1)}"


def _backend(group: Any) -> str:
    try:
        return str(group.getBackendName()).lower()
    except Exception:  # noqa: BLE001  a user's own group may have none
        return "unknown"


def _shut(
    inode: int, file: int, store_port: str = "", addresses: Collection[object] | None = None
) -> bool:
    """Shut a connection that is still that socket, to a peer of the job at these addresses."""
    try:
        if os.fstat(file).st_ino != inode:
            return False
        copy = socket.socket(fileno=os.dup(file))
    except OSError:
        return False
    with copy:
        try:
            same = os.fstat(copy.fileno()).st_ino == inode
            if not same or copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                return False
            if addresses is not None:
                address, port, *_ = copy.getpeername()
                if str(port) == store_port or address.removeprefix("::ffff:") not in addresses:
                    return False
            copy.shutdown(socket.SHUT_RDWR)
        except OSError:
            return False
    return True
