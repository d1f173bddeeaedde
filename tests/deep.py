"""How thorough properties are: LIGHTKEEPER_DEEP=20 for a night."""

import os
from typing import Final

DEEP: Final = int(os.environ.get("LIGHTKEEPER_DEEP", "1"))
"""So many times the examples."""
