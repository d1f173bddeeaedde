"""The command `push`: arguments, what is printed, exit status."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dashboards import committed

if TYPE_CHECKING:
    from dashboards.publish import Folder, Step

_DONE = {"create": "created", "update": "updated"}
_WOULD = {"create": "would create", "update": "would update"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `push` takes."""
    parser.add_argument("--url", required=True, help="root of Grafana: http://127.0.0.1:3000")
    parser.add_argument("--token-file", required=True, type=Path, metavar="FILE")
    parser.add_argument(
        "--dry-run", action="store_true", help="look, say what it would do, change nothing"
    )
    parser.add_argument(
        "--diff", action="store_true", help="show what differs, from Grafana's to ours"
    )
    parser.add_argument(
        "--monitor-url", metavar="URL", type=_url,
        help="where browsers reach the monitor; links to ranks go through it",
    )  # fmt: skip
    parser.add_argument(
        "--folder-uid", metavar="UID",
        help="a folder that is there, nested or not (default: 'Lightkeeper', made if missing)",
    )  # fmt: skip
    parser.add_argument("--format", choices=["text", "json"], default="text")


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise argparse.ArgumentTypeError(f"{text!r} is not an http(s):// URL")
    return text


def push(args: argparse.Namespace) -> int:
    """Store what differs, or say what would be; the exit status.

    Raises:
        CommittedError: what is to be pushed cannot be read.
    """
    try:
        from dashboards import client, publish  # noqa: PLC0415 - only a push needs the client
    except ImportError as error:
        print(f"dashboards: {error}: pip install 'lightkeeper[grafana]'", file=sys.stderr)
        return 1
    boards = [committed.fitted(board, args.monitor_url) for board in committed.read()]
    text = args.format == "text"
    try:
        grafana = client.Grafana(args.url, client.read_token(args.token_file))
        publisher = publish.Publisher(grafana, args.folder_uid)
        folder, steps = publisher.plan(boards)
        if args.diff and text:
            _show_differences(steps)
        if not args.dry_run:
            steps = publisher.carry_out(folder, steps, _tell_done if text else _say_nothing)
        elif text:
            _tell_plan(folder, steps)
    except client.PublishError as error:
        print(f"dashboards: {error}", file=sys.stderr)
        return 1
    if not text:
        print(json.dumps(_as_json(folder, steps, args), indent=2))
    return 1 if any(step.action == "refused" for step in steps) else 0


def _tell_plan(folder: Folder, steps: list[Step]) -> None:
    if not folder.there:
        print(f"{'would create':14}folder {folder.title}")
    for step in steps:
        _tell(step, _WOULD.get(step.action, str(step.action)))


def _tell_done(step: Step) -> None:
    _tell(step, _DONE.get(step.action, str(step.action)))


def _say_nothing(_: Step) -> None:
    pass


def _tell(step: Step, did: str) -> None:
    version = f" version {step.version}" if step.version else ""
    line = f"{did:14}{step.uid}{version} {step.url}".rstrip()
    line += f"  ({step.why})" if step.why else ""
    print(line, file=sys.stderr if step.action == "refused" else sys.stdout)


def _show_differences(steps: list[Step]) -> None:
    for step in steps:
        if step.action == "create":
            print(f"--- {step.uid}: not there yet; all of it is new")
        elif step.action != "unchanged":
            for line in committed.difference(step.theirs, step.board):
                print(line)


def _as_json(folder: Folder, steps: list[Step], args: argparse.Namespace) -> dict[str, Any]:
    told = []
    for step in steps:
        one = step.to_json()
        if args.diff and step.action not in {"unchanged", "create"}:
            one["diff"] = committed.difference(step.theirs, step.board)
        told.append(one)
    return {
        "grafana": args.url,
        "dry_run": args.dry_run,
        "folder": {"uid": folder.uid, "title": folder.title, "there": folder.there},
        "dashboards": told,
    }
