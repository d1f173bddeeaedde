"""What the model reads: the Python standard library's own source, as bytes.

Real text that is on every machine already: nothing to download, nothing shipped.

The sampler has no state. A batch is a function of (seed, step, replica group, group rank), so
a group that died and healed at step 900 draws exactly what it would have drawn, with no data
loader state in any checkpoint, and a step that was not committed is tried again on the same
batch.
"""

from __future__ import annotations

import hashlib
import re
import sysconfig
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from trainer.options import TrainOptions


@dataclass(frozen=True)
class Corpus:
    """Some text as bytes."""

    text: bytes

    @cached_property
    def sha256(self) -> str:
        """Names the text: groups on different Python versions read different corpora."""
        return hashlib.sha256(self.text).hexdigest()

    @cached_property
    def values(self) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """The text as an array, without a copy."""
        return np.frombuffer(self.text, dtype=np.uint8)

    def batch(self, key: Sequence[int], size: int, length: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets, each (size, length) of int64; targets are the inputs one byte on.

        Equal keys draw equal batches.
        """
        draw = np.random.default_rng(key)
        starts = draw.integers(0, len(self.values) - length, size=size)
        windows = np.stack([self.values[start : start + length + 1] for start in starts])
        tokens = torch.from_numpy(windows.astype(np.int64))
        return tokens[:, :-1], tokens[:, 1:]


def standard_library() -> Corpus:
    """The top-level modules of the running Python's standard library (about 4.7 MB in 3.11)."""
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return Corpus(b"\n".join(source.read_bytes() for source in sources))


def group_index(group: str) -> int:
    """The number that keys a replica group's data: its trailing digits, else a hash of its name.

    `rg_1` is 1, as TorchFT counts too.
    """
    digits = re.search(r"\d+$", group)
    return int(digits.group()) if digits else zlib.crc32(group.encode())


@dataclass(frozen=True)
class Batches:
    """What one rank reads: the corpus, and everything of the key but the step."""

    corpus: Corpus
    opt: TrainOptions
    group_index: int
    reader: int
    """Number of the reader in its group; tensor parallel ranks are one reader."""

    def draw(self, step: int, micro: int) -> tuple[Tensor, Tensor]:
        """Batch number `micro` of the try of `step`."""
        return self._batch(self.opt.seed, step, self.group_index, self.reader, micro)

    def draw_unseen(self, number: int) -> tuple[Tensor, Tensor]:
        """Batch `number` of the evaluation: the same on every rank, drawn with another seed."""
        return self._batch(self.opt.seed + 1, number, 0, 0, 0)

    def _batch(self, *key: int) -> tuple[Tensor, Tensor]:
        return self.corpus.batch(key, self.opt.batch, self.opt.context)
