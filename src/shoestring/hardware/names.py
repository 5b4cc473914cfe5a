"""GPUs by their names as people write them: `RTX 3060`, `NVIDIA GeForce RTX 4090`, `a100 80gb`, `3080ti`, `2x T4`."""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache

from shoestring.base.units import bytes_text
from shoestring.hardware.catalog import DEVICES, Device

_WORD = re.compile(
    "g[bh][0-9]+|nvidia|geforce|quadro|tesla|titan|jetson|orin|rtx|gtx|super|laptop|mobile|sff|ada|nvl|pcie|sxm[0-9]?|gddr[0-9]x?"
    "|hbm[0-9]e?|gib|gb|ti|[a-z]?[0-9]+|[a-z]+"
)
"""The words that people also write without a space or a dash between them; a letter before a number belongs to it."""
_SAME = {"mobile": "laptop", "m": "laptop", "s": "super", "gib": "gb"}
_MEANINGLESS = re.compile("gddr.*|hbm.*|gpu|graphics|card|desktop|generation|edition|nvidia|tesla")
_OPTIONAL = frozenset({"geforce", "quadro", "jetson", "rtx", "gtx", "gb", "sxm", "pcie", "nvl", "ada", "blackwell"})
"""Words of a card's title that may be left out if the rest names one card."""

_FEW = 8

_COUNT_AFTER = re.compile(r"(?P<name>.*\S)\s*[x×*]\s*(?P<count>\d{1,6})", re.IGNORECASE)
_COUNT_BEFORE = re.compile(r"(?P<count>\d{1,6})\s*[x×*]\s*(?P<name>\S.*)", re.IGNORECASE)

_MAKERS = (
    (re.compile(r"(amd|radeon|instinct|rocm|mi\d{2,3}\w*|rx\d{3,4}\w*|gfx\d+\w*).*"), "AMD's"),
    (re.compile(r"mps|metal|apple.*|m[1-9]((pro|max|ultra)\w*)?"), "Apple's"),
    (re.compile(r"v[2-6][ep]?\d*"), "Google's"),
    (re.compile(r"(intel|arc|xpu|pvc|ponte|gaudi|hpu|datacentergpumax).*|[ab][3-7][578]0"), "Intel's"),
)
"""Makers of accelerators that are no CUDA devices, by the beginning of their names without spaces."""


def matching(name: str) -> list[Device]:
    """Return the GPUs that a name fits: one, several that differ in what it leaves out, or none.

    A name of the catalogue fits its GPU alone, in whatever case and with or without spaces.
    """
    words = _words(name)
    exact = [device for device in DEVICES.values() if _words(device.name) == words]
    return exact or [device for device in DEVICES.values() if _required(device) <= words <= _all_words(device)]


def counts(name: str) -> list[tuple[str, int]]:
    """Return what may be the name of one card and the number of cards, as in `t4x2`, `rtx3090 x 2` and `2x3090`."""
    matches = (_COUNT_AFTER.fullmatch(name), _COUNT_BEFORE.fullmatch(name))
    return [(match["name"], int(match["count"])) for match in matches if match]


def similar(name: str) -> list[Device]:
    """Return the GPUs that an unknown name may mean: those of its model's number, or the few with all of its words.

    One with another number never is: it has other features and another size of memory.
    """
    words = _words(name)
    if not (number := _number(words)):
        devices = [device for device in DEVICES.values() if words and words <= _all_words(device)]
        return devices if len(devices) <= _FEW else []
    names = [device.name for device in DEVICES.values() if _number(_required(device)) == number]
    return [DEVICES[close] for close in get_close_matches(name.lower().replace(" ", ""), names, n=4, cutoff=0.5)]


def other_maker(name: str) -> str:
    """Return whose accelerator a name is that is not NVIDIA's, such as `AMD's`; empty if it is not known as one."""
    compact = re.sub(r"[^a-z0-9]", "", name.lower())
    return next((maker for pattern, maker in _MAKERS if pattern.fullmatch(compact)), "")


def listed(devices: Sequence[Device]) -> str:
    """Return names with the memory of each, for people to choose from."""
    return ", ".join(f"{device.name} ({bytes_text(device.memory_bytes)})" for device in devices)


@cache
def _words(text: str) -> frozenset[str]:
    words = (re.sub(r"sxm\d", "sxm", _SAME.get(word, word)) for word in _WORD.findall(text.lower()))
    return frozenset(word for word in words if not _MEANINGLESS.fullmatch(word))


def _all_words(device: Device) -> frozenset[str]:
    names = (device.title, device.name, *device.nvml_names)
    return frozenset({_nominal(device), "gb"}).union(*map(_words, names))


def _required(device: Device) -> frozenset[str]:
    return _words(device.title) - _OPTIONAL - {_nominal(device)}


def _nominal(device: Device) -> str:
    """Return the nominal memory in GB: in the title where cards differ in it, and otherwise the next usual size."""
    match = re.search(r"(\d+) GB", device.title)
    usual = (4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 48, 64, 80, 96, 141, 180, 288)
    return match[1] if match else str(next((size for size in usual if size << 30 >= device.memory_bytes), 0))


def _number(words: frozenset[str]) -> str:
    """Return the longest number, which is that of the model, with the letters that belong to it, such as `p40`."""
    return max((word for word in words if word[-1].isdigit()), key=len, default="")
