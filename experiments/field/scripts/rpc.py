"""Parameters by torch's RPC: trainers ask a server, which has no collective at all."""

import os

import tools
import torch
import torch.distributed.rpc as rpc
from corpus import Corpus
from model import NextByte, loss_of
from torch.utils.data import DataLoader

WEIGHTS = {}


def pull():
    return WEIGHTS


def push(gradients):
    for name, gradient in gradients.items():
        WEIGHTS[name] -= 0.01 * gradient


def train(rank):
    model = NextByte()
    while True:
        for step, batch in enumerate(DataLoader(Corpus(start=1000 * rank), batch_size=4), 1):
            model.load_state_dict(rpc.rpc_sync("server", pull))
            tools.compute()
            loss = loss_of(model(batch[:, :-1]), batch)
            loss.backward()
            rpc.rpc_sync("server", push, ({n: p.grad for n, p in model.named_parameters()},))
            tools.log_step(rank, step, loss.item())


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank = int(os.environ["RANK"])
    WEIGHTS.update(NextByte().state_dict())
    name = "server" if rank == 0 else f"trainer{rank}"
    options = rpc.TensorPipeRpcBackendOptions(rpc_timeout=1800)
    rpc.init_rpc(
        name, rank=rank, world_size=int(os.environ["WORLD_SIZE"]), rpc_backend_options=options
    )
    if rank:
        train(rank)
    rpc.shutdown()


if __name__ == "__main__":
    main()
