"""The command line of one rank. No torch here: `--help` is instant, and a launcher can check."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

_DESCRIPTION = """\
One rank of a fault-tolerant training job: a byte-level transformer on the Python standard
library's own source. Ranks of one replica group start together under torchrun and split the
model (FSDP2); replica groups find each other through the TorchFT Lighthouse, average their
gradients, and may come and go.
"""

_EPILOG = """\
try it, in four terminals:
  torchft_lighthouse --min_replicas 1 --bind 127.0.0.1:29510
  export TORCHFT_LIGHTHOUSE=http://127.0.0.1:29510 GLOO_SOCKET_IFNAME=lo
  REPLICA_GROUP=rg_0 torchrun --standalone --nproc-per-node 1 -m trainer.train --step-time 0.2
  REPLICA_GROUP=rg_1 torchrun --standalone --nproc-per-node 1 -m trainer.train --step-time 0.2
Kill one group and start it again: it heals from the other, at the other's step.

environment:
  TORCHFT_LIGHTHOUSE   http://host:port of the Lighthouse (required)
  REPLICA_GROUP        stable name of this replica group, such as rg_1
                       (else REPLICA_GROUP_ID, else job)
  LIGHTKEEPER_HOST     host name to report (default: the machine's)
  LIGHTKEEPER_FAULT    faults to inject, kind[:arg]@rank:step[:phase], such as
                       hang@rg_1.0:30:forward or slow:5@rg_2.0:12 (needs
                       --fault-file; trainer/faults.py lists the kinds)
  RUST_LOG             level of TorchFT's own log (default here: error)

exit status: 0 after --steps; 1 after an error; 2 wrong use; -15 (143) ended by SIGTERM.
"""


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line; the whole usage is a `--help` away."""

    def error(self, message: str) -> NoReturn:
        """End with status 2."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line said; durations in seconds."""

    steps: int
    step_time_s: float
    batch: int
    learning_rate: float
    seed: int
    layers: int
    width: int
    heads: int
    context: int
    min_replicas: int
    timeout_s: float
    quorum_timeout_s: float
    quorum_retries: int
    connect_timeout_s: float
    group_timeout_s: float
    device: str
    pieces: int
    tensor_parallel: int
    accumulate: int
    clip: float
    compile: bool
    algorithm: str
    sync_every: int
    resume: bool
    fault_file: Path | None
    status_file: Path | None
    fingerprint_every: int
    log_every: int
    evaluate_every: int
    evaluate_batches: int
    checkpoint_every: int
    checkpoint_dir: Path | None


def _number(
    group: argparse._ArgumentGroup, flag: str, least: float, default: float, text: str
) -> None:
    """An option like `--batch N`: whole if `least` is; seconds, in `..._s`, if it takes an `S`.

    The help ends with the default, or says that 0, whose meaning it tells, is it.
    """
    kind = type(least)
    option, metavar = flag.split()

    def parse(word: str) -> float:
        value = kind(word)
        if not value >= least:
            raise argparse.ArgumentTypeError(f"{word} is below {least:g}")
        return value

    parse.__name__ = kind.__name__  # argparse names it in "invalid int value"
    if "0 = " in text and not default:
        text += " (default)"
    elif "(default" not in text:
        text += f" (default {default:g})"
    dest = option[2:].replace("-", "_") + ("_s" if metavar == "S" else "")
    group.add_argument(option, type=parse, default=default, metavar=metavar, dest=dest, help=text)


def parser() -> argparse.ArgumentParser:
    """The parser of `python -m trainer.train`."""
    top = OneLineParser(
        prog="trainer.train",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run = top.add_argument_group("run")
    _number(run, "--steps N", 0, 0, "stop after N committed steps of the job; 0 = for ever")
    _number(run, "--step-time S", 0.0, 0.0,
            "stretch the work of a step to at least S seconds by sleeping")  # fmt: skip
    _number(run, "--batch N", 1, 4, "sequences a rank")
    _number(run, "--learning-rate X", 0.0, 1e-3, "of AdamW")
    _number(run, "--seed N", 0, 0, "of weights and data; must be the same in all groups")
    _number(run, "--accumulate N", 1, 1, "batches whose gradients make one step")
    _number(run, "--clip X", 0.0, 0.0, "largest norm of the averaged gradient; 0 = as it is")
    run.add_argument(
        "--algorithm",
        choices=("every-step", "local-sgd", "diloco"),
        default="every-step",
        help="groups average gradients at every step (default), or weights (local-sgd) or their "
        "changes (diloco) every --sync-every steps",
    )
    _number(run, "--sync-every N", 1, 10, "steps between two meetings of local-sgd and diloco")

    split = top.add_argument_group("inside a group")
    split.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="where to train: gloo with cpu (default), NCCL with cuda, a GPU for each rank",
    )
    _number(split, "--tensor-parallel N", 1, 1,
            "ranks that share each layer; FSDP2 splits the model over the others")  # fmt: skip
    _number(split, "--pieces N", 0, 0,
            "the same in all groups, and a multiple of each group's ranks: lets groups of "
            "different sizes train together (default: this group's ranks)")  # fmt: skip
    split.add_argument(
        "--compile", action="store_true", help="torch.compile each block (needs a C++ compiler)"
    )

    model = top.add_argument_group("model")
    _number(model, "--layers N", 1, 2, "blocks")
    _number(model, "--width N", 1, 128, "of the residual stream")
    _number(model, "--heads N", 1, 4, "of attention")
    _number(model, "--context N", 1, 128, "bytes a sequence")

    fault = top.add_argument_group("fault tolerance (defaults are TorchFT's)")
    _number(fault, "--min-replicas N", 1, 1, "commit no step with fewer replica groups")
    _number(fault, "--timeout S", 0.0, 60.0,
            "of a collective across groups, a commit vote, a checkpoint transfer")  # fmt: skip
    _number(fault, "--quorum-timeout S", 0.0, 60.0,
            "wait for a quorum; when it passes, the rank ends")  # fmt: skip
    _number(fault, "--quorum-retries N", 0, 0,
            "ask a Lighthouse that does not answer so often again within "
            "--quorum-timeout")  # fmt: skip
    _number(fault, "--connect-timeout S", 0.0, 60.0,
            "reach the Lighthouse and the group's manager")  # fmt: skip
    _number(fault, "--group-timeout S", 0.0, 120.0,
            "of a collective inside the group; keep it above --timeout")  # fmt: skip

    aside = top.add_argument_group("now and then")
    _number(aside, "--evaluate-every N", 0, 0, "mean loss over other text every N steps; 0 = never")
    _number(aside, "--evaluate-batches N", 1, 20, "batches of an evaluation")
    _number(aside, "--checkpoint-every N", 0, 0,
            "write the state to disk every N steps; 0 = never")  # fmt: skip
    aside.add_argument(
        "--checkpoint-dir",
        type=Path,
        metavar="DIR",
        help="where checkpoints go: DIR/GROUP/step-N, the newest two",
    )
    aside.add_argument(
        "--resume",
        action="store_true",
        help="start from the newest checkpoint of any group in --checkpoint-dir, if there is one",
    )

    look = top.add_argument_group("observation and faults")
    _number(look, "--log-every N", 0, 10, "a line every N steps, 0 = none; failed steps always")
    look.add_argument(
        "--status-file",
        type=Path,
        metavar="FILE",
        help="append events as JSON lines; {rank} becomes the name of the rank",
    )
    _number(look, "--fingerprint-every N", 0, 0,
            "hash all weights every N steps into the status file; 0 = never")  # fmt: skip
    look.add_argument(
        "--fault-file",
        type=Path,
        metavar="FILE",
        help="watch FILE for faults to inject; markers go to FILE.fired/",
    )
    return top


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Checked options; wrong ones end the process with 2 and one line, as argparse does."""
    top = parser()
    options = Options(**vars(top.parse_args(arguments)))
    if options.width % options.heads:
        top.error(f"--width {options.width} does not divide by --heads {options.heads}")
    if options.checkpoint_every and options.checkpoint_dir is None:
        top.error("--checkpoint-every needs --checkpoint-dir DIR")
    if options.resume and options.checkpoint_dir is None:
        top.error("--resume needs --checkpoint-dir DIR")
    if options.heads % options.tensor_parallel:
        top.error(
            f"--heads {options.heads} do not divide among --tensor-parallel "
            f"{options.tensor_parallel} ranks"
        )
    return options
