"""Build a Llama of 8 billion parameters on a simulated GPU, and train it for three steps.

    python -m benchmarks.rehearse.simulated --stack kaggle --on a100-40 --values auto -- \\
        -m benchmarks.rehearse.large_model

Prints JSON: the seconds of building and of each step, the peak of PyTorch's allocator in GiB, and the memory of this
machine that the process uses after a step in MiB, at most. The memory of the simulated GPU that the process has written
to is not in it, and is given beside it.
"""

import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from shoestring.base.units import GIB, KIB, MIB
from shoestring.planning.simulator.ledger import device_arenas

STEPS = 3
TOKENS = 2048
VOCABULARY = 128_256

RECORDS = "SHOESTRING_SIMULATOR_FOLDER"
"""The variable that names the folder in which a simulated process finds the addresses of its device memory."""


def build() -> nn.Module:
    """Return the model in bf16, with weights that were drawn on the GPU."""
    configuration = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=4096,
        intermediate_size=14_336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=8192,
        use_cache=False,
    )
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            model: Any = LlamaForCausalLM(configuration)
    finally:
        torch.set_default_dtype(default)
    model.gradient_checkpointing_enable()
    trained: nn.Module = model.train()
    return trained


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Train on one sequence, and read the loss as a script does that logs it."""
    tokens = torch.randint(VOCABULARY, (1, TOKENS), device="cuda")
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    loss.item()


def host_bytes() -> tuple[int, int]:
    """Return this process's memory in RAM: without simulated device memory, and the device memory alone."""
    arena = device_arenas(Path(os.environ[RECORDS])).get(os.getpid(), (0, 0)) if RECORDS in os.environ else (0, 0)
    outside_bytes, device_bytes, inside = 0, 0, False
    with Path("/proc/self/smaps").open() as lines:
        for line in lines:
            first, _, rest = line.partition(" ")
            if "-" in first and not first.endswith(":"):
                begin, end = (int(address, 16) for address in first.split("-"))
                inside = arena[0] <= begin and end <= arena[1]
            elif first == "Rss:" and inside:
                device_bytes += int(rest.split()[0]) * KIB
            elif first == "Rss:":
                outside_bytes += int(rest.split()[0]) * KIB
    return outside_bytes, device_bytes


def measure() -> dict[str, Any]:
    """Return the measurements."""
    started = time.perf_counter()
    model = build()
    torch.cuda.synchronize()
    building = time.perf_counter() - started
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    seconds, host = [], [host_bytes()]
    for _ in range(STEPS):
        started = time.perf_counter()
        step(model, optimizer)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
        host.append(host_bytes())
    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "build_seconds": round(building, 2),
        "step_seconds": [round(value, 2) for value in seconds],
        "peak_allocated_gib": round(torch.cuda.max_memory_allocated() / GIB, 2),
        "peak_reserved_gib": round(torch.cuda.max_memory_reserved() / GIB, 2),
        "host_mib": round(max(outside for outside, _ in host) / MIB),
        "written_device_mib": round(max(inside for _, inside in host) / MIB),
    }


def main() -> int:
    warnings.filterwarnings("ignore")  # what transformers says of its configuration
    print(json.dumps(measure(), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
