"""Describe this machine's NVIDIA GPU: versions, memory of the CUDA context, workspaces of cuBLAS.

    python -m benchmarks.gpu.machine [--json OUT]

Each configuration of cuBLAS has a process of its own, in which linear layers run forward and backward in each type. The
context is the memory that the driver counts for this process, apart from what torch has reserved. The exit status is 2
without a GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

from benchmarks.gpu import harness

from shoestring.hardware import cublas

CONFIGS = ("", cublas.TRAINING_CONFIG, ":4096:2:16:8", ":16:8")
"""Values of `CUBLAS_WORKSPACE_CONFIG`; empty: not set."""
IMPORTS = ("torch", "transformers", "transformers.models.auto.modeling_auto", "shoestring_recipes.vqa.student")
"""What each training imports; every other process of a plan or a run waits for some of it as well."""


def main() -> int:
    parser = harness.build_parser(__doc__, file="gpu_machine.json", seconds=60)
    parser.add_argument("--measure-config", help="measure in this process, with the environment as it is")
    arguments = parser.parse_args()
    if arguments.measure_config is not None:
        print(json.dumps(measure()))
        return 0
    selection = harness.select_cases(dry_run=False)
    if selection is None:
        return 2
    start_seconds = {name: [_import_seconds(name) for _ in range(2)] for name in IMPORTS}
    print("  ".join(f"import {name} {seconds[-1]:.1f} s" for name, seconds in start_seconds.items()), flush=True)
    rows = []
    for config in CONFIGS:
        environment = {name: value for name, value in os.environ.items() if name != cublas.CONFIG_VARIABLE}
        process = subprocess.run(
            [sys.executable, "-m", "benchmarks.gpu.machine", "--measure-config", config],
            env={**environment, **({cublas.CONFIG_VARIABLE: config} if config else {})},
            capture_output=True,
            text=True,
            check=False,
            cwd=harness.ROOT,
        )
        if process.returncode:
            rows.append({"config": config, "error": process.stderr[-400:]})
            continue
        rows.append({"config": config, **json.loads(process.stdout)})
        harness.write_results(arguments.json, selection[1], {"start_seconds": start_seconds, "rows": rows})
        row = rows[-1]
        print(
            f"CUBLAS_WORKSPACE_CONFIG={config or '(not set)':14} workspace {row['workspace'] / 2**20:6.2f} MiB, in "
            f"backward {row['backward_workspace'] / 2**20:6.2f} MiB, context {row['context'] / 2**20:.0f} MiB, with "
            f"libraries {row['context_with_libraries'] / 2**20:.0f} MiB"
        )
    return 0


def _import_seconds(module: str) -> float:
    """Return the seconds of a process that imports a module."""
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, check=False, cwd=harness.ROOT)
    return time.monotonic() - started


def measure() -> dict[str, int | None]:
    """Return the bytes of the context and of the workspaces in this process."""
    import pynvml
    import torch

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    used_before = pynvml.nvmlDeviceGetMemoryInfo(handle).used

    def context() -> int:
        torch.cuda.synchronize()
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used - used_before - torch.cuda.memory_reserved())

    def allocated_by(run: Any) -> int:
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return int(torch.cuda.memory_allocated() - before)

    first = torch.zeros(1, device="cuda")
    row: dict[str, int | None] = {"context": context()}
    del first
    tensors = [torch.randn(256, 256, device="cuda") for _ in range(2)]
    row["workspace"] = allocated_by(lambda: tensors[0] @ tensors[1])
    row["backward_workspace"] = allocated_by(lambda: _backward(torch.float32))
    for dtype in (torch.float16, torch.bfloat16):
        if dtype == torch.float16 or torch.cuda.is_bf16_supported(including_emulation=False):
            _backward(dtype)
    convolution = torch.nn.Conv2d(16, 16, 3).cuda()
    convolution(torch.randn(4, 16, 64, 64, device="cuda")).sum().backward()
    row["context_with_libraries"] = context()
    return row


def _backward(dtype: Any) -> None:
    import torch

    layer = torch.nn.Linear(256, 256, device="cuda", dtype=dtype)
    layer(torch.randn(64, 256, device="cuda", dtype=dtype)).sum().backward()


if __name__ == "__main__":
    raise SystemExit(main())
