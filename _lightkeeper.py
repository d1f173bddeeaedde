"""What torch and Lightning load as entry points, in every process that imports them.

The name is a second one: a `lightkeeper.py` beside the training script hides our package, and must
neither be run here nor end `import torch` with an error.
"""

import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any


def __getattr__(name: str) -> Callable[[], Any]:
    """The function of our package; one that does nothing if nobody asks, or another hides it."""
    if name.startswith("__"):
        raise AttributeError(name)
    if os.environ.get("LIGHTKEEPER") == "0" or "LIGHTKEEPER_ATTACH" not in os.environ:
        return list
    module = find_spec("lightkeeper")
    if module is None or not module.submodule_search_locations:
        if name == "autoload" and sys.stderr is not None:
            where = None if module is None else module.origin
            sys.stderr.write(f"lightkeeper is not attached: {where} has its name\n")
        return list
    import lightkeeper  # noqa: PLC0415  now it is ours

    function: Callable[[], Any] = getattr(lightkeeper, name)
    return function
