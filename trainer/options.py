"""The command line of one rank. No torch here: `--help` is instant, and a launcher can check."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.arguments import OneLineParser

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


def _at_least(kind: type[int] | type[float], least: float) -> Callable[[str], int | float]:
    def parse(text: str) -> int | float:
        value = kind(text)
        if not value >= least:
            raise argparse.ArgumentTypeError(f"{text} is below {least:g}")
        return value

    parse.__name__ = kind.__name__  # argparse names it in "invalid int value"
    return parse


def parser() -> argparse.ArgumentParser:
    """The parser of `python -m trainer.train`."""
    top = OneLineParser(
        prog="trainer.train",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    count, seconds = _at_least(int, 0), _at_least(float, 0.0)
    positive = _at_least(int, 1)

    run = top.add_argument_group("run")
    run.add_argument(
        "--steps",
        type=count,
        default=0,
        metavar="N",
        help="stop after N committed steps of the job; 0 = for ever (default)",
    )
    run.add_argument(
        "--step-time",
        type=seconds,
        default=0.0,
        metavar="S",
        dest="step_time_s",
        help="stretch the work of a step to at least S seconds by sleeping (default 0)",
    )
    run.add_argument(
        "--batch", type=positive, default=4, metavar="N", help="sequences a rank (default 4)"
    )
    run.add_argument(
        "--learning-rate", type=seconds, default=1e-3, metavar="X", help="of AdamW (default 0.001)"
    )
    run.add_argument(
        "--seed",
        type=count,
        default=0,
        metavar="N",
        help="of weights and data; must be the same in all groups (default 0)",
    )
    run.add_argument(
        "--accumulate",
        type=positive,
        default=1,
        metavar="N",
        help="batches whose gradients make one step (default 1)",
    )
    run.add_argument(
        "--clip",
        type=seconds,
        default=0.0,
        metavar="X",
        help="largest norm of the averaged gradient; 0 = as it is (default)",
    )
    run.add_argument(
        "--algorithm",
        choices=("every-step", "local-sgd", "diloco"),
        default="every-step",
        help="groups average gradients at every step (default), or weights (local-sgd) or their "
        "changes (diloco) every --sync-every steps",
    )
    run.add_argument(
        "--sync-every",
        type=positive,
        default=10,
        metavar="N",
        help="steps between two meetings of local-sgd and diloco (default 10)",
    )

    split = top.add_argument_group("inside a group")
    split.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="where to train: gloo with cpu (default), NCCL with cuda, a GPU for each rank",
    )
    split.add_argument(
        "--tensor-parallel",
        type=positive,
        default=1,
        metavar="N",
        help="ranks that share each layer; FSDP2 splits the model over the others (default 1)",
    )
    split.add_argument(
        "--pieces",
        type=count,
        default=0,
        metavar="N",
        help="the same in all groups, and a multiple of each group's ranks: lets groups of "
        "different sizes train together (default: this group's ranks)",
    )
    split.add_argument(
        "--compile", action="store_true", help="torch.compile each block (needs a C++ compiler)"
    )

    model = top.add_argument_group("model")
    model.add_argument("--layers", type=positive, default=2, metavar="N", help="blocks (default 2)")
    model.add_argument(
        "--width",
        type=positive,
        default=128,
        metavar="N",
        help="of the residual stream (default 128)",
    )
    model.add_argument(
        "--heads", type=positive, default=4, metavar="N", help="of attention (default 4)"
    )
    model.add_argument(
        "--context", type=positive, default=128, metavar="N", help="bytes a sequence (default 128)"
    )

    fault = top.add_argument_group("fault tolerance (defaults are TorchFT's)")
    fault.add_argument(
        "--min-replicas",
        type=positive,
        default=1,
        metavar="N",
        help="commit no step with fewer replica groups (default 1)",
    )
    fault.add_argument(
        "--timeout",
        type=seconds,
        default=60.0,
        metavar="S",
        dest="timeout_s",
        help="of a collective across groups, a commit vote, a checkpoint transfer (default 60)",
    )
    fault.add_argument(
        "--quorum-timeout",
        type=seconds,
        default=60.0,
        metavar="S",
        dest="quorum_timeout_s",
        help="wait for a quorum; when it passes, the rank ends (default 60)",
    )
    fault.add_argument(
        "--quorum-retries",
        type=count,
        default=0,
        metavar="N",
        help="ask a Lighthouse that does not answer so often again within --quorum-timeout "
        "(default 0)",
    )
    fault.add_argument(
        "--connect-timeout",
        type=seconds,
        default=60.0,
        metavar="S",
        dest="connect_timeout_s",
        help="reach the Lighthouse and the group's manager (default 60)",
    )
    fault.add_argument(
        "--group-timeout",
        type=seconds,
        default=120.0,
        metavar="S",
        dest="group_timeout_s",
        help="of a collective inside the group; keep it above --timeout (default 120)",
    )

    aside = top.add_argument_group("now and then")
    aside.add_argument(
        "--evaluate-every",
        type=count,
        default=0,
        metavar="N",
        help="mean loss over other text every N steps; 0 = never (default)",
    )
    aside.add_argument(
        "--evaluate-batches",
        type=_at_least(int, 1),
        default=20,
        metavar="N",
        help="batches of an evaluation (default 20)",
    )
    aside.add_argument(
        "--checkpoint-every",
        type=count,
        default=0,
        metavar="N",
        help="write the state to disk every N steps; 0 = never (default)",
    )
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
    look.add_argument(
        "--log-every",
        type=count,
        default=10,
        metavar="N",
        help="a line every N steps, 0 = none; failed steps always (default 10)",
    )
    look.add_argument(
        "--status-file",
        type=Path,
        metavar="FILE",
        help="append events as JSON lines; {rank} becomes the name of the rank",
    )
    look.add_argument(
        "--fingerprint-every",
        type=count,
        default=0,
        metavar="N",
        help="hash all weights every N steps into the status file; 0 = never (default)",
    )
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
