"""The facts that decide what a script's trainer learns: its arguments, model, adapters, data, and functions."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

import torch

from shoestring.integrations.argument_kinds import LENGTH, decides_learning
from shoestring.integrations.plain_values import flat, plain, plain_callable, text_digest, type_name
from shoestring.training.same_data import content_digest

_METRIC_SCHEDULES = ("reduce_lr_on_plateau", "greedy")
"""The schedules of transformers whose learning rate depends on evaluations."""
_OF_PLACE = ("_name_or_path", "name_or_path", "transformers_version", "use_cache", "torch_dtype", "dtype")
"""Values of a model's configuration that say where it comes from, or that its weights say as well."""
_OF_ADAPTER_PLACE = ("base_model_name_or_path", "revision", "inference_mode", "peft_version", "auto_mapping")
_TOKENIZER = ("padding_side", "truncation_side", "pad_token_id", "eos_token_id", "bos_token_id")
_FUNCTIONS = ("data_collator", "compute_loss_func", "rollout_func", "reward_weights", "reward_processing_classes")
_SAMPLES = 16
"""The number of samples, evenly spaced, that represent a data set. Reading all of them would delay each resume."""


VERSION = 1
"""Of the choice of facts. Facts that only one of two versions has are not compared."""
_EARLIEST_TIME = 1e8
"""A larger number in an attribute is a time in seconds, not a hyperparameter."""


def learning_facts(trainer: Any) -> dict[str, Any]:
    """Return the facts that decide what the trainer learns, by dotted name, as JSON. A missing fact is None."""
    parts = (_arguments(trainer), _model(trainer), _data(trainer), _functions(trainer))
    return {
        name: value
        for facts in parts
        for part in facts
        for name, value in flat(*part).items()
        if value not in (None, {}, [])
    }


def _arguments(trainer: Any) -> Iterator[tuple[str, Any]]:
    args = trainer.args
    names = [field.name for field in dataclasses.fields(args)] if dataclasses.is_dataclass(args) else list(vars(args))
    evaluations_decide, has_updates = _evaluations_decide(trainer), getattr(args, "max_steps", 0) > 0
    for name in names:
        is_ignored = name == LENGTH[0] and has_updates  # by the library
        if hasattr(args, name) and not is_ignored and decides_learning(name, evaluations_decide=evaluations_decide):
            yield name, plain(getattr(args, name))


def _evaluations_decide(trainer: Any) -> bool:
    from transformers import EarlyStoppingCallback

    return (
        plain(trainer.args.lr_scheduler_type) in _METRIC_SCHEDULES
        or bool(trainer.args.load_best_model_at_end)
        or any(isinstance(callback, EarlyStoppingCallback) for callback in trainer.callback_handler.callbacks)
    )


def _model(trainer: Any) -> Iterator[tuple[str, Any]]:
    model = trainer.accelerator.unwrap_model(trainer.model)
    config: Any = getattr(model, "config", None)
    if hasattr(config, "to_dict"):
        yield "model", plain({name: value for name, value in config.to_dict().items() if name not in _OF_PLACE})
        yield "model.attention", getattr(config, "_attn_implementation", None)
    # Dropout is a part of it, in models without a configuration as well.
    yield "model.modules", text_digest(repr(model))
    for name, adapter in (getattr(model, "peft_config", None) or {}).items():
        values = adapter.to_dict() if hasattr(adapter, "to_dict") else {}
        yield f"adapter.{name}", plain({key: item for key, item in values.items() if key not in _OF_ADAPTER_PLACE})
    if isinstance(reference := getattr(trainer, "ref_model", None), torch.nn.Module):
        yield "model.reference", _weights_digest(reference)


def _data(trainer: Any) -> Iterator[tuple[str, Any]]:
    samples = trainer.train_dataset
    yield "data.type", type_name(samples)
    try:
        yield "data.samples", len(samples)
    except TypeError:
        return
    if _is_stored(samples) and len(samples):
        last = len(samples) - 1
        indices = sorted({round(number * last / (_SAMPLES - 1)) for number in range(_SAMPLES)})
        yield "data.content", content_digest([samples[index] for index in indices])[:16]


def _is_stored(samples: Any) -> bool:
    """Return whether each reading of a sample returns the same, so that reading some here shows what they are.

    A class of the script's own may augment its samples at random.
    """
    if isinstance(samples, list | tuple | torch.utils.data.TensorDataset):
        return True
    # A dataset of `datasets`, without a function that is applied at each reading (`set_transform`).
    is_table = type_name(samples).startswith("datasets.arrow_dataset.")
    return is_table and (getattr(samples, "format", None) or {}).get("type") != "custom"


def _functions(trainer: Any) -> Iterator[tuple[str, Any]]:
    for name in _FUNCTIONS:
        if (value := getattr(trainer, name, None)) is not None:
            yield name, _function(value)
    rewards = getattr(trainer, "reward_funcs", None)
    for number, reward in enumerate(rewards if isinstance(rewards, list | tuple) else ()):
        yield f"reward_funcs.{number}", _function(reward)
    generation: Any = getattr(trainer, "generation_config", None)
    if hasattr(generation, "to_dict"):
        yield "generation", plain({name: item for name, item in generation.to_dict().items() if name not in _OF_PLACE})
    tokenizer = getattr(trainer, "processing_class", None)
    if tokenizer is not None:
        for name in _TOKENIZER:
            if hasattr(tokenizer, name):
                yield f"tokenizer.{name}", plain(getattr(tokenizer, name))
        yield "tokenizer.chat_template", text_digest(repr(getattr(tokenizer, "chat_template", None)))


def _function(value: Any) -> Any:
    """Return a function as JSON. An object that is called counts by its type and its simple attributes."""
    if isinstance(value, torch.nn.Module):
        return f"{type_name(value)} ({_weights_digest(value)})"
    if isinstance(value, list | tuple) or torch.is_tensor(value):
        return plain(value)
    if isinstance(value, FunctionType | MethodType | partial) or not hasattr(value, "__dict__"):
        return plain_callable(value)
    return {"type": type_name(value), **{name: item for name, item in vars(value).items() if _is_simple(item)}}


def _is_simple(value: Any) -> bool:
    """Return whether an attribute is a number or a text that says nothing about a time or a place."""
    if isinstance(value, str):
        return not Path(value).is_absolute()
    return isinstance(value, bool | int | float) and abs(value) < _EARLIEST_TIME


def _weights_digest(model: torch.nn.Module) -> str:
    """Return a digest of the weights' names, shapes and first values."""
    digest_of_weights = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        first_values = weight.detach().flatten()[:_SAMPLES].float().cpu().tolist()
        digest_of_weights.update(f"{name} {tuple(weight.shape)} {first_values}\n".encode())
    return digest_of_weights.hexdigest()[:16]
