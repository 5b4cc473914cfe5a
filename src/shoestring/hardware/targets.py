"""Targets by name: from the catalogue, or detected on this machine."""

import dataclasses
from typing import Any

from shoestring.errors import UsageError, nearest
from shoestring.hardware import probe
from shoestring.hardware.catalog import DEVICES, PLATFORMS, Platform, Target

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

    Raises UsageError for an unknown name.
    """
    if name in PROBED:
        return probe.local() if name == "local" else probe.local_cpu()
    targets = known()
    if name not in targets:
        raise UsageError(f"there is no target {name!r}", hint=nearest(name, [*PROBED, *targets]))
    return targets[name]
