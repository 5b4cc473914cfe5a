"""The workspaces of cuBLAS: memory that torch allocates once for each thread that multiplies matrices on a GPU.

torch's `aten/src/ATen/cuda/CublasHandlePool.cpp` has the sizes: those of the variable `CUBLAS_WORKSPACE_CONFIG`, or
defaults. With `:4096:8` an H200 allocated 32.0 MiB for the forward pass, and again for the first backward pass, which
runs in another thread (torch 2.11).
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

from shoestring.base.units import KIB, MIB

CONFIG_VARIABLE = "CUBLAS_WORKSPACE_CONFIG"

REPRODUCIBLE_CONFIGS = (":4096:8", ":16:8")
"""The configurations with which cuBLAS is reproducible bit for bit (CUDA's documentation of cuBLAS, 2.1.4)."""

TRAINING_CONFIG = REPRODUCIBLE_CONFIGS[0]
"""The configuration that training sets. The other one "may limit overall performance"."""

_DEFAULT_CONFIG, _DEFAULT_CONFIG_HOPPER = ":4096:2:16:8", ":4096:8"


def workspace_bytes(config: str) -> int:
    """Return the bytes of a workspace with this configuration: pairs `:SIZE:COUNT`, SIZE in KiB."""
    numbers = [int(number) for number in config.strip(":").split(":")]
    return sum(size * KIB * count for size, count in zip(numbers[::2], numbers[1::2], strict=True))


def default_config(compute_capability: tuple[int, int]) -> str:
    """Return the configuration that torch assumes if the variable is not set."""
    return _DEFAULT_CONFIG_HOPPER if compute_capability == (9, 0) else _DEFAULT_CONFIG


_FIRST_UNIFIED_VERSION = (2, 11)
_LT_BYTES = MIB


@cache
def separate_lt_bytes() -> int:
    """Return the bytes of the workspace that the installed torch has for cuBLASLt, in each thread that uses it.

    On simulated GPUs torch 2.10 asks for 1 MiB of its own (`CUBLASLT_WORKSPACE_SIZE`), and torch 2.13 uses cuBLAS's
    (`TORCH_CUBLASLT_UNIFIED_WORKSPACE` in `CublasHandlePool.cpp`). That 2.11 does as well is assumed, not observed.
    """
    try:
        installed = tuple(int(number) for number in version("torch").split(".")[:2])
    except PackageNotFoundError:
        return 0
    return 0 if installed >= _FIRST_UNIFIED_VERSION else _LT_BYTES
