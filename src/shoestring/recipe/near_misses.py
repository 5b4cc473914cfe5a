"""Names that other frameworks use for parts of a recipe. Here they would be ignored, and something else trained."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from shoestring.base.errors import UsageError
from shoestring.recipe import lightning

_OPTIMIZER = "optimizer(model)"
_SCHEDULE = (
    "schedule(update, updates_per_epoch, total_updates), or the pair (optimizer, scheduler) from optimizer(model)"
)
_EVALUATE = "evaluate(model, batches) -> metrics by name"
_DATA = 'data() -> a dataset, or {"train": ..., "validation": ...}'
_AFTER_UPDATE = "after_update(model), called once after each step of the optimizer"
_MICRO_BATCH = "effective_batch: the samples of one update; the plan chooses how they are split"

NEAR_MISSES: Mapping[str, str] = {
    **dict.fromkeys(("configure_optimizers", "configure_optimizer", "optimizers", "get_optimizer"), _OPTIMIZER),
    **dict.fromkeys(("create_optimizer", "optimizer_fn"), _OPTIMIZER),
    **dict.fromkeys(("scheduler", "schedulers", "lr_schedule", "lr_scheduler", "lr_schedulers"), _SCHEDULE),
    **dict.fromkeys(("configure_schedulers", "configure_scheduler", "get_scheduler", "create_scheduler"), _SCHEDULE),
    **dict.fromkeys(("learning_rate_schedule", "lr_scheduler_type"), _SCHEDULE),
    **dict.fromkeys(("collate_fn", "collate_function", "collator", "data_collator"), "collate(samples)"),
    **dict.fromkeys(("eval_collate_fn", "val_collate_fn"), "evaluation_collate(samples)"),
    **dict.fromkeys(("validation", "validate", "validation_step", "validation_epoch", "eval_step"), _EVALUATE),
    **dict.fromkeys(("metrics", "compute_metrics", "test_step", "evaluation"), _EVALUATE),
    **dict.fromkeys(("dataset", "datasets", "train_dataset", "train_data", "val_dataset", "eval_dataset"), _DATA),
    **dict.fromkeys(("valid_dataset", "validation_dataset", "test_dataset", "dataloader", "dataloaders"), _DATA),
    **dict.fromkeys(("train_dataloader", "val_dataloader", "test_dataloader", "train_loader", "val_loader"), _DATA),
    **dict.fromkeys(("batch_size", "train_batch_size", "global_batch_size", "total_batch_size"), "effective_batch"),
    **dict.fromkeys(("per_device_train_batch_size", "per_gpu_train_batch_size"), _MICRO_BATCH),
    **dict.fromkeys(("gradient_accumulation_steps", "accumulate_grad_batches"), _MICRO_BATCH),
    **dict.fromkeys(
        ("lr", "LR", "learningRate", "learningrate"), "learning_rate, of the AdamW without optimizer(model)"
    ),
    **dict.fromkeys(("on_train_batch_end", "on_step_end", "on_after_update", "on_optimizer_step_end"), _AFTER_UPDATE),
    **dict.fromkeys(("after_updates", "afterUpdate", "on_after_step", "on_update_end"), _AFTER_UPDATE),
    **dict.fromkeys(("after_step", "post_step", "post_update", "after_optimizer_step"), _AFTER_UPDATE),
    "weight_decay": "optimizer(model), which returns torch.optim.AdamW(..., weight_decay=...)",
    **dict.fromkeys(
        ("num_epochs", "max_epochs", "n_epochs", "num_train_epochs", "total_epochs", "nb_epochs"), "epochs"
    ),
    **dict.fromkeys(
        ("max_steps", "num_steps", "total_steps", "max_iters", "num_train_steps"), "the option max_updates"
    ),
    **dict.fromkeys(("clip_grad_norm", "clip_grad", "max_grad_norm", "grad_clip", "grad_clip_norm"), "clip_norm"),
    **dict.fromkeys(("gradient_clip_val", "gradient_clip", "gradient_clip_norm"), "clip_norm"),
    **dict.fromkeys(("early_stopping", "early_stopping_patience", "early_stopping_epochs"), "patience"),
    **dict.fromkeys(("monitor", "metric_for_best_model"), 'best = (metric, "min" or "max")'),
    **dict.fromkeys(("random_seed", "manual_seed", "random_state"), "seed"),
    **dict.fromkeys(("training_step", "train_step"), "loss(model, batch)"),
    **dict.fromkeys(("predict_step", "predict_batch"), "predict(model, batch)"),
    **dict.fromkeys(("num_workers", "dataloader_num_workers"), "the setting workers (--set workers=2)"),
    **dict.fromkeys(("fp16", "bf16"), "the setting precision (--set precision=fp16)"),
    **dict.fromkeys(("warmup_steps", "warmup_ratio", "num_warmup_steps"), _SCHEDULE),
}
"""The right part by the name that would be ignored. A name that a recipe may well use for a helper is not here."""

_LIBRARIES = ("torch", *lightning.PACKAGES)
"""The packages of base classes whose own names do not count."""


def find_near_misses(kind: type) -> dict[str, str]:
    """Return the names of a recipe's class and its base classes that would be ignored, with the right part.

    The names in the class's `own_names` are its own.
    """
    if any(base.__name__ == lightning.MODULE for base in kind.__mro__):
        return {}
    own: Collection[str] = getattr(kind, "own_names", ())
    names = {
        name
        for base in kind.__mro__
        if base is not object and base.__module__.partition(".")[0] not in _LIBRARIES
        for name in vars(base)
    }
    return {name: right for name, right in NEAR_MISSES.items() if name in names and name not in own}


def require_no_near_misses(kind: type, recipe_name: str) -> None:
    """Raise UsageError that names all of them."""
    own_names = getattr(kind, "own_names", ())
    if isinstance(own_names, str):
        raise UsageError(f"own_names = {own_names!r}: not a sequence of names", hint='own_names = ("metrics",)')
    names = find_near_misses(kind)
    if names:
        raise UsageError(
            f"{recipe_name} has names of other frameworks, which would be ignored",
            problems=[f"{name}: the name is {right}" for name, right in names.items()],
            hint=f"rename them; names that only the recipe's own code uses stay with own_names = {tuple(names)!r}",
        )
