"""Sessions of one process whose model is divided between two GPUs."""

import torch
from torch.utils.data import TensorDataset

from tests.lab.ranks.recipes import RECIPES, Block, Text, Transformer
from tests.lab.ranks.training import train


def devices_of(device, runs):
    """Run sessions one after the other; return for each the bytes at the peak of both GPUs, without those before."""
    peaks = []
    torch.cuda.init()
    for arguments in runs:
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        before = [torch.cuda.memory_allocated(index) for index in range(2)]
        for index in range(2):
            torch.cuda.reset_peak_memory_stats(index)
        train(device, **arguments)
        peaks.append([torch.cuda.max_memory_allocated(index) - before[index] for index in range(2)])
    return peaks


class Wide(Text):
    """A model whose weights and activations are larger than the workspaces of libraries."""

    effective_batch, max_updates, epochs = 16, 3, 1
    words, width, depth = 1024, 256, 6

    def model(self):
        model = Transformer(self.words, self.width, self.dropout)
        model.layers = torch.nn.ModuleList(Block(self.width, self.dropout) for _ in range(self.depth))
        return model

    def batch(self, size):
        return (torch.ones(size, 65, dtype=torch.int64),)

    def data(self):
        tokens = torch.randint(0, self.words, (48, 65), generator=torch.Generator().manual_seed(0))
        return {"train": TensorDataset(tokens)}


def peak_of_wide(device, run, values):
    """Train the wide model, and return the bytes at the peak of both GPUs."""
    return devices_of(device, [{"recipe": Wide(), "run": run, "values": values}])[0]


def train_in_4_bits(device, runs):
    """Run sessions of a model with 4-bit weights, as `devices_of` does."""
    import bitsandbytes  # noqa: F401  (registers its operators)

    from tests.lab.engine.test_adapters import OPERATORS, on_the_host
    from tests.lab.engine.test_streaming import Linears

    library = torch.library.Library("bitsandbytes", "IMPL")
    for name in OPERATORS:
        library.impl(name, on_the_host(name), "CUDA", allow_override=True)
    RECIPES["Linears"] = lambda: Linears(network="dense")
    return devices_of(device, [{**arguments, "recipe": "Linears"} for arguments in runs])
