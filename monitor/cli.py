"""`lightkeeper`: the one console command.

A command is imported only when called: `lightkeeper run` precedes every start of a group, and a
restarting gate has no spare worker until it is up.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any, Final, cast

import click

from lightkeeper.monitor.commands.command import FAILED, CommandError, HelpPage
from lightkeeper.worker_server.home import misspelt
from lightkeeper.worker_server.plain_text import escaped

_ABOUT: Final = """\
Watches every rank of a TorchFT job, names the one that is hung, dead, slow or wrong, and evicts its
replica group so that the others keep training.

examples:
  lightkeeper demo                                         see it work, on this machine, on CPU
  lightkeeper monitor                                      watch the jobs of this host
  lightkeeper run -- torchrun train.py                     start one: its ranks attach themselves
  lightkeeper monitor --lighthouse http://head:29510       watch a TorchFT job, evict sick groups
  lightkeeper status                                       is it training, who holds it back?
  lightkeeper top                                          the ranks, live
  lightkeeper incidents list                               what went wrong, and what was done
  lightkeeper evict rg_1                                   evict a replica group by hand
  lightkeeper analyze dumps/                               who hangs a job, from its dumps
  lightkeeper replay monitor.journal/ --set stall_floor_s=30   what if: other thresholds
  lightkeeper doctor                                       is this host ready, beside its ranks?
  lightkeeper dashboards list                              what there is for Grafana

every command explains itself: lightkeeper COMMAND --help
in bash, Tab completes after: eval "$(_LIGHTKEEPER_COMPLETE=bash_source lightkeeper)"
"""


class Ours(click.Command):
    """A command of `monitor/commands`, not imported yet: MODULE:FUNCTION. `extra` installs the
    packages that it needs beyond those of a rank.
    """

    def __init__(self, place: str, about: str, extra: str = "") -> None:
        super().__init__(None, short_help=about)
        self._place = place
        self._extra = extra

    def imported(self) -> click.Command:
        """The command itself.

        Raises:
            CommandError: its extra is not installed.
        """
        module, _, name = self._place.partition(":")
        try:
            return cast(
                click.Command,
                getattr(importlib.import_module(f"lightkeeper.monitor.{module}"), name),
            )
        except ModuleNotFoundError as exc:
            missing = (exc.name or "").partition(".")[0]
            if not self._extra or missing == "lightkeeper":
                raise
            mend = f"pip install 'lightkeeper[{self._extra}]'"
            raise CommandError(f"{missing} is not installed here: {mend}", FAILED) from exc


class Elsewhere(click.Command):
    """A command that parses its arguments."""

    def __init__(self, start: Callable[[Sequence[str]], int], about: str) -> None:
        super().__init__(None, short_help=about)
        self._start = start

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.args = args
        return args

    def invoke(self, ctx: click.Context) -> int:
        return self._start(ctx.args)


class Commands(HelpPage, click.Group):
    """Commands by name, in sections."""

    def __init__(
        self, about: str, sections: Mapping[str, Mapping[str, click.Command]], **more: Any
    ) -> None:
        commands = {
            name: command for section in sections.values() for name, command in section.items()
        }
        super().__init__(help=about, short_help=about.partition("\n")[0], commands=commands, **more)
        self._sections = sections

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, section in self._sections.items():
            with formatter.section(title):
                rows = [
                    (name, command.get_short_help_str(100)) for name, command in section.items()
                ]
                formatter.write_dl(rows)
        super().format_options(ctx, formatter)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, arguments = super().resolve_command(ctx, args)
        return name, command.imported() if isinstance(command, Ours) else command, arguments


def _admission(words: Sequence[str]) -> int:
    from lightkeeper.worker_server.rank.admission import main as admission  # noqa: PLC0415

    return admission(words)


def _process(module: str, words: Sequence[str]) -> int:
    """In a new process: the monitor imports nothing of the module."""
    room = ".".join(module.split(".")[:2])
    if find_spec(room) is None:
        mend = f"pip install {room.replace('.', '-')}"
        raise CommandError(f"{room} is not installed here: {mend}", FAILED)
    os.execv(sys.executable, [sys.executable, "-P", "-m", module, *words])  # noqa: S606


cli: Final = Commands(
    _ABOUT,
    {
        "Watch": {
            "monitor": Ours("commands.run:monitor", "watch a job, evict the sick", "monitor"),
            "status": Ours("commands.status:status",
                           "is it training, who holds it back, what did the keeper do?"),
            "top": Ours("commands.top:top", "the ranks, live"),
            "get": Commands("who is there: ranks, replica groups, hosts, runs", {"Commands": {
                "ranks": Ours("commands.status:ranks", "every rank"),
                "groups": Ours("commands.status:groups", "every replica group"),
                "hosts": Ours("commands.status:hosts", "every host"),
                "runs": Ours("commands.status:runs", "every start of the job"),
            }}),
            "incidents": Commands("what went wrong, and what was done", {"Commands": {
                "list": Ours("commands.status:list_incidents",
                             "the latest, and what they came to"),
                "show": Ours("commands.status:show_incident", "one, with its story"),
                "ack": Ours("commands.orders:ack", "you look after it"),
                "assign": Ours("commands.orders:assign", "give it to somebody"),
                "comment": Ours("commands.orders:comment", "write a line under it"),
                "resolve": Ours("commands.orders:resolve_incident", "close it, with a reason"),
                "label": Ours("commands.orders:label", "was the accusation right?"),
            }}),
            "mcp": Ours("commands.mcp:mcp", "what the monitor knows, for an agent; reads only",
                        "mcp"),
        },
        "Act": {
            "evict": Ours("commands.orders:evict", "evict a replica group now"),
            "quarantine": Commands("hosts and groups that may not come back", {"Commands": {
                "list": Ours("commands.orders:list_quarantine", "hosts and groups in quarantine"),
                "add": Ours("commands.orders:add", "refuse a host, or a group, to launchers"),
                "release": Ours("commands.orders:release", "let a host or a group in again"),
                "history": Ours("commands.orders:history",
                                "what happened to a host or a group"),
            }}),
            "silence": Commands("no messages about what matches, for a time", {"Commands": {
                "list": Ours("commands.orders:list_silences", "silences in force"),
                "add": Ours("commands.orders:add_silence", "by kind, group, host, rank or run"),
                "end": Ours("commands.orders:end_silence", "end one before its time"),
            }}),
            "pause": Ours("commands.orders:pause", "evict nobody for now"),
            "resume": Ours("commands.orders:resume", "evict again"),
            "policy": Commands("what may be done about which fault", {"Commands": {
                "show": Ours("commands.policy:show_policy",
                             "the policy in force, and who set it"),
                "reload": Ours("commands.policy:reload_policy",
                               "make the monitor read its file again"),
            }}),
            "run": Elsewhere(_admission, "start a training command whose ranks are watched"),
        },
        "Offline": {
            "analyze": Ours("commands.analyze:analyze",
                            "who hangs a job, from its flight-record dumps", "analyze"),
            "stragglers": Ours("commands.stragglers:stragglers",
                               "who slows a job, from a table of its operations' timings",
                               "analyze"),
            "replay": Ours("commands.replay:replay",
                           "decide over a monitor's journal again, or what if", "analyze"),
        },
        "Set up": {
            "doctor": Elsewhere(partial(_process, "lightkeeper.worker_server.doctor"),
                                "what would keep lightkeeper from its work on this host"),
            "gate": Ours("commands.gate:gate",
                         "in front of the Lighthouse: keeps evicted groups out", "gate"),
            "check": Commands("would host, schedulers, messages, policy file work?", {"Commands": {
                "host": Elsewhere(partial(_process, "lightkeeper.worker_server.check_host"),
                                  "is this host fit, and which of the job's hosts stands out?"),
                "scheduler": Ours("commands.checks:check_scheduler",
                                  "would Slurm, Kubernetes or the webhook do what is asked for?",
                                  "monitor"),
                "notify": Ours("commands.checks:check_notify",
                               "send a test message to every receiver",
                               "monitor"),
                "policy": Ours("commands.policy:check_policy", "can a policy file be used?"),
            }}),
            "dashboards": Elsewhere(partial(_process, "lightkeeper.dashboards"),
                                    "Grafana's: list them, push them, write them as files"),
            "demo": Elsewhere(partial(_process, "lightkeeper.trainer.demo"),
                              "a whole job on this machine, with faults"),
        },
    },
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100,
                      "show_default": True},
)  # fmt: skip
click.version_option(package_name="lightkeeper", message="%(package)s %(version)s")(cli)


def main(argv: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else list(argv)
    if words[:1] != ["run"] and (odd := misspelt(os.environ)):  # `run` warns itself
        sys.stderr.write(f"warning: {odd}\n")
    try:
        return int(cli.main(words, "lightkeeper", standalone_mode=False) or 0)
    except click.exceptions.NoArgsIsHelpError as exc:
        exc.show()
    except click.ClickException as exc:
        problem = " ".join(exc.format_message().split())
        if isinstance(exc, click.UsageError) and exc.ctx is not None:
            problem += f" (see {exc.ctx.command_path} --help)"
        sys.stderr.write(f"error: {escaped(problem)}\n")
        return exc.exit_code
    except click.Abort:
        return FAILED
    return 2


if __name__ == "__main__":
    sys.exit(main())
