"""`python -m lightkeeper`: the command.

With `python -m lightkeeper -m MODULE ARGS` our processes start others of ours: like `python -m
MODULE`, but our package names are ours. `-P` ignores the working folder.
"""

import runpy
import sys
from collections.abc import Callable

from lightkeeper import claim, main

if __name__ == "__main__":
    if sys.argv[1:2] != ["-m"]:
        sys.exit(main())
    claim()
    module = sys.argv[2]
    del sys.argv[1:3]
    # the function that `python -m` itself calls: private, and the only one that does this
    run: Callable[[str], object] = runpy._run_module_as_main  # type: ignore[attr-defined]
    run(module)
