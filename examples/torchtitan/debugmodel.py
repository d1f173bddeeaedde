"""Configurations for torchtitan: `--module debugmodel --config plain`, or `fault_tolerant`.

torchtitan's debug model (Llama 3, six layers, 6 million parameters) on Python's library as text.
"""

from __future__ import annotations

import os

import torch
from healing import HealingCheckpoints
from stdlib_text import ByteTokenizer
from torchtitan.config import ParallelismConfig
from torchtitan.experiments.torchft.llama3.config_registry import llama3_torchft_debugmodel
from torchtitan.experiments.torchft.trainer import FaultTolerantTrainer
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3.config_registry import llama3_debugmodel
from torchtitan.tools.profiler import Profiler
from torchtitan.trainer import Trainer


def plain() -> Trainer.Config:
    """FSDP2 over all ranks."""
    return _small(llama3_debugmodel())


def fault_tolerant() -> FaultTolerantTrainer.Config:
    """FSDP2 within a replica group, and across groups TorchFT's all-reduce in every step.

    Which group this is, and how many there may be, is in REPLICA_GROUP_ID and REPLICA_GROUPS.
    """
    config = _small(llama3_torchft_debugmodel())
    config.fault_tolerance.semi_sync_method = None  # the stock configuration is DiLoCo's
    config.fault_tolerance.process_group = "gloo"  # the stock configuration's is NCCL
    config.fault_tolerance.process_group_timeout_ms = 30_000
    config.fault_tolerance.replica_id = int(os.environ.get("REPLICA_GROUP_ID", "0"))
    config.fault_tolerance.group_size = int(os.environ.get("REPLICA_GROUPS", "1"))
    config.comm.train_timeout_seconds = 100  # longer than to wait for the other groups
    config.checkpoint = HealingCheckpoints.Config(enable=True, interval=1000)  # or nobody heals
    return config


def _small(config: Trainer.Config) -> Trainer.Config:
    config.tokenizer = ByteTokenizer.Config()
    config.hf_assets_path = "."  # where the files of a tokenizer would be
    config.dataloader = HuggingFaceTextDataLoader.Config(dataset="stdlib")
    config.training.seq_len = 64
    config.training.steps = 20
    config.debug.seed = 7
    config.profiler = Profiler.Config()
    config.validator.enable = False
    # the default needs a fully_shard that is newer than torch 2.13's
    config.parallelism = ParallelismConfig(spmd_backend="partial_dtensor")
    if not torch.cuda.is_available():
        _without_gpu(config)
    return config


def _without_gpu(config: Trainer.Config) -> None:
    config.training.disable_cuda_graphs = True
    config.activation_checkpoint = None  # works as well, and only costs time here
    for layer in config.model_spec.model.layers:  # flex attention: see the README
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
