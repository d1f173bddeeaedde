"""Writes examples/policy.toml anew: `python -m tests.monitor.policy_example`.

Every option with its default, and what `monitor/model/config.py` says of it.
"""

from __future__ import annotations

import ast
import itertools
import textwrap
from pathlib import Path

from lightkeeper.monitor.decide.links import PLACEHOLDERS
from lightkeeper.monitor.decide.rules import DEFAULT, GUARDS, THRESHOLDS, needs_restart
from lightkeeper.monitor.model import config
from lightkeeper.monitor.model.config import RANGES, KeeperConfig
from lightkeeper.monitor.model.verdict import FAULTS, MEANINGS, Severity

PATH = Path(__file__).parents[2] / "examples" / "policy.toml"
WIDTH = 98
HEAD = """\
# A policy for `lightkeeper monitor --policy FILE`, with every option and its default.
#
#   lightkeeper check policy FILE      all that is wrong with it, one line each
#   lightkeeper policy show            what holds, and who said it
#   lightkeeper policy reload          read it again (or kill -HUP); a bad file changes nothing
#
# Leave out what you do not change. Options of the command line override this file.
# More: docs/configuration.md

[policy]
# act: evict. observe: change nothing, and record in full what would have been done (--observe).
mode = "act"

# What may be done about which fault:
#   observe               record what would have been done
#   page                  tell a person (--notify-...), never evict
#   evict                 put the group out; its hosts stay open
#   evict_and_quarantine  and refuse the hosts that the evidence blames to launchers: of a death
#                         only when it was not the first there, of corrupt state only a single one
# One action for all severities, or one for each:
#   straggler = { info = "observe", warning = "page", critical = "evict" }
[actions]
"""
TAIL = """\
# What a Prometheus (--prometheus URL) is asked about hosts, besides the rows of
# monitor/act/cluster.toml. A row with the code of such a row replaces it; an empty query silences
# it. $run is the age of the run, $window the same up to an hour: let a query see only what is new
# in this run. Texts may name labels, and the {value}. As many as you like.
#
# [[prometheus]]
# code = "fan-stopped"
# query = 'ipmi_fan_speed_rpm == 0 unless ipmi_fan_speed_rpm offset $run == 0'
# weight = "slow"      # broken, leaving, slow or context
# text = "fan {name} stands still"
# device = "fan {name}"
# host = "node"        # label with the host's name; without it, the usual ones are tried

# Links on pages of incidents, ranks and hosts, in messages and in JSON: at most 16. Known are
# PLACEHOLDERS.
# Values are quoted, times are 10 minutes around an incident, else the last hour; a link is left
# out where one of its values is not known.
#
# [links]
# "W&B" = "https://wandb.ai/{wandb_entity}/{wandb_project}/runs/{wandb_run}"
# MLflow = "https://mlflow.example/#/experiments/{mlflow_experiment}/runs/{mlflow_run}"
# GPUs = "https://grafana.example/d/dcgm?var-Hostname={host}&from={from_ms}&to={to_ms}"
# trace = "https://jaeger.example/trace/{trace_id}"
""".replace(
    "PLACEHOLDERS", "\n# ".join(textwrap.wrap(" ".join(map("{{{}}}".format, PLACEHOLDERS))))
)


def example() -> str:
    """The whole file."""
    actions = (
        f'# {MEANINGS[kind].what}\n{kind} = "{DEFAULT.action(kind, Severity.INFO)}"'
        for kind in FAULTS
    )
    guards = "\n".join(map(option, GUARDS))
    thresholds = "\n".join(map(option, THRESHOLDS))
    return (
        f"{HEAD}{chr(10).join(actions)}\n\n# When an eviction is held back.\n[guards]\n{guards}\n"
        "# When a fault is one, and whatever else `--set NAME=VALUE` sets.\n"
        f"[thresholds]\n{thresholds}\n{TAIL}"
    )


def option(name: str) -> str:
    low, high = RANGES[name]
    restart = ", needs a restart" if needs_restart(name) else ""
    said = f"{SAID[name]} [{low:.12g} to {high:.12g}{restart}]"
    lines = textwrap.wrap(said, WIDTH, initial_indent="# ", subsequent_indent="# ")
    return "\n".join((*lines, f"{name} = {getattr(KeeperConfig(), name)!r}", ""))


def docstrings() -> dict[str, str]:
    """Option -> what stands below it in monitor/model/config.py."""
    bodies = (
        node.body
        for node in ast.parse(Path(config.__file__).read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    )
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in itertools.chain.from_iterable(map(itertools.pairwise, bodies))
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


SAID = docstrings()

if __name__ == "__main__":
    PATH.write_text(example(), encoding="utf-8")
