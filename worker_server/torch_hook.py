"""Do something as soon as torch.distributed is there, without importing it for anybody."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_NAME = "torch.distributed"


def when_distributed(act: Callable[[], None]) -> None:
    """Call `act` now when torch is imported, else right after torch.distributed is.

    A fixed moment, not "a second later": every rank must count its collectives from the first.
    """
    if "torch" in sys.modules:
        try:
            import torch.distributed  # noqa: F401, PLC0415
        except ImportError:
            return
        act()
    else:
        sys.meta_path.insert(0, _Watcher(act))


class _Watcher(MetaPathFinder):
    """Lets the other finders find torch.distributed and adds one act after its import."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _NAME:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._act)
        return spec


class _Loader(Loader):
    def __init__(self, inner: Loader, act: Callable[[], None]) -> None:
        self._inner = inner
        self._act = act

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        self._act()

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)
