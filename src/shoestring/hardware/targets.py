"""Where a run can happen, by name: from the catalogue, or by looking at this machine."""

import dataclasses
from typing import Any

from shoestring.errors import UsageError, nearest
from shoestring.hardware import probe
from shoestring.hardware.catalog import DEVICES, PLATFORMS, Platform, Target

PROBED = {"local": "this machine", "cpu": "this machine's CPU, whatever GPU it has"}
"""The targets that are known only by looking, which takes a moment: `find` does it when asked for one."""


def known() -> dict[str, Target]:
    """Every target that is the same everywhere, by name: those of the platforms, then each GPU without limits."""
    rows = (("kaggle-t4x2", "t4", 2, "kaggle"), ("kaggle-t4", "t4", 1, "kaggle"), ("colab-t4", "t4", 1, "colab"))
    return {
        name: Target(name=name, device=DEVICES[device], gpus=gpus, platform=PLATFORMS[platform])
        for name, device, gpus, platform in rows
    } | {name: Target(name=name, device=device, gpus=1) for name, device in DEVICES.items()}


def under(target: Target, *, session_seconds: float | None = None, disk_bytes: int | None = None) -> Target:
    """The target with these limits instead of its platform's."""
    given: dict[str, Any] = {}
    if session_seconds is not None:
        given["session_hours"] = session_seconds / 3600
    if disk_bytes is not None:
        given["disk_bytes"] = disk_bytes
    if not given:
        return target
    platform = target.platform or Platform(name="", title="limits that were given")
    return dataclasses.replace(target, platform=dataclasses.replace(platform, **given))


def find(name: str) -> Target:
    """The target called `name`; `local` and `cpu` look at this machine.

    Raises UsageError for an unknown name.
    """
    if name in PROBED:
        return probe.local() if name == "local" else probe.local_cpu()
    targets = known()
    if name not in targets:
        raise UsageError(f"there is no target {name!r}", hint=nearest(name, [*PROBED, *targets]))
    return targets[name]
