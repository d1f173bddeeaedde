"""`python -m worker_server SCRIPT [ARGS]`: run a script, attached, without changing it."""

import sys

from worker_server.rank.runner import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
