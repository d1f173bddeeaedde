"""Ray's own example of TorchFT, without its reports: each waits for all workers, and so deadlocks
with the quorum of a group that comes later.
"""

import sys

import ray.train.v2.examples.pytorch.torchft_linear_example as example
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from ray.train.v2.torch.torchft_config import TorchftConfig

if __name__ == "__main__":
    TorchTrainer(
        example.train_func,
        train_loop_config={"num_steps": 1_000_000, "training_requires_all_workers": False},
        scaling_config=ScalingConfig(num_workers=2),
        torch_config=TorchftConfig(lighthouse_kwargs={"min_replicas": 1}, backend="gloo"),
        run_config=RunConfig(storage_path=sys.argv[1]),
    ).fit()
