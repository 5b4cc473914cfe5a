"""Facts of invented machines: a healthy Kaggle session with a T4, and changes to it."""

from dataclasses import replace
from pathlib import Path

from shoestring.base.packages.requirements import Package
from shoestring.base.units import GIB, MIB
from shoestring.hardware.catalog import PLATFORMS
from shoestring.hardware.occupancy import Card, Driver, Holder
from shoestring.hardware.targets import known
from shoestring.runs.check.facts import Build, Clock, Disk, Facts, Gpu, Host
from shoestring.runs.check.finding import Finding
from shoestring.runs.check.preflight import run_checks

ARCHS = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120")
"""Of PyTorch's CUDA 12.8 builds."""

T4 = Card(
    title="Tesla T4",
    uuid="GPU-1",
    capability=(7, 5),
    usable_bytes=14_912 * MIB,
    used_bytes=4 * MIB,
    holders=(),
    is_visible=True,
)
P100 = replace(T4, title="Tesla P100-PCIE-16GB", capability=(6, 0), usable_bytes=16_269 * MIB)
L4 = replace(T4, title="NVIDIA L4", capability=(8, 9), usable_bytes=22_563 * MIB)
BUILD = Build(
    version="2.13.0+cu128",
    cuda=(12, 8),
    archs=ARCHS,
    flash=True,
    threads=4,
    gpus=(Gpu(title="a GPU", capability=(7, 5)),),
)
HOST = Host(
    cores=4,
    visible_cores=4,
    ram_bytes=31 * GIB,
    ram_free_bytes=29 * GIB,
    shm_bytes=14 * GIB,
    temporary=Path("/tmp"),
    temporary_free_bytes=50 * GIB,
    environment={},
)
DISK = Disk(
    folder=Path("/kaggle/working"),
    requested_bytes=64 * MIB,
    written_bytes=64 * MIB,
    seconds=0.25,
    free_bytes=8_000 * GIB,
    used_bytes=0,
    clock_offset_seconds=0.01,
)
CLOCK = Clock(unix_seconds=1_790_000_000.0, monotonic=True)


def make_driver(*cards: Card, cuda=(12, 8)) -> Driver:
    return Driver(version="570.86", cuda=cuda, cards=cards)


def with_used_memory(card: Card, used_bytes: int, *pids: int) -> Card:
    holders = tuple(Holder(pid=pid, name="python", bytes=used_bytes) for pid in pids)
    return replace(card, used_bytes=used_bytes, holders=holders)


def make_facts(*, on="kaggle-t4", **changes) -> Facts:
    healthy = {
        "is_local": on in ("local", "cpu"),
        "driver": make_driver(T4),
        "build": BUILD,
        "host": HOST,
        "disk": DISK,
        "clock": CLOCK,
        "platform": PLATFORMS["kaggle"],
        "internet": {"huggingface.co": "", "pypi.org": ""},
        "mounted": (Path("/kaggle/input/datasets/me/prices"),),
        "packages": (Package(name="torch", minimum="2.10", installed="2.13.0+cu128"),),
    }
    target = replace(known()["kaggle-t4"], name=on) if on in ("local", "cpu") else known()[on]
    return Facts(target=target, **{**healthy, **changes})


def finding_named(name: str, facts: Facts) -> Finding:
    """Return the finding called `name` from a check of these facts; no check may raise an error."""
    (finding,) = [finding for finding in run_checks(facts) if finding.name == name]
    return finding


def problem_names(facts: Facts) -> set[str]:
    """Return the names of the findings that are warnings or failures."""
    return {finding.name for finding in run_checks(facts) if finding.status != "pass"}
