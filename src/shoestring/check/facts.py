"""What a check rests on: facts of this machine and of the question, gathered once and judged by pure functions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shoestring.hardware.catalog import Platform, Target
from shoestring.hardware.occupancy import Driver


@dataclass(frozen=True, kw_only=True)
class Used:
    """One GPU as torch sees and uses it."""

    title: str
    capability: tuple[int, int]
    error: str = ""
    """What a small product on it ended with; empty where it went well."""


@dataclass(frozen=True, kw_only=True)
class Build:
    """The installed PyTorch, asked in a process of its own."""

    version: str = ""
    cuda: tuple[int, int] | None = None
    """Of the build; None for a build without CUDA."""
    archs: tuple[str, ...] = ()
    """What it has kernels for: sm_75, compute_90; empty where CUDA cannot start."""
    flash: bool = False
    """Whether FlashAttention was built in."""
    threads: int = 1
    used: tuple[Used, ...] = ()
    error: str = ""
    """Why torch cannot be imported, or why its CUDA cannot start."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """Cores, memory and places of this machine, as this process may use them."""

    cores: int
    """Within affinity and control group."""
    cores_seen: int
    """That the system shows."""
    ram_bytes: int
    """Within the control group."""
    ram_free_bytes: int
    shm_bytes: int | None
    """Free in /dev/shm, where data-loading processes leave batches; None without one."""
    temporary: Path
    temporary_free_bytes: int
    environment: Mapping[str, str]
    """The variables that change what torch does, of those that are set."""


@dataclass(frozen=True, kw_only=True)
class Disk:
    """A file written where the run would be, and removed again."""

    folder: Path
    """The run's directory, or the nearest that exists above it."""
    asked_bytes: int
    written_bytes: int
    seconds: float
    """With waiting for the disk."""
    free_bytes: int
    """As the system claims, which may be the host's."""
    used_bytes: int
    """What the run's directory has already."""
    error: str = ""
    clock_offset_seconds: float | None = None
    """The file's time minus this process's."""


@dataclass(frozen=True, kw_only=True)
class Clock:
    now: float
    """Unix seconds."""
    monotonic: bool
    """Whether the steady clock went forward."""


@dataclass(frozen=True, kw_only=True)
class Input:
    """A path that the recipe's options name."""

    option: str
    path: Path
    problem: str
    """Empty where it can be read."""
    elsewhere: tuple[Path, ...]
    """Files or folders of that name where platforms put data."""


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package that is needed."""

    name: str
    least: str
    """The oldest version that the project takes; empty for any."""
    installed: str
    """Empty where it is not."""
    extra: str = ""
    """The extra that brings it; empty for one that is always needed."""


@dataclass(frozen=True, kw_only=True)
class Holding:
    """Who has the run's lock."""

    run: Path
    holder: str
    """As the lock file says; empty where it does not."""
    held: bool
    state: str
    """Of the holder's process: running, sleeping, zombie, stopped; empty where it is not one of this machine."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything a check judges."""

    on: Target
    """What was asked for."""
    probed: bool
    """Whether that is this machine itself (local, cpu) rather than a target of the catalogue."""
    driver: Driver | None
    driver_error: str = ""
    build: Build
    host: Host
    disk: Disk
    clock: Clock
    platform: Platform | None
    """That this process runs on, by its environment."""
    internet: Mapping[str, str]
    """By host why it cannot be reached; empty where it can."""
    mounted: tuple[Path, ...] = ()
    """Data sets that the platform has mounted."""
    inputs: tuple[Input, ...] = ()
    packages: tuple[Package, ...] = ()
    recipe: str = ""
    needs_hub: bool = False
    """Whether the recipe is a name on the hub."""
    holding: Holding | None = None
    processes: Mapping[str, str] = field(default_factory=dict)
    """WORLD_SIZE and LOCAL_WORLD_SIZE, as a launcher sets them."""
