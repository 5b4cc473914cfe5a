"""The facts of this machine and of the request, collected once; the checks that evaluate them are pure functions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shoestring.base.packages.requirements import Package
from shoestring.hardware.catalog import Platform, Target
from shoestring.hardware.occupancy import Driver


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU that torch can see."""

    title: str
    capability: tuple[int, int]
    error: str = ""
    """The error of a test computation on the GPU; empty if it succeeded."""


@dataclass(frozen=True, kw_only=True)
class GpuLink:
    """The connection of all GPUs that torch can see."""

    peer_access: bool = False
    """Whether each GPU can read the memory of every other one."""
    bytes: int = 0
    """The size of the timed all-reduce."""
    seconds: float = 0.0
    error: str = ""
    """Why it failed; empty if it did not."""


@dataclass(frozen=True, kw_only=True)
class Build:
    """The installed PyTorch build, inspected in a child process."""

    version: str = ""
    cuda: tuple[int, int] | None = None
    """The CUDA version of the build; None for a build without CUDA."""
    archs: tuple[str, ...] = ()
    """The architectures the build has kernels for, such as sm_75 or compute_90; empty if CUDA cannot be initialized."""
    flash: bool = False
    """Whether the build includes FlashAttention."""
    threads: int = 1
    gpus: tuple[Gpu, ...] = ()
    link: GpuLink | None = None
    """None with less than two GPUs."""
    error: str = ""
    """Why torch cannot be imported, or why its CUDA cannot be initialized."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """Cores, memory and folders of this machine, within the limits of this process."""

    cores: int
    """Within affinity and control group."""
    visible_cores: int
    """The number that the operating system reports."""
    ram_bytes: int
    """Within the control group."""
    ram_free_bytes: int
    shm_bytes: int | None
    """Free in /dev/shm, through which data-loading processes pass batches; None without /dev/shm."""
    temporary: Path
    temporary_free_bytes: int
    environment: Mapping[str, str]
    """The environment variables that are set and change how torch behaves."""


@dataclass(frozen=True, kw_only=True)
class Disk:
    """The result of writing a test file where the run's directory would be."""

    folder: Path
    """The run's directory, or its nearest existing parent."""
    requested_bytes: int
    written_bytes: int
    seconds: float
    """Including fsync."""
    free_bytes: int
    """As reported by the operating system; in a container this may be the host's free space."""
    used_bytes: int
    """The present size of the run's directory."""
    error: str = ""
    clock_offset_seconds: float | None = None
    """The file's modification time minus this process's time."""


@dataclass(frozen=True, kw_only=True)
class Clock:
    """The system's clocks."""

    unix_seconds: float
    monotonic: bool
    """Whether the monotonic clock advanced."""


@dataclass(frozen=True, kw_only=True)
class Input:
    """A path among the recipe's options."""

    option: str
    path: Path
    problem: str
    """A predicate such as "does not exist"; empty if the path can be read."""
    alternatives: tuple[Path, ...]
    """Files or folders of the same name in the folders where platforms mount data."""


@dataclass(frozen=True, kw_only=True)
class RunLock:
    """The state of a run's lock."""

    run: Path
    holder: str
    """The content of the lock file; may be empty."""
    locked: bool
    process_status: str
    """The status of the holder's process: running, sleeping, zombie, stopped; empty if it is not on this machine."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything that the checks evaluate."""

    target: Target
    """The requested target."""
    is_local: bool
    """Whether the target is this machine itself (local, cpu) rather than a target of the catalog."""
    driver: Driver | None
    driver_error: str = ""
    build: Build
    host: Host
    disk: Disk
    clock: Clock
    platform: Platform | None
    """The platform of this process, detected from its environment."""
    internet: Mapping[str, str]
    """By host: why it is unreachable, or an empty string if it is reachable."""
    mounted: tuple[Path, ...] = ()
    """Data sets that the platform has mounted."""
    inputs: tuple[Input, ...] = ()
    packages: tuple[Package, ...] = ()
    recipe: str = ""
    needs_hub: bool = False
    """Whether the recipe is the name of a model on the hub."""
    run_lock: RunLock | None = None
    processes: Mapping[str, str] = field(default_factory=dict)
    """The environment variables WORLD_SIZE and LOCAL_WORLD_SIZE, as a launcher sets them."""
