"""What GPUs sustain, from published measurements (sustained.csv): one rate of each kind for a device, with its sources.

The measurements of one publication are averaged first, then the publications, so that one with many runs counts once.
A publication that measured one of the two 16-bit formats says the same of the other one, which has units of equal rate
wherever it has any.
"""

from collections.abc import Mapping, Sequence
from functools import cache

from shoestring.hardware.tables import read_table

_UNITS = {"fp32": 1e12, "tf32": 1e12, "fp16": 1e12, "bf16": 1e12, "bandwidth": 1e9}
"""The columns of the table, and what one unit of them is in FLOP/s or bytes/s."""
_OTHER_HALF = {"fp16": "bf16", "bf16": "fp16"}


def sustained(device: str, *, bf16: bool) -> tuple[dict[str, float], dict[str, str]]:
    """Return the published rates of a device of the catalogue and the source of each; empty where there are none.

    The rates are named `fp32_flops`, `tf32_flops`, `fp16_flops`, `bf16_flops` and `bandwidth`, as those of data sheets,
    and are in FLOP/s and bytes/s. `bf16`: whether the device has units for bf16.
    """
    rates, sources = {}, {}
    for column, unit in _UNITS.items():
        publications = _publications(device, column)
        if bf16 and column in _OTHER_HALF:
            publications = _publications(device, _OTHER_HALF[column]) | publications
        if publications:
            name = column if column == "bandwidth" else f"{column}_flops"
            rates[name] = _mean([_mean(values) for values in publications.values()]) * unit
            sources[name] = ", ".join(map(_address, publications))
    return rates, sources


def measured_devices() -> frozenset[str]:
    """Return the names of the devices that have a published rate."""
    return frozenset(_table())


def _publications(device: str, column: str) -> dict[str, list[float]]:
    """Return the measurements of a device by publication."""
    publications: dict[str, list[float]] = {}
    for row in _table().get(device, ()):
        if row[column]:
            publications.setdefault(row["source"], []).append(float(row[column]))
    return publications


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)  # `statistics` takes as long to import as this package


def _address(source: str) -> str:
    return source if source.startswith("https://") else f"https://github.com/{source}"


@cache
def _table() -> Mapping[str, list[dict[str, str]]]:
    rows: dict[str, list[dict[str, str]]] = {}
    for row in read_table("sustained.csv"):
        for device in row["devices"].split():
            rows.setdefault(device, []).append(row)
    return rows
