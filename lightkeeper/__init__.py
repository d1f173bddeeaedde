"""The public interface: `lightkeeper.attach()`, the command, the version.

torch and Lightning load the functions at the end as entry points, in every process that imports
them: they import nothing unless LIGHTKEEPER_ATTACH asks for it. Nothing here raises into training.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lightkeeper.worker_server import attach
from lightkeeper.worker_server.harmless import guarded

if TYPE_CHECKING:
    from lightkeeper.worker_server.rank.reporter import Reporter

__all__ = ["Reporter", "__version__", "attach", "main"]


def main(argv: Sequence[str] | None = None) -> int:
    """The command `lightkeeper`; returns its exit status. What `run` is to start runs, also where
    nothing else of ours does.
    """
    words = sys.argv[1:] if argv is None else list(argv)

    def call() -> int:
        from lightkeeper.monitor.cli import main as command_line  # noqa: PLC0415  not in ranks

        return command_line(words)

    command = words[words.index("--") + 1 :] if words[:1] == ["run"] and "--" in words else []
    status = guarded(call, None) if command else call()
    if status is None:
        from lightkeeper.worker_server.command import become  # noqa: PLC0415  only then

        status = become(command, {})
    return status


def __getattr__(name: str) -> Any:
    if name == "Reporter":  # for types; where we cannot attach, the type of what `attach` gives

        def reporter() -> type[Reporter]:
            from lightkeeper.worker_server.rank.reporter import Reporter  # noqa: PLC0415  mmap

            return Reporter

        from lightkeeper.worker_server.rank.null_reporter import NullReporter  # noqa: PLC0415

        return guarded(reporter, NullReporter)
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415  20 ms

    try:
        return version("lightkeeper")
    except PackageNotFoundError:
        return "0+source"


# -- entry points ----------------------------------------------------------------------------------


def autoload() -> None:
    """At the end of `import torch`: attach, if LIGHTKEEPER_ATTACH asks for it."""

    def now() -> None:
        from lightkeeper.worker_server.autoload import autoload as load  # noqa: PLC0415

        load()

    if "LIGHTKEEPER_ATTACH" in os.environ:
        guarded(now, None)


def _callbacks(name: str) -> list[Any]:
    def now() -> list[Any]:
        from lightkeeper.worker_server.integrations import lightning  # noqa: PLC0415

        return list(getattr(lightning, name)())

    return guarded(now, []) if "LIGHTKEEPER_ATTACH" in os.environ else []


def lightning_callbacks() -> list[Any]:
    """For `lightning.pytorch.callbacks_factory`."""
    return _callbacks("lightning_callbacks")


def pytorch_lightning_callbacks() -> list[Any]:
    """For `pytorch_lightning.callbacks_factory`."""
    return _callbacks("pytorch_lightning_callbacks")


def fabric_callbacks() -> list[Any]:
    """For `lightning.fabric.callbacks_factory`."""
    return _callbacks("fabric_callbacks")
