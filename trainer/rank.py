"""Everything that one rank is made of, put together before the first step."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trainer import checkpoint, data, exchange, faults, group, model, sharding, status
from trainer.exchange import Exchange
from trainer.injector import Injector
from trainer.options import Options
from trainer.pace import Pace
from trainer.pieces import Cut, Pieces, tensors_of
from trainer.place import SHARD, Intra, Place, join_group, read_place

if TYPE_CHECKING:
    from worker_server.reporter import StepReporter


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank, ready to train."""

    opt: Options
    place: Place
    intra: Intra | None
    batches: data.Batches
    network: model.ByteTransformer
    optimizer: torch.optim.Optimizer
    pieces: Pieces
    printed: dict[str, Tensor]
    """Weights of the first piece: what the keeper compares with the same piece elsewhere."""
    exchange: Exchange
    injector: Injector
    pace: Pace
    record: status.StatusFile
    reporter: StepReporter


def start(opt: Options, reporter: StepReporter) -> Rank:
    """Meet the group, build the model, and reach TorchFT; whatever fails ends the process."""
    torch.set_num_threads(1)  # ranks share the cores of a host
    place = read_place(opt.device)
    injector = Injector(
        place.name,
        world_size=place.world_size,
        host=place.host,
        file=opt.fault_file,
        planned=faults.parse_specs(os.environ.get(faults.ENVIRONMENT, "")),
        declare=reporter.phase,
    )
    intra = join_group(place, opt.group_timeout_s, opt.tensor_parallel)

    network = model.build(
        model.ModelConfig(opt.layers, opt.width, opt.heads, opt.context), opt.seed
    ).to(place.device)
    sharding.split(network, intra, opt)
    optimizer = torch.optim.AdamW(network.parameters(), lr=opt.learning_rate)
    cut = cut_of(place, opt)
    pieces = Pieces(network, optimizer, cut)

    resumed = resume(opt, network, optimizer, intra)
    links = exchange.connect(place, opt, cut, pieces.state_of)
    if resumed is not None:
        links.resume(*resumed)
    for manager in links.managers:
        reporter.observe_manager(manager)

    record = status.open_for(opt.status_file, place.name)
    corpus = data.standard_library()
    record.write(
        "started",
        host=place.host,
        parameters=sum(p.numel() for p in network.parameters()),
        held=pieces.gradient.numel(),
        step=links.current_step(),
        corpus_sha256=corpus.sha256,
    )
    return Rank(
        opt=opt,
        place=place,
        intra=intra,
        batches=data.Batches(corpus, opt, data.group_index(place.group), _reader(place, intra)),
        network=network,
        optimizer=optimizer,
        pieces=pieces,
        printed=pieces.weights_of(0),
        exchange=links,
        injector=injector,
        pace=Pace(opt.step_time_s),
        record=record,
        reporter=reporter,
    )


def cut_of(place: Place, opt: Options) -> Cut:
    """Which pieces of the model this rank holds.

    Pieces are numbered along FSDP2's dimension first; the tensor parallel ranks of one part of it
    follow each other.
    """
    tensor = opt.tensor_parallel
    shards = place.world_size // tensor
    parts = opt.pieces or shards  # of FSDP2's dimension
    if parts % shards:
        sys.exit(f"trainer: --pieces {parts} do not divide among {shards} shards of {place.group}")
    if parts != shards and (tensor > 1 or opt.algorithm != "every-step"):
        sys.exit("trainer: --pieces: tensor parallel and semi-synchronous groups are of one size")
    count = parts // shards
    return Cut(
        total=parts * tensor,
        first=place.group_rank * count,
        count=count,
        leads=place.group_rank % tensor == 0,
    )


def _reader(place: Place, intra: Intra | None) -> int:
    """Whose data this rank reads: tensor parallel ranks work on the same batch."""
    return place.group_rank if intra is None else intra.mesh[SHARD].get_local_rank()


def resume(
    opt: Options,
    network: model.ByteTransformer,
    optimizer: torch.optim.Optimizer,
    intra: Intra | None,
) -> tuple[int, int] | None:
    """With `--resume`, committed steps and batches of the newest checkpoint, which is loaded."""
    if not opt.resume or opt.checkpoint_dir is None:
        return None
    # One rank looks: another group may be writing at this moment.
    path = group.agree_on_text(str(checkpoint.newest(opt.checkpoint_dir) or ""), intra)
    if not path:
        return None
    return checkpoint.load(Path(path), tensors_of(network, optimizer), intra)
