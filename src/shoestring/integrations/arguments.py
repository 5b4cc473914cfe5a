"""The arguments of a library's trainer that a resumable one refuses, and those that have another effect.

All other arguments work as in the library; docs/guides/trainers.md has the list for users.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shoestring.base.errors import UsageError
from shoestring.base.run_limits import KEEP_CHECKPOINTS
from shoestring.base.settings import Settings
from shoestring.integrations import private_parts
from shoestring.training.processes.one_process import Processes


@dataclass(frozen=True, kw_only=True)
class _Refusal:
    """A reason to refuse an argument, with what to do instead. It is refused if it is set, or if `applies` to it."""

    name: str
    reason: str
    instead: str
    applies: Callable[[Any], bool] = bool
    only_inexact: bool = False
    """Whether the run could continue, but not with the same bits: `allow_inexact=True` accepts it."""


_REPLICATED = ("NO", "MULTI_CPU", "MULTI_GPU", "MULTI_XPU")
"""Accelerate's names for one process, and for processes that each have the whole model."""
_SHARDED = "the parts of a sharded model are not in the run's checkpoints"
_REFUSALS = (
    _Refusal(
        name="n_gpu",
        reason="the library would divide each batch among the GPUs, and a process has one device",
        instead="start a process for each GPU, with torchrun --nproc-per-node, or set CUDA_VISIBLE_DEVICES=0",
        applies=lambda count: count > 1,
    ),
    _Refusal(name="deepspeed", reason=_SHARDED, instead="leave it out"),
    _Refusal(name="fsdp", reason=_SHARDED, instead="leave it out"),
    _Refusal(name="parallelism_config", reason=_SHARDED, instead="leave it out"),
    _Refusal(
        name="auto_find_batch_size",
        reason="on out-of-memory the library would start the run again with other batches",
        instead="set a smaller per_device_train_batch_size and more gradient_accumulation_steps",
    ),
    _Refusal(
        name="ignore_data_skip",
        reason="a continued epoch would begin again with its first samples",
        instead="leave it out",
    ),
    _Refusal(
        name="enable_jit_checkpoint",
        reason="the library would handle SIGTERM as well; the run already saves and stops on that signal",
        instead="leave it out",
    ),
    _Refusal(
        name="sync_ref_model",
        reason="the weights of the reference model change, and they are not in the run's checkpoints",
        instead="leave it out",
    ),
    _Refusal(
        name="optim",
        reason="its state is outside of the optimizer, so it is not in the run's checkpoints",
        instead="choose the variant without _layerwise, or another optimizer",
        applies=lambda optimizer: str(getattr(optimizer, "value", optimizer)).endswith(("_layerwise", "lomo")),
    ),
    _Refusal(
        name="torch_compile",
        reason="compiled code for dynamic shapes depends on the shape that came first, so a continued run may differ",
        instead="leave it out, or accept that: surviving(..., allow_inexact=True)",
        only_inexact=True,
    ),
    *(
        _Refusal(
            name=name,
            reason="the completions are sampled with random numbers that are not a function of the update",
            instead="leave it out, or accept that a continued run differs: surviving(..., allow_inexact=True)",
            only_inexact=True,
        )
        for name in ("use_vllm", "use_transformers_paged", "use_transformers_continuous_batching")
    ),
)


def refuse_arguments(trainer: Any, of_train: Mapping[str, Any], *, in_recipe: bool, allow_inexact: bool) -> None:
    """Raise UsageError with all arguments that the trainer cannot train with; `of_train` are those of `train()`."""
    refused = [
        *_refused_of_train(of_train),
        *_refused_in_combination(trainer, in_recipe=in_recipe),
        *(
            f"{refusal.name}={_text(value)}: {refusal.reason}; {refusal.instead}"
            for refusal in _REFUSALS
            if (value := getattr(trainer.args, refusal.name, None)) is not None
            and refusal.applies(value)
            and not (allow_inexact and refusal.only_inexact)
        ),
    ]
    if refused:
        raise UsageError(
            f"a resumable {type(trainer).__name__} cannot train with these arguments",
            problems=refused,
            hint="docs/guides/trainers.md lists what works",
        )


def refuse_distribution(trainer: Any, processes: Processes) -> None:
    """Raise UsageError if the trainer divides its work in another way than equal models in these processes."""
    kind = trainer.accelerator.distributed_type.value
    if kind not in _REPLICATED:
        raise UsageError(
            f"a resumable {type(trainer).__name__} cannot train with {kind}: {_SHARDED}",
            hint="train with data parallelism: leave out the arguments fsdp and deepspeed, and choose neither of them "
            "in the configuration of accelerate",
        )
    if trainer.args.world_size != processes.count:
        raise UsageError(
            f"world_size is {trainer.args.world_size}, but this is one of {processes.count} processes of a launcher",
            hint="start the script with torchrun or accelerate launch, and enter surviving(...) in each process",
        )


def notes(args: Any, settings: Settings) -> list[str]:
    """Return notes for the user on arguments that have another effect than in the library."""
    sentences = []
    count = settings.keep_checkpoints or KEEP_CHECKPOINTS
    if args.save_total_limit not in (None, count):
        sentences.append(
            f"save_total_limit={args.save_total_limit} is not used: the run keeps its {count} "
            "newest checkpoints (keep_checkpoints)"
        )
    if args.save_only_model:
        sentences.append("save_only_model=True is not used: the run's checkpoints are complete, to continue from them")
    return sentences


def recomputes(args: Any) -> bool:
    """Return whether a trainer's arguments enable activation checkpointing; transformers has renamed that argument."""
    return any(getattr(args, name, False) for name in ("activation_checkpointing", "gradient_checkpointing"))


def _refused_of_train(of_train: Mapping[str, Any]) -> Iterator[str]:
    if checkpoint := of_train.get("resume_from_checkpoint"):
        yield (
            f"resume_from_checkpoint={_text(checkpoint)}: the run continues from its own newest checkpoint; leave it "
            "out, and to start from the weights of that one, load the model from it: from_pretrained(PATH)"
        )
    if of_train.get("trial") is not None:
        yield (
            f"trial={_text(of_train['trial'])}: a search of hyperparameters trains several times, and a run is one "
            "training; make a run of each, with a directory of its own"
        )


def _refused_in_combination(trainer: Any, *, in_recipe: bool) -> Iterator[str]:
    args = trainer.args
    strategy = getattr(args.hub_strategy, "value", args.hub_strategy)
    if args.push_to_hub and strategy != "end":
        yield (
            f"hub_strategy={_text(strategy)}: the library would push its own checkpoints, which the run does not "
            "write; set hub_strategy='end', and push the final weights with push_to_hub() after train()"
        )
    if args.load_best_model_at_end and in_recipe:
        yield (
            "load_best_model_at_end=True: the weights in best/ are those of the recipe's best epoch; leave it out, and "
            "set the recipe's `best`"
        )
    elif args.load_best_model_at_end and not private_parts.has_private_parts(type(trainer)):
        yield "load_best_model_at_end=True: it needs transformers 5.23; install that, or leave it out"


def _text(value: object) -> str:
    return repr(value)[:60]
