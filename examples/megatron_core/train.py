"""A GPT of Megatron Core in a tensor group: its groups and layers. Its schedules need CUDA.

    torchrun --nproc-per-node 2 train.py --data FOLDER --tensor 2

The first rank of each tensor group reads and broadcasts, as Megatron-LM does. FOLDER holds text
files, at least one for each data rank. Nothing in here knows of lightkeeper.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.transformer_config import TransformerConfig

CONTEXT = 64


def gpt(tensor):
    config = TransformerConfig(
        num_layers=2,
        hidden_size=32,
        num_attention_heads=4,
        tensor_model_parallel_size=tensor,
        use_cpu_initialization=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )
    spec = get_gpt_layer_local_spec()
    return GPTModel(config, spec, vocab_size=256, max_sequence_length=CONTEXT)


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
    model = gpt(args.tensor)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    data_group = parallel_state.get_data_parallel_group()
    places = torch.arange(CONTEXT)[None]
    for text in texts(args.data):
        optimizer.zero_grad()
        loss = model(text[:, :-1], places, None, labels=text[:, 1:]).mean()
        loss.backward()
        for weight in model.parameters():
            dist.all_reduce(weight.grad, op=dist.ReduceOp.SUM, group=data_group)
        optimizer.step()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
