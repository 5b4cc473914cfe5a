"""A catalogue of GPUs, platforms and targets with the source of each fact. `None` is an unknown fact or no limit.

Memory is the total that PyTorch reports, not the nominal size: drivers and error correction reserve a part. It differs
slightly between drivers; the table has the lowest credible figure. Rates are the peak rates of data sheets; sustained
rates are part of the estimate.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from shoestring.base.settings import Precision
from shoestring.base.units import GIB, KIB, MIB
from shoestring.hardware.gpus import gpus
from shoestring.hardware.measured import MeasuredRates

GB = 10**9  # the unit of data sheets and disks; memory is given in GiB


@dataclass(frozen=True, kw_only=True)
class Device:
    """A compute device: one GPU, or the CPU of this machine."""

    name: str
    """Its name in the catalogue, such as `t4`."""
    title: str
    """Its name for people."""
    kind: Literal["cuda", "cpu"] = "cuda"
    """Whether it is a GPU or a CPU."""
    memory_bytes: int
    """The total that PyTorch reports; on a CPU the RAM."""
    compute_capability: tuple[int, int] | None
    """CUDA's (major, minor) version of the device's features; None on a CPU."""
    fp32_flops: float | None
    """The peak rate of dense fp32 matrix products in FLOP/s (a multiply-add is 2). None: no rate is known."""
    tf32_flops: float | None
    """The same for fp32 data in TF32, which PyTorch uses only if enabled. None: no units for it."""
    fp16_flops: float | None
    """The same in fp16 with fp32 accumulation, as in PyTorch. None: no units for it, the fp32 rate at best."""
    bf16_flops: float | None
    """The same in bf16. None: no units for it; PyTorch emulates it, many times slower."""
    bandwidth: float | None
    """The bandwidth of device memory in bytes/s, reads plus writes."""
    context_bytes: tuple[int, int, int]
    """The memory of the CUDA context, outside PyTorch's allocator: low, typical, high. It grows as kernels load."""
    notes: tuple[str, ...] = ()
    """What a user of the device should know."""
    family: str = ""
    """The line of products, such as `GeForce RTX 30`. Empty: unknown."""
    multiprocessors: int | None = None
    """The number of its multiprocessors. None: unknown."""
    nvml_names: tuple[str, ...] = field(default=(), repr=False)
    """The names that the driver reports for the device, without a leading "NVIDIA "."""
    sustained: Mapping[str, float] = field(default_factory=dict, repr=False, hash=False)
    """Rates that others measured on such a device and published, by the names of the fields above (`fp16_flops`,
    `bandwidth`): the mean of publications. Empty: there is none."""
    peer_access: bool | None = None
    """Whether such GPUs reach each other's memory over PCIe, without an NVLink bridge. None: unknown."""
    pcie: str = ""
    """Generation and lanes of its PCIe bus, such as `4.0 x16`. Empty: unknown."""
    sources: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    """The source of each fact, by field; those of sustained rates as `sustained.fp16_flops`."""
    measured: MeasuredRates | None = field(default=None, repr=False, hash=False)
    """Rates that were measured on such a device, which estimates of time take in place of those above."""

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """The precisions that the device can train in; emulated bf16 does not count."""
        if self.compute_capability is None:
            return ("fp32",)
        return ("fp32", "fp16", "bf16") if self.compute_capability >= (8, 0) else ("fp32", "fp16")

    @property
    def flash_attention(self) -> bool:
        """Whether PyTorch's FlashAttention kernels run on the device: compute capability 8.0 and up."""
        return self.compute_capability is not None and self.compute_capability >= (8, 0)

    @property
    def lacks(self) -> tuple[str, ...]:
        """The features that the device lacks."""
        if self.compute_capability is None:
            return ("a GPU: it trains in fp32 only",)
        # A GTX 16 has the compute capability of an RTX 20, and rates in fp32 alone.
        capability = (6, 0) if self.fp32_flops and not self.fp16_flops else self.compute_capability
        return tuple(feature for introduced, feature in _FEATURES if capability < introduced)

    def json(self) -> dict[str, Any]:
        """Return all fields as JSON; of measured rates only where they come from.

        Keys:
            measured (object or null): where rates come from that were measured on such a device
            measured.file (text): the path of the file of `check --measure`
            measured.date (text): when they were measured, in ISO 8601
            measured.warnings (list of texts): why the timings may be wrong
        """
        measured = self.measured
        return {
            **dataclasses.asdict(dataclasses.replace(self, measured=None)),
            "measured": measured and {"file": measured.file, "date": measured.date, "warnings": measured.warnings},
            "precisions": self.precisions,
            "flash_attention": self.flash_attention,
            "lacks": self.lacks,
        }


_FEATURES = (
    ((7, 0), "tensor cores: fp16 saves memory, not time"),
    ((8, 0), "bf16"),
    ((8, 0), "TF32"),
    ((8, 0), "FlashAttention: memory-efficient attention runs instead"),
)
"""Each feature with the compute capability that introduced it."""


@dataclass(frozen=True, kw_only=True)
class Platform:
    """A platform that offers devices, with its limits."""

    name: str
    """Its name in the catalogue, such as `kaggle`."""
    title: str
    """Its name for people."""
    session_hours: float | None = None
    """The longest possible session."""
    weekly_gpu_hours: float | None = None
    """The GPU hours that an account has in a week."""
    disk_bytes: int | None = None
    """The disk space that persists after the session."""
    ram_bytes: int | None = None
    """The total RAM of the machine."""
    cores: int | None = None
    """The number of hardware threads, as counted by the platform."""
    sign: str | None = None
    """The environment variable by which a process detects the platform."""
    notes: tuple[str, ...] = ()
    """What a user of the platform should know."""
    sources: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    """The source of each number, by field."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """The place of a run: a number of devices, and their platform if any."""

    name: str
    """The value of `--on`."""
    device: Device
    """The device; all GPUs of a target are equal."""
    gpus: int
    """The number of GPUs; 0 for a CPU."""
    platform: Platform | None = None
    """The platform; None: no limits except those of the device."""
    machine_shape: str | None = None
    """Kaggle's name of the machine, as `machine_shape` in a kernel's metadata; None elsewhere."""
    depends_on_account: bool = False
    """Whether only some accounts of the platform get the machine, such as those that take part in a competition."""
    notes: tuple[str, ...] = ()
    """What a user of the target should know, beside the notes of its device and its platform."""

    @property
    def processes(self) -> int:
        """The number of training processes: one per GPU, one on a CPU."""
        return max(1, self.gpus)

    def json(self) -> dict[str, Any]:
        """Return all fields as JSON; bytes and seconds are plain numbers."""
        return {
            "name": self.name,
            "device": self.device.json(),
            "gpus": self.gpus,
            "platform": dataclasses.asdict(self.platform) if self.platform else None,
            "machine_shape": self.machine_shape,
            "depends_on_account": self.depends_on_account,
            "notes": self.notes,
        }


_NCCL_CONNECTION = 512 * KIB + 120 * 640 * 8 * 8 + 4 * MIB
NCCL_BYTES = (0, 2 * 2 * _NCCL_CONNECTION, 2 * 4 * 2 * _NCCL_CONNECTION + 40 * MIB)
"""The memory of NCCL on each of a few GPUs of one machine, outside PyTorch's allocator: low, typical, high.

By NCCL's source code (`src/include/comm.h`) a connection has one default buffer for each protocol (LL, LL128, Simple),
and a channel is a ring and a tree, with one connection each. Low: all buffers are in host memory, as between GPUs that
cannot access each other's memory. Typical: 2 channels, as for two GPUs on PCIe. High: two communicators of 4 channels,
and all of NCCL's kernels for one architecture loaded (the size of its library divided by the number of architectures).
"""
NCCL_SOURCE = "not measured; the buffers of NCCL's connections by its source code (comm.h), outside torch's allocator"


DEVICES: Mapping[str, Device] = {facts["name"]: Device(**facts) for facts in gpus()}
"""The GPUs of the catalogue by name, family by family."""


def smallest_gpu(memory_bytes: int) -> Device | None:
    """Return the GPU with the least memory of those that have this much, without laptops and Jetson modules.

    None if there is none.
    """
    larger = (
        device
        for device in DEVICES.values()
        if device.memory_bytes >= memory_bytes and device.family != "Jetson" and "-laptop" not in device.name
    )
    return min(larger, key=lambda device: (device.memory_bytes, device.title), default=None)


_KAGGLE_RAM = "sessions recorded by public experiment trackers"
_COLAB_FAQ = "https://research.google.com/colaboratory/faq.html"

PLATFORMS: Mapping[str, Platform] = {
    platform.name: platform
    for platform in (
        Platform(
            name="kaggle",
            title="Kaggle notebooks",
            session_hours=12,
            weekly_gpu_hours=30,
            disk_bytes=19_500 * 10**6,
            ram_bytes=int(31.36 * GIB),
            cores=4,
            sign="KAGGLE_KERNEL_RUN_TYPE",
            notes=(
                "at the limit a session is killed without warning, and its output may be lost",
                "the GPU quota counts the hours of a session with two T4s once for both; whether it counts those of "
                "other machines in the same way is not documented, and plans assume it",
                "19.5 GB in /kaggle/working persist after the session; what /tmp holds does not, and how much it may "
                "hold is not documented",
                "2 GiB of the RAM are used by the system; 4 hardware threads are 2 cores",
                "interactive sessions may end after 9 hours",
            ),
            sources={
                "session_hours": "batch sessions cancelled after 43,200 s; https://www.kaggle.com/docs/notebooks",
                "weekly_gpu_hours": 'the message "Maximum weekly GPU quota of 30.00 hours reached."',
                "disk_bytes": (
                    "19.5 GB in /kaggle/working by https://github.com/unslothai/unsloth (its tests on Kaggle), read as "
                    "decimal, the smaller of the two; 20 GB by https://www.kaggle.com/docs/notebooks"
                ),
                "ram_bytes": _KAGGLE_RAM,
                "cores": _KAGGLE_RAM,
            },
        ),
        Platform(
            name="colab",
            title="Google Colab, free of charge",
            session_hours=12,
            disk_bytes=15 * GB,
            ram_bytes=int(12.67 * GIB),
            cores=2,
            sign="COLAB_RELEASE_TAG",
            notes=(
                "12 hours at most; neither the time nor a GPU is guaranteed, and an idle session ends sooner",
                "no file on the machine persists; the disk limit is that of Google Drive, shared with its other files",
                "about 1 GiB of the RAM is used by the system",
            ),
            sources={
                "session_hours": _COLAB_FAQ,
                "disk_bytes": "https://one.google.com/storage: the free storage of every account",
                "ram_bytes": "MemTotal of the free T4 runtime, shown there as 12.7 GB",
                "cores": "the free T4 runtime",
            },
        ),
    )
}
