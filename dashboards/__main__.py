"""`lightkeeper dashboards`: push, list, export."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from lightkeeper.dashboards import committed, publish

_EPILOG = """\
examples:
  lightkeeper dashboards list
  lightkeeper dashboards push --url http://grafana:3000 --token-file ~/.grafana-token --dry-run
  lightkeeper dashboards push --url http://grafana:3000 --token-file ~/.grafana-token \\
      --monitor-url http://head:8470
  lightkeeper dashboards export /etc/lightkeeper-grafana
A push needs a token of a service account with the Editor role. Without a push: `export`, and mount
what it wrote into Grafana.

exit status: 0 done, or nothing to do; 1 a push did not do all of its work; 2 wrong use.
"""


class _Parser(argparse.ArgumentParser):
    """Help and errors look like those of lightkeeper's other commands."""

    def format_help(self) -> str:
        self.usage = self.usage or "%(prog)s [OPTIONS]"
        text = super().format_help().replace("usage:", "Usage:", 1)
        return text.replace("\noptions:\n", "\nOptions:\n", 1)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message} (see {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    top = _Parser(
        prog="lightkeeper dashboards",
        usage="%(prog)s [OPTIONS] COMMAND [ARGS]...",
        description="Lightkeeper's Grafana dashboards: see them, store them in a Grafana.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(
        prog="lightkeeper dashboards", title="Commands", dest="command", required=True
    )
    pushed = commands.add_parser("push", help="store in a Grafana what differs from what it has")
    commands.add_parser("list", help="the dashboards and what each answers")
    out = commands.add_parser(
        "export", usage="%(prog)s [OPTIONS] DIR",
        help="write them, provisioning, rules, alerts, and all as Kubernetes objects",
    )  # fmt: skip

    pushed.add_argument("--url", required=True, help="root of Grafana: http://127.0.0.1:3000")
    pushed.add_argument("--token-file", required=True, type=Path, metavar="FILE")
    pushed.add_argument(
        "--dry-run", action="store_true", help="look, say what it would do, change nothing"
    )
    pushed.add_argument(
        "--monitor-url", metavar="URL", type=_url,
        help="where browsers reach the monitor, if not at its --public-url",
    )  # fmt: skip
    pushed.add_argument(
        "--folder-uid", metavar="UID",
        help="a folder that is there, nested or not (default: 'Lightkeeper', made if missing)",
    )  # fmt: skip
    out.add_argument("folder", type=Path, metavar="DIR")
    out.add_argument(
        "--monitor-url", metavar="URL", type=_url,
        help="where browsers reach the monitor, if not at its --public-url; alerts link it",
    )  # fmt: skip
    out.add_argument(
        "--grafana-url", metavar="URL", type=_url, help="where they reach Grafana; alerts link it"
    )
    for command in (pushed, out):
        command.add_argument(
            "--runbooks-url", metavar="URL", type=_url,
            help="your page of runbooks, to which alerts lead (default: the monitor's /runbooks)",
        )  # fmt: skip
    return top


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise argparse.ArgumentTypeError(f"{text!r} is not an http(s):// URL")
    return text


# -- the committed dashboards --------------------------------------------------------------------


def _list(_args: argparse.Namespace) -> int:
    for board in committed.read_boards():
        panels = len(list(committed.panels_of(board)))
        print(f"{board['uid']}  {board['title']}  ({panels} panels)\n    {board['description']}")
    return 0


def _fitted(args: argparse.Namespace) -> list[dict[str, Any]]:
    urls = args.monitor_url, args.runbooks_url
    return [committed.fitted(board, *urls) for board in committed.read_boards()]


def _export(args: argparse.Namespace) -> int:
    """Write dashboards, provisioning files, rules and alerts, and all of it as Kubernetes objects;
    replaces existing files.
    """
    boards, site = _fitted(args), (args.monitor_url, args.runbooks_url, args.grafana_url)
    rules = dict(committed.rule_files(*site))
    files = {
        "dashboards": {
            f"{board['uid']}.json": json.dumps(board, indent=2, sort_keys=True) + "\n"
            for board in boards
        },
        "prometheus": rules,
        "alerting": dict(committed.rule_files(*site, committed.GRAFANA / "alerting")),
        "kubernetes": dict(committed.manifests(boards, rules)),
    }  # fmt: skip
    for name, texts in files.items():
        folder = args.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            (folder / file).write_text(text)
        print(folder)
    provisioning = args.folder / "provisioning"
    shutil.copytree(committed.GRAFANA / "provisioning", provisioning, dirs_exist_ok=True)
    print(provisioning)
    return 0


# -- the push ------------------------------------------------------------------------------------


def _push(args: argparse.Namespace) -> int:
    boards, refused = _fitted(args), False
    try:
        grafana = publish.Grafana(args.url, publish.read_grafana_token(args.token_file))
        for row in publish.push_boards(grafana, boards, args.folder_uid, dry_run=args.dry_run):
            refused |= row.action == "refused"
            _print_row(row, dry_run=args.dry_run)
    except publish.PublishError as error:
        print(committed.printable(f"error: {error}"), file=sys.stderr)
        return 1
    return int(refused)


def _print_row(row: publish.Pushed, *, dry_run: bool) -> None:
    writes = row.action in {"create", "update"}
    did = row.action if not writes else f"would {row.action}" if dry_run else f"{row.action}d"
    line = f"{did:14}{row.uid} {row.url or row.why}".rstrip()
    print(committed.printable(line), file=sys.stderr if row.action == "refused" else sys.stdout)


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    commands = {"push": _push, "list": _list, "export": _export}
    try:
        return commands[args.command](args)
    except BrokenPipeError:  # `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (committed.CommittedError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
