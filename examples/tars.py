"""A recipe on tar files in the layout of webdataset: the files of a sample have the same name up to the first dot.

shoestring train examples/tars.py --run runs/tars --set data=FOLDER

The tar files are read sequentially, as from a network drive. `index.json` in the folder has the number of samples of
each of them. It is made once, and again for tar files that are new or have changed; with it a resumed run knows the
position of each sample, and opens only the tar files that it needs next.
"""

import json
import tarfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from torch import nn

from shoestring.pieces import Shards

CLASSES = 2
NUMBERS = 16  # in the file x.bin of a sample


@dataclass(frozen=True, kw_only=True)
class Options:
    data: Annotated[Path, "a folder of tar files"] = Path("tars")
    epochs: Annotated[int, "passes over the samples"] = 2
    effective_batch: Annotated[int, "samples in one update"] = 8
    seed: int = 0


class Tars:
    def __init__(self, options=None):
        self.options = options or Options()

    def model(self):
        return nn.Sequential(nn.Linear(NUMBERS, 32), nn.ReLU(), nn.Linear(32, CLASSES))

    def batch(self, size):
        return torch.zeros(size, NUMBERS), torch.zeros(size, dtype=torch.int64)

    def data(self):
        files = sorted(self.options.data.glob("*.tar"))
        return Shards(files, counts(files), read_samples, decode=decode)

    def loss(self, model, batch):
        values, labels = batch
        return nn.functional.cross_entropy(model(values), labels)


def read_samples(file):
    """Yield the samples of a tar file in their order: dictionaries of the content of each file, by its ending."""
    name, sample = None, {}
    with tarfile.open(file, "r|*") as archive:
        for member in archive:
            if not member.isfile():
                continue
            folder, _, base = member.name.rpartition("/")
            stem, _, ending = base.partition(".")
            if sample and name != (folder, stem):
                yield sample
                sample = {}
            name, sample[ending] = (folder, stem), archive.extractfile(member).read()
    if sample:
        yield sample


def decode(sample):
    """Return a sample as tensors. Random augmentation belongs here: it is seeded for each sample."""
    return torch.frombuffer(bytearray(sample["x.bin"]), dtype=torch.float32), int(sample["cls"])


def counts(files):
    """Return the number of samples of each tar file, from the index; files that it does not have are counted now."""
    index = files[0].parent / "index.json" if files else Path("index.json")
    known = json.loads(index.read_text()) if index.exists() else {}
    entries = {}
    for file in files:
        status = file.stat()
        entry = known.get(file.name)
        if not entry or [entry["bytes"], entry["modified"]] != [status.st_size, status.st_mtime_ns]:
            samples = sum(1 for _ in read_samples(file))
            entry = {"samples": samples, "bytes": status.st_size, "modified": status.st_mtime_ns}
        entries[file.name] = entry
    if entries != known:
        with suppress(OSError):  # a folder that is read-only is counted in each session
            temporary = index.with_suffix(".writing")
            temporary.write_text(json.dumps(entries, indent=1))
            temporary.replace(index)
    return [entries[file.name]["samples"] for file in files]
