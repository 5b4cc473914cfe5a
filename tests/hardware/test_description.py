"""GPUs that are not in the catalogue, by their numbers."""

import pytest

from shoestring.base.errors import UsageError
from shoestring.base.units import GIB
from shoestring.hardware.prices import price
from shoestring.hardware.targets import find


def test_a_description_is_a_target_with_notes_on_what_is_assumed() -> None:
    target = find("memory = 10GiB, tflops16=60,bandwidth=760")
    device = target.device
    assert (target.name, target.gpus, target.platform) == ("memory=10GiB,tflops16=60,bandwidth=760", 1, None)
    assert (device.memory_bytes, device.compute_capability, device.bandwidth) == (10 * GIB, (8, 6), 760e9)
    assert (device.fp32_flops, device.tf32_flops, device.fp16_flops, device.bf16_flops) == (30e12, 30e12, 60e12, 60e12)
    assert "capability=8.6" in target.notes[0] and "tflops32 is half" in target.notes[1] and len(target.notes) == 2
    assert find(target.name) == target and price(target) is None


def test_all_numbers_of_a_description() -> None:
    name = "memory=24GB,tflops16=50,tflops32=12.5,bandwidth=600,capability=7.5,count=2,name=My card"
    target = find(name)
    device = target.device
    assert (target.name, target.gpus, target.notes, device.title) == (name, 2, (), "My card")
    assert (device.fp32_flops, device.tf32_flops, device.bf16_flops) == (12.5e12, None, None)


def test_memory_alone_has_no_rates() -> None:
    target = find("memory=192GiB")
    assert target.device.fp32_flops is target.device.bandwidth is None
    assert target.notes[-1].endswith("only memory is predicted, no time")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("memory=10", "memory=10: '10' is not a size; write 15GB, 500MB or 1.5GiB"),
        ("memory=10MB", "memory=10MB: GPUs have 1 GiB to 1,024 GiB"),
        ("tflops16=60", "memory is missing"),
        ("memory=10GiB,tflops16=-1", "tflops16=-1: expected a number above 0 and up to 100,000, in TFLOP/s"),
        ("memory=10GiB,bandwidth=760GB/s", "bandwidth=760GB/s: expected a number above 0 and up to 100,000, in GB/s"),
        ("memory=10GiB,bandwidth=nan", "bandwidth=nan: expected a number"),
        ("memory=10GiB,count=3", "count=3: an update is divided among 1, 2, 4, 8 or 16 GPUs"),
        ("memory=10GiB,capability=8", "capability=8: expected CUDA's version"),
        ("memory=10GiB,capability=86.0", "capability=86.0: expected CUDA's version"),
        ("memory=" + "9" * 400 + "GiB", "more than any disk has"),
        ("memory=10GiB,name=", "name=: expected a name"),
        (
            "memory=10GiB,vram=3",
            "vram=3: expected one of memory, tflops16, tflops32, bandwidth, capability, count, name",
        ),
        ("memory=10GiB,memory=11GiB", "memory=11GiB: memory is there twice"),
        ("=", "=: expected one of memory"),
    ],
)
def test_problems_of_a_description(name: str, problem: str) -> None:
    with pytest.raises(UsageError) as error:
        find(name)
    assert any(problem in text for text in error.value.problems), error.value.problems
    assert "tflops16 (dense fp16 products with fp32 accumulation, TFLOP/s)" in str(error.value.hint)
