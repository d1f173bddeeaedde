"""The one line that a training script adds: `reporter = worker_server.attach()`.

Order matters: the page first (whatever fails later, it tells), then the sidecar, then the
beat thread, then what needs torch. Every failure ends in one warning and a working training.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from worker_server import control_plane, frames, last_words, profile, run_dir, wire
from worker_server.beat import Beat
from worker_server.companion import Companion
from worker_server.complaint import complain
from worker_server.environment import Settings
from worker_server.identity import POD, identity_from
from worker_server.integrations.compiler import declare_compilations
from worker_server.page import layout
from worker_server.page.writer import PageWriter
from worker_server.reporter import NullReporter, Reporter, StepReporter
from worker_server.torch_hook import when_torch

_attached: StepReporter | None = None


def attach(told: Mapping[str, str] | None = None) -> StepReporter:
    """Report this process as a rank, and start its WorkerServer beside it.

    Never raises and never waits for the sidecar. Calling it again gives the same reporter.
    `told` wins over the environment. `LIGHTKEEPER=0` in the environment switches it off.

    Raises:
        SystemExit: only with `LIGHTKEEPER_ADMISSION=refuse`, where the monitor refuses this host.
    """
    global _attached  # noqa: PLW0603  one process is one rank
    if _attached is not None:
        return _attached
    if os.environ.get("LIGHTKEEPER") == "0":
        _attached = NullReporter()
        return _attached
    environ = {**os.environ, **(told or {})}
    if (environ.get("LIGHTKEEPER_ADMISSION") or "off") != "off":
        from worker_server.joining import ask_to_join  # noqa: PLC0415  few ask, and it imports http

        ask_to_join(environ, _warn)
    try:
        _attached = _attach(environ)
    except Exception as exc:  # noqa: BLE001  training goes on without us
        _attached = NullReporter()
        _warn(f"lightkeeper is not attached: {exc!r}")
    return _attached


def _attach(environ: Mapping[str, str]) -> Reporter:
    identity = identity_from(environ, os.getpid(), os.urandom(5).hex())
    Settings.from_environ(environ, identity.group_rank)  # a bad setting is better said here
    files, page = run_dir.first_usable(
        run_dir.candidates(environ), lambda folder: _new_page(folder, identity), _warn
    )
    _say_what_is_missing(identity, environ)
    try:
        companion = Companion(files)
    except Exception:
        files.remove()  # a page that nobody serves
        raise
    reporter = Reporter(page, _UrlOf(files))
    _leave_last_words(page, files)
    end = _start_beat(page, files, companion, lambda: _say_refusal(reporter, files))
    os.register_at_fork(after_in_child=lambda: _forget(reporter, end))
    if environ.get("LIGHTKEEPER_TORCH") == "0":
        return reporter
    try:
        when_torch(lambda: _distributed(reporter, files))
    except Exception as exc:  # noqa: BLE001  steps are worth reporting without torch's part
        _warn(f"lightkeeper sees no collectives: {exc!r}")
    return reporter


def _new_page(folder: Path, identity: wire.Identity) -> tuple[run_dir.RankFiles, PageWriter]:
    files = run_dir.RankFiles.of(folder, identity.rank, identity.incarnation)
    page = PageWriter.create(files.page, identity, run_dir.start_ticks(os.getpid()) or 0)
    try:
        run_dir.check_room(folder)
    except OSError:
        files.remove()
        raise
    return files, page


def _say_what_is_missing(identity: wire.Identity, environ: Mapping[str, str]) -> None:
    if identity.host.startswith(POD) and environ.get("LOCAL_RANK", "0") == "0":
        _warn(
            f"lightkeeper does not know the node of {identity.host}, so quarantine cannot keep "
            "anybody off it: set LIGHTKEEPER_HOST from spec.nodeName"
        )


def _say_refusal(reporter: Reporter, files: run_dir.RankFiles) -> None:
    """Say once why the Manager's name is not taken, where the WorkerServer was told so."""
    if reporter.loop.renamed:
        why = (files.read_endpoint() or {}).get("refusal")
        if isinstance(why, str):
            reporter.loop.renamed = False
            _warn(f"lightkeeper: {why}")


def _leave_last_words(page: PageWriter, files: run_dir.RankFiles) -> None:
    try:
        last_words.install(page, files.crash)
    except OSError as exc:
        _warn(f"lightkeeper cannot keep last words: {exc!r}")


def _start_beat(
    page: PageWriter,
    files: run_dir.RankFiles,
    companion: Companion,
    say_refusal: Callable[[], None],
) -> Callable[[], None]:
    beat = Beat(
        page.beat,
        companion,
        (
            frames.keeping(lambda text: page.write_note(layout.NOTE_STACKS, text)),
            last_words.note_uncaught,
            profile.Profiler(files.page).look,
            say_refusal,
            _tell_backends,
        ),
    )

    def end() -> None:
        page.end()
        beat.stop()
        profile.finish()
        last_words.note_uncaught()
        companion.let_go()

    atexit.register(end)
    beat.start()
    return end


def _tell_backends() -> None:
    module = sys.modules.get("worker_server.collectives")  # it may be half imported
    tell = getattr(module, "tell_backends", None)
    if tell is not None:
        tell()


def _distributed(reporter: Reporter, files: run_dir.RankFiles) -> None:
    """What waits until torch is there. Never raises: it may run inside an import."""
    try:
        from worker_server.integrations.optimizer import count_steps  # noqa: PLC0415

        count_steps(reporter.from_source("optimizer"))
    except Exception as exc:  # noqa: BLE001
        _warn(f"lightkeeper does not count the optimizer's steps: {exc!r}")
    try:
        declare_compilations(reporter)
    except Exception as exc:  # noqa: BLE001
        _warn(f"lightkeeper does not see what torch.compile does: {exc!r}")
    try:
        from worker_server import collectives  # noqa: PLC0415  imports torch.distributed

        collectives.install(reporter)
        if files.socket_fits:
            control_plane.start(files.socket)
        profile.watch_torch()
    except Exception as exc:  # noqa: BLE001
        _warn(f"lightkeeper sees no collectives: {exc!r}")


def _warn(text: str) -> None:
    complain(text, stacklevel=5)


class _UrlOf:
    def __init__(self, files: run_dir.RankFiles) -> None:
        self._files = files

    def __call__(self) -> str | None:
        url = (self._files.read_endpoint() or {}).get("url")
        return url if isinstance(url, str) else None


def _forget(reporter: Reporter, end: Callable[[], None]) -> None:
    """In a forked child: it is not the rank, and may attach as one of its own."""
    global _attached  # noqa: PLW0603
    atexit.unregister(end)  # its locks may be held by threads that the child does not have
    reporter.detach()
    last_words.forget()
    profile.forget()
    _attached = None
