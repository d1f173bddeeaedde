"""Do something as soon as torch (or a part of torchft) is imported, importing it for nobody.

The moment is the end of `import torch`: torch.distributed is imported in the middle of it, when
half of torch is not there yet.
"""

from __future__ import annotations

import contextlib
import sys
import threading
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
    """Lets the other finders find the module and adds one act after its import.

    To be asked for the spec is not to be imported: `importlib.util.find_spec("torch")` is how
    libraries ask whether torch is installed. So it watches until an import was carried out.
    """

    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self._name = name
        self._act = act
        self._over = False
        self._asking: set[int] = set()
        """Threads in which the other finders are being asked: they may ask back."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        me = threading.get_ident()
        if fullname != self._name or self._over or me in self._asking:
            return None
        self._asking.add(me)
        try:
            spec = self._ask_others(fullname, path, target)
        finally:
            self._asking.discard(me)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._imported)
        return spec

    def _ask_others(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in tuple(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(fullname, path, target)
            if spec is not None:
                return spec
        return None

    def _imported(self) -> None:
        if self._over:
            return
        self._over = True
        with contextlib.suppress(ValueError):  # others tidy up there as well
            sys.meta_path.remove(self)
        self._act()


class _Loader(Loader):
    """The loader of the module, but for one thing more; the module itself never sees it."""

    def __init__(self, inner: Loader, act: Callable[[], None]) -> None:
        self._inner = inner
        self._act = act

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._inner
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        self._inner.exec_module(module)
        self._act()

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)
