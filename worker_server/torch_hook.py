"""Do something as soon as torch (or a part of torchft) is imported, importing it for nobody.

The moment is the end of `import torch`: torch.distributed is imported in the middle of it, when
half of torch is not there yet.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def when_torch(act: Callable[[], None]) -> None:
    """Call `act` now when torch is imported, else right after it is."""
    when_imported("torch", act)


def when_imported(name: str, act: Callable[[], None]) -> None:
    """Call `act` now when this module is imported, else right after it is.

    A fixed moment, not "a second later": every rank must count its collectives from the first.
    """
    if name in sys.modules:
        act()
    else:
        sys.meta_path.insert(0, _Watcher(name, act))


class _Watcher(MetaPathFinder):
    """Lets the other finders find the module and adds one act after its import."""

    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self._name = name
        self._act = act

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if fullname != self._name:
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
