"""`python -m tests.metrics_doc`: write docs/metrics.md, or check it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from tests.metrics_doc import page


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; the exit status."""
    parser = argparse.ArgumentParser(prog="tests.metrics_doc", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 when it differs")
    parser.add_argument("--measure", action="store_true", help="measure the monitor's page anew")
    args = parser.parse_args(arguments)
    if args.measure:
        from tests.metrics_doc.measure import measured

        page.FIGURES.write_text(json.dumps(measured(), indent=1) + "\n")
    made = page.text()
    if args.check:
        old = not page.PAGE.exists() or page.PAGE.read_text() != made
        print(f"{page.PAGE}: {'differs: run make metrics-doc' if old else 'is what the code says'}")
        return int(old)
    page.PAGE.write_text(made)
    print(f"{page.PAGE}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
