"""Sessions of one process whose model is divided between two GPUs."""

import torch

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
