"""`lightkeeper`: the one console command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Final

from monitor.commands.errors import FAILED, CommandError, OneLineParser

_ABOUT = """\
The keeper of a TorchFT Lighthouse: sees every rank, names the sick one, and evicts its replica
group, so that the others train on.
"""
_EXAMPLES = """\
examples:
  lightkeeper demo                                         see it work, on this machine, on CPU
  lightkeeper monitor --lighthouse http://head:29510       watch a job
  lightkeeper status                                       is it training, who holds it back?
  lightkeeper top                                          the ranks, live
  lightkeeper incidents                                    what went wrong, and what was done
  lightkeeper evict rg_1                                   put a replica group out by hand
  lightkeeper admit -- torchrun train.py                   start a group, unless its host is refused
  lightkeeper analyze dumps/                               who hangs a job, from its dumps
  lightkeeper goodput --case ft-hsdp                       what faults cost a job's training time
  lightkeeper replay monitor.journal/ --set stall_floor_s=30   what if: other thresholds
  lightkeeper doctor                                       is this host ready, beside its ranks?
  lightkeeper dashboards list                              what there is for Grafana

every command explains itself: lightkeeper COMMAND --help
"""
_PROCESSES: Final = {
    "demo": "trainer.demo",
    "dashboards": "dashboards",
    "doctor": "worker_server.doctor",
    "goodput": "trainer.goodput",
}
"""Processes of their own: the monitor imports neither them nor what they import."""
_PLAIN: Final = argparse.RawDescriptionHelpFormatter


class _Adding:
    """Takes commands in."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def __call__(
        self,
        name: str,
        about: str,
        examples: str,
        add_arguments: Callable[[argparse.ArgumentParser], None],
        carry_out: Callable[[argparse.Namespace], int],
    ) -> None:
        """One of ours."""
        made = self._commands.add_parser(
            name, help=about, description=about, epilog=examples, formatter_class=_PLAIN
        )
        add_arguments(made)
        made.set_defaults(carry_out=carry_out)

    def elsewhere(self, name: str, about: str) -> None:
        """One that reads its own arguments."""
        self._commands.add_parser(name, help=about, add_help=False)


def _top() -> tuple[argparse.ArgumentParser, _Adding]:
    parser = OneLineParser(
        prog="lightkeeper", description=_ABOUT, epilog=_EXAMPLES, formatter_class=_PLAIN
    )
    return parser, _Adding(parser)


def _add_gate(add: _Adding) -> None:
    from monitor.commands import gate  # noqa: PLC0415

    add(
        "gate",
        "in front of the Lighthouse: keeps evicted and quarantined groups out of the quorum",
        gate.EXAMPLES,
        gate.add_arguments,
        gate.carry_out,
    )


def _parser_for(words: Sequence[str]) -> argparse.ArgumentParser:
    """The gate does not wait for what the others import, three times as much as its own: while it
    starts again nobody stands by for its worker.
    """
    if words[:1] != ["gate"]:
        return build_parser()
    parser, add = _top()
    _add_gate(add)
    return parser


def build_parser() -> argparse.ArgumentParser:
    """The parser with all commands.

    They are imported here, not above: `lightkeeper admit` stands before every start of a group.
    """
    from monitor.commands import (  # noqa: PLC0415
        analyze,
        evict,
        incidents,
        notify,
        policy,
        quarantine,
        ranks,
        replay,
        run,
        run_options,
        schedulers,
        status,
        stragglers,
        top,
    )

    parser, add = _top()
    add(
        "monitor",
        "watch a job, evict the sick",
        run_options.EXAMPLES,
        run_options.add_arguments,
        run.run,
    )
    _add_gate(add)
    add(
        "status",
        "is it training, who holds it back, what did the keeper do?",
        status.STATUS_EXAMPLES,
        status.add_status_arguments,
        status.run_status,
    )
    add("top", "the ranks, live", top.EXAMPLES, top.add_arguments, top.run)
    add("ranks", "every rank", ranks.RANKS_EXAMPLES, ranks.add_ranks_arguments, ranks.run_ranks)
    add(
        "groups",
        "every replica group",
        ranks.GROUPS_EXAMPLES,
        ranks.add_groups_arguments,
        ranks.run_groups,
    )
    add("hosts", "every host", ranks.HOSTS_EXAMPLES, ranks.add_hosts_arguments, ranks.run_hosts)
    add(
        "incidents",
        "what went wrong, and what was done",
        incidents.EXAMPLES,
        incidents.add_arguments,
        incidents.run,
    )
    add("evict", "put a replica group out now", evict.EXAMPLES, evict.add_arguments, evict.run)
    add(
        "quarantine",
        "hosts and groups that may not come back",
        quarantine.EXAMPLES,
        quarantine.add_arguments,
        quarantine.run,
    )
    add.elsewhere("admit", "may a group start on this host? then run it")
    add(
        "policy",
        "what may be done about which fault",
        policy.EXAMPLES,
        policy.add_arguments,
        policy.run,
    )
    add(
        "pause",
        "evict nobody for now",
        policy.PAUSE_EXAMPLES,
        policy.add_pause_arguments,
        policy.run_pause,
    )
    add(
        "resume",
        "evict again",
        policy.RESUME_EXAMPLES,
        policy.add_resume_arguments,
        policy.run_resume,
    )
    add(
        "schedulers",
        "would Slurm, Kubernetes or the webhook do what the monitor asks for?",
        schedulers.EXAMPLES,
        schedulers.add_arguments,
        schedulers.run,
    )
    add(
        "notify",
        "test the messages to people and pagers",
        notify.EXAMPLES,
        notify.add_arguments,
        notify.run,
    )
    add(
        "analyze",
        "who hangs a job, from its flight-record dumps",
        analyze.EXAMPLES,
        analyze.add_arguments,
        analyze.run,
    )
    add(
        "stragglers",
        "who slows a job, from a table of its operations' timings",
        stragglers.EXAMPLES,
        stragglers.add_arguments,
        stragglers.run,
    )
    add(
        "replay",
        "decide over a monitor's journal again, or what if",
        replay.EXAMPLES,
        replay.add_arguments,
        replay.run,
    )
    add.elsewhere("goodput", "how much of the time a job trains, reckoned")
    add.elsewhere("dashboards", "Grafana's dashboards: list them, push them, write them as files")
    add.elsewhere("demo", "a whole job on this machine, with faults")
    add.elsewhere(
        "doctor", "what would keep lightkeeper from its work on this host, and what to do"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] and words[0] in _PROCESSES:
        module = _PROCESSES[words[0]]
        os.execv(sys.executable, [sys.executable, "-m", module, *words[1:]])  # noqa: S606
    if words[:1] == ["admit"]:  # runs beside ranks, where nothing else of the monitor is needed
        from worker_server.rank.admission import main as admit  # noqa: PLC0415

        return admit(words[1:])
    args = _parser_for(words).parse_args(words)
    try:
        return int(args.carry_out(args))
    except CommandError as exc:
        sys.stderr.write(f"lightkeeper: {exc}\n")
        return exc.status
    except KeyboardInterrupt:
        return FAILED
    except BrokenPipeError:  # `| head` closed our output
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
