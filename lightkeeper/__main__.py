"""`python -m lightkeeper`: the command.

`python -m lightkeeper -m MODULE ARGS` is how our processes start others of ours: as `python -m
MODULE`, where the names of our packages are ours. With `-P`, the working folder does not count.
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
    # the function that `python -m` itself calls: private, and the only one of its effect
    run: Callable[[str], object] = runpy._run_module_as_main  # type: ignore[attr-defined]
    run(module)
