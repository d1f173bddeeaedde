"""What the command line means, without anything being done."""

from __future__ import annotations

from unittest.mock import patch

import click

from lightkeeper.monitor.cli import cli
from lightkeeper.monitor.commands import run
from lightkeeper.monitor.service import Options


def parsed(*words: str) -> click.Context:
    """A command and its options; wrong use raises."""
    ctx = click.Context(cli, info_name="lightkeeper", **cli.context_settings)
    command, rest = cli, list(words)
    while isinstance(command, click.Group):
        name, command, rest = command.resolve_command(ctx, rest)
        ctx = command.make_context(name, rest, parent=ctx) if not isinstance(
            command, click.Group
        ) else click.Context(command, ctx, name)  # fmt: skip
    return ctx


def monitor_options(*words: str) -> Options:
    """Of `lightkeeper monitor`; what cannot be used raises."""
    with patch.object(run, "serve") as serve:
        cli.main(["monitor", *words], standalone_mode=False)
    options: Options = serve.call_args.args[0]
    return options
