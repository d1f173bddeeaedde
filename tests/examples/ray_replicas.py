"""Ray's own example of TorchFT, without its reports: each waits for all workers, and so deadlocks
with the quorum of a group that comes later. A worker whose pipe `hang0` or `hang1` is made in the
folder hangs, once, where it reads data.

`python ray_replicas.py FOLDER LIGHTHOUSE_PORT`
"""

import sys
from pathlib import Path

import ray.train
import ray.train.v2.examples.pytorch.torchft_linear_example as example
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from ray.train.v2.torch.torchft_config import TorchftConfig


def train(config):
    pipe = Path(config["folder"]) / f"hang{ray.train.get_context().get_world_rank()}"
    read = example.LinearDataset.__getitem__

    def hang_or_read(data, index):
        if pipe.exists():
            pipe.rename(pipe.with_suffix(".taken")).read_bytes()
        return read(data, index)

    example.LinearDataset.__getitem__ = hang_or_read
    example.train_func(config)


if __name__ == "__main__":
    folder, lighthouse_port = sys.argv[1:]
    TorchTrainer(
        train,
        train_loop_config={
            "num_steps": 1_000_000, "training_requires_all_workers": False, "folder": folder,
        },
        scaling_config=ScalingConfig(num_workers=2),
        torch_config=TorchftConfig(
            lighthouse_kwargs={"bind": f"[::]:{lighthouse_port}", "min_replicas": 1},
            backend="gloo",
        ),
        run_config=RunConfig(storage_path=folder, failure_config=FailureConfig(max_failures=-1)),
    ).fit()  # fmt: skip
