"""Targets by name: from the catalogue, detected on this machine, or a file of measured rates."""

import dataclasses
import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from shoestring.base.errors import UsageError
from shoestring.hardware import probe
from shoestring.hardware.catalog import DEVICES, PLATFORMS, Device, Platform, Target
from shoestring.hardware.description import COUNTS, EXAMPLE, counts_text, is_description, parse_description
from shoestring.hardware.gpus import CONTEXT, CONTEXT_SOURCE
from shoestring.hardware.measured import MeasuredRates
from shoestring.hardware.measured_file import SUFFIX, read_measured
from shoestring.hardware.names import counts, listed, matching, other_maker, similar

PROBED = {"local": "this machine", "cpu": "this machine's CPU, even if it has a GPU"}
"""The targets that `find` detects on this machine, which takes a moment; they are not in `known`."""

_ACCOUNTS = (
    "only some accounts get this machine, such as those that take part in a competition "
    "(https://github.com/Kaggle/kaggle-cli/blob/main/docs/kernels.md)"
)
_ONE_OF_TWO = "the machine has two T4s, of which one is used"
_UNKNOWN_HOST = "its RAM and cores are not documented, so plans do not limit host memory"
_A100 = "whether its A100 has 40 GB or 80 GB is not documented; plans assume the smaller"


@dataclass(frozen=True, kw_only=True)
class _Machine:
    """A machine of a platform: a row of the table below."""

    name: str
    device: str
    gpus: int = 1
    platform: str = "kaggle"
    shape: str | None = None
    depends_on_account: bool = False
    """Its RAM and its cores are unknown then: those of the platform are of the machines that every account has."""
    notes: tuple[str, ...] = ()


_MACHINES = (
    _Machine(name="kaggle-t4x2", device="t4", gpus=2, shape="NvidiaTeslaT4"),
    _Machine(name="kaggle-t4", device="t4", shape="NvidiaTeslaT4", notes=(_ONE_OF_TWO,)),
    _Machine(name="kaggle-l4x4", device="l4", gpus=4, shape="NvidiaL4", depends_on_account=True),
    _Machine(name="kaggle-l4", device="l4", shape="NvidiaL4X1", depends_on_account=True),
    _Machine(name="kaggle-rtxpro6000", device="rtxpro6000", shape="NvidiaRtxPro6000", depends_on_account=True),
    _Machine(name="kaggle-a100", device="a100-40", shape="NvidiaTeslaA100", notes=(_A100,), depends_on_account=True),
    _Machine(name="kaggle-h100", device="h100", shape="NvidiaH100", depends_on_account=True),
    _Machine(name="colab-t4", device="t4", platform="colab"),
)
"""Kaggle's names of its machines are in the documentation of its client (docs/kernels.md in Kaggle/kaggle-cli).
`NvidiaTeslaT4` is two T4s, `NvidiaL4` is four L4s."""

_P100 = (
    "PyTorch's builds for CUDA 12.8 and newer have no kernels for a P100 (sm_60), and Kaggle has retired it: it gives "
    "T4s to sessions that ask for one",
    "--on kaggle-t4x2",
)
_TPU = (
    "TPUs are not supported: runs are planned for and trained on NVIDIA GPUs; what tensors take holds on a TPU all the "
    "same, as on an NVIDIA GPU with the same memory",
    '--on kaggle-t4x2, or --on "memory=16GiB" with the memory of yours',
)
_UNSUPPORTED = (
    (re.compile(r"kaggle-p100|nvidiateslap100"), *_P100),
    (re.compile(r"(kaggle-)?tpu\w*"), *_TPU),
)
"""Machines that Kaggle has or had and that cannot be targets: their names, why, and what to take instead."""


def known() -> dict[str, Target]:
    """Return the targets of the catalogue by name: those of the platforms, then each GPU without limits."""
    return {machine.name: _target(machine) for machine in _MACHINES} | {
        name: Target(name=name, device=device, gpus=1) for name, device in DEVICES.items()
    }


def machines(platform: str) -> dict[str, Target]:
    """Return the targets of a platform by name, those that every account has first; none of an unknown platform."""
    return {name: target for name, target in known().items() if target.platform and target.platform.name == platform}


def groups() -> dict[str, str]:
    """Return the platforms that have several machines: the title of each by its name."""
    return {name: platform.title for name, platform in PLATFORMS.items() if len(machines(name)) > 1}


def with_machines(names: Iterable[str]) -> list[str]:
    """Return the names of targets, in which the name of a platform with several machines stands for all of them."""
    several = groups()
    return list(dict.fromkeys(member for name in names for member in (machines(name) if name in several else (name,))))


def with_limits(
    target: Target, *, session_seconds: float | None = None, disk_bytes: int | None = None, ram_bytes: int | None = None
) -> Target:
    """Return the target with these limits instead of those of its platform."""
    limits: dict[str, Any] = {}
    if session_seconds is not None:
        limits["session_hours"] = session_seconds / 3600
    if disk_bytes is not None:
        limits["disk_bytes"] = disk_bytes
    if ram_bytes is not None:
        limits["ram_bytes"] = ram_bytes
    if not limits:
        return target
    platform = target.platform or Platform(name="", title="limits set by the user")
    return dataclasses.replace(target, platform=dataclasses.replace(platform, **limits))


def find(name: str) -> Target:
    """Return the target called `name`; `local` and `cpu` are detected on this machine.

    A GPU is called by its name in the catalogue or as people write it, several by the number of cards before or after
    it (`rtx3090x2`), and any other GPU by its numbers (`memory=10GiB,tflops16=60,bandwidth=760`). A name that ends with
    `.json` is the path of a file of measured rates: the target is the device that was measured.

    Raises UsageError for an unknown name, one that fits several cards, a machine that is not supported, or a file that
    has no such rates.
    """
    if name in PROBED:
        return probe.local() if name == "local" else probe.local_cpu()
    if is_file(name):
        return _measured_target(name)
    if is_description(name):
        return parse_description(name)
    if target := known().get(name.lower()):
        return target
    if error := refusal(name):
        raise error
    for card, count in ((name, 1), *counts(name)):
        if target := _cards(name, card, count):
            return target
    raise _unknown(name)


def _cards(name: str, card: str, count: int) -> Target | None:
    """Return a number of cards without a platform as a target; None if no card is called so.

    Raises UsageError if several are, or if there is no target with that number.
    """
    machine = known().get(card.lower())
    if machine and machine.platform:
        members = machines(machine.platform.name).items()
        same = [member for member, target in members if target.device == machine.device]
        raise UsageError(
            f"--on {name}: no machine of {machine.platform.title} is called so; the number of GPUs is part of its name",
            hint=f"available with {machine.device.title}: {', '.join(same)}; {machine.device.name}x2 has no platform",
        )
    devices = matching(card)
    if not devices:
        return None
    if len(devices) > 1:
        raise UsageError(f"--on {name}: it fits {len(devices)} cards", hint=f"name one: {listed(devices)}")
    device = devices[0]
    if count not in COUNTS:
        near = min(COUNTS[1:], key=lambda possible: abs(possible - count))
        raise UsageError(
            f"--on {name}: a target has {counts_text()} GPUs, among which an update is divided, not {count}",
            hint=f"--on {device.name}x{near}",
        )
    return Target(name=device.name if count == 1 else f"{device.name}x{count}", device=device, gpus=count)


def _unknown(name: str) -> UsageError:
    """Return the error for a name that is none: with what it may mean, and how to describe a GPU that is not listed."""
    if maker := other_maker(name):
        return UsageError(
            f"--on {name}: only NVIDIA GPUs are predicted; of {maker} accelerators what tensors take holds all the "
            "same, as for an NVIDIA GPU with the same memory",
            hint='--on "memory=24GiB", with the memory of yours',
        )
    other = f'any GPU: --on "{EXAMPLE}"; shoestring targets lists the known ones'
    if devices := similar(name):
        return UsageError(f"there is no target {name!r}", hint=f"there is {listed(devices)}; {other}")
    close = get_close_matches(name, [*PROBED, *(machine.name for machine in _MACHINES)], n=1)
    return UsageError(f"there is no target {name!r}", hint=f"did you mean {close[0]}?" if close else other)


def refusal(name: str) -> UsageError | None:
    """Return why something that a platform has, or the platform itself, is not a target; None for any other name."""
    for pattern, reason, hint in _UNSUPPORTED:
        if pattern.fullmatch(name.lower()):
            return UsageError(f"--on {name}: {reason}", hint=hint)
    if name in groups():
        members = machines(name)
        return UsageError(
            f"--on {name}: {PLATFORMS[name].title} are {len(members)} machines, of which one has to be named",
            hint=f"available: {', '.join(members)}; shoestring plan RECIPE --on {name} compares them",
        )
    shapes = {target.name: (target.machine_shape or "").lower() for target in known().values()}
    shaped = [target for target, shape in shapes.items() if shape and shape == name.lower()]
    hint = f"it is what Kaggle calls {' and '.join(shaped)}"
    return UsageError(f"there is no target {name!r}", hint=hint) if shaped else None


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


def _target(machine: _Machine) -> Target:
    platform, notes = PLATFORMS[machine.platform], machine.notes
    if machine.depends_on_account:
        sources = {limit: source for limit, source in platform.sources.items() if limit not in ("ram_bytes", "cores")}
        platform = dataclasses.replace(platform, ram_bytes=None, cores=None, sources=sources)
        notes = (_ACCOUNTS, *notes, _UNKNOWN_HOST)
    return Target(
        name=machine.name,
        device=DEVICES[machine.device],
        gpus=machine.gpus,
        platform=platform,
        machine_shape=machine.shape,
        depends_on_account=machine.depends_on_account,
        notes=notes,
    )
