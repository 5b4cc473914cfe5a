"""Whether a model overflows in fp16, and which of its modules then have to compute in fp32.

fp16 ends at 65,504. A model that was trained in bf16, whose range is that of fp32, may exceed it. So the loss of the
first samples of a run is computed in fp16, and the inputs and outputs of all modules are watched. If something is not
finite there, but is in fp32, modules are computed in fp32 one after the other: where the first value that is not finite
appears, the module that computed it, or what its operands come from.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import isfinite

from torch import nn

from shoestring.recipe.microbatches import flattened
from shoestring.techniques import fp32_modules
from shoestring.training.data.seeding import derive, seed_all
from shoestring.training.engine.first_microbatch import FirstMicrobatch
from shoestring.training.engine.memory import out_of_memory
from shoestring.training.engine.module_watch import ModuleWatch, Place
from shoestring.training.engine.side_effects import Generators
from shoestring.training.engine.update import mean_loss

SAMPLES = 2
"""The number of samples whose loss is computed; values that overflow do so in nearly every sample."""
MOST_MODULES = 64
MOST_WEIGHTS = 0.5
"""The largest share of the weights in modules that compute in fp32; with more of them, fp32 is hardly slower."""
_TOLERANCE = 1e-2
"""The relative difference between the losses in fp16 and in fp32 that rounding explains."""
_SMALL_LOSS = 0.1
"""A loss below it may be the difference of larger terms, so that its error is compared with that of this value."""


@dataclass(frozen=True, kw_only=True)
class Overflow:
    """A loss that is finite in fp32, but in fp16 something in it is not."""

    place: str
    """What is not finite first: the output or the input of a module, or the loss."""
    samples: int
    fp32_loss: float
    fp16_loss: float
    """The loss in fp16, with the `modules` in fp32 if there are any."""
    modules: tuple[str, ...]
    """The modules that have to compute in fp32, in the order in which they were found; empty if none were found that
    mend the loss."""


def find_overflow(first: FirstMicrobatch) -> Overflow | None:
    """Compute the loss of the first samples of a run in its precision, and find what overflows in it.

    Modules that compute in fp32 already remain so. Returns None if nothing overflows, or if that cannot be determined:
    a loss that is not finite in fp32 either, a recipe that raises an exception for these samples or without gradients,
    out-of-memory.
    """
    part = flattened(first.loader.parts(0, first.micro_batch)[0])[:SAMPLES]
    return first.without_side_effects(lambda: _find(_Forwards(first, part), first.mixed_precision.autocast))


@dataclass(frozen=True, kw_only=True)
class _Forward:
    """The loss of one forward pass, and what its modules have read and returned."""

    loss: float
    places: Sequence[Place]
    last: Sequence[str]
    """The modules in which an exception was raised, from the inner to the outer; without one those that have ended
    last."""
    draws: bool
    """Whether the loss has drawn random numbers."""

    def first_overflow(self, reference: "_Forward | None" = None) -> int | None:
        """Return the index of the first place that is not finite here but was in the `reference`.

        That of the loss, after all places, is their number; None if everything is finite.
        """
        excused = [place.is_finite for place in reference.places] if reference else []
        for index, place in enumerate(self.places):
            if not place.is_finite and (index >= len(excused) or excused[index]):
                return index
        return None if isfinite(self.loss) else len(self.places)


class _Forwards:
    """Computes the loss of the same samples with the same random numbers, any number of times."""

    def __init__(self, first: FirstMicrobatch, part: Sequence[int]) -> None:
        self.first, self.part = first, part
        self.modules = dict(first.model.named_modules())
        self._loss = first.make_loss()

    def run(self, autocast: Callable[[], AbstractContextManager[object]], fp32: Sequence[nn.Module] = ()) -> _Forward:
        """Run forward and loss with these modules in fp32.

        An exception counts as a loss of NaN after a value that is not finite, which some code does not expect, and if
        some modules are in fp32, whose results others may not accept. Raises any other.
        """
        first = self.first
        first.poll()
        seed_all(derive(first.seed, "overflow"))
        (batch,), _ = first.loader.batches([self.part], epoch=0)
        generators = Generators(first.device)
        with fp32_modules.applied(fp32), autocast(), ModuleWatch(self.modules) as watch:
            try:
                loss = mean_loss(self._loss, first.model, [(first.loader.to_device(batch), len(self.part))])
                last = watch.returned
            except Exception as error:
                is_expected = fp32 or not all(place.is_finite for place in watch.places())
                if out_of_memory(error) or not is_expected:
                    raise
                loss, last = float("nan"), watch.running
            draws = not generators.unchanged()
            return _Forward(loss=loss, places=watch.places(), last=last, draws=draws)

    def share(self, names: Sequence[str]) -> float:
        """Return the share of the model's parameters that the modules contain."""
        chosen: dict[int, int] = {}
        for name in names:
            chosen |= {id(weight): weight.numel() for weight in self.modules[name].parameters()}
        return sum(chosen.values()) / max(1, sum(weight.numel() for weight in self.first.model.parameters()))


def _find(forwards: _Forwards, autocast: Callable[[], AbstractContextManager[object]]) -> Overflow | None:
    plain = forwards.run(autocast)
    if plain.first_overflow() is None:
        return None
    # All 16-bit weights are cast one module at a time, since the whole model may not fit in fp32.
    reference = forwards.run(nullcontext, [forwards.first.model])
    first = plain.first_overflow(reference)
    if first is None or not isfinite(reference.loss):
        return None
    chosen, mended = _mend(forwards, autocast, reference, plain)
    is_mended = mended.first_overflow(reference) is None and _is_close(mended, reference)
    if not is_mended and _is_close(plain, reference):
        return None  # such as a mask whose lowest value is -inf in fp16
    return Overflow(
        place=plain.places[first].text if first < len(plain.places) else "the loss",
        samples=len(forwards.part),
        fp32_loss=reference.loss,
        fp16_loss=(mended if is_mended else plain).loss,
        modules=tuple(chosen) if is_mended else (),
    )


def _mend(
    forwards: _Forwards,
    autocast: Callable[[], AbstractContextManager[object]],
    reference: _Forward,
    result: _Forward,
) -> tuple[list[str], _Forward]:
    """Choose modules, in the order of their execution, until nothing overflows in a forward pass like `result`.

    Returns the modules and the forward pass with them, in which something overflows if no other module helps.
    """
    chosen: list[str] = []
    while (first := result.first_overflow(reference)) is not None:
        for name in filter(None, _candidates(result, first)):  # not the model itself, which has no name
            larger = [*(other for other in chosen if not other.startswith(f"{name}.")), name]
            is_contained = any(name == other or name.startswith(f"{other}.") for other in chosen)
            if is_contained or len(larger) > MOST_MODULES or forwards.share(larger) > MOST_WEIGHTS:
                continue
            attempt = forwards.run(autocast, [forwards.modules[other] for other in larger])
            position = attempt.first_overflow(reference)
            if position is None or position > first:
                chosen, result = larger, attempt
                break
        else:
            break
    return chosen, result


def _candidates(result: _Forward, first: int) -> Iterator[str]:
    """Yield the modules that may have to compute in fp32, given the index of the first place that is not finite.

    A module without submodules that returned it; else the modules that have just returned, from the inner to the outer,
    because what is computed from a result in fp32 is in fp32 as well; then those within which it was computed.
    """
    if first == len(result.places):  # the loss
        yield from result.last
        return
    place = result.places[first]
    if not (place.is_output and place.is_leaf):
        yield from place.returned
    if place.is_output:
        yield place.name
    yield from reversed(place.within)


def _is_close(result: _Forward, reference: _Forward) -> bool:
    """Return whether the loss differs by no more than rounding explains.

    A loss that draws random numbers, which are others in another type, only has to be finite.
    """
    if result.draws or reference.draws:
        return isfinite(result.loss)
    return abs(result.loss - reference.loss) <= _TOLERANCE * max(_SMALL_LOSS, abs(reference.loss))
