"""A recipe on text that may be larger than memory: predict the next byte in each line of the files in a folder.

shoestring train examples/lines.py --run runs/lines --set data=FOLDER --set stage=yes

The files are shards, read sequentially. Lines of similar length share a microbatch and are padded to its longest line.
With `stage`, the folder is first copied to the local disk.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from torch import nn

from shoestring.pieces import Shards, pad_batch

MAX_LENGTH = 256  # bytes; longer lines are truncated
PADDING = 0


@dataclass(frozen=True, kw_only=True)
class Options:
    data: Annotated[Path, "a folder of .txt files, or one file"] = Path(argparse.__file__)
    epochs: Annotated[int, "passes over the lines"] = 1
    effective_batch: Annotated[int, "lines in one update"] = 64
    seed: int = 0
    width: Annotated[int, "width of the recurrent layer"] = 64


class Lines:
    learning_rate = 0.01

    def __init__(self, options=None):
        self.options = options or Options()

    def model(self):
        return NextByte(self.options.width)

    def batch(self, size):
        return torch.ones(size, MAX_LENGTH, dtype=torch.int64)

    def data(self):
        folder = self.options.data
        files = sorted(folder.glob("*.txt")) if folder.is_dir() else [folder]
        # This reads all files once to count the lines; a large data set would store counts and lengths in a file.
        lengths = [[len(line) for line in read_lines(file)] for file in files]
        self.lengths = [length for file_lengths in lengths for length in file_lengths]
        return Shards(files, map(len, lengths), read_lines, decode=lambda line: torch.tensor(list(line)))

    def length(self, _dataset, index):
        return self.lengths[index]

    def collate(self, samples):
        return pad_batch(samples, PADDING)

    def loss(self, model, batch):
        losses = nn.functional.cross_entropy(model(batch[:, :-1]).transpose(1, 2), batch[:, 1:], reduction="none")
        mask = batch[:, 1:] != PADDING
        return (losses * mask).sum(), mask.sum()


class NextByte(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.bytes, self.read, self.next = nn.Embedding(256, width), nn.GRU(width, width), nn.Linear(width, 256)

    def forward(self, batch):
        return self.next(self.read(self.bytes(batch).transpose(0, 1))[0].transpose(0, 1))


def read_lines(file):
    """Yield the lines of a file as bytes, without lines of less than two bytes."""
    with file.open("rb") as stream:
        for line in stream:
            if len(line := line.strip()[:MAX_LENGTH]) > 1:
                yield line
