"""What a machine and its libraries are, and the variables with which kernels are chosen: why other bits may come out.

A difference of these facts alone is none of the bits: `kernel_probe.py` computes whether there is one.
"""

import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from shoestring.base import shell

_VARIABLES = (
    *("MKL_", "ONEDNN_", "DNNL_", "ATEN_", "CUBLAS", "CUDNN_", "NVIDIA_TF32", "TORCH_", "OMP_"),
    *("OPENBLAS_", "BLIS_", "NPY_", "GLIBC_TUNABLES"),
)
"""The beginnings of the names of variables with which kernels are chosen."""
_LIBRARIES = {"MKL": r"Math Kernel Library Version (\S+)", "oneDNN": r"MKL-DNN (v\S+)", "LAPACK": r"LAPACK_INFO=(\w+)"}
_LONGEST = 100
_CAUSES = {
    "BLAS": ("MKL", "BLIS", "OPENBLAS", "CPU"),
    "LAPACK": ("MKL", "OPENBLAS", "CPU"),
    "FFT": ("MKL", "CPU"),
    "oneDNN": ("ONEDNN", "oneDNN", "DNNL", "CPU"),
    "oneDNN in bf16": ("ONEDNN", "oneDNN", "DNNL", "CPU"),
    "recurrent layers": ("ONEDNN", "oneDNN", "DNNL", "MKL", "CPU"),
    "attention": ("ATEN", "MKL", "CPU", "GPU", "TF32"),
    "ATen": ("ATEN", "CPU", "GPU"),
    "numpy": ("NPY", "OPENBLAS", "CPU"),
    "cuBLAS": ("CUBLAS", "NVIDIA_TF32", "TF32", "TORCH", "GPU", "CUDA"),
    "cuDNN": ("CUDNN", "cuDNN", "NVIDIA_TF32", "TF32", "GPU", "CUDA"),
}
"""By library, the beginnings of the names of the facts with which it chooses its kernels."""


def machine_facts(device: torch.device) -> dict[str, str]:
    """Return the facts by name, those of a GPU if the device is one. A variable that is not set has none."""
    build = torch.__config__.show()
    facts = {name: match[1] for name, pattern in _LIBRARIES.items() if (match := re.search(pattern, build))}
    facts |= {"CPU": _cpu_name(), "CPU instructions": torch.backends.cpu.get_cpu_capability()}
    if device.type == "cuda":
        facts |= {
            "GPU": torch.cuda.get_device_name(device),
            "GPU driver": (re.findall(r"Module.*?(\d+\.[\d.]+)", _content("/proc/driver/nvidia/version")) or [""])[0],
            "CUDA": torch.version.cuda or "",
            "cuDNN": str(torch.backends.cudnn.version()),
            **fp32_modes(),
        }
    # A path tells of a person and decides no kernel.
    variables = {name: value for name, value in os.environ.items() if name.startswith(_VARIABLES) and "/" not in value}
    return {name: value[:_LONGEST] for name, value in sorted({**facts, **variables}.items())}


def fp32_modes() -> dict[str, str]:
    """Return how torch multiplies numbers in fp32."""
    modes: dict[str, Callable[[], object]] = {
        "TF32 of products": torch.get_float32_matmul_precision,
        "TF32 in cuBLAS": lambda: torch.backends.cuda.matmul.allow_tf32,
        "TF32 in cuDNN": lambda: torch.backends.cudnn.allow_tf32,
    }
    facts = {}
    for name, read in modes.items():
        with suppress(RuntimeError):  # torch refuses to tell once a program has set them in its newer way
            facts[name] = str(read())
    return facts


def changed_facts(saved: dict[str, str], current: dict[str, str], libraries: tuple[str, ...] = ()) -> list[str]:
    """Describe the facts that have changed: those with which one of the libraries chooses its kernels, if any has."""
    names = [name for name in sorted(saved.keys() | current.keys()) if saved.get(name) != current.get(name)]
    causes = tuple(cause for library in libraries for cause in _CAUSES.get(library, ()))
    likely = [name for name in names if name.startswith(causes)] if causes else []
    return [_change(name, saved.get(name), current.get(name)) for name in likely or names]


def _change(name: str, before: str | None, after: str | None) -> str:
    """Describe a change, of a variable with the command that takes it back."""
    was, is_now = ("not set" if value is None else value for value in (before, after))
    change = f"{name} was {was}, is {is_now}"
    if not name.startswith(_VARIABLES):
        return change
    command = f"unset {name}" if before is None else f"export {shell.join([f'{name}={before}'])}"
    return f"the environment variable {change} (`{command}` restores it)"


def _cpu_name() -> str:
    """Return the name of the first processor with the numbers of its model, which clouds give the same name."""
    first = _content("/proc/cpuinfo").partition("\n\n")[0]
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}
    numbers = "/".join(fields.get(name, "") for name in ("cpu family", "model", "stepping"))
    return f"{fields.get('model name', '')} ({numbers})"


def _content(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text(encoding="utf-8", errors="replace")
    return ""
