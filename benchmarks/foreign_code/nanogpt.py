"""nanoGPT: the model of `model.py`, trained as its `train.py` trains it. Copied beside `model.py` of the repository."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from model import GPT, GPTConfig

TOKENS = Path(__file__).parent / "data" / "random" / "train.bin"
BLOCK, VOCABULARY, LEARNING_RATE, MINIMUM, WARMUP, UPDATES = 64, 96, 1e-3, 1e-4, 4, 24


class Windows:
    """All windows of the file of tokens; `train.py` draws them at random."""

    def __init__(self) -> None:
        self.tokens = np.memmap(TOKENS, dtype=np.uint16, mode="r")

    def __len__(self) -> int:
        return 24 * 16

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = index * 7
        window = torch.from_numpy(self.tokens[start : start + BLOCK + 1].astype(np.int64))
        return window[:-1], window[1:]


class NanoGPT:
    epochs, effective_batch, clip_norm = 1, 16, 1.0

    def model(self) -> Any:
        config = GPTConfig(
            n_layer=2, n_head=4, n_embd=64, block_size=BLOCK, vocab_size=VOCABULARY, dropout=0.1, bias=False
        )
        return GPT(config)

    def batch(self, size: int) -> Any:
        return torch.zeros(size, BLOCK, dtype=torch.long), torch.zeros(size, BLOCK, dtype=torch.long)

    def data(self) -> Any:
        return {"train": Windows()}

    def loss(self, model: Any, batch: Any) -> Any:
        return model(*batch)[1]

    def optimizer(self, model: Any) -> Any:
        return model.configure_optimizers(0.1, LEARNING_RATE, (0.9, 0.95), "cpu")

    def schedule(self, update: int, _: int, total_updates: int) -> float:
        if update < WARMUP:
            return (update + 1) / (WARMUP + 1)
        share = (update - WARMUP) / (total_updates - WARMUP)
        return (MINIMUM + 0.5 * (1 + math.cos(math.pi * share)) * (LEARNING_RATE - MINIMUM)) / LEARNING_RATE
