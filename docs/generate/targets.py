"""The page of the targets, from the catalogue of devices and platforms and the list of prices."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from docs.generate.markdown import code, escape, header, paragraph, table

from shoestring.base.units import GIB, MIB
from shoestring.hardware.catalog import DEVICES, NCCL_BYTES, NCCL_SOURCE, PLATFORMS, Device, Platform, Target
from shoestring.hardware.description import DESCRIPTION
from shoestring.hardware.gpus import CAPABILITIES, CONTEXT, CONTEXT_SOURCE, ECC_RULE, MEMORY_RULE
from shoestring.hardware.prices import FREE, PRICES, Price
from shoestring.hardware.targets import PROBED, known

_INTRODUCTION = """
A target is the place of a run: a device, a number of GPUs, and the limits of a platform if there is one. `--on TARGET`
takes one of the following, and `on="TARGET"` in Python. `shoestring targets` lists the names too.

- A name from the table: a machine of a platform, or a GPU without limits. `RTX 3060`, `4090`, `a100 80gb` and
  `NVIDIA GeForce RTX 4090` are understood too; a name that fits several cards is an error that lists them.
- Several of them on one machine: `rtx3090x2`, `a10gx4`, `2x T4`. An update is divided among 1, 2, 4, 8 or 16 GPUs.
- Any other GPU by its numbers: `memory=10GiB,tflops16=60,bandwidth=760`.
"""
_DESCRIBED = """### Other GPUs
Of a description only `memory` is required, as PyTorch reports it; without rates no time is predicted. What is assumed
for other missing numbers is a note of the estimate and of the plan.

"""
_MACHINES = """## Machines of platforms
`plan --on kaggle` compares all machines of Kaggle. `machine_shape` is Kaggle's name of a machine, which `kaggle start`
and the metadata of a notebook ask for.
"""
_DEVICES = """## Devices
Memory is the total that PyTorch reports, which is less than the nominal size; "≈" marks an assumption, by the rule
below. Rates are the peak rates of data sheets in TFLOP/s for dense matrix products; a multiply-add counts as two
operations. GeForce GPUs accumulate fp16 products in fp32 at half their fp16 rate, and that half is listed. "–" in a
column of rates means that the device has no units for this format. *Sustained* is what others measured and published
of large products in fp32 and fp16, and of the bandwidth: the mean of publications. Predictions of time take sustained
rates ([time](../explanation/time.md)). *Peers* says whether such GPUs reach each other's memory without an NVLink
bridge; "?" where no report is known.

These sources are those of most facts; the tables of sources list the others.

- Memory marked "≈" is {memory}.
- On cards whose error correction is on it is {ecc}.
- The compute capability is from {capability}.
- The CUDA context (low, typical, high) is {context}.
"""
_FACTS = {
    "memory_bytes": "memory",
    "compute_capability": "compute capability",
    "fp32_flops": "peak rate in fp32",
    "tf32_flops": "peak rate in TF32",
    "fp16_flops": "peak rate in fp16",
    "bf16_flops": "peak rate in bf16",
    "bandwidth": "memory bandwidth, reads plus writes",
    "context_bytes": "CUDA context (low, typical, high)",
    "multiprocessors": "multiprocessors",
    "pcie": "PCIe",
    "peer_access": "access to the memory of peers",
    "session_hours": "longest session, hours",
    "weekly_gpu_hours": "GPU hours per week",
    "disk_bytes": "disk space that persists after the session",
    "ram_bytes": "host memory",
    "cores": "hardware threads",
}
_RATES = ("fp32_flops", "tf32_flops", "fp16_flops", "bf16_flops")
_SHARED = (MEMORY_RULE, ECC_RULE, CAPABILITIES, CONTEXT_SOURCE)
"""Sources that the introduction to the devices has."""
_PLATFORMS = "## Platforms\n"
_PRICES = """## Prices
These are list prices for one GPU for one hour, on demand, without tax. They change weekly and differ between
providers, so they serve to compare. `--price` replaces them. The cost on a device without an entry is unknown.
"""


def page() -> str:
    """Return the page of targets, devices, platforms and prices, with the source of each number."""
    families = dict.fromkeys(device.family for device in DEVICES.values())
    platforms = "\n".join(_platform_section(platform) for platform in PLATFORMS.values())
    targets = [target for target in known().values() if target.platform]
    return "\n".join(
        [
            header("Targets").rstrip("\n"),
            _INTRODUCTION,
            _target_table(targets),
            _MACHINES,
            _machine_table(targets),
            _DEVICES.format(
                memory=_linked(MEMORY_RULE),
                ecc=_linked(ECC_RULE),
                capability=_linked(CAPABILITIES),
                context=f"{_context(CONTEXT)}; {_linked(CONTEXT_SOURCE)}",
            ),
            "\n".join(_family([device for device in DEVICES.values() if device.family == name]) for name in families),
            _DESCRIBED + table(("key", "value"), [(code(key), text) for key, text in DESCRIPTION.items()]),
            _nccl(),
            _PLATFORMS,
            platforms,
            _PRICES,
            _price_table(),
        ]
    )


def _target_table(targets: Iterable[Target]) -> str:
    rows = [
        (
            code(target.name),
            f"{target.gpus} x [{target.device.title}](#{target.device.name})",
            f"[{target.platform.title}](#{target.platform.name})" if target.platform else "no limits",
        )
        for target in targets
    ]
    for family in dict.fromkeys(device.family for device in DEVICES.values()):
        names = [code(name) for name, device in DEVICES.items() if device.family == family]
        rows.append((", ".join(names), f"one [{family}](#{_anchor(family)})", "no limits"))
    rows += [(code(name), text, "that of the machine, if it is detected") for name, text in PROBED.items()]
    rows.append(
        (
            code("FILE.json"),
            "the device of a [file of measured rates](index.md#rates-of-your-own-gpu)",
            "no limits",
        )
    )
    return table(("target", "device", "platform"), rows)


def _anchor(heading: str) -> str:
    return "-".join(heading.lower().split())


def _machine_table(targets: Iterable[Target]) -> str:
    rows = [
        (
            code(target.name),
            code(target.machine_shape) if target.machine_shape else "–",
            "some accounts" if target.depends_on_account else "every account",
            "; ".join(_linked(note) for note in target.notes) or "–",
        )
        for target in targets
        if target.platform
    ]
    return table(("target", "machine_shape", "who gets it", "notes"), rows)


def _family(devices: Sequence[Device]) -> str:
    """Return the section of a family: the facts, their sources, and what a user should know."""
    notes = [f"- {code(device.name)}: {_linked(note)}" for device in devices for note in device.notes]
    lacking = {device.name: "; ".join(device.lacks) for device in devices if device.lacks}
    same = [
        (text, [name for name, other in lacking.items() if other == text]) for text in dict.fromkeys(lacking.values())
    ]
    notes += [f"- {', '.join(map(code, names))}: without {text}" for text, names in same]
    return "\n".join(
        [f"### {devices[0].family}", _device_table(devices), _source_table(devices), *notes, *([""] if notes else [])]
    )


def _device_table(devices: Iterable[Device]) -> str:
    rows = (
        (
            f'<a id="{device.name}"></a>{code(device.name)}',
            device.title.removeprefix("NVIDIA "),
            f"{'≈ ' if _is_assumed(device) else ''}{device.memory_bytes / GIB:.2f} GiB",
            ".".join(map(str, device.compute_capability or ())) or "–",
            *(_rate(getattr(device, name)) for name in _RATES),
            _gb_per_s(device.bandwidth),
            ", ".join(_sustained(device)) or "–",
            device.pcie or "?",
            {None: "?", True: "yes", False: "no"}[device.peer_access],
        )
        for device in devices
    )
    columns = ("name", "device", "memory", "capability", "fp32", "TF32", "fp16", "bf16", "bandwidth")
    return table((*columns, "sustained", "PCIe", "peers"), rows)


def _source_table(devices: Iterable[Device]) -> str:
    """Return the sources of each device, a row for the facts that share one."""
    rows = []
    for device in devices:
        by_source: dict[str, list[str]] = {}
        for fact, source in device.sources.items():
            if source not in _SHARED:
                by_source.setdefault(source, []).append(_fact_name(device, fact))
        rows += [(code(device.name), "; ".join(facts), _linked(source)) for source, facts in by_source.items()]
    return table(("name", "fact", "source"), rows)


def _fact_name(device: Device, fact: str) -> str:
    """Return the name of a fact, with the value if the table of devices has another or none."""
    kind, _, rate = fact.rpartition(".")
    if fact == "context_bytes":
        return f"{_FACTS[fact]}: {_context(device.context_bytes)}"
    return f"sustained {_FACTS[rate].removeprefix('peak ')}" if kind else _FACTS[fact]


def _sustained(device: Device) -> Iterator[str]:
    for rate in ("fp32_flops", "fp16_flops"):
        if rate in device.sustained:
            yield f"{rate.removesuffix('_flops')} {device.sustained[rate] / 1e12:.3g}"
    if "bandwidth" in device.sustained:
        yield _gb_per_s(device.sustained["bandwidth"])


def _is_assumed(device: Device) -> bool:
    return device.sources["memory_bytes"].startswith("assumed")


def _context(sizes: tuple[int, int, int]) -> str:
    return ", ".join(f"{size / MIB:.0f} MiB" for size in sizes)


def _gb_per_s(rate: float | None) -> str:
    return "–" if rate is None else f"{rate / 1e9:,.0f} GB/s"


def _rate(flops: float | None) -> str:
    return "–" if flops is None else f"{flops / 1e12:,.4g}"


def _nccl() -> str:
    low, typical, high = (f"{size / MIB:.0f} MiB" for size in NCCL_BYTES)
    text = f"On each of a few GPUs of one machine NCCL takes {low} at least, {typical} typically and {high} at most."
    return "\n".join(["### Several GPUs", paragraph(f"{text} Source: {_linked(NCCL_SOURCE)}."), ""])


def _platform_section(platform: Platform) -> str:
    gib = None if platform.ram_bytes is None else f"{platform.ram_bytes / GIB:.2f} GiB"
    values = {
        "session_hours": _number(platform.session_hours),
        "weekly_gpu_hours": _number(platform.weekly_gpu_hours),
        "disk_bytes": None if platform.disk_bytes is None else f"{platform.disk_bytes / 1e9:g} GB",
        "ram_bytes": gib,
        "cores": _number(platform.cores),
    }
    shown = {name: value or "no limit" for name, value in values.items()}
    price = FREE.get(platform.name)
    return "\n".join(
        [
            f"### {platform.name}",
            f"{platform.title}. A process detects it by the environment variable {code(platform.sign)}.",
            "",
            _fact_table(shown, platform.sources),
            *_notes(platform.notes),
            *([f"Price: {_price(price)}. Source: {_linked(price.source)} ({price.date}).", ""] if price else []),
        ]
    )


def _fact_table(values: Mapping[str, str], sources: Mapping[str, str]) -> str:
    rows = ((_FACTS[name], escape(value), _linked(sources.get(name, ""))) for name, value in values.items())
    return table(("fact", "value", "source"), rows)


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:g}"


def _notes(notes: Iterable[str]) -> list[str]:
    lines = [f"- {_linked(note)}" for note in notes]
    return [*lines, ""] if lines else []


def _price_table() -> str:
    rows = (
        (f"[{DEVICES[name].title}](#{name})", _price(price), _linked(price.source), price.date)
        for name, price in PRICES.items()
    )
    return table(("device", "price of an hour", "source", "date"), rows)


def _price(price: Price) -> str:
    return "free of charge" if not price.usd_per_hour else f"${price.usd_per_hour:.2f}"


def _linked(text: str) -> str:
    """Return text in which web addresses are links."""
    parts = re.split(r"(https://[^\s,;:)]+)", text)
    return "".join(f"<{part}>" if part.startswith("https://") else escape(part) for part in parts)
