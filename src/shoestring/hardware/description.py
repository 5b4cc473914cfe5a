"""A GPU that is not in the catalogue, described by its numbers: `memory=10GiB,tflops16=60,bandwidth=760`."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from shoestring.base.errors import UsageError
from shoestring.base.units import parse_bytes
from shoestring.hardware.catalog import Device, Target
from shoestring.hardware.gpus import CONTEXT, CONTEXT_SOURCE

EXAMPLE = "memory=10GiB,tflops16=60,bandwidth=760"
COUNTS = (1, 2, 4, 8, 16)
"""The numbers of GPUs that an update is divided among."""
_SOURCE = "--on"
_CAPABILITY = (8, 6)
_SMALLEST, _LARGEST = 1 << 30, 1 << 40


def is_description(name: str) -> bool:
    """Return whether a target is called by the numbers of its GPU."""
    return "=" in name


def parse_description(name: str) -> Target:
    """Return the target with the numbers in `name`. Raises UsageError with all problems."""
    texts, problems = _split(name)
    values: dict[str, Any] = {}
    for key, text in texts.items():
        try:
            values[key] = _KEYS[key][0](text)
        except ValueError as error:
            problems.append(f"{key}={text}: {error}")
    if "memory" not in texts:
        problems.append("memory is missing: what PyTorch reports, such as memory=10GiB")
    if problems:
        raise UsageError(
            f"--on {name}: not a description of a GPU",
            problems=problems,
            hint=f'--on "{EXAMPLE}"; also possible: '
            + ", ".join(f"{key} ({text})" for key, text in DESCRIPTION.items()),
        )
    return _target(texts, values)


def _split(name: str) -> tuple[dict[str, str], list[str]]:
    texts: dict[str, str] = {}
    problems = []
    for part in filter(None, map(str.strip, name.split(","))):
        key, _, text = (word.strip() for word in part.partition("="))
        if key not in _KEYS:
            problems.append(f"{part}: expected one of {', '.join(_KEYS)} and its value")
        elif key in texts:
            problems.append(f"{part}: {key} is there twice")
        else:
            texts[key] = text
    return texts, problems


def _target(texts: Mapping[str, str], values: Mapping[str, Any]) -> Target:
    capability = values.get("capability", _CAPABILITY)
    half, fp32, bandwidth = values.get("tflops16"), values.get("tflops32"), values.get("bandwidth")
    notes = []
    if "capability" not in values:
        notes.append("assumed: capability=8.6, that of a GeForce RTX 30, which has bf16 and FlashAttention")
    if half and not fp32:
        fp32 = half / 2
        notes.append("assumed: tflops32 is half of tflops16, as on GeForce RTX 30 to 50")
    if not half:
        notes.append("without tflops16 it counts as a GPU without tensor cores")
    if not fp32 or not bandwidth:
        notes.append("without tflops16 or tflops32, and bandwidth, only memory is predicted, no time")
    has_bf16 = half and capability >= (8, 0)
    rates = {
        "fp32_flops": fp32,
        "tf32_flops": half / 2 if has_bf16 else None,
        "fp16_flops": half,
        "bf16_flops": half if has_bf16 else None,
        "bandwidth": bandwidth,
    }
    memory = values["memory"]
    device = Device(
        name="other",  # no name of the catalogue, whose rates and prices it would get
        title=values.get("name", "described GPU"),
        memory_bytes=memory,
        compute_capability=capability,
        context_bytes=CONTEXT,
        sources={
            "memory_bytes": _SOURCE,
            "compute_capability": _SOURCE if "capability" in values else "assumed",
            "context_bytes": CONTEXT_SOURCE,
            **{rate: _SOURCE for rate, value in rates.items() if value},
        },
        **rates,
    )
    text = ",".join(f"{key}={value}" for key, value in texts.items())
    return Target(name=text, device=device, gpus=values.get("count", 1), notes=tuple(notes))


def _memory(text: str) -> int:
    size = parse_bytes(text)
    if not _SMALLEST <= size <= _LARGEST:
        raise ValueError("GPUs have 1 GiB to 1,024 GiB")
    return size


def _number(unit: float, largest: float, name: str) -> Callable[[str], float]:
    def parse(text: str) -> float:
        if not re.fullmatch(r"\d+(\.\d+)?", text) or not 0 < float(text) <= largest:
            raise ValueError(f"expected a number above 0 and up to {largest:,.0f}, in {name}")
        return float(text) * unit

    return parse


def _capability(text: str) -> tuple[int, int]:
    if not re.fullmatch(r"\d{1,2}\.\d", text) or float(text) < 5:
        raise ValueError(
            "expected CUDA's version of the GPU's features, such as 8.6 (https://developer.nvidia.com/cuda-gpus)"
        )
    major, minor = map(int, text.split("."))
    return major, minor


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) not in COUNTS:
        raise ValueError(f"an update is divided among {counts_text()} GPUs")
    return int(text)


def counts_text() -> str:
    """Return the possible numbers of GPUs as a text."""
    return f"{', '.join(map(str, COUNTS[:-1]))} or {COUNTS[-1]}"


def _name(text: str) -> str:
    if not text or not text.isprintable():
        raise ValueError("expected a name")
    return text


_KEYS: Mapping[str, tuple[Callable[[str], Any], str]] = {
    "memory": (_memory, "a size with its unit"),
    "tflops16": (_number(1e12, 1e5, "TFLOP/s"), "dense fp16 products with fp32 accumulation, TFLOP/s"),
    "tflops32": (_number(1e12, 1e5, "TFLOP/s"), "fp32 products, TFLOP/s"),
    "bandwidth": (_number(1e9, 1e5, "GB/s"), "of the memory, GB/s"),
    "capability": (_capability, "such as 8.6"),
    "count": (_count, "number of GPUs"),
    "name": (_name, "a name for people"),
}
"""How each value is parsed, and what it is with its unit."""
DESCRIPTION = {key: text for key, (_, text) in _KEYS.items()}
"""What a description can say, each with its unit."""
