"""How thorough properties are: `make test` tries the same few examples each time, `make explore`
(LIGHTKEEPER_DEEP=5, or 20 for a night) that many times as many, and others each time.

Long tests of which a shorter one proves the same for `make test` run in `make explore` alone.
"""

import os
from typing import Final

import pytest

DEEP: Final = int(os.environ.get("LIGHTKEEPER_DEEP", "1"))
"""So many times the examples."""

EXPLORES: Final = DEEP > 1
"""Whether examples are drawn anew."""

only_explored: Final = pytest.mark.skipif(not EXPLORES, reason="make explore runs it")
