"""What a recipe may have for its updates: the optimizer, the schedule, stages, a library's trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import nn


class Schedule(Protocol):
    """A pure function of an update's number (from 0) and of the numbers of updates per epoch and in total."""

    def __call__(self, update: int, updates_per_epoch: int, total_updates: int, /) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class Learning:
    """The optional parts of a recipe that its updates, and the plan of them, use."""

    optimizer: Callable[[nn.Module], Any] | None = None
    """`optimizer(model)` -> a torch optimizer, or the pair (optimizer, torch scheduler), whose scheduler makes a step
    after each update; by default AdamW with `learning_rate`."""
    learning_rate: float = 1e-3
    """The learning rate of the AdamW that is used without `optimizer`."""
    schedule: Schedule | None = None
    """`schedule(update, updates_per_epoch, total_updates)` -> the factor on the optimizer's learning rates for update
    number `update` (from 0); a pure function, so that a resumed run has the same schedule; by default 1. The total is
    the smaller of `epochs * updates_per_epoch` and the option `max_updates`."""
    clip_norm: float | Mapping[Any, float] | None = None
    """The maximum norm of the gradient, or a mapping from each of `stages` to it; by default none."""
    whole_batch: bool = False
    """Whether the loss compares all samples of an update with each other (a contrastive loss with in-batch negatives).
    No update is then split: its microbatch is the effective batch, on one GPU, also on out-of-memory, where only the
    other fallbacks are tried. Evaluations use batches of `effective_batch` samples as well. The last batch of an epoch
    or of an evaluation may be smaller. A loss that depends on its microbatch without `whole_batch` is reported before
    the first update of a run and by `check`."""

    after_update: Callable[..., Any] | None = None
    """`after_update(model)`, or `after_update(model, stage)` with the `stage` of the update: what follows each step of
    the optimizer, such as a teacher that averages the weights, a queue or a centre. Called once for each update,
    without gradients, on each GPU with the same model and the same random numbers; not in evaluations, and not after a
    step that was skipped because fp16 overflowed. What it changes in the model is saved: parameters, frozen ones as
    well, buffers, and tensors in attributes of its modules."""

    stage: Schedule | None = None
    """`stage(update, updates_per_epoch, total_updates)` -> the argument `stage=` of `loss` in update number `update`
    (a curriculum's weights, for example); a pure function like `schedule`. When the loss is computed outside of a run's
    updates, for example in an evaluation, `stage` is not passed."""
    stages: Sequence[Any] | None = None
    """The values of `stage` that estimates trace and `check` runs: the memory is that of the largest, with the
    optimizer's states of all of them, and the time is the mean over them, as if each had an equal share of the updates.
    Without it, estimates do not pass `stage` either."""
    phases: int = 1
    """How many parts the run has, one after another, each with as many epochs as the option `epochs` says (to train
    several networks in one run, in stages)."""
    count_updates: Callable[[int], int] | None = None
    """`count_updates(samples)` -> the number of updates in an epoch of so many training samples, for a trainer whose
    updates are not `effective_batch` samples each (of TRL's GRPO it counts completions, not prompts)."""

    blocks: Callable[[nn.Module], Sequence[nn.Module]] | None = None
    """`blocks(model)` -> the modules that activation checkpointing may recompute, in the order in which they are
    checkpointed; by default the layers of transformers' models, or the modules that occur several times in a list."""
    is_pretrained: bool | None = None
    """Whether `model()` begins from pretrained weights; LoRA is only proposed then. By default a plan observes whether
    `model()` calls a function that loads weights: `from_pretrained` or `load_state_dict` of a module, `torch.load`,
    `load_file` or `load_model` of safetensors."""
    random_parts: Callable[[], Iterable[str]] = tuple
    """`random_parts()` -> the names of the model's parts that begin with random weights where pretrained ones are
    usual, such as `("encoder",)`; plans name them in their first sentence."""
    adaptation_defaults: Mapping[str, Any] = field(default_factory=dict)
    """Other defaults of the options that adapt any recipe's model, such as `{"lora_r": 16}`."""
    keeps_stored_type: bool = False
    """Whether `model()` keeps the type in which weights are stored; they are then converted to that of the option
    `weights`."""
    maps_files: bool = True
    """Whether the weights of a pretrained model are in the mapped files until they are cast, as transformers loads
    them, and not in the memory of the process."""

    first_batches: Callable[[int], Mapping[float, float]] | None = None
    """`first_batches(size)` -> the probability of each size of the first batch, as a share of `batch(size)`, for
    planning: smaller first batches fragment memory, so that larger ones do not fit into it later. Empty if all batches
    have one shape; by default an assumption for sequences of tokens."""
    rollout: Callable[[Any, Any], Iterable[Any]] | None = None
    """`rollout(model, batch)`: the model's work without gradients before an update's first forward, in evaluation mode
    and over all of the update's samples (generating the completions that it then trains on), for planning. An iterator
    that yields after each step the state saved for the next step (a cache of keys and values), or a `Step`
    (`recipe/generation.py`) that also tells how many steps take as long: of equal steps one is enough."""
    host_work: Callable[[], Mapping[str, float]] | None = None
    """`host_work()` -> the seconds of what the host computes for one of an update's samples besides fetching it, by
    name (`{"rewards": 0.001}`), measured when it is called, for planning."""

    trainer: Callable[..., Any] | None = None
    """`trainer(settings, data, surviving, *, folder, device)` -> the trainer of a library, which then makes the updates
    (`contract.TrainerRecipe`)."""
    other_loop: bool = False
    """Whether an estimate is for updates that another library or a script makes: its loader takes samples of all
    lengths as they come, torch's DistributedDataParallel exchanges the gradients of several GPUs, and kernels need not
    be deterministic."""
    learner: Callable[[], nn.Module] | None = None
    """`learner()` -> the model that `trainer` trains, without a trainer, to load saved weights into; called after
    `data()`. By default `model()`."""
