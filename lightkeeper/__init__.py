"""The public interface: `lightkeeper.attach()`, the command, the version.

Theory of operation. Our code is in packages with plain names (`monitor`, `trainer` ...), which a
user's repository may have too. In our own processes (the command and what it starts) those names
are ours, whatever is in the working folder or on PYTHONPATH: `claim` ensures that. In a rank they
are the user's: nothing is claimed there, and if its `worker_server` is not ours, the rank is not
attached, with one warning.

torch and Lightning load the functions at the end as entry points, in every process that imports
them: they are light, and never raise.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from worker_server import attach

__all__ = ["__version__", "attach", "main"]

_HOME: Final = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
_OURS: Final = frozenset({"dashboards", "monitor", "trainer", "worker_server"})
_warned = False


class _OwnPackages:
    """Finds our packages beside this one, before `sys.path` is searched."""

    @staticmethod
    def find_spec(name: str, path: object = None, _target: object = None) -> ModuleSpec | None:
        """Like importlib's finders; None: not ours."""
        return PathFinder.find_spec(name, [_HOME]) if path is None and name in _OURS else None


def claim() -> None:
    """Make our package names ours in this process; only for processes that we start ourselves."""
    if _OwnPackages not in sys.meta_path:
        sys.meta_path.insert(0, _OwnPackages)


def main(argv: Sequence[str] | None = None) -> int:
    claim()
    from monitor.cli import main as command_line  # noqa: PLC0415  not in ranks

    return command_line(argv)


# -- in a rank -------------------------------------------------------------------------------------


def _in_rank(call: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
    """The result of `call`, which imports `worker_server`; of `otherwise` if that is not ours."""
    module: Any = sys.modules.get("worker_server")
    place = getattr(module, "__file__", None)
    if module is None:
        spec = PathFinder.find_spec("worker_server")
        place = None if spec is None else spec.origin
    if place is not None and os.path.realpath(place).startswith(_HOME + os.sep):
        return call()
    global _warned  # noqa: PLW0603  once is enough
    if not _warned:
        _warned = True
        sys.stderr.write(
            f"lightkeeper is not attached: a package `worker_server` at {place} is in the way of "
            "its own; rename it, or put it later on PYTHONPATH\n"
        )
    return otherwise()


class _Nobody:
    """Accepts every report, and is a context manager (`phase`)."""

    url = None

    def __getattr__(self, name: str) -> Callable[..., _Nobody]:
        return lambda *_args, **_more: self

    def __enter__(self) -> _Nobody:
        return self

    def __exit__(self, *exc_info: object) -> None:
        return None


if not TYPE_CHECKING:

    def attach(**options: Any) -> Any:
        """Report this process as a rank: `worker_server.attach`, with the same arguments."""

        def now() -> Any:
            from worker_server import attach as attach_now  # noqa: PLC0415

            return attach_now(**options)

        return _in_rank(now, _Nobody)


def __getattr__(name: str) -> str:
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
        from worker_server.autoload import autoload as load  # noqa: PLC0415

        load()

    if "LIGHTKEEPER_ATTACH" in os.environ:
        _in_rank(now, lambda: None)


def _callbacks(name: str) -> list[Any]:
    def now() -> list[Any]:
        from worker_server.integrations import lightning  # noqa: PLC0415

        return list(getattr(lightning, name)())

    return _in_rank(now, list) if "LIGHTKEEPER_ATTACH" in os.environ else []


def lightning_callbacks() -> list[Any]:
    """For `lightning.pytorch.callbacks_factory`."""
    return _callbacks("lightning_callbacks")


def pytorch_lightning_callbacks() -> list[Any]:
    """For `pytorch_lightning.callbacks_factory`."""
    return _callbacks("pytorch_lightning_callbacks")


def fabric_callbacks() -> list[Any]:
    """For `lightning.fabric.callbacks_factory`."""
    return _callbacks("fabric_callbacks")
