"""Asks the installed PyTorch what it can do here, in a process of its own: a build that breaks is an answer as well."""

import json
import subprocess
import sys
from typing import Any

from shoestring.check.facts import Build, Used

_SECONDS = 60.0


def look(seconds: float = _SECONDS) -> Build:
    """The build, and what a small product on each shown GPU ended with."""
    command = [sys.executable, "-m", "shoestring.check.build"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return Build(error=f"it did not answer in {seconds:.0f} s")
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or [""])[-1]
        return Build(error=f"a process that imports it ended with status {ended.returncode}: {last[:300]}")
    return understood(json.loads(ended.stdout))


def understood(told: dict[str, Any]) -> Build:
    """The build from what the child wrote."""
    used = tuple(Used(**{**each, "capability": tuple(each["capability"])}) for each in told["used"])
    cuda = None if told["cuda"] is None else tuple(map(int, told["cuda"].split(".")[:2]))
    return Build(**{**told, "used": used, "cuda": cuda, "archs": tuple(told["archs"])})


def tell() -> dict[str, Any]:
    """The facts of this process's torch, as JSON; CUDA is started where there is one."""
    try:
        import torch
    except Exception as error:  # noqa: BLE001  (a broken installation may raise anything)
        return _nothing(f"it cannot be imported: {type(error).__name__}: {error}")
    told = {**_nothing(""), "version": torch.__version__, "threads": torch.get_num_threads()}
    told["cuda"] = torch.version.cuda
    if torch.version.cuda is None:
        return told
    try:
        torch.cuda.init()
    except Exception as error:  # noqa: BLE001
        return {**told, "error": _line(error)}
    built: Any = torch.backends.cuda
    told["archs"] = list(torch.cuda.get_arch_list())
    told["flash"] = bool(built.is_flash_attention_available())
    told["used"] = [_used(torch, index) for index in range(torch.cuda.device_count())]
    return told


def _used(torch: Any, index: int) -> dict[str, Any]:
    known = {
        "title": torch.cuda.get_device_name(index),
        "capability": list(torch.cuda.get_device_capability(index)),
        "error": "",
    }
    try:
        ones = torch.ones(64, 64, device=f"cuda:{index}", requires_grad=True)
        (ones @ ones).sum().backward()
        torch.cuda.synchronize(index)
    except Exception as error:  # noqa: BLE001
        known["error"] = _line(error)
    return known


def _nothing(error: str) -> dict[str, Any]:
    return {"version": "", "cuda": None, "archs": [], "flash": False, "threads": 1, "used": [], "error": error}


def _line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:300]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(tell()))
