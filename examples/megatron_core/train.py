"""Layers and groups of Megatron Core: a small model in a tensor group. Its GPT needs CUDA.

    torchrun --nproc-per-node 2 train.py --data FOLDER --tensor 2

The first rank of each tensor group reads and broadcasts, as Megatron-LM does. FOLDER holds text
files, at least one for each data rank. Nothing in here knows of lightkeeper.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.model_parallel_config import ModelParallelConfig
from torch import nn

CONTEXT = 64
WIDTH = 32


class NextByte(nn.Module):
    def __init__(self, tensor):
        super().__init__()
        how = {
            "config": ModelParallelConfig(
                tensor_model_parallel_size=tensor, use_cpu_initialization=True
            ),
            "init_method": nn.init.xavier_normal_,
        }
        column = {**how, "bias": False, "gather_output": False}
        row = {**how, "bias": False, "input_is_parallel": True, "skip_bias_add": False}
        self.embed = tensor_parallel.VocabParallelEmbedding(256, WIDTH, **how)
        self.up = tensor_parallel.ColumnParallelLinear(WIDTH, 4 * WIDTH, **column)
        self.down = tensor_parallel.RowParallelLinear(4 * WIDTH, WIDTH, **row)
        self.head = tensor_parallel.ColumnParallelLinear(WIDTH, 256, **column)

    def forward(self, text):
        hidden = self.embed(text)
        hidden = hidden + self.down(nn.functional.gelu(self.up(hidden)[0]))[0]
        return self.head(hidden)[0]


def texts(folder):
    """Texts of this data rank, one after the other."""
    group = parallel_state.get_tensor_model_parallel_group()
    first = parallel_state.get_tensor_model_parallel_src_rank()
    mine = parallel_state.get_data_parallel_rank()
    for file in sorted(folder.iterdir())[mine :: parallel_state.get_data_parallel_world_size()]:
        text = torch.zeros(1, CONTEXT + 1, dtype=torch.long)
        if dist.get_rank() == first:
            text[0] = torch.tensor(list(file.read_bytes()[: CONTEXT + 1].ljust(CONTEXT + 1)))
        dist.broadcast(text, src=first, group=group)
        yield text


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tensor", type=int, default=2)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=args.tensor)
    model = NextByte(args.tensor)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    data_group = parallel_state.get_data_parallel_group()
    for text in texts(args.data):
        optimizer.zero_grad()
        losses = tensor_parallel.vocab_parallel_cross_entropy(model(text[:, :-1]), text[:, 1:])
        losses.mean().backward()
        for weight in model.parameters():
            dist.all_reduce(weight.grad, op=dist.ReduceOp.SUM, group=data_group)
        optimizer.step()
    if dist.get_rank() == 0:
        print(f"loss {losses.mean().item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
