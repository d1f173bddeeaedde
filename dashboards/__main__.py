"""`python -m dashboards`: render, check, push."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dashboards import render

_EPILOG = """\
examples:
  python -m dashboards check
  python -m dashboards push --url http://127.0.0.1:3000 --token-file ~/.grafana-token --dry-run
A push needs `pip install 'lightkeeper[grafana]'` and a service account token with the Editor
role. Without a push: mount grafana/provisioning and grafana/*.json into Grafana.

exit status: 0 done; 1 check found a difference, or the push failed; 2 wrong use.
"""


def parser() -> argparse.ArgumentParser:
    """The parser of `python -m dashboards`."""
    top = argparse.ArgumentParser(
        prog="dashboards",
        description="Render, check and push lightkeeper's Grafana dashboards.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True)
    commands.add_parser("render", help="write the JSON anew from the Python")
    commands.add_parser("check", help="is the committed JSON what the Python says?")
    push = commands.add_parser("push", help="store the committed dashboards in a Grafana")
    push.add_argument("--url", required=True, help="root of Grafana: http://127.0.0.1:3000")
    push.add_argument("--token-file", required=True, type=Path, metavar="FILE")
    push.add_argument("--dry-run", action="store_true", help="say what it would do; send nothing")
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


def _push(url: str, token_file: Path, *, dry_run: bool) -> int:
    try:
        from dashboards import publish  # noqa: PLC0415 - only a push needs the client
    except ImportError as error:
        print(f"dashboards: {error}: pip install 'lightkeeper[grafana]'", file=sys.stderr)
        return 1
    try:
        boards = publish.committed(render.GRAFANA)
        publisher = publish.GrafanaPublisher(url, publish.read_token(token_file))
        if dry_run:
            for board in boards:
                print(f"would store {board['uid']} ({board['title']}) in {publish.FOLDER_TITLE}")
            return 0
        for address in publisher.push(boards):
            print(address)
    except publish.PublishError as error:
        print(f"dashboards: {error}", file=sys.stderr)
        return 1
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; the exit status."""
    args = parser().parse_args(arguments)
    if args.command == "push":
        return _push(args.url, args.token_file, dry_run=args.dry_run)
    return _render(write=args.command == "render")


if __name__ == "__main__":
    sys.exit(main())
