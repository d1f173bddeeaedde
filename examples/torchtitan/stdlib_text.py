"""Text and tokens that need no download: Python's own library, a byte a token."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.hf_datasets import DatasetConfig
from torchtitan.hf_datasets.text_datasets import DATASETS

_BEGIN, _END = 256, 257


class ByteTokenizer(BaseTokenizer):
    """256 bytes, a beginning and an end."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        """torchtitan finds the class by its Config."""

    def __init__(self, config: Config | None = None, **_: Any) -> None:
        del config
        super().__init__()
        self.bos_id, self.eos_id = _BEGIN, _END

    def encode(self, text: str, add_bos: bool = False, add_eos: bool = False) -> list[int]:
        """The bytes, between the two marks if wanted."""
        return [*[_BEGIN] * add_bos, *text.encode(), *[_END] * add_eos]

    def decode(self, tokens: list[int], **_: Any) -> str:
        """The text, without the marks."""
        return bytes(token for token in tokens if token < _BEGIN).decode(errors="replace")

    def get_vocab_size(self) -> int:
        """Bytes and marks; the model has room for more."""
        return _END + 1


def _documents(folder: str) -> Dataset:
    paths = sorted(Path(folder).glob("*.py"))
    return Dataset.from_list([{"text": path.read_text("utf-8")} for path in paths])


DATASETS["stdlib"] = DatasetConfig(
    path=str(Path(os.__file__).parent),
    loader=_documents,
    sample_processor=lambda document: document["text"],
)
