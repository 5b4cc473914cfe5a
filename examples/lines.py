"""A recipe on text that may be larger than memory: the next byte of every line of the files in a folder.

shoestring train examples/lines.py --run runs/lines --set data=FOLDER --set stage=yes

The files are shards, read one after the other; lines of about the same length share a microbatch and are padded to its
longest; with `stage` the folder is first copied to the local disk.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from torch import nn

from shoestring.pieces import Shards, pad_batch

LONGEST = 256  # bytes of a line that are learnt from
PADDING = 0


@dataclass(frozen=True, kw_only=True)
class Options:
    data: Annotated[Path, "a folder of .txt files, or one file"] = Path(argparse.__file__)
    epochs: Annotated[int, "passes over the lines"] = 1
    effective_batch: Annotated[int, "lines in one update"] = 64
    seed: int = 0
    width: Annotated[int, "of the recurrent layer"] = 64


class Lines:
    learning_rate = 0.01

    def __init__(self, options=None):
        self.options = options or Options()

    def model(self):
        return NextByte(self.options.width)

    def batch(self, size):
        return torch.ones(size, LONGEST, dtype=torch.int64)

    def data(self):
        folder = self.options.data
        files = sorted(folder.glob("*.txt")) if folder.is_dir() else [folder]
        # One pass to count; a large data set has its counts and lengths in a file beside it.
        lengths = [[len(line) for line in lines(file)] for file in files]
        self.lengths = [length for file in lengths for length in file]
        return Shards(files, map(len, lengths), lines, decode=lambda line: torch.tensor(list(line)))

    def length(self, _dataset, index):
        return self.lengths[index]

    def collate(self, samples):
        return pad_batch(samples, PADDING)

    def loss(self, model, batch):
        losses = nn.functional.cross_entropy(model(batch[:, :-1]).transpose(1, 2), batch[:, 1:], reduction="none")
        learnt = batch[:, 1:] != PADDING
        return (losses * learnt).sum(), learnt.sum()


class NextByte(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.bytes, self.read, self.next = nn.Embedding(256, width), nn.GRU(width, width), nn.Linear(width, 256)

    def forward(self, batch):
        return self.next(self.read(self.bytes(batch).transpose(0, 1))[0].transpose(0, 1))


def lines(file):
    """The lines of a file that have something in them, as bytes, one at a time."""
    with file.open("rb") as text:
        for line in text:
            if len(line := line.strip()[:LONGEST]) > 1:
                yield line
