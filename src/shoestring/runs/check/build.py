"""The capabilities of the installed PyTorch, read in a child process because importing a broken build may crash."""

import json
import statistics
import subprocess
import sys
import time
from typing import Any

from shoestring.base.units import MIB
from shoestring.runs.check.facts import Build, Gpu, GpuLink

_SECONDS = 60.0
_LINK_BYTES, _LINK_REPEATS = 64 * MIB, 5
"""A few buckets of gradients."""


def probe_build(seconds: float = _SECONDS) -> Build:
    """Return the facts of the installed PyTorch, with the result of a test computation on each visible GPU."""
    command = [sys.executable, "-P", "-m", "shoestring.runs.check.build"]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return Build(error=f"the process that imports torch did not answer within {seconds:.0f} s")
    if process.returncode:
        last_line = (process.stderr.strip().splitlines() or [""])[-1]
        return Build(error=f"a process that imports torch exited with status {process.returncode}: {last_line[:300]}")
    return parse_build(json.loads(process.stdout))


def parse_build(facts: dict[str, Any]) -> Build:
    """Return the build from the JSON object that the child process wrote."""
    gpus = tuple(Gpu(**{**gpu, "capability": tuple(gpu["capability"])}) for gpu in facts["gpus"])
    cuda = None if facts["cuda"] is None else tuple(map(int, facts["cuda"].split(".")[:2]))
    link = GpuLink(**facts["link"]) if facts.get("link") else None
    return Build(**{**facts, "gpus": gpus, "link": link, "cuda": cuda, "archs": tuple(facts["archs"])})


def describe_build() -> dict[str, Any]:
    """Return the facts of this process's torch as JSON. Initializes CUDA if the build has it."""
    try:
        import torch
    except Exception as error:  # noqa: BLE001  (a broken installation may raise anything)
        return _empty_build(f"torch cannot be imported: {type(error).__name__}: {error}")
    facts = {**_empty_build(""), "version": torch.__version__, "threads": torch.get_num_threads()}
    facts["cuda"] = torch.version.cuda
    if torch.version.cuda is None:
        return facts
    try:
        torch.cuda.init()
    except Exception as error:  # noqa: BLE001
        return {**facts, "error": _first_line(error)}
    cuda_backend: Any = torch.backends.cuda
    facts["archs"] = list(torch.cuda.get_arch_list())
    facts["flash"] = bool(cuda_backend.is_flash_attention_available())
    facts["gpus"] = [_test_gpu(torch, index) for index in range(torch.cuda.device_count())]
    if len(facts["gpus"]) > 1 and not any(gpu["error"] for gpu in facts["gpus"]):
        facts["link"] = _test_link(torch, len(facts["gpus"]))
    return facts


def _test_link(torch: Any, count: int) -> dict[str, Any]:
    """Time an all-reduce of NCCL among all GPUs, as an exchange of gradients makes it; the median of several."""
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    facts = {"peer_access": all(torch.cuda.can_device_access_peer(a, b) for a, b in pairs), "bytes": _LINK_BYTES}
    try:
        tensors = [torch.ones(_LINK_BYTES // 4, device=f"cuda:{index}") for index in range(count)]
        seconds = []
        for _ in range(1 + _LINK_REPEATS):
            for index in range(count):
                torch.cuda.synchronize(index)
            started = time.perf_counter()
            torch.cuda.nccl.all_reduce(tensors)
            for index in range(count):
                torch.cuda.synchronize(index)
            seconds.append(time.perf_counter() - started)
        return {**facts, "seconds": statistics.median(seconds[1:])}  # the first one initializes NCCL
    except Exception as error:  # noqa: BLE001
        return {**facts, "error": _first_line(error)}


def _test_gpu(torch: Any, index: int) -> dict[str, Any]:
    facts = {
        "title": torch.cuda.get_device_name(index),
        "capability": list(torch.cuda.get_device_capability(index)),
        "error": "",
    }
    try:
        matrix = torch.ones(64, 64, device=f"cuda:{index}", requires_grad=True)
        (matrix @ matrix).sum().backward()
        torch.cuda.synchronize(index)
    except Exception as error:  # noqa: BLE001
        facts["error"] = _first_line(error)
    return facts


def _empty_build(error: str) -> dict[str, Any]:
    return {
        "version": "",
        "cuda": None,
        "archs": [],
        "flash": False,
        "threads": 1,
        "gpus": [],
        "link": None,
        "error": error,
    }


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:300]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(describe_build()))
