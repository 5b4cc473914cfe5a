"""GPUs by the names that people write, several of them, and what is said about names that are none."""

import pytest

from shoestring.base.errors import UsageError
from shoestring.hardware.catalog import DEVICES
from shoestring.hardware.names import similar
from shoestring.hardware.targets import find, machines


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("4090", "rtx4090"),
        ("RTX 3060", "rtx3060"),
        ("3060 12GB", "rtx3060"),
        ("rtx-3060-8", "rtx3060-8"),
        ("RTX A5000", "rtxa5000"),
        ("a100 80gb", "a100-80"),
        ("Tesla V100-SXM2-32GB", "v100-32"),
        ("Tesla T4", "t4"),
        ("H100", "h100"),
        ("h100 pcie", "h100-pcie"),
        ("4070 Ti SUPER", "rtx4070tisuper"),
        ("4070S", "rtx4070super"),
        ("3080ti", "rtx3080ti"),
        ("NVIDIA GeForce RTX 3070 Laptop GPU", "rtx3070-laptop"),
        ("rtx 3070 mobile", "rtx3070-laptop"),
        ("RTX 6000 Ada Generation", "rtx6000ada"),
        ("RTX PRO 6000 Blackwell Server Edition", "rtxpro6000"),
        ("Jetson AGX Orin 64GB", "agx-orin-64"),
        ("a10g", "a10g"),
        ("A10", "a10"),
    ],
)
def test_names_as_people_write_them(name: str, device: str) -> None:
    assert (find(name).name, find(name).device) == (device, DEVICES[device])


@pytest.mark.parametrize("name", DEVICES)
def test_names_and_titles_of_the_catalogue_are_found(name: str) -> None:
    device = DEVICES[name]
    assert find(name.upper()).device == device
    assert find(device.title).device == device


@pytest.mark.parametrize(
    ("name", "target", "gpus"),
    [
        ("rtx3090x2", "rtx3090x2", 2),
        ("A10G x 4", "a10gx4", 4),
        ("2x T4", "t4x2", 2),
        ("8xH100", "h100x8", 8),
        ("2x3090", "rtx3090x2", 2),
        ("a100-80x16", "a100-80x16", 16),
        ("gtx1660tix1", "gtx1660ti", 1),
    ],
)
def test_several_cards_have_no_limits_but_their_own(name: str, target: str, gpus: int) -> None:
    several = find(name)
    assert (several.name, several.gpus, several.platform) == (target, gpus, None)
    assert find(several.name) == several


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("3060", "--on 3060: it fits 2 cards", "name one: rtx3060-8 (7.50 GiB), rtx3060 (11.63 GiB)"),
        ("a100", "it fits 2 cards", "name one: a100-40 (39.39 GiB), a100-80 (79.15 GiB)"),
        ("rtx3080x2", "it fits 2 cards", "rtx3080-10"),
        ("rtx 6000", "it fits 2 cards", "rtx6000ada (47.22 GiB), quadrortx6000"),
        ("t4x0", "has 1, 2, 4, 8 or 16 GPUs, among which an update is divided, not 0", "--on t4x2"),
        ("t4x3", "not 3", "--on t4x2"),
        ("t4x17", "not 17", "--on t4x16"),
        ("t4x" + "9" * 5000, "there is no target", "any GPU"),
        ("kaggle-t4x3", "no machine of Kaggle notebooks is called so", "kaggle-t4x2, kaggle-t4; t4x2 has no platform"),
        ("colab-t4x2", "no machine of Google Colab", "available with NVIDIA T4: colab-t4"),
        ("mi300x", "only NVIDIA GPUs are predicted; of AMD's accelerators what tensors take holds", "memory=24GiB"),
        ("RX 7900 XTX", "AMD's", "memory=24GiB"),
        ("mps", "Apple's", "memory=24GiB"),
        ("M3 Max", "Apple's", "memory=24GiB"),
        ("Arc A770", "Intel's", "memory=24GiB"),
        ("pvc", "Intel's", "memory=24GiB"),
        ("v5e-8", "Google's", "memory=24GiB"),
        ("tpu", "what tensors take holds on a TPU", "memory=16GiB"),
    ],
)
def test_ambiguous_and_impossible_names_are_errors_that_say_what_is_possible(
    name: str, message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as error:
        find(name)
    assert message in error.value.message and error.value.hint and hint in error.value.hint


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("rxt3090", ["rtx3090", "rtx3090ti"]),
        ("rtx3090 12gb", ["rtx3090", "rtx3090ti"]),
        ("orin", ["orin-nano-4", "orin-nano-8", "orin-nx-8", "orin-nx-16", "agx-orin-32", "agx-orin-64"]),
        *((name, []) for name in ("rtx5095", "rtx6090", "gtx1080ti", "p40", "h800", "gb200", "rtx", "3", "")),
    ],
)
def test_an_unknown_card_is_no_card_of_another_number(name: str, names: list[str]) -> None:
    assert [device.name for device in similar(name)] == names
    with pytest.raises(UsageError) as error:
        find(name)
    assert error.value.message == f"there is no target {name!r}"
    assert 'any GPU: --on "memory=10GiB,tflops16=60,bandwidth=760"' in str(error.value.hint)


def test_other_makers_are_none_of_nvidias_cards() -> None:
    for name in [*DEVICES, *machines("kaggle")]:
        assert find(name).device.name in DEVICES
