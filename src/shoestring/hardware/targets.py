"""Targets by name: from the catalogue, detected on this machine, or a file of measured rates."""

import dataclasses
from pathlib import Path
from typing import Any

from shoestring.errors import UsageError, nearest
from shoestring.hardware import probe
from shoestring.hardware.catalog import CONTEXT, CONTEXT_SOURCE, DEVICES, PLATFORMS, Device, Platform, Target
from shoestring.hardware.measured import SUFFIX, MeasuredRates, read_measured

PROBED = {"local": "this machine", "cpu": "this machine's CPU, even if it has a GPU"}
"""The targets that `find` detects on this machine, which takes a moment; they are not in `known`."""


def known() -> dict[str, Target]:
    """Return the targets of the catalogue by name: those of the platforms, then each GPU without limits."""
    rows = (("kaggle-t4x2", "t4", 2, "kaggle"), ("kaggle-t4", "t4", 1, "kaggle"), ("colab-t4", "t4", 1, "colab"))
    return {
        name: Target(name=name, device=DEVICES[device], gpus=gpus, platform=PLATFORMS[platform])
        for name, device, gpus, platform in rows
    } | {name: Target(name=name, device=device, gpus=1) for name, device in DEVICES.items()}


def with_limits(target: Target, *, session_seconds: float | None = None, disk_bytes: int | None = None) -> Target:
    """Return the target with these limits instead of those of its platform."""
    limits: dict[str, Any] = {}
    if session_seconds is not None:
        limits["session_hours"] = session_seconds / 3600
    if disk_bytes is not None:
        limits["disk_bytes"] = disk_bytes
    if not limits:
        return target
    platform = target.platform or Platform(name="", title="limits set by the user")
    return dataclasses.replace(target, platform=dataclasses.replace(platform, **limits))


def find(name: str) -> Target:
    """Return the target called `name`; `local` and `cpu` are detected on this machine.

    A name that ends with `.json` is the path of a file of measured rates: the target is the device that was measured.

    Raises UsageError for an unknown name, or a file that has no such rates.
    """
    if name in PROBED:
        return probe.local() if name == "local" else probe.local_cpu()
    if is_file(name):
        return _measured_target(name)
    targets = known()
    if name not in targets:
        raise UsageError(f"there is no target {name!r}", hint=nearest(name, [*PROBED, *targets]))
    return targets[name]


def is_file(name: str) -> bool:
    """Return whether a target is called by the path of a file of measured rates."""
    return name.lower().endswith(SUFFIX)


def is_here(name: str) -> bool:
    """Return whether a target has the limits of this machine: no platform's but the one that the process runs on."""
    return name in PROBED or is_file(name)


def on_this_machine(name: str) -> Target:
    """Return this machine as a target, with the limits of the platform of the target `name`.

    If that is a file, this machine has its rates if they were measured on such a device; it is the CPU if they are
    those of a CPU.
    """
    target = find(name)
    if name in PROBED:
        return target
    if target.device.measured:
        machine = find("cpu" if target.device.kind == "cpu" else "local")
        return with_rates(machine, target.device.measured)
    return dataclasses.replace(find("local"), platform=target.platform)


def with_rates(target: Target, measured: MeasuredRates) -> Target:
    """Return the target with these rates if they were measured on such a device, and otherwise as it is."""
    if target.device.title != measured.device.title:
        return target
    return dataclasses.replace(target, device=dataclasses.replace(target.device, measured=measured))


def _measured_target(name: str) -> Target:
    measured = read_measured(Path(name))
    facts = measured.device
    listed = next(
        (device for device in DEVICES.values() if (device.kind, device.title) == (facts.kind, facts.title)), None
    )
    is_gpu = facts.kind == "cuda"
    source = {"memory_bytes": measured.source}
    device = listed or Device(
        name=facts.name,
        title=facts.title,
        kind="cuda" if is_gpu else "cpu",
        memory_bytes=facts.memory_bytes,
        compute_capability=facts.compute_capability,
        fp32_flops=None,
        tf32_flops=None,
        fp16_flops=None,
        bf16_flops=None,
        bandwidth=None,
        context_bytes=CONTEXT if is_gpu else (0, 0, 0),
        sources={"context_bytes": CONTEXT_SOURCE if is_gpu else "a CPU has no CUDA context"},
    )
    sources = {**device.sources, **source}
    device = dataclasses.replace(device, memory_bytes=facts.memory_bytes, measured=measured, sources=sources)
    return Target(name=name, device=device, gpus=facts.gpus)
