"""Command lines from dataclasses, and a rank's.

No torch here: `--help` is instant, and a launcher can check options.
"""

from __future__ import annotations

import argparse
import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, get_type_hints

from lightkeeper.worker_server.command import OneLineParser


def option(says: str, default: Any = None, **more: Any) -> Any:
    """A dataclass field that is a command-line option.

    `more`: `least` and `most` (bounds of a number), and any argument of argparse.
    """
    return field(default=default, metadata={"says": says, **more})


def parser_of(described: type, prog: str, description: str, epilog: str) -> OneLineParser:
    """An option for each `option` of the dataclass: `step_time_s: float` is `--step-time S`."""
    form = argparse.RawDescriptionHelpFormatter
    parser = OneLineParser(prog, description=description, epilog=epilog, formatter_class=form)
    kinds = get_type_hints(described)
    for each in fields(described):
        more = dict(each.metadata)
        says, bounds = more.pop("says"), (more.pop("least", 0), more.pop("most", math.inf))
        if "(default" not in says and each.default not in (None, False, ""):
            says += " (default %(default)s)"
        flag = more.pop("flag", "--" + each.name.removesuffix("_s").replace("_", "-"))
        more = {**_of_kind(kinds[each.name], each.name.endswith("_s"), *bounds), **more}
        parser.add_argument(flag, dest=each.name, default=each.default, help=says, **more)
    return parser


def _of_kind(kind: type, seconds: bool, least: float, most: float) -> dict[str, Any]:
    """The arguments of argparse that follow from a field's type."""
    if kind is bool:
        return {"action": "store_true"}
    if kind not in (int, float):
        return {"type": Path if kind == Path | None else str}
    metavar = "S" if seconds else "N" if kind is int else "X"
    return {"metavar": metavar, "type": in_bounds(kind, least, most)}


def in_bounds(kind: type[int] | type[float], least: float, most: float) -> Callable[[str], float]:
    """An argparse `type`: a number within bounds."""
    bounds = f"from {least:g}" + (f" to {most:g}" if most < math.inf else " up")

    def parse(word: str) -> float:
        with contextlib.suppress(ValueError):
            value = kind(word)
            if least <= value <= most:  # no NaN
                return value
        raise argparse.ArgumentTypeError(f"{word!r} is not a number {bounds}")

    return parse


# -- one rank ---------------------------------------------------------------------------------

_DESCRIPTION: Final = """\
One rank of a fault-tolerant training job: a byte-level transformer on the Python standard
library's own source. Ranks of one replica group start together under torchrun and split the
model (FSDP2); replica groups find each other through the TorchFT Lighthouse, average their
gradients, and may come and go.
"""

_EPILOG: Final = """\
try it, in four terminals:
  RUST_LOG=warn torchft_lighthouse --min_replicas 1 --bind 127.0.0.1:29510
  export TORCHFT_LIGHTHOUSE=http://127.0.0.1:29510 GLOO_SOCKET_IFNAME=lo
  REPLICA_GROUP=rg_0 torchrun --standalone -m lightkeeper.trainer.train --step-time 0.2
  REPLICA_GROUP=rg_1 torchrun --standalone -m lightkeeper.trainer.train --step-time 0.2
Kill one group and start it again: it heals from the other, at the other's step.

environment:
  TORCHFT_LIGHTHOUSE   http://host:port of the Lighthouse (required)
  REPLICA_GROUP        stable name of this replica group, such as rg_1
                       (else REPLICA_GROUP_ID, else job)
  LIGHTKEEPER_HOST     host name to report (default: the machine's)
  RUST_LOG             level of TorchFT's own log (default here: error)

exit status: 0 after --steps; 1 after an error; 2 wrong use; -15 (143) ended by SIGTERM.
"""


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """The command line's values; durations in seconds."""

    steps: int = option("stop after N committed steps of the job; 0 = for ever", 0)
    step_time_s: float = option("stretch the work of a step to at least S seconds by sleeping", 0.0)
    batch: int = option("sequences a rank", 4, least=1)
    learning_rate: float = option("of AdamW", 1e-3)
    seed: int = option("of weights and data; must be the same in all groups", 0)
    device: str = option(
        "where to train: gloo with cpu (default), NCCL with cuda, a GPU for each rank",
        "cpu",
        choices=("cpu", "cuda"),
    )
    layers: int = option("blocks", 2, least=1)
    width: int = option("of the residual stream", 128, least=1)
    heads: int = option("of attention", 4, least=1)
    context: int = option("bytes a sequence", 128, least=1)
    min_replicas: int = option(
        "commit no step with fewer replica groups", 1, least=1,
    )  # fmt: skip
    timeout_s: float = option(
        "of a collective across groups, a commit vote, a checkpoint transfer", 60.0
    )
    group_timeout_s: float = option(
        "of a collective inside the group; keep it above --timeout", 120.0
    )
    evaluate_every: int = option("mean loss over other text every N steps; 0 = never", 0)
    evaluate_batches: int = option("batches of an evaluation", 20, least=1)
    checkpoint_every: int = option("write the state to disk every N steps; 0 = never", 0)
    checkpoint_dir: Path | None = option(
        "where checkpoints go: DIR/GROUP/step-N, the newest two", metavar="DIR"
    )
    resume: bool = option(
        "start from the newest checkpoint of any group in --checkpoint-dir, if there is one",
        default=False,
    )
    log_every: int = option("a line every N steps, 0 = none; failed steps always", 10)
    status_file: Path | None = option("append events as JSON lines", metavar="FILE")
    fingerprint_every: int = option(
        "hash all weights every N steps into the status file; 0 = never", 0
    )
    fault_file: Path | None = option(
        "watch FILE for faults to inject (trainer/faults.py lists them); markers go to FILE.fired/",
        metavar="FILE",
    )


def rank_options(arguments: Sequence[str] | None = None) -> TrainOptions:
    """Checked options; wrong ones end the process with status 2 and one line, like argparse."""
    top = parser_of(TrainOptions, "lightkeeper.trainer.train", _DESCRIPTION, _EPILOG)
    opt = TrainOptions(**vars(top.parse_args(arguments)))
    if opt.width % opt.heads:
        top.error(f"--width {opt.width} does not divide by --heads {opt.heads}")
    if (opt.checkpoint_every or opt.resume) and opt.checkpoint_dir is None:
        top.error("--checkpoint-every and --resume need --checkpoint-dir DIR")
    return opt
