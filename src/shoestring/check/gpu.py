"""Verdicts on the GPU: which, whether this PyTorch can use it, what of it is emulated, who is on it already."""

import re

from shoestring.check.facts import Facts
from shoestring.check.finding import Finding, failed, passed, warned
from shoestring.hardware.occupancy import Card, Holder
from shoestring.units import MIB, bytes_text

_OLD_BUILD = "install torch's CUDA 12.6 build: pip install torch --index-url https://download.pytorch.org/whl/cu126"
_UNHELD = 512 * MIB
"""On a GPU that nobody computes on this much may be in use: the driver's own, a screen."""


def gpu(facts: Facts) -> Finding | None:
    """There is one, and torch can start it."""
    name = "GPU"
    if facts.on.device.kind == "cpu" and not facts.probed:
        return None
    if facts.driver_error:
        return failed(name, facts.driver_error, "nvidia-smi should fail likewise; restart the session or the machine")
    cards = facts.driver.cards if facts.driver else ()
    if facts.on.name == "cpu":
        return passed(name, f"none is asked for ({len(cards)} here)")
    if not cards:
        said = "none: there is no NVIDIA driver here, so training runs on the CPU"
        return (warned if facts.probed else failed)(name, said, _switch_on(facts))
    shown = shown_cards(facts)
    if not shown:
        chosen = facts.host.environment.get("CUDA_VISIBLE_DEVICES", "")
        return failed(name, f"CUDA_VISIBLE_DEVICES={chosen!r} hides {_counted(cards)}", "unset CUDA_VISIBLE_DEVICES")
    return passed(name, _counted(shown))


def kernels(facts: Facts) -> Finding | None:
    """The PyTorch build has kernels for the GPUs, and a small product on each goes well."""
    name, build, shown = "kernels", facts.build, shown_cards(facts)
    if not shown or not build.version:
        return None
    if build.cuda is None:
        return failed(
            name,
            f"torch {build.version} was built without CUDA",
            "pip install torch from https://download.pytorch.org/whl for this driver's CUDA",
        )
    lacking = [card for card in shown if build.archs and not has_kernels(build.archs, card.capability)]
    if lacking:
        card = lacking[0]
        major, minor = card.capability
        oldest = card.capability < (7, 5)
        return failed(
            name,
            f"torch {build.version} has none for {card.title} (sm_{major}{minor}); it has {' '.join(build.archs)}",
            _OLD_BUILD if oldest else "install a newer torch, or another CUDA build of it",
        )
    broken = [used for used in build.used if used.error]
    if broken:
        return failed(
            name,
            f"a small product on {broken[0].title} ended with: {broken[0].error}",
            "restart the session; where it stays so, another torch build or another machine",
        )
    if not build.used:
        why = build.error or "it sees none"
        return failed(name, f"torch {build.version} cannot use the GPU: {why}", "see the lines kernels and driver")
    return passed(name, f"torch {build.version} has them, and a small product ran on each GPU")


def driver(facts: Facts) -> Finding | None:
    """The driver is new enough for the build's CUDA.

    Within a major version a build runs on every driver of that version, without compiling for newer GPUs
    (https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html).
    """
    name, known, cuda = "driver", facts.driver, facts.build.cuda
    if known is None or cuda is None:
        return None
    said = f"{known.version}, made for CUDA {_version(known.cuda)}; torch is built for {_version(cuda)}"
    if known.cuda[0] < cuda[0]:
        return failed(
            name,
            said,
            f"update the driver, or install torch for CUDA {known.cuda[0]}.x: https://download.pytorch.org/whl",
        )
    if known.cuda < cuda:
        return warned(name, said, "torch runs, but what it would compile for this GPU may not: update the driver")
    return passed(name, said)


def bf16(facts: Facts) -> Finding | None:
    """Whether bf16 has units of its own."""
    oldest = _oldest(facts)
    if oldest is None:
        return None
    if oldest.capability >= (8, 0):
        return passed("bf16", f"{oldest.title} has units for it")
    return warned(
        "bf16",
        f"{oldest.title} only emulates it, many times slower than fp32, while torch.cuda.is_bf16_supported() says yes",
        "precision=fp16, which a plan for it chooses by itself; set bf16=False where other code asks torch",
    )


def attention(facts: Facts) -> Finding | None:
    """Whether attention runs as FlashAttention."""
    oldest = _oldest(facts)
    if oldest is None:
        return None
    if oldest.capability >= (8, 0) and facts.build.flash:
        return passed("attention", "FlashAttention")
    why = f"{oldest.title} has no FlashAttention" if oldest.capability < (8, 0) else "torch is built without it"
    return warned(
        "attention",
        f"{why}: memory-efficient attention runs instead, as plans count on",
        "leave attn_implementation at sdpa; flash_attention_2 would fail",
    )


def gpu_memory(facts: Facts) -> Finding | None:
    """Nobody else holds the memory that a plan counts on."""
    name, shown = "GPU memory", shown_cards(facts)
    if not shown:
        return None
    tight = min(shown, key=lambda card: card.free_bytes / card.usable_bytes)
    said = f"{bytes_text(tight.free_bytes)} of {bytes_text(tight.usable_bytes)} free on {tight.title}"
    if tight.used_bytes <= _UNHELD:
        return passed(name, said)
    holders = ", ".join(map(_holder, tight.holders)) or "the driver does not say who"
    first = next((str(holder.pid) for holder in tight.holders), "PID")
    hint = f"end it (kill {first}, or restart the notebook's kernel); plans count on all of the memory"
    tell = failed if tight.free_bytes < tight.usable_bytes / 2 else warned
    return tell(name, f"{said}; held by {holders}", hint)


def ranks(facts: Facts) -> Finding | None:
    """As many GPUs are shown as are asked for, and as will be used."""
    name, count, wanted = "GPUs used", len(shown_cards(facts)), facts.on.gpus
    hidden = (len(facts.driver.cards) if facts.driver else 0) - count
    started = facts.processes.get("LOCAL_WORLD_SIZE", facts.processes.get("WORLD_SIZE", "1"))
    if started.isdecimal() and int(started) > max(1, count):
        return failed(
            name,
            f"{started} processes were started here for {count} {_gpus(count)}",
            f"start {max(1, count)}: torchrun --nproc-per-node {max(1, count)}",
        )
    if facts.on.name == "cpu" or not (count or wanted):
        return None
    if count < wanted:
        if not count and not facts.probed:
            return None  # said of the GPU itself
        why = "CUDA_VISIBLE_DEVICES hides the rest" if hidden else "the session has no more"
        return failed(name, f"{facts.on.name} has {wanted}, shown are {count}: {why}", "ask the platform for both")
    # NVML's name of one card and the catalogue's title agree in the model's name.
    if not facts.probed and not any(_same_model(facts.on.device.title, card) for card in shown_cards(facts)):
        return warned(
            name,
            f"{facts.on.name} has {facts.on.device.title}, this machine {_counted(shown_cards(facts))}",
            "training plans anew for the GPU it finds; plan --on local shows how",
        )
    if count > 1:
        return warned(
            name,
            f"{count} are shown, one is used: this version trains on one GPU",
            "run a second run on the other with CUDA_VISIBLE_DEVICES=1; a session's quota counts once for both",
        )
    return passed(name, f"{count} shown and used" + (f", {hidden} hidden by CUDA_VISIBLE_DEVICES" if hidden else ""))


def has_kernels(archs: tuple[str, ...], capability: tuple[int, int]) -> bool:
    """Whether code for one of `archs` runs on a GPU of this capability.

    Machine code (sm_86) runs on its own major version from its minor version on, with an `a` on that GPU alone;
    compute_90 is compiled for any later GPU when it is loaded (CUDA programming guide, 5.5 Compute capabilities).
    """
    for arch in archs:
        found = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", arch)
        if not found:
            continue
        made_for = (int(found[2]), int(found[3]))
        exact = found[4] == "a"
        if made_for == capability:
            return True
        if not exact and found[1] == "compute" and not found[4] and capability > made_for:
            return True
        if not exact and capability[0] == made_for[0] and capability[1] > made_for[1]:
            return True
    return False


def shown_cards(facts: Facts) -> tuple[Card, ...]:
    """The GPUs that this process may use; none where a CPU is asked for."""
    if facts.on.name == "cpu" or facts.driver is None:
        return ()
    return tuple(card for card in facts.driver.cards if card.shown)


def _oldest(facts: Facts) -> Card | None:
    return min(shown_cards(facts), key=lambda card: card.capability, default=None)


def _same_model(title: str, card: Card) -> bool:
    return bool({word for word in title.split() if any(map(str.isdigit, word))} & set(re.split(r"[ -]", card.title)))


def _counted(cards: tuple[Card, ...]) -> str:
    titles = [card.title for card in cards]
    return ", ".join(f"{titles.count(title)} x {title}" for title in dict.fromkeys(titles))


def _gpus(count: int) -> str:
    return "GPU" if count == 1 else "GPUs"


def _holder(holder: Holder) -> str:
    held = "" if holder.bytes is None else f" ({bytes_text(holder.bytes)})"
    return f"pid {holder.pid}{f' {holder.name}' if holder.name else ''}{held}"


def _version(cuda: tuple[int, int]) -> str:
    return f"{cuda[0]}.{cuda[1]}"


def _switch_on(facts: Facts) -> str:
    where = {
        "kaggle": "the notebook's Settings, Accelerator, GPU T4 x2; then start it anew",
        "colab": "Runtime, Change runtime type, T4 GPU",
    }
    if facts.platform and facts.platform.name in where:
        return where[facts.platform.name]
    if facts.probed:
        return "where a CPU is meant, --on cpu leaves this out"
    return f"a check looks at the machine it runs on: run it there; shoestring plan --on {facts.on.name} needs no GPU"
