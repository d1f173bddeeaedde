"""`lightkeeper dashboards` and `python -m dashboards`: render, check, list, export, push."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dashboards import bundle, committed, pushing, render

_EPILOG = """\
examples:
  lightkeeper dashboards list
  lightkeeper dashboards push --url http://grafana:3000 --token-file ~/.grafana-token --dry-run
  lightkeeper dashboards push --url http://grafana:3000 --token-file ~/.grafana-token \\
      --monitor-url http://head:8470
  lightkeeper dashboards export /etc/lightkeeper-grafana
A push needs `pip install 'lightkeeper[grafana]'` and a token of a service account with the
Editor role. Without a push: `export`, and mount what it wrote into Grafana.

exit status: 0 done, or nothing to do; 1 a check found a difference, or a push did not do all of
its work; 2 wrong use.
"""


def parser() -> argparse.ArgumentParser:
    """The parser of `lightkeeper dashboards`."""
    top = argparse.ArgumentParser(
        prog="lightkeeper dashboards",
        description="Lightkeeper's Grafana dashboards: see them, store them in a Grafana.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True)
    pushing.add_arguments(
        commands.add_parser("push", help="store in a Grafana what differs from what it has")
    )
    listed = commands.add_parser("list", help="the dashboards and what each answers")
    listed.add_argument("--format", choices=["text", "json"], default="text")
    out = commands.add_parser("export", help="write them, and provisioning files, into a folder")
    out.add_argument("folder", type=Path, metavar="DIR")
    out.add_argument("--monitor-url", metavar="URL", help="where browsers reach the monitor")
    commands.add_parser("check", help="is the committed JSON what the Python says?")
    commands.add_parser("render", help="write the committed JSON anew from the Python")
    return top


def _render(*, write: bool) -> int:
    try:
        paths = render.write() if write else render.differing()
    except ImportError as error:
        print(f"dashboards: {error}: pip install grafana-foundation-sdk==0.0.21", file=sys.stderr)
        return 1
    for path in paths:
        print(f"{path}: {'written' if write else 'differs: run python -m dashboards render'}")
    return 1 if paths and not write else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; the exit status."""
    args = parser().parse_args(arguments)
    try:
        match args.command:
            case "push":
                return pushing.push(args)
            case "list":
                return bundle.show(as_json=args.format == "json")
            case "export":
                return bundle.export(args.folder, args.monitor_url)
            case command:
                return _render(write=command == "render")
    except (committed.CommittedError, OSError) as error:
        print(f"dashboards: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
