"""The facts about the GPUs of the catalogue with their sources, from tables (gpus.csv, sustained.csv) and rules."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shoestring.base.units import MIB
from shoestring.hardware.sustained import sustained
from shoestring.hardware.tables import read_table

CAPABILITIES = "https://developer.nvidia.com/cuda-gpus"
_PAGES = "https://www.techpowerup.com/gpu-specs/"
_NUMBERS = ("fp32", "tf32", "fp16", "bf16")

CONTEXT = (int(140.875 * MIB), 300 * MIB, 667 * 10**6)
CONTEXT_SOURCE = (
    "not measured here; low: that of a T4; typical: users' reports with lazy loading (pytorch#107667); "
    "high: all kernels loaded (pytorch#86509)"
)
_T4_CONTEXT = (int(140.875 * MIB), int(140.875 * MIB), 287 * 10**6)
_T4_CONTEXT_SOURCE = (
    "measured on Kaggle (PyTorch 2.10 and 2.14): memory of the process minus reserved; high: pytorch#86509"
)
_HOPPER_CONTEXT = (526 * MIB, 678 * MIB, 767 * MIB)
_HOPPER_CONTEXT_SOURCE = (
    "measured on an H200, which has the chip of an H100 (PyTorch 2.11, driver 580; benchmarks/results/gpu): low, "
    "before any kernel; typical, memory of the process minus reserved in training; high, with kernels of all types"
)

MEMORY_RULE = (
    "assumed: the nominal size less 450 MiB and 0.7%, which is more than PyTorch lacks on any GPU of the catalogue for "
    "which there is a report"
)
ECC_RULE = f"{MEMORY_RULE}; less 1/16 before, which error correction takes, as on a T4, an A10 and an L4"


@dataclass(frozen=True, kw_only=True)
class _Architecture:
    """What the GPUs of an architecture share: FLOPs per clock of a multiprocessor, by the format of the operands."""

    capability: tuple[int, int]
    fp32: int
    tf32: int = 0
    half: int = 0
    """In fp16 with fp32 accumulation; in bf16 the same from compute capability 8.0 on."""
    source: str
    """A GPU whose data sheet agrees with the rates, or a measurement of one."""
    note: str = ""


_GEFORCE = "; GeForce GPUs accumulate fp16 products in fp32 at half their fp16 rate"
_ARCHITECTURES: Mapping[str, _Architecture] = {
    "pascal": _Architecture(capability=(6, 0), fp32=128, source="the data sheet of a P100"),
    "volta": _Architecture(capability=(7, 0), fp32=128, half=1024, source="the data sheet of a V100"),
    "gtx16": _Architecture(
        capability=(7, 5),
        fp32=128,
        source="an RTX 20's without tensor cores: https://www.techpowerup.com/review/msi-geforce-gtx-1660-ti-gaming-x/",
        note="fp16 products with fp32 accumulation are slower than fp32 ones, 0.61 TFLOP/s on a GTX 1660 Ti "
        "(https://github.com/zzc0721/torch-performance-test-data): train in fp32",
    ),
    "turing-geforce": _Architecture(
        capability=(7, 5), fp32=128, half=512, source=f"the data sheet of a T4, and half of its fp16 rate{_GEFORCE}"
    ),
    "turing": _Architecture(capability=(7, 5), fp32=128, half=1024, source="the data sheet of a T4"),
    "a100": _Architecture(capability=(8, 0), fp32=128, tf32=1024, half=2048, source="the data sheet of an A100"),
    "ampere-geforce": _Architecture(
        capability=(8, 6), fp32=256, tf32=256, half=512, source=f"the whitepaper's RTX 3090{_GEFORCE}"
    ),
    "ampere-workstation": _Architecture(
        capability=(8, 6), fp32=256, tf32=512, half=1024, source="the data sheet of an A10"
    ),
    "orin": _Architecture(
        capability=(8, 7),
        fp32=256,
        tf32=1024,
        half=2048,
        source="10.2 TFLOP/s in fp16 measured on an Orin Nano (https://github.com/zzc0721/torch-performance-test-data)",
        note="its memory is that of the machine too: what the host uses is missing on the GPU",
    ),
    "ada-geforce": _Architecture(
        capability=(8, 9), fp32=256, tf32=256, half=512, source=f"the whitepaper's RTX 4090{_GEFORCE}"
    ),
    "ada-workstation": _Architecture(
        capability=(8, 9), fp32=256, tf32=512, half=1024, source="the data sheet of an L4"
    ),
    "hopper": _Architecture(capability=(9, 0), fp32=256, tf32=2048, half=4096, source="the data sheet of an H100"),
    "blackwell": _Architecture(capability=(10, 0), fp32=256, tf32=4096, half=8192, source="no rate by this rule"),
    "blackwell-geforce": _Architecture(
        capability=(12, 0),
        fp32=256,
        tf32=256,
        half=512,
        source="the RTX 5090's 209.5 and 104.8 TFLOP/s (https://main-horse.github.io/posts/5090-mm-perf)",
    ),
    "blackwell-workstation": _Architecture(
        capability=(12, 0), fp32=256, tf32=512, half=1024, source="an RTX PRO 6000, by its rate in TF32"
    ),
}
_B300_CAPABILITY = (10, 3)
_LAPTOP = "the maker of the laptop sets its power limit, by which rates differ up to twofold"

_GEFORCE_PEERS = (
    "no GeForce card: an author of NCCL in https://github.com/NVIDIA/nccl-tests/issues/287; an RTX 3090: "
    "https://github.com/NVIDIA/nccl/issues/1127"
)
_NVLINK = "NVLink connects them"
_PEERS: Mapping[str, str] = {
    "v100": f"{_NVLINK}: https://github.com/ginkgo-project/ginkgo/issues/164",
    "v100-32": f"{_NVLINK}: https://github.com/ginkgo-project/ginkgo/issues/164",
    "l4": "https://github.com/NVIDIA/cuda-samples/issues/284; virtual machines may not pass it on, such as AWS's G6 "
    "(https://github.com/llm-d-incubation/llm-d-infra/pull/181)",
    "a100-40": f"{_NVLINK}: https://github.com/NVIDIA/nccl-tests/issues/100",
    "a100-80": f"{_NVLINK}: https://github.com/NVIDIA/nccl-tests/issues/100; without, on PCIe cards: "
    "https://github.com/NVIDIA/nccl/issues/841",
    "h100": f"{_NVLINK}: https://github.com/NVIDIA/nccl/issues/1264",
    "h200": f"{_NVLINK}: https://github.com/NVIDIA/nccl/issues/1264, of H100s, whose chip it has",
    "b200": f"{_NVLINK}: https://docs.nvidia.com/ai-enterprise/release-8/8.1/infra-software/vgpu/features/p2p.html",
    "b300": f"{_NVLINK}: https://docs.nvidia.com/ai-enterprise/release-8/8.1/infra-software/vgpu/features/p2p.html",
    "rtxpro6000": "https://github.com/voipmonitor/rtx6kpro: hardware/pcie-bandwidth.md",
}
"""The GPUs that reach each other's memory, with the source; no GeForce does, and of others it is not known."""


def gpus() -> Iterator[dict[str, Any]]:
    """Yield the facts about each GPU: the arguments of `Device` by name."""
    for row in read_table("gpus.csv"):
        yield _facts(row)


def _facts(row: Mapping[str, str]) -> dict[str, Any]:
    name, architecture = row["name"], _ARCHITECTURES[row["rule"]]
    rates, rates_source = _rates(row, architecture)
    published, publications = sustained(name, bf16=bool(rates["bf16_flops"]))
    memory, memory_source = _memory(row)
    context, context_source = _context(row)
    has_peers, peers_source = (False, _GEFORCE_PEERS) if row["family"].startswith("GeForce") else (None, "")
    if name in _PEERS:
        has_peers, peers_source = True, _PEERS[name]
    page = _address(row["rates"])
    notes = [row["notes"], architecture.note, _LAPTOP if "-laptop" in name else ""]
    return {
        "name": name,
        "title": row["title"],
        "family": row["family"],
        "memory_bytes": memory,
        "compute_capability": _B300_CAPABILITY if name == "b300" else architecture.capability,
        **rates,
        "bandwidth": float(row["gb_s"]) * 1e9,
        "context_bytes": context,
        "notes": tuple(note for text in notes for note in text.split(" | ") if note),
        "nvml_names": tuple(row["nvml"].split(" | ")) if row["nvml"] else (),
        "multiprocessors": int(row["sm"]),
        "sustained": published,
        "peer_access": has_peers,
        "pcie": row["pcie"],
        "sources": {
            "memory_bytes": memory_source,
            "compute_capability": CAPABILITIES,
            "bandwidth": page,
            "context_bytes": context_source,
            "multiprocessors": page,
            "pcie": page,
            **{rate: rates_source for rate, value in rates.items() if value},
            **{f"sustained.{rate}": source for rate, source in publications.items()},
            **({} if has_peers is None else {"peer_access": peers_source}),
        },
    }


def _rates(row: Mapping[str, str], architecture: _Architecture) -> tuple[dict[str, float | None], str]:
    """Return the peak rates in FLOP/s by field, None where the GPU has no units, and their source."""
    if row["fp32"]:
        return {f"{name}_flops": float(row[name]) * 1e12 if row[name] else None for name in _NUMBERS}, row["rates"]
    clocks = float(row["mhz"]) * 1e6 * int(row["sm"])
    bf16 = architecture.half if architecture.capability >= (8, 0) else 0
    per_clock = (architecture.fp32, architecture.tf32, architecture.half, bf16)
    rates = {f"{name}_flops": count * clocks or None for name, count in zip(_NUMBERS, per_clock, strict=True)}
    counts = ", ".join(f"{count:,} in {name}" for name, count in zip(_NUMBERS, per_clock, strict=True) if count)
    return rates, (
        f"{row['sm']} multiprocessors at {row['mhz']} MHz ({_address(row['rates'])}) and FLOPs per clock of each "
        f"({counts}) as by {architecture.source}"
    )


def _memory(row: Mapping[str, str]) -> tuple[int, str]:
    if row["mib"]:
        return int(row["mib"]) * MIB, row["memory"]
    nominal, _, ecc = row["gib"].partition(" ")
    usable = float(nominal) * 1024 * (15 / 16 if ecc else 1)
    return int(usable * 0.993 - 450) * MIB, ECC_RULE if ecc else MEMORY_RULE


def _context(row: Mapping[str, str]) -> tuple[tuple[int, int, int], str]:
    if row["name"] == "t4":
        return _T4_CONTEXT, _T4_CONTEXT_SOURCE
    return (_HOPPER_CONTEXT, _HOPPER_CONTEXT_SOURCE) if row["rule"] == "hopper" else (CONTEXT, CONTEXT_SOURCE)


def _address(page: str) -> str:
    return page if page.startswith("https://") else f"{_PAGES}{page}"
