"""The page of the targets, from the catalogue of devices and platforms and the list of prices."""

import re
from collections.abc import Iterable, Mapping

from docs.generate.markdown import code, escape, header, paragraph, table

from shoestring.base.units import GIB, MIB
from shoestring.hardware.catalog import DEVICES, NCCL_BYTES, NCCL_SOURCE, PLATFORMS, Device, Platform, Target
from shoestring.hardware.prices import FREE, PRICES, Price
from shoestring.hardware.targets import PROBED, known

_INTRODUCTION = """
A target is the place of a run: a device, a number of GPUs, and the limits of a platform if there is one. `--on TARGET`
takes the name of one of the tables, and `on="TARGET"` in Python. `shoestring targets` lists them too.
"""
_MACHINES = """## Machines of platforms
`plan --on kaggle` compares all machines of Kaggle. `machine_shape` is Kaggle's name of a machine, which `kaggle start`
and the metadata of a notebook ask for.
"""
_DEVICES = """## Devices
Memory is the total that PyTorch reports, which is less than the nominal size. Rates are the peak rates of data sheets
for dense matrix products; a multiply-add counts as two operations. Predictions of time take sustained rates, which
are lower ([time](../explanation/time.md)). GeForce GPUs accumulate fp16 products in fp32 at half
their fp16 rate, and that half is listed. "–" in a column of rates means that the device has no units for this format.
"""
_FACTS = {
    "memory_bytes": "memory",
    "compute_capability": "compute capability",
    "fp32_flops": "peak rate in fp32",
    "tf32_flops": "peak rate in TF32",
    "fp16_flops": "peak rate in fp16",
    "bf16_flops": "peak rate in bf16",
    "bandwidth": "memory bandwidth, reads plus writes",
    "context_bytes": "CUDA context: low, typical, high",
    "session_hours": "longest session, hours",
    "weekly_gpu_hours": "GPU hours per week",
    "disk_bytes": "disk space that persists after the session",
    "ram_bytes": "host memory",
    "cores": "hardware threads",
}
_PLATFORMS = "## Platforms\n"
_PRICES = """## Prices
These are list prices for one GPU for one hour, on demand, without tax. They change weekly and differ between
providers, so they serve to compare. `--price` replaces them. The cost on a device without an entry is unknown.
"""


def page() -> str:
    """Return the page of targets, devices, platforms and prices, with the source of each number."""
    devices = "\n".join(_device_sources(device) for device in DEVICES.values())
    platforms = "\n".join(_platform_section(platform) for platform in PLATFORMS.values())
    return "\n".join(
        [
            header("Targets").rstrip("\n"),
            _INTRODUCTION,
            _target_table(known().values()),
            _MACHINES,
            _machine_table(known().values()),
            _DEVICES,
            _device_table(DEVICES.values()),
            devices,
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
    rows += [(code(name), text, "that of the machine, if it is detected") for name, text in PROBED.items()]
    rows.append(
        (
            code("FILE.json"),
            "the device of a [file of measured rates](index.md#rates-of-your-own-gpu)",
            "no limits",
        )
    )
    return table(("target", "device", "platform"), rows)


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


def _device_table(devices: Iterable[Device]) -> str:
    rows = (
        (
            f"[{device.title}](#{device.name})",
            f"{device.memory_bytes / GIB:.2f} GiB",
            ".".join(map(str, device.compute_capability or ())) or "–",
            *(_rate(getattr(device, name)) for name in ("fp32_flops", "tf32_flops", "fp16_flops", "bf16_flops")),
            "–" if device.bandwidth is None else f"{device.bandwidth / 1e9:,.0f} GB/s",
        )
        for device in devices
    )
    columns = ("device", "memory", "compute capability", "fp32, TFLOP/s", "TF32", "fp16", "bf16", "bandwidth")
    return table(columns, rows)


def _rate(flops: float | None) -> str:
    return "–" if flops is None else f"{flops / 1e12:g}"


def _device_sources(device: Device) -> str:
    low, typical, high = (f"{size / MIB:.0f} MiB" for size in device.context_bytes)
    values = {
        "memory_bytes": f"{device.memory_bytes / MIB:,.0f} MiB",
        "compute_capability": ".".join(map(str, device.compute_capability or ())),
        **{
            name: f"{_rate(getattr(device, name))} TFLOP/s"
            for name in ("fp32_flops", "tf32_flops", "fp16_flops", "bf16_flops")
            if getattr(device, name) is not None
        },
        "bandwidth": "unknown" if device.bandwidth is None else f"{device.bandwidth / 1e9:,.0f} GB/s",
        "context_bytes": f"{low}, {typical}, {high}",
    }
    return "\n".join(
        [
            f"### {device.name}",
            paragraph(
                f"{device.title}. It trains in {', '.join(device.precisions)}."
                + (f" It lacks {'; '.join(device.lacks)}." if device.lacks else "")
            ),
            "",
            _fact_table(values, device.sources),
            *_notes(device.notes),
        ]
    )


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
