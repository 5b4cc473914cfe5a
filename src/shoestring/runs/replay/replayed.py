"""The answer of a replay: what an update was made of, and what it led to."""

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoestring.base.json_values import encode, encode_record
from shoestring.recipe.parts import Parts
from shoestring.recipe.subset import Subset

if TYPE_CHECKING:
    from shoestring.training.engine.observation import Attempt, Observation

_LARGEST = 20
"""The number of modules with the largest outputs in the answer."""
_MOST_TEXT = 200
_MOST_VALUES = 8


@dataclass(frozen=True, kw_only=True)
class Replay:
    """An update that was made again. In JSON, numbers that are not finite are texts, such as "nan"."""

    recipe: str
    """The name of the recipe."""
    update: int
    """The number of the update, from 1."""
    epoch: int
    """The epoch of the update, from 1."""
    from_checkpoint: int
    """The update of the checkpoint from which the replay began; 0 also for the state that the seed determines."""
    repeated_updates: int
    """The number of updates made between that state and this update."""
    device: str
    """The name of the device that replayed."""
    precision: str
    """The precision of the run: fp32, fp16 or bf16."""
    micro_batch: int
    """The samples of a microbatch in the last attempt."""
    learning_rate: float | None
    """That of the optimizer's first group of parameters; None if a library's trainer does not say it."""
    clip_norm: float | None
    """The norm to which the gradient is clipped; None if it is not, or if a library's trainer makes the update."""
    samples: tuple[int, ...]
    """The update's samples, as indices into the training part."""
    sample_descriptions: tuple[Any, ...]
    """The same samples as the recipe describes them, as JSON."""
    loss: float | None
    """The loss of the update; None if it failed before the loss was known."""
    microbatches: tuple[dict[str, Any], ...]
    """`samples`, `loss` and `weight` of each microbatch."""
    gradient_norm: float | None
    """The norm of the whole gradient before clipping."""
    gradient_norms: dict[str, float]
    """The same for the parameters of each module, in the order of the model."""
    largest_activations: tuple[dict[str, Any], ...]
    """The largest absolute values of the outputs of modules: `module`, `type`, `value`, `microbatch`."""
    not_finite: tuple[dict[str, Any], ...]
    """What has values that are not finite, in the order in which it appeared: `kind`, `name`, ..., `attempt`."""
    attempts: tuple[dict[str, Any], ...]
    """`micro_batch`, `loss_scale` and `outcome` of each attempt: only the last of them is shown above."""
    stepped: bool
    """Whether the optimizer made its step."""
    weights_sha256: str | None
    """The SHA-256 of `model.safetensors` of a checkpoint of this update; None if the update failed."""
    equals_checkpoint: bool | None
    """Whether the run has a checkpoint of this update with the same weights; None if it has none."""
    error: str
    """Why the update failed; empty if it did not."""
    seconds: float
    """The duration of the replay."""
    notes: tuple[str, ...] = ()
    """Differences from the run, and what else the user should know."""

    def json(self) -> dict[str, Any]:
        """Return the answer as JSON.

        Keys:
            samples (list of integers): the samples, in the order of the update, as indices into the training part
            weights_sha256 (text or null): the SHA-256 of `model.safetensors` in a checkpoint of this update, as in its
                `manifest.json`; null if the update failed
            microbatches (list of objects): the microbatches of the last attempt
            microbatches.samples (list of integers or null): its samples; of a library's trainer those that it fetched
            microbatches.loss (number or null): its mean loss
            microbatches.weight (number or null): the weight of that mean in the loss of the update
            largest_activations (list of objects): the 20 modules with the largest outputs
            largest_activations.module (text): the name of the module
            largest_activations.type (text): its class
            largest_activations.value (number): the largest absolute value of its outputs
            largest_activations.microbatch (integer): its microbatch, from 0
            not_finite (list of objects): what has values that are not finite, in the order in which it appeared
            not_finite.kind (text): `input`, `output`, `loss`, `gradient` or `weight`
            not_finite.name (text): the module, the parameter, or the path of the input in the batch
            not_finite.count (integer): the number of such values
            not_finite.total (integer): the number of all values
            not_finite.microbatch (integer or null): its microbatch, from 0; null for gradients and weights
            not_finite.samples (list of integers): the samples with such values, if they can be told apart
            not_finite.attempt (integer): the number of the attempt, from 1
            attempts (list of objects): all attempts of the update; what is above is of the last one
            attempts.micro_batch (integer): the samples of a microbatch
            attempts.loss_scale (number or null): the scale of the loss in fp16
            attempts.outcome (text): `made`, `overflow` or `out of memory`
        """
        return dict[str, Any](encode_record(dataclasses.asdict(self)))


def summarize(observation: "Observation") -> dict[str, Any]:
    """Return the fields of `Replay` that an observation contains."""
    attempt = observation.attempts[-1]
    outputs = sorted(
        attempt.outputs.items(), key=lambda item: (math.isnan(item[1].largest), item[1].largest), reverse=True
    )
    batches = [microbatch.samples or () for microbatch in attempt.microbatches]
    return {
        "micro_batch": attempt.micro_batch,
        "samples": tuple(dict.fromkeys(sample for samples in batches for sample in samples)),
        "microbatches": tuple(
            {
                "samples": None if microbatch.samples is None else list(microbatch.samples),
                "loss": microbatch.loss,
                "weight": microbatch.weight,
            }
            for microbatch in attempt.microbatches
        ),
        "gradient_norm": attempt.gradient_norm,
        "gradient_norms": attempt.gradient_norms or {},
        "largest_activations": tuple(
            {"module": name, "type": output.type, "value": output.largest, "microbatch": output.microbatch}
            for name, output in outputs[:_LARGEST]
        ),
        "not_finite": tuple(
            {**dataclasses.asdict(entry), "attempt": number}
            for number, other in enumerate(observation.attempts, 1)
            for entry in other.not_finite
        ),
        "attempts": tuple(
            {
                "micro_batch": other.micro_batch,
                "loss_scale": other.loss_scale,
                "outcome": "made" if other is attempt else _failure(other),
            }
            for other in observation.attempts
        ),
    }


def describe_sample(parts: Parts, dataset: Any, index: int) -> Any:
    """Return a sample as the recipe describes it, as JSON; of tensors the shape and the first values by default."""
    if isinstance(dataset, Subset):
        dataset, index = dataset.dataset, dataset.indices[index]
    try:
        if parts.data.describe:
            value = parts.data.describe(dataset, index)
        else:
            identifier = {"id": parts.evaluation.identify(dataset, index)} if parts.evaluation.identify else {}
            value = {**identifier, "sample": _brief(dataset[index])}
        return encode(value, names=True)
    except Exception as error:  # noqa: BLE001  (the answer is worth more than the description of a sample)
        return f"it cannot be described: {type(error).__name__}: {error}"


def _failure(attempt: "Attempt") -> str:
    """Return why another attempt followed."""
    return "out of memory" if attempt.gradient_norms is None else "overflow"


def _brief(value: Any) -> Any:
    """Return a sample in short, as JSON."""
    if isinstance(value, dict):
        return {str(key): _brief(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_brief(member) for member in value[:_MOST_VALUES]]
    if hasattr(value, "shape") and hasattr(value, "flatten"):
        numbers = value.flatten()[: _MOST_VALUES + 1].tolist()
        if not value.shape:
            return numbers[0]
        first = [f"{number:.4g}" for number in numbers[:_MOST_VALUES]] + ["…"] * (len(numbers) > _MOST_VALUES)
        return f"{'x'.join(map(str, value.shape))}: {' '.join(first)}"
    return value if isinstance(value, int | float | bool | None) else str(value)[:_MOST_TEXT]
