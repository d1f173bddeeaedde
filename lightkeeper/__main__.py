"""`python -m lightkeeper`: the command."""

import sys

from lightkeeper import main

if __name__ == "__main__":
    sys.exit(main())
