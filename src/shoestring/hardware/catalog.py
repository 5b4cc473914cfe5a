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
from shoestring.hardware.measured import MeasuredRates
from shoestring.hardware.sustained import sustained

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
        return tuple(feature for capability, feature in _FEATURES if self.compute_capability < capability)

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


_CAPABILITIES = "https://developer.nvidia.com/cuda-gpus"
_T4_SHEET = "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/tesla-t4/t4-tensor-core-product-brief.pdf"
_P100_SHEET = "https://images.nvidia.com/content/tesla/pdf/nvidia-tesla-p100-PCIe-datasheet.pdf"
_V100_SHEET = "https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf"
_L4_SHEET = "https://www.nvidia.com/en-us/data-center/l4/ (half of the rates with sparsity)"
_A10_SHEET = "https://www.nvidia.com/en-us/data-center/products/a10-gpu/"
_A100_SHEET = "https://www.nvidia.com/en-us/data-center/a100/"
_H100_SHEET = "https://www.nvidia.com/en-us/data-center/h100/ (SXM; half of the rates with sparsity)"
_H200_SHEET = "https://www.nvidia.com/en-us/data-center/h200/ (SXM; half of the rates with sparsity)"
_RTX_PRO_6000_SHEET = (
    "https://www.nvidia.com/en-us/data-center/rtx-pro-6000-blackwell-server-edition/; fp16 and bf16 are there rounded "
    "and with sparsity (1 PFLOP/s), so twice the rate in TF32 is taken, as on other GPUs of this architecture"
)
# GeForce GPUs accumulate fp16 products in fp32 at half their fp16 rate. For the smaller cards the whitepapers' rates
# per core are scaled by the number of cores and the boost clock.
_GA10X = "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf"
_AD10X = "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf"

_T4_CONTEXT = (int(140.875 * MIB), int(140.875 * MIB), 287 * 10**6)
_T4_CONTEXT_SOURCE = (
    "measured on Kaggle (PyTorch 2.10 and 2.14): memory of the process minus reserved; high: pytorch#86509"
)
CONTEXT = (int(140.875 * MIB), 300 * MIB, 667 * 10**6)
CONTEXT_SOURCE = (
    "not measured here; low: that of a T4; typical: users' reports with lazy loading (pytorch#107667); "
    "high: all kernels loaded (pytorch#86509)"
)
_HOPPER_CONTEXT = (526 * MIB, 678 * MIB, 767 * MIB)
_HOPPER_CONTEXT_SOURCE = (
    "measured on an H200, which has the chip of an H100 (PyTorch 2.11, driver 580; benchmarks/results/gpu): low, "
    "before any kernel; typical, memory of the process minus reserved in training; high, with kernels of all types"
)

_NCCL_CONNECTION = 512 * KIB + 120 * 640 * 8 * 8 + 4 * MIB
NCCL_BYTES = (0, 2 * 2 * _NCCL_CONNECTION, 2 * 4 * 2 * _NCCL_CONNECTION + 40 * MIB)
"""The memory of NCCL on each of a few GPUs of one machine, outside PyTorch's allocator: low, typical, high.

By NCCL's source code (`src/include/comm.h`) a connection has one default buffer for each protocol (LL, LL128, Simple),
and a channel is a ring and a tree, with one connection each. Low: all buffers are in host memory, as between GPUs that
cannot access each other's memory. Typical: 2 channels, as for two GPUs on PCIe. High: two communicators of 4 channels,
and all of NCCL's kernels for one architecture loaded (the size of its library divided by the number of architectures).
"""
NCCL_SOURCE = "not measured; the buffers of NCCL's connections by its source code (comm.h), outside torch's allocator"


_GEFORCE_PEERS = (
    "no GeForce card: an author of NCCL in https://github.com/NVIDIA/nccl-tests/issues/287; an RTX 3090: "
    "https://github.com/NVIDIA/nccl/issues/1127"
)
_PEER_ACCESS: Mapping[str, tuple[bool, str]] = {
    "v100": (True, "https://github.com/ginkgo-project/ginkgo/issues/164 (SXM2, which NVLink connects)"),
    "l4": (True, "https://github.com/NVIDIA/cuda-samples/issues/284; virtual machines may not pass it on"),
    "a100-40": (True, "https://github.com/NVIDIA/nccl-tests/issues/100 (SXM, which NVLink connects)"),
    "a100-80": (True, "https://github.com/NVIDIA/nccl-tests/issues/100 and, PCIe, /NVIDIA/nccl/issues/841"),
    "h100": (True, "https://github.com/NVIDIA/nccl/issues/1264 (SXM, which NVLink connects)"),
    "h200": (True, "the chip of an H100 (SXM, which NVLink connects): https://github.com/NVIDIA/nccl/issues/1264"),
    "rtxpro6000": (True, "https://github.com/voipmonitor/rtx6kpro: hardware/pcie-bandwidth.md"),
    **dict.fromkeys(("rtx3060", "rtx3090", "rtx4060", "rtx4090"), (False, _GEFORCE_PEERS)),
}
_PCIE = dict.fromkeys(("t4", "p100", "v100"), "3.0 x16") | dict.fromkeys(("h100", "h200", "rtxpro6000"), "5.0 x16")
_PCIE |= dict.fromkeys(("l4", "a10", "a100-40", "a100-80", "rtx3060", "rtx3090", "rtx4090"), "4.0 x16")
_PCIE |= {"rtx4060": "4.0 x8"}


def _gpu(
    name: str,
    title: str,
    capability: tuple[int, int],
    mib: int,
    gb_per_s: float,
    *,
    fp32: float,
    tf32: float | None = None,
    fp16: float | None = None,
    bf16: float | None = None,
    nvml: tuple[str, ...],
    memory: str,
    sheet: str,
    context: tuple[int, int, int] = CONTEXT,
    context_source: str = CONTEXT_SOURCE,
    notes: tuple[str, ...] = (),
) -> Device:
    """Return a device from the units of data sheets: MiB, GB/s, TFLOP/s."""
    rates = {"fp32_flops": fp32, "tf32_flops": tf32, "fp16_flops": fp16, "bf16_flops": bf16}
    published, publications = sustained(name, bf16=bf16 is not None)
    peers, peers_source = _PEER_ACCESS.get(name, (None, ""))
    return Device(
        name=name,
        title=title,
        memory_bytes=mib * MIB,
        compute_capability=capability,
        fp32_flops=fp32 * 1e12,
        tf32_flops=tf32 and tf32 * 1e12,
        fp16_flops=fp16 and fp16 * 1e12,
        bf16_flops=bf16 and bf16 * 1e12,
        bandwidth=gb_per_s * 1e9,
        context_bytes=context,
        notes=notes,
        nvml_names=nvml,
        sustained=published,
        peer_access=peers,
        pcie=_PCIE[name],
        sources={
            "memory_bytes": memory,
            "compute_capability": _CAPABILITIES,
            "bandwidth": sheet,
            "context_bytes": context_source,
            **{rate: sheet for rate, value in rates.items() if value},
            **{f"sustained.{rate}": source for rate, source in publications.items()},
            **({} if peers is None else {"peer_access": peers_source}),
            "pcie": sheet,
        },
    )


# fmt: off
DEVICES: Mapping[str, Device] = {device.name: device for device in (
    _gpu("t4", "NVIDIA T4", (7, 5), 14_912, 320, fp32=8.1, fp16=65, sheet=_T4_SHEET, nvml=("Tesla T4", "T4"),
         context=_T4_CONTEXT, context_source=_T4_CONTEXT_SOURCE,
         memory="PyTorch 2.10 on Kaggle: 14.56 GiB; https://github.com/Zheng-Chong/CatVTON/issues/133: the same",
         notes=("a 70 W card: under sustained load it lowers its clock, far below the peak rates",)),
    _gpu("p100", "NVIDIA P100 16 GB (PCIe)", (6, 0), 16_269, 732, fp32=9.3, sheet=_P100_SHEET,
         nvml=("Tesla P100-PCIE-16GB",), memory="PyTorch 2.1 on Kaggle: 16,269 MiB",
         notes=("PyTorch's CUDA 12.8 and newer builds have no kernels for it, its CUDA 12.6 builds have "
                "(https://github.com/pytorch/pytorch/issues/157517)", "no longer offered by Kaggle")),
    _gpu("v100", "NVIDIA V100 16 GB (SXM2)", (7, 0), 16_130, 900, fp32=15.7, fp16=125, sheet=_V100_SHEET,
         nvml=("Tesla V100-SXM2-16GB", "Tesla V100-PCIE-16GB"),
         memory="PyTorch 1.7: 16,130 MiB; https://github.com/kchengiva/Shift-GCN/issues/34: 15.78 GiB",
         notes=("PyTorch's CUDA 12.8 and newer builds drop its kernels, with 2.11 at the latest; CUDA 12.6 builds "
                "have them (https://github.com/pytorch/pytorch/issues/172352)",
                "the PCIe card is rated a tenth lower")),
    _gpu("l4", "NVIDIA L4", (8, 9), 22_563, 300, fp32=30.3, tf32=60, fp16=121, bf16=121, sheet=_L4_SHEET,
         nvml=("L4",), memory="PyTorch 2.11 on Colab: 22,563 MiB (2.5 and 2.8: 22,693)"),
    _gpu("a10", "NVIDIA A10", (8, 6), 22_587, 600, fp32=31.2, tf32=62.5, fp16=125, bf16=125, sheet=_A10_SHEET,
         nvml=("A10",), memory="PyTorch 2.15 on an A10G, with the same memory: 22,587 MiB"),
    _gpu("a100-40", "NVIDIA A100 40 GB", (8, 0), 40_339, 1_555, fp32=19.5, tf32=156, fp16=312, bf16=312,
         sheet=_A100_SHEET, nvml=("A100-SXM4-40GB", "A100-PCIE-40GB"),
         memory="PyTorch 2.6: 39.394 GiB (others 39.56)"),
    _gpu("a100-80", "NVIDIA A100 80 GB (SXM)", (8, 0), 81_050, 2_039, fp32=19.5, tf32=156, fp16=312, bf16=312,
         sheet=_A100_SHEET, nvml=("A100-SXM4-80GB", "A100 80GB PCIe"), memory="PyTorch 2.6: 79.151 GiB",
         notes=("the PCIe card has 1,935 GB/s",)),
    _gpu("h100", "NVIDIA H100 80 GB (SXM)", (9, 0), 80_998, 3_350, fp32=67, tf32=494, fp16=989, bf16=989,
         sheet=_H100_SHEET, nvml=("H100 80GB HBM3",), context=_HOPPER_CONTEXT, context_source=_HOPPER_CONTEXT_SOURCE,
         memory="out-of-memory messages: 79.10 GiB (PyTorch 2.11: 79.179)"),
    _gpu("h200", "NVIDIA H200 (SXM)", (9, 0), 143_155, 4_800, fp32=67, tf32=494, fp16=989, bf16=989,
         sheet=_H200_SHEET, nvml=("H200",), context=_HOPPER_CONTEXT, context_source=_HOPPER_CONTEXT_SOURCE,
         memory="training log: 139.80 GiB; out-of-memory messages: 139.81"),
    _gpu("rtxpro6000", "NVIDIA RTX PRO 6000 Blackwell", (12, 0), 97_250, 1_597, fp32=120, tf32=234,
         fp16=468, bf16=468, sheet=_RTX_PRO_6000_SHEET,
         nvml=("RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Blackwell Workstation Edition"),
         memory="PyTorch 2.13: 97,250 MiB; PyTorch 2.10 on Kaggle: 94.97 GiB",
         notes=("the rates are those of the Server Edition; the Workstation Edition has 1,792 GB/s",
                "PyTorch has kernels for it in its builds for CUDA 12.8 and newer")),
    _gpu("rtx3060", "NVIDIA GeForce RTX 3060 12 GB", (8, 6), 11_910, 360, fp32=12.7, tf32=12.7, fp16=25.5, bf16=25.5,
         sheet=f"{_GA10X}, scaled to 3,584 cores at 1.777 GHz", nvml=("GeForce RTX 3060",),
         memory="PyTorch 2.10: 11,910 MiB; https://github.com/smy20011/dreambooth-gui/issues/78: 11.75 GiB"),
    _gpu("rtx3090", "NVIDIA GeForce RTX 3090", (8, 6), 24_124, 936, fp32=35.6, tf32=35.6, fp16=71, bf16=71,
         sheet=_GA10X, nvml=("GeForce RTX 3090",), memory="PyTorch 2.13: 24,124 MiB (older: up to 24,268)"),
    _gpu("rtx4060", "NVIDIA GeForce RTX 4060", (8, 9), 7_807, 272, fp32=15.1, tf32=15.1, fp16=30.2, bf16=30.2,
         sheet=f"{_AD10X}, scaled to 3,072 cores at 2.46 GHz", nvml=("GeForce RTX 4060",),
         memory="PyTorch 2.5: 7,807 MiB"),
    _gpu("rtx4090", "NVIDIA GeForce RTX 4090", (8, 9), 24_074, 1_008, fp32=82.6, tf32=82.6, fp16=165.2, bf16=165.2,
         sheet=_AD10X, nvml=("GeForce RTX 4090",),
         memory="out-of-memory message: 23.51 GiB; https://github.com/3DTopia/Phidias-Diffusion/issues/8: 23.64"),
)}
# fmt: on

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
