"""How thorough properties are: `make test` tries the same few examples each time, `make explore`
(LIGHTKEEPER_DEEP=5, or 20 for a night) that many times as many, and others each time.
"""

import os
from typing import Final

DEEP: Final = int(os.environ.get("LIGHTKEEPER_DEEP", "1"))
"""So many times the examples."""

EXPLORES: Final = DEEP > 1
"""Whether examples are drawn anew."""
