"""Checks of the GPU: its presence, its support by this PyTorch build, its features and its free memory."""

import re

from shoestring.base.units import MIB, bytes_text, seconds_text
from shoestring.hardware.occupancy import Card, Holder
from shoestring.planning.estimate.exchange import link_of
from shoestring.runs.check.facts import Facts
from shoestring.runs.check.finding import Finding, failed, passed, warned

_OLD_BUILD = "install torch's CUDA 12.6 build: pip install torch --index-url https://download.pytorch.org/whl/cu126"
_IDLE_BYTES = 512 * MIB
"""Memory that may be in use on an idle GPU, by the driver itself or by a display."""


def check_gpu(facts: Facts) -> Finding | None:
    """Check that there is a GPU that this process can see."""
    name = "GPU"
    if facts.target.device.kind == "cpu" and not facts.is_local:
        return None
    if facts.driver_error:
        hint = "restart the session or the machine; nvidia-smi should fail in the same way"
        return failed(name, facts.driver_error, hint)
    cards = facts.driver.cards if facts.driver else ()
    if facts.target.name == "cpu":
        return passed(name, f"the target cpu uses no GPU; this machine has {len(cards)}")
    if not cards:
        message = "there is no NVIDIA driver, so training runs on the CPU"
        return (warned if facts.is_local else failed)(name, message, _missing_gpu_hint(facts))
    usable_cards = visible_cards(facts)
    if not usable_cards:
        value = facts.host.environment.get("CUDA_VISIBLE_DEVICES", "")
        return failed(name, f"CUDA_VISIBLE_DEVICES={value!r} hides {_list_cards(cards)}", "unset CUDA_VISIBLE_DEVICES")
    return passed(name, _list_cards(usable_cards))


def check_kernels(facts: Facts) -> Finding | None:
    """Check that the PyTorch build has kernels for the GPUs, and that a test computation succeeds on each."""
    name, build, cards = "kernels", facts.build, visible_cards(facts)
    if not cards or not build.version:
        return None
    if build.cuda is None:
        return failed(
            name,
            f"torch {build.version} was built without CUDA",
            "pip install torch from https://download.pytorch.org/whl for this driver's CUDA",
        )
    unsupported = [card for card in cards if build.archs and not has_kernels(build.archs, card.capability)]
    if unsupported:
        card = unsupported[0]
        major, minor = card.capability
        is_old = card.capability < (7, 5)
        return failed(
            name,
            f"torch {build.version} has no kernels for {card.title} (sm_{major}{minor}), only for "
            f"{' '.join(build.archs)}",
            _OLD_BUILD if is_old else "install a newer torch, or another CUDA build of it",
        )
    broken = [gpu for gpu in build.gpus if gpu.error]
    if broken:
        return failed(
            name,
            f"a test computation on {broken[0].title} failed: {broken[0].error}",
            "restart the session; if the computation still fails, use another torch build or another machine",
        )
    if not build.gpus:
        reason = build.error or "it finds none"
        return failed(
            name, f"torch {build.version} cannot use the GPU: {reason}", "see the findings kernels and driver"
        )
    return passed(name, f"torch {build.version} has kernels for every GPU, and a test computation ran on each")


def check_driver(facts: Facts) -> Finding | None:
    """Check that the driver is new enough for the build's CUDA.

    Within a major version a build runs on every driver of that version, except for compilation for newer GPUs
    (https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html).
    """
    name, driver, cuda = "driver", facts.driver, facts.build.cuda
    if driver is None or cuda is None:
        return None
    message = (
        f"driver {driver.version} supports CUDA {_version_text(driver.cuda)}; torch is built for {_version_text(cuda)}"
    )
    if driver.cuda[0] < cuda[0]:
        return failed(
            name,
            message,
            f"update the driver, or install torch for CUDA {driver.cuda[0]}.x: https://download.pytorch.org/whl",
        )
    if driver.cuda < cuda:
        return warned(name, message, "update the driver: torch runs, but compiling code for this GPU may fail")
    return passed(name, message)


def check_bf16(facts: Facts) -> Finding | None:
    """Check that the GPU computes bf16 in hardware."""
    oldest = _oldest_card(facts)
    if oldest is None:
        return None
    if oldest.capability >= (8, 0):
        return passed("bf16", f"{oldest.title} computes bf16 in hardware")
    return warned(
        "bf16",
        f"{oldest.title} only emulates bf16, many times slower than fp32, although torch.cuda.is_bf16_supported() "
        "returns True",
        "use precision=fp16, which plans for this GPU choose by default; set bf16=False in code that relies on torch's "
        "answer",
    )


def check_attention(facts: Facts) -> Finding | None:
    """Check that attention runs as FlashAttention."""
    oldest = _oldest_card(facts)
    if oldest is None:
        return None
    if oldest.capability >= (8, 0) and facts.build.flash:
        return passed("attention", "FlashAttention is available")
    reason = (
        f"{oldest.title} does not support FlashAttention"
        if oldest.capability < (8, 0)
        else "torch is built without FlashAttention"
    )
    return warned(
        "attention",
        f"{reason}, so memory-efficient attention runs instead, as plans assume",
        "leave attn_implementation at sdpa; flash_attention_2 would fail",
    )


def check_gpu_memory(facts: Facts) -> Finding | None:
    """Check that no other process uses the GPU memory that a plan assumes to be free."""
    name, cards = "GPU memory", visible_cards(facts)
    if not cards:
        return None
    fullest = min(cards, key=lambda card: card.free_bytes / card.usable_bytes)
    message = f"{bytes_text(fullest.free_bytes)} of {bytes_text(fullest.usable_bytes)} is free on {fullest.title}"
    if fullest.used_bytes <= _IDLE_BYTES:
        return passed(name, message)
    holders = ", ".join(map(_holder_text, fullest.holders)) or "processes that the driver does not report"
    pid = next((str(holder.pid) for holder in fullest.holders), "PID")
    make_finding = failed if fullest.free_bytes < fullest.usable_bytes / 2 else warned
    return make_finding(
        name,
        f"{message}; the rest is used by {holders}",
        f"end that process (kill {pid}, or restart the notebook's kernel): plans assume that all memory is free",
    )


def check_gpu_count(facts: Facts) -> Finding | None:
    """Check that the requested GPUs are visible, and that they are of the target's model."""
    name, count, requested = "GPUs used", len(visible_cards(facts)), facts.target.gpus
    hidden = (len(facts.driver.cards) if facts.driver else 0) - count
    processes = facts.processes.get("LOCAL_WORLD_SIZE", facts.processes.get("WORLD_SIZE", "1"))
    if processes.isdecimal() and int(processes) > max(1, count):
        return failed(
            name,
            f"{processes} processes were started on this machine for {count} {_gpus(count)}",
            f"start {max(1, count)}: torchrun --nproc-per-node {max(1, count)}",
        )
    if facts.target.name == "cpu" or not (count or requested):
        return None
    if count < requested:
        if not count and not facts.is_local:
            return None  # the finding "GPU" reports it
        reason = "CUDA_VISIBLE_DEVICES hides the others" if hidden else "the session has no others"
        return failed(
            name,
            f"{facts.target.name} has {requested} {_gpus(requested)}, but the number visible is {count}: {reason}",
            f"request {requested} {_gpus(requested)} from the platform",
        )
    # NVML's name of a card and the catalog's title share the name of the model.
    if not facts.is_local and not any(_is_same_model(facts.target.device.title, card) for card in visible_cards(facts)):
        return warned(
            name,
            f"{facts.target.name} has {facts.target.device.title}, but this machine has "
            f"{_list_cards(visible_cards(facts))}",
            "training makes a new plan for the GPU of this machine; plan --on local shows it",
        )
    if len({card.title for card in visible_cards(facts)}) > 1:
        return warned(
            name,
            f"the GPUs differ: {_list_cards(visible_cards(facts))}; all of them wait for the slowest one, and the "
            "smallest memory decides the microbatch",
            "train on equal ones: CUDA_VISIBLE_DEVICES=0, for example, leaves the first",
        )
    hidden_text = f", {hidden} hidden by CUDA_VISIBLE_DEVICES" if hidden else ""
    return passed(name, f"{count} visible and used{hidden_text}")


def check_gpu_link(facts: Facts) -> Finding | None:
    """Check the rate at which the GPUs exchange gradients."""
    name, link, count = "GPU link", facts.build.link, len(visible_cards(facts))
    if link is None or count < 2:
        return None
    if link.error:
        return failed(
            name,
            f"the {count} GPUs cannot exchange gradients: {link.error}",
            "train on one GPU (gpus=1); NCCL_DEBUG=INFO in the environment makes NCCL say more",
        )
    # Of a ring, as plans count it: each GPU sends and receives 2 (count - 1) / count of the bytes.
    rate = 2 * (count - 1) / count * link.bytes / link.seconds
    access = "with" if link.peer_access else "without"
    message = (
        f"{count} GPUs exchange {bytes_text(link.bytes)} of gradients in {seconds_text(link.seconds)}, "
        f"{bytes_text(int(rate))}/s, {access} access to each other's memory"
    )
    planned = link_of(facts.target.device).bandwidth
    if rate < planned / 2:
        return warned(
            name,
            f"{message}; plans assume {bytes_text(int(planned))}/s",
            "one GPU may be as fast: compare with gpus=1",
        )
    return passed(name, message)


def has_kernels(archs: tuple[str, ...], capability: tuple[int, int]) -> bool:
    """Return whether code for one of `archs` runs on a GPU of this capability.

    Machine code (sm_86) runs on its own major version from its minor version on, with the suffix `a` only on that GPU;
    compute_90 is compiled for any later GPU when it is loaded (CUDA programming guide, 5.5 Compute capabilities).
    """
    for arch in archs:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", arch)
        if not match:
            continue
        arch_capability = (int(match[2]), int(match[3]))
        is_exact = match[4] == "a"
        if arch_capability == capability:
            return True
        if not is_exact and match[1] == "compute" and not match[4] and capability > arch_capability:
            return True
        if not is_exact and capability[0] == arch_capability[0] and capability[1] > arch_capability[1]:
            return True
    return False


def visible_cards(facts: Facts) -> tuple[Card, ...]:
    """Return the GPUs that this process may use; none if the target is a CPU."""
    if facts.target.name == "cpu" or facts.driver is None:
        return ()
    return tuple(card for card in facts.driver.cards if card.is_visible)


def _oldest_card(facts: Facts) -> Card | None:
    return min(visible_cards(facts), key=lambda card: card.capability, default=None)


def _is_same_model(title: str, card: Card) -> bool:
    return bool({word for word in title.split() if any(map(str.isdigit, word))} & set(re.split(r"[ -]", card.title)))


def _list_cards(cards: tuple[Card, ...]) -> str:
    titles = [card.title for card in cards]
    return ", ".join(f"{titles.count(title)} x {title}" for title in dict.fromkeys(titles))


def _gpus(count: int) -> str:
    return "GPU" if count == 1 else "GPUs"


def _holder_text(holder: Holder) -> str:
    memory = "" if holder.bytes is None else f" ({bytes_text(holder.bytes)})"
    return f"pid {holder.pid}{f' {holder.name}' if holder.name else ''}{memory}"


def _version_text(cuda: tuple[int, int]) -> str:
    return f"{cuda[0]}.{cuda[1]}"


def _missing_gpu_hint(facts: Facts) -> str:
    platform_hints = {
        "kaggle": "choose GPU T4 x2 in the notebook's Settings, Accelerator, then restart the session",
        "colab": "choose T4 GPU in Runtime, Change runtime type",
    }
    if facts.platform and facts.platform.name in platform_hints:
        return platform_hints[facts.platform.name]
    if facts.is_local:
        return "if training on the CPU is intended, pass --on cpu"
    return (
        f"run the check on a machine with that GPU, because it inspects the machine it runs on; shoestring plan --on "
        f"{facts.target.name} needs no GPU"
    )
