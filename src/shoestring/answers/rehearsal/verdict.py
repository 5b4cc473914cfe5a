"""What became of a rehearsed script, in one sentence."""

from collections.abc import Mapping

from shoestring.answers.document import Inline, Span, Tone
from shoestring.base.units import bytes_text, plural
from shoestring.hardware.catalog import Target
from shoestring.runs.rehearse.rehearsal import DevicePeak, Frame, OutOfMemory, Rehearsal

_MOST_CODE = 60
"""Characters of a line of code that stand in a sentence."""
_TONES: Mapping[str, Tone] = {"fits": "good", "does not fit": "bad", "failed": "bad"}


def name(rehearsal: Rehearsal) -> str:
    """Return what was rehearsed: the file, the module or the recipe."""
    return rehearsal.script.removeprefix("-m ").removeprefix("./")


def status(rehearsal: Rehearsal) -> str:
    """Return the verdict in a few words."""
    if rehearsal.end == "interrupted":
        return "interrupted"
    if rehearsal.end in ("failed", "host memory"):
        return "failed"
    if not rehearsal.used_gpu:
        return "no GPU used"
    return "fits" if rehearsal.fits else "does not fit"


def target_text(target: Target) -> str:
    """Return a target with its GPUs: `kaggle-t4x2 (2 × NVIDIA T4, 14.56 GiB each)`."""
    memory = bytes_text(target.device.memory_bytes)
    if target.gpus > 1:
        return f"{target.name} ({target.gpus} × {target.device.title}, {memory} each)"
    return f"{target.name} ({target.device.title}, {memory})"


def sentence(rehearsal: Rehearsal) -> Inline:
    """Return the verdict and its reason."""
    subject, place = Span(name(rehearsal), "strong"), target_text(rehearsal.target)
    after = f"after {plural(rehearsal.updates, 'update')}"
    word = status(rehearsal)
    tone = _TONES.get(word, "caution")
    error = rehearsal.out_of_memory
    if rehearsal.end == "out of memory":
        reason = _out_of_memory(error, rehearsal) if error else "it runs out of memory"
        return [subject, " ", Span("does not fit", tone), f" {place}: {reason}."]
    if rehearsal.end == "failed":
        cause = rehearsal.error or f"its exit status is {rehearsal.exit_status}"
        return [subject, " ", Span("fails", tone), f" {after} on {place}, not for the memory of a GPU: {cause}"]
    if rehearsal.end == "host memory":
        used = f", of which it used {bytes_text(rehearsal.host_peak_bytes)}" if rehearsal.host_peak_bytes else ""
        reason = f" {after}: this machine's memory is used up{used}.{_until_then(rehearsal)}"
        return [subject, " ", Span("was ended", tone), reason]
    if rehearsal.end == "interrupted":
        return [subject, " ", Span("was interrupted", tone), f" {after} on {place}.{_until_then(rehearsal)}"]
    if not rehearsal.used_gpu:
        return [subject, " ", Span("has used no GPU", tone), f" of {place}, so it is not known whether it fits."]
    ending = "it ran to its end" if rehearsal.end == "finished" else "it was stopped as asked for"
    updates = plural(rehearsal.updates, "update") if rehearsal.updates else "without an optimizer step"
    return [subject, " ", Span("fits", tone), f" {place}: {ending}, {updates}, with {_peak_text(rehearsal)}."]


def plain(content: Inline) -> str:
    """Return a sentence without its tones."""
    if isinstance(content, Span):
        return content.text
    return content if isinstance(content, str) else "".join(map(plain, content))  # type: ignore[arg-type]


def place_text(frame: Frame) -> str:
    """Return where a line is and what it says: `train.py:49 (loss.backward())`."""
    code = frame.text or (frame.function if frame.function.startswith("<") else f"{frame.function}()")
    code = code if len(code) <= _MOST_CODE else f"{code[:_MOST_CODE]}…"
    return f"{frame.place.removeprefix('./')} ({code})"


def used_bytes(device: DevicePeak) -> int:
    """Return the most memory of a GPU that was in use: what the allocator held, and the contexts."""
    return device.peak_reserved_bytes + device.outside_bytes


def fullest(rehearsal: Rehearsal) -> DevicePeak | None:
    """Return the GPU of which most was in use; None if nothing is known of any."""
    return max(rehearsal.devices, key=used_bytes, default=None)


def when_text(error: OutOfMemory) -> str:
    """Return in which phase memory ran out, and at which update."""
    if error.phase == "training" and error.update:
        return f"at update {error.update:,}"
    if error.update > 1:
        return f"in {error.phase} after update {error.update - 1:,}"
    return f"in {error.phase}, before the first update is made"


def _out_of_memory(error: OutOfMemory, rehearsal: Rehearsal) -> str:
    frame = error.own_frame or next(iter(error.stack), None)
    place = f", in {place_text(frame)}" if frame else ""
    in_use = max(error.reserved_bytes, rehearsal.target.device.memory_bytes - error.free_bytes)
    return (
        f"it runs out of memory on GPU {error.device} {when_text(error)}{place}, asking for "
        f"{bytes_text(error.requested_bytes)} with {bytes_text(in_use)} in use"
    )


def _until_then(rehearsal: Rehearsal) -> str:
    return f" Until then there were {_peak_text(rehearsal)}." if rehearsal.used_gpu and rehearsal.devices else ""


def _peak_text(rehearsal: Rehearsal) -> str:
    device = fullest(rehearsal)
    if device is None:
        return "an unknown peak"
    return f"at most {bytes_text(used_bytes(device))} of {bytes_text(device.capacity_bytes)} in use"
