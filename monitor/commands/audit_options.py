"""Options of `lightkeeper monitor` that belong to the audit; docs/audit.md."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from monitor.commands.errors import USAGE, CommandError


def add_audit_options(parser: argparse.ArgumentParser) -> None:
    """Where the audit log is written."""
    made = parser.add_argument_group("audit")
    made.add_argument(
        "--audit-log",
        type=Path,
        metavar="FILE",
        default=Path(named) if (named := os.environ.get("LIGHTKEEPER_AUDIT_LOG")) else None,
        help="append every decision, rung, and quarantine change as a line of JSON "
        "(default: LIGHTKEEPER_AUDIT_LOG, else none)",
    )
    made.add_argument(
        "--audit-log-mb",
        type=float,
        metavar="MB",
        default=64.0,
        help="begin a new file at that size; ten older ones are kept (%(default)g)",
    )


def audit_log_bytes(args: argparse.Namespace) -> int:
    """When a new file is begun.

    Raises:
        CommandError: it is no such size.
    """
    size_mb = args.audit_log_mb
    if not 0.01 <= size_mb <= 1e6:
        raise CommandError(f"--audit-log-mb is {size_mb:g}, expected 0.01 to 1e+06", USAGE)
    return int(size_mb * 1e6)
