"""Advice on waste that the trace or the facts show: one function for each kind of waste, and a list of them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from shoestring.base.settings import Settings
from shoestring.base.units import bytes_text, seconds_text
from shoestring.hardware.catalog import Target
from shoestring.planning.candidates import Candidate, seconds_of
from shoestring.planning.estimate.disk import checkpoint_bytes
from shoestring.planning.shares import samples_per_gpu, states_shares
from shoestring.planning.trace.record import Alloc, Event, Op, Phase, Trace
from shoestring.recipe.options import LoadedRecipe

_LARGER = 8
_MIN_SHARE = 0.6
"""The minimum share of accumulated gradients, and of equal operators in consecutive passes, to detect a repetition."""
_USED_LENGTH = 0.75
"""The share of the largest length from which the longest sample uses it."""
_MIN_OPERATORS = 10
"""A pass through an encoder has at least this many operators."""


@dataclass(frozen=True, kw_only=True)
class AdviceContext:
    """The plan's inputs and its chosen candidate, from which advice is derived."""

    chosen: Candidate
    requested: Settings
    loaded: LoadedRecipe
    target: Target


def advice(context: AdviceContext) -> list[str]:
    """Return the messages of the rules that apply, in the order of the rules."""
    return [message for rule in RULES if (message := rule(context))]


def emulated_precision(context: AdviceContext) -> str:
    """Advise against a requested precision that the device only emulates."""
    device, requested = context.target.device, context.requested.precision
    if requested is None or requested in device.precisions:
        return ""
    return (
        f"precision={requested}: {device.title} has no hardware units for {requested} and emulates it, which is many "
        f"times slower; it supports {', '.join(device.precisions)}"
    )


def repeated_forward(context: AdviceContext) -> str:
    """Advise encoding an input once if the forward pass repeats the same operators from its start."""
    times, operators = repetition(context.chosen.trace)
    if times < 2 or context.chosen.time is None:
        return ""
    passes = sum(context.chosen.time.parts.get(name, 0.0) for name in ("forward", "backward"))
    return (
        f"the forward pass runs the same {operators} operators {times} times, starting with its first one: if an "
        f"encoder receives the same input each time, encoding it once saves up to "
        f"{seconds_text(passes * (times - 1) / times)} of the {seconds_text(context.chosen.seconds)} an update takes, "
        "and the activations of the other passes"
    )


def too_small_work(context: AdviceContext) -> str:
    """Advise on work that is too small for the device, so that launching kernels takes longer than running them."""
    chosen = context.chosen
    if context.target.device.kind == "cpu" or chosen.time is None:
        return ""
    loaded, settings, device = context.loaded, chosen.settings, context.target.device
    samples = samples_per_gpu(loaded.effective_batch, settings)
    larger = seconds_of(
        chosen.trace,
        device,
        loaded,
        settings,
        micro_batch=chosen.trace.micro_batch * _LARGER,
        samples=samples * _LARGER,
    )
    if larger is None or larger.value > chosen.seconds * _LARGER / 2:
        return ""
    is_excluded = settings.offload != "no" or settings.streamed_blocks or settings.is_pipeline
    is_possible = not settings.cuda_graphs and not is_excluded
    with_graphs = settings.replace(compile="graphs", checkpointing="no") if is_possible else None
    graphs = with_graphs and seconds_of(chosen.trace, device, loaded, with_graphs)
    graphs_advice = graphs and (
        "compile=graphs launches all kernels of a microbatch at once, which would take "
        f"{seconds_text(graphs.value)} an update; "
    )
    return (
        f"there is too little work to keep {device.title} busy: {_LARGER} times the samples would take only "
        f"{larger.value / chosen.seconds:.1f} times as long. {graphs_advice or ''}a larger effective_batch needs fewer "
        "updates, but changes the training result; a smaller or a rented GPU would bring no advantage"
    )


def optimizer_states_in_checkpoint(context: AdviceContext) -> str:
    """Advise using light weights instead of full checkpoints, which also hold optimizer states."""
    size = checkpoint_bytes(context.chosen.trace, states_shares(context.chosen.settings))
    if size.full < 2 * size.light or size.full < 100e6:
        return ""
    return (
        f"{bytes_text(size.full - size.light)} of the {bytes_text(size.full)} of a full checkpoint are needed only for "
        f"resuming; to use the trained weights, take light/ or best/, which have {bytes_text(size.light)}"
    )


def assumed_parts(context: AdviceContext) -> str:
    """Report the optimizer or the learning rate schedule that is assumed because the recipe has none."""
    parts = context.loaded.parts
    if parts.learning.optimizer is None:
        states = sum(part.bytes for part in context.chosen.memory.parts if part.name == "optimizer states")
        return (
            f"the recipe has no optimizer(), so AdamW with a learning rate of {parts.learning.learning_rate:g} is "
            f"assumed; its states take {bytes_text(states)}"
        )
    if parts.learning.schedule is None and parts.data.data is not None:
        return "the recipe has no schedule(), so its learning rate stays constant and no schedule is saved"
    return ""


def data_parallel_model(context: AdviceContext) -> str:
    """Advise against a model that is, or contains, a DataParallel."""
    if not context.chosen.trace.facts.data_parallel:
        return ""
    return (
        "the model uses DataParallel, which copies all weights to every GPU and back in each forward pass and divides "
        "the microbatch among the GPUs; return the plain model instead"
    )


def padded_samples(context: AdviceContext) -> str:
    """Report that most samples are far shorter than the longest sample, which the plan assumes."""
    lengths = context.chosen.trace.facts.lengths
    if lengths is None or lengths[0] * 2 > lengths[1] or context.loaded.parts.data.capacity is not None:
        return ""
    return (
        f"samples have a mean length of {lengths[0]:.0f} and a maximum length of {lengths[1]:.0f}: because the engine "
        "groups samples of similar length and pads each microbatch only to its longest sample, training may take as "
        f"little as {lengths[0] / lengths[1]:.0%} of the predicted time, which assumes the maximum length"
    )


def longer_than_samples(context: AdviceContext) -> str:
    """Advise on a largest length that no sample has, which the memory is planned for, if it limits the microbatch."""
    parts, lengths = context.loaded.parts, context.chosen.trace.facts.lengths
    settings, option = context.chosen.settings, parts.data.length_option
    if (
        parts.data.capacity is None
        or option is None
        or lengths is None
        or lengths[1] > _USED_LENGTH * parts.data.capacity
    ):
        return ""
    if (settings.micro_batch or 0) >= samples_per_gpu(context.loaded.effective_batch, settings):
        return ""
    return (
        f"the longest of the samples has {lengths[1]:.0f} tokens, but memory is planned for "
        f"{option}={parts.data.capacity:.0f}: with --set {option}={8 * -(-lengths[1] // 8):.0f} more samples fit into "
        "a microbatch"
    )


RULES: Sequence[Callable[[AdviceContext], str]] = (
    emulated_precision,
    repeated_forward,
    padded_samples,
    longer_than_samples,
    too_small_work,
    data_parallel_model,
    assumed_parts,
    optimizer_states_in_checkpoint,
)


def repetition(trace: Trace) -> tuple[int, int]:
    """Return how many times the first microbatch's forward repeats a sequence of operators from its start, and the
    length of the sequence; (1, 0) if it does not, or if the repetitions use different weights.

    Equal layers are repetitions too, but each has its own weights; the gradients of weights that are used several times
    are accumulated.
    """
    if _accumulated_gradient_share(trace) < _MIN_SHARE:
        return 1, 0
    operators = [
        (event.name, event.flops, event.bytes)
        for event in _first_microbatch(trace, "forward")
        # Autocast copies weights only the first time.
        if isinstance(event, Op) and not event.name.startswith("aten::_to_copy")
    ]
    for length in (
        index for index in range(_MIN_OPERATORS, len(operators) // 2 + 1) if operators[index] == operators[0]
    ):
        times = len(operators) // length
        equal = sum(
            operator == successor
            for operator, successor in zip(operators, operators[length : times * length], strict=False)
        )
        if equal >= _MIN_SHARE * (times - 1) * length:
            return times, length
    return 1, 0


def _accumulated_gradient_share(trace: Trace) -> float:
    """Return the share of gradients that backward accumulates from several uses of their weight."""
    events = list(_first_microbatch(trace, "backward"))
    gradients = [
        index
        for index, event in enumerate(events)
        if isinstance(event, Alloc) and trace.storages[event.storage].part == "gradients"
    ]
    accumulated = [
        index
        for index in gradients
        if index + 1 < len(events) and getattr(events[index + 1], "name", "").startswith("aten::add")
    ]
    return len(accumulated) / len(gradients) if gradients else 0.0


def _first_microbatch(trace: Trace, phase: str) -> Iterator[Event]:
    """Yield the events of a phase of the measured update's first microbatch."""
    in_phase = False
    for event in trace.events:
        if isinstance(event, Phase):
            in_phase = (event.name, event.update, event.microbatch) == (phase, 1, 0)
        elif in_phase:
            yield event
