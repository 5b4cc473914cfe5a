"""Waste that the trace or the facts show, and what would save it: one function for each kind, in a list."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from shoestring.estimate.disk import checkpoint_bytes
from shoestring.hardware.catalog import Target
from shoestring.plan.candidates import Candidate, seconds_of
from shoestring.plan.projection import scaled
from shoestring.recipe.options import LoadedRecipe
from shoestring.settings import Settings
from shoestring.trace.record import Alloc, Event, Op, Phase, Trace
from shoestring.units import bytes_text, seconds_text

_LARGER = 8
_MOST = 0.6
"""Of gradients that meet, and of operators that are alike from one pass to the next."""
_SHORT = 10
"""Operators that are too few for a pass through an encoder."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What advice is drawn from."""

    chosen: Candidate
    wanted: Settings
    loaded: LoadedRecipe
    target: Target


def advice(seen: Seen) -> list[str]:
    """What applies, in the list's order."""
    return [said for rule in RULES if (said := rule(seen))]


def emulated_precision(seen: Seen) -> str:
    """A type that the device only pretends to have."""
    device, wanted = seen.target.device, seen.wanted.precision
    if wanted is None or wanted in device.precisions:
        return ""
    return (
        f"precision={wanted}: {device.title} has no units for it and emulates it, many times slower; it has "
        f"{', '.join(device.precisions)}"
    )


def same_work_again(seen: Seen) -> str:
    """A forward that runs the same operators several times from its beginning, as with one input encoded anew."""
    times, operators = repeated(seen.chosen.trace)
    if times < 2 or seen.chosen.time is None:
        return ""
    passes = sum(seen.chosen.time.parts.get(name, 0.0) for name in ("forward", "backward"))
    return (
        f"a forward runs the same {operators} operators {times} times, its first ones among them: where an encoder "
        f"sees the same input each time, encoding it once saves up to {seconds_text(passes * (times - 1) / times)} of "
        f"{seconds_text(seen.chosen.seconds)} an update, and its activations"
    )


def too_small_work(seen: Seen) -> str:
    """Launching kernels takes longer than what they do."""
    chosen = seen.chosen
    if seen.target.device.kind == "cpu" or chosen.time is None:
        return ""
    size, samples, device = chosen.trace.micro_batch, seen.loaded.effective_batch, seen.target.device
    cuda_graphs = chosen.settings.cuda_graphs
    larger = seconds_of(scaled(chosen.trace, size * _LARGER), device, samples * _LARGER, cuda_graphs=cuda_graphs)
    if larger is None or larger.value > chosen.seconds * _LARGER / 2:
        return ""
    graphs = None if cuda_graphs else seconds_of(chosen.trace, device, samples, cuda_graphs=True)
    at_once = graphs and f"compile=graphs asks for all kernels of a microbatch at once: {seconds_text(graphs.value)}; "
    return (
        f"too little work to fill {device.title}: {_LARGER} times the samples would take "
        f"{larger.value / chosen.seconds:.1f} times as long. {at_once or ''}a larger effective_batch has fewer "
        "updates, which changes what is learnt; a smaller or rented GPU gains nothing here"
    )


def optimizer_beside_weights(seen: Seen) -> str:
    """States in a checkpoint for those who want weights alone."""
    size = checkpoint_bytes(seen.chosen.trace)
    if size.full < 2 * size.light or size.full < 100e6:
        return ""
    return (
        f"of the {bytes_text(size.full)} of a checkpoint {bytes_text(size.full - size.light)} are for continuing "
        f"alone: to use the weights take light/ or best/, {bytes_text(size.light)}"
    )


def assumed_parts(seen: Seen) -> str:
    """An optimizer or a schedule that the recipe does not have."""
    parts = seen.loaded.parts
    if parts.optimizer is None:
        states = sum(each.bytes for each in seen.chosen.memory.parts if each.name == "optimizer states")
        rate = parts.learning_rate
        return (
            f"the recipe has no optimizer(): AdamW with a rate of {rate:g} is assumed, {bytes_text(states)} of states"
        )
    if parts.schedule is None and parts.data is not None:
        return "the recipe has no schedule(): its learning rate stays as it is, and nothing of one is saved"
    return ""


def replicas_in_one_process(seen: Seen) -> str:
    """A model that is, or has, a DataParallel."""
    if not seen.chosen.trace.facts.data_parallel:
        return ""
    return (
        "the model is a DataParallel: it copies all weights to every GPU and back for each forward, and divides the "
        "microbatch. Give the model itself"
    )


def padded_samples(seen: Seen) -> str:
    """Samples that are far shorter than what is planned for."""
    lengths = seen.chosen.trace.facts.lengths
    if lengths is None or lengths[0] * 2 > lengths[1]:
        return ""
    return (
        f"a sample is {lengths[0]:.0f} long on average and {lengths[1]:.0f} at most: padded to its microbatch's "
        f"longest, as the engine groups them, training takes down to {lengths[0] / lengths[1]:.0%} of the predicted "
        "time, which is for the longest"
    )


RULES: Sequence[Callable[[Seen], str]] = (
    emulated_precision,
    same_work_again,
    padded_samples,
    too_small_work,
    replicas_in_one_process,
    assumed_parts,
    optimizer_beside_weights,
)


def repeated(trace: Trace) -> tuple[int, int]:
    """How often the first microbatch's forward runs one sequence of operators from its beginning on, and how many these
    are; (1, 0) where it does not, or where it is other weights that do the same.

    Layers alike repeat too, but each has its own weights; of weights that are used several times the gradients meet.
    """
    if _meeting_gradients(trace) < _MOST:
        return 1, 0
    found = [
        (event.name, event.flops, event.bytes)
        for event in _first(trace, "forward")
        # Autocast makes copies of weights the first time alone.
        if isinstance(event, Op) and not event.name.startswith("aten::_to_copy")
    ]
    for length in (place for place in range(_SHORT, len(found) // 2 + 1) if found[place] == found[0]):
        times = len(found) // length
        alike = sum(one == other for one, other in zip(found, found[length : times * length], strict=False))
        if alike >= _MOST * (times - 1) * length:
            return times, length
    return 1, 0


def _meeting_gradients(trace: Trace) -> float:
    """The share of all gradients that backward adds up from several uses of their weight."""
    events = list(_first(trace, "backward"))
    gradients = [
        place
        for place, event in enumerate(events)
        if isinstance(event, Alloc) and trace.storages[event.storage].part == "gradients"
    ]
    added = [
        place
        for place in gradients
        if place + 1 < len(events) and getattr(events[place + 1], "name", "").startswith("aten::add")
    ]
    return len(added) / len(gradients) if gradients else 0.0


def _first(trace: Trace, phase: str) -> Iterator[Event]:
    """The events of a phase of the measured update's first microbatch."""
    within = False
    for event in trace.events:
        if isinstance(event, Phase):
            within = (event.name, event.update, event.microbatch) == (phase, 1, 0)
        elif within:
            yield event
