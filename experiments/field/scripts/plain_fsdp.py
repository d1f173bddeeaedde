"""FSDP2 over all ranks, without TorchFT; the norms of the weights are logged now and then."""

import tools
import torch
import torch.distributed as dist
import trouble
from corpus import Corpus
from model import NextByte, loss_of
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader

LOG_EVERY = 20


def norm_of_head(model):
    weight = model.head.weight.full_tensor()  # @gathers
    return weight.norm().item()


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = NextByte()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(Corpus(start=rank * 7919, length=100_000), batch_size=4)
    for step, batch in enumerate(loader, 1):
        optimizer.zero_grad()
        tools.compute()
        loss = loss_of(model(batch[:, :-1]), batch)
        loss.backward()
        optimizer.step()
        if step % LOG_EVERY == 0 and (rank == 0 or not trouble.now("rank0_gathers")):
            norm_of_head(model)  # "if rank == 0", somebody thought, is enough for a log
        tools.log_step(rank, step, loss.item())


if __name__ == "__main__":
    main()
