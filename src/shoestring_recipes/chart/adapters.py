"""Adapters of any origin in PEFT's format: a folder with `adapter_config.json` and their weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shoestring.base.errors import CheckpointError
from shoestring.base.reading import Kind, find_problems, read_json, reason
from shoestring.training.checkpoint import fileset
from shoestring.training.checkpoint.compatibility import state_mismatches
from shoestring.training.checkpoint.foreign import read_state_dict
from shoestring.training.checkpoint.light import ADAPTER_CONFIG, read_light, weights_to_save
from shoestring_recipes.chart.building import add_adapters

_KINDS = {
    "r": Kind(name="an integer from 1 to 4096", types=(int,), low=1, high=4096),
    "lora_alpha": Kind(name="a number", types=(int, float), low=0, high=1e6),
    "lora_dropout": Kind(name="a number from 0 to 1", types=(int, float), low=0, high=1),
    "target_modules": Kind(name="a list of names", types=(list,)),
    "use_rslora": Kind(name="true or false", types=(bool,)),
}
_WITHOUT_EFFECT = {
    *("peft_type", "task_type", "auto_mapping", "base_model_name_or_path", "revision", "peft_version", "bias"),
    *("inference_mode", "init_lora_weights", "megatron_core", "qalora_group_size"),
}
"""Fields that do not change adapters with given weights, or that are compared below."""


def is_adapter(folder: Path) -> bool:
    """Return whether a folder has adapters rather than whole weights."""
    return (folder / ADAPTER_CONFIG).is_file()


def load_adapters(folder: Path, base: Any) -> Any:
    """Return `base` with the adapters in `folder`.

    Raises CheckpointError if they cannot be read, are of a kind other than plain LoRA, or belong to another model.
    """
    from peft import LoraConfig, set_peft_model_state_dict

    try:
        model = add_adapters(base, LoraConfig(**_read_config(folder)))
    except ValueError as error:  # no layer has one of the names
        raise CheckpointError(f"the adapters in {folder} belong to another model: {error}") from error
    if fileset.has_manifest(folder):  # a run's own, whose digests are verified
        read_light(folder, model)
        return model
    saved = read_state_dict(folder)
    if problems := state_mismatches(saved, weights_to_save(model), dtypes=False):
        raise CheckpointError(f"the adapters in {folder} belong to another model", problems=problems[:20])
    set_peft_model_state_dict(model, saved)
    return model


def _read_config(folder: Path) -> dict[str, Any]:
    file = folder / ADAPTER_CONFIG
    try:
        values = read_json(file, follow=True)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read: {reason(error)}") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{file} does not contain a JSON object")
    problems = [f"{name}: is missing" for name in ("r", "lora_alpha", "target_modules") if name not in values]
    problems += find_problems(values, _KINDS)
    problems += [
        f"{name}={str(values[name])[:40]}: only {expected} is supported"
        for name, expected in (("peft_type", "LORA"), ("bias", "none"))
        if values.get(name, expected) != expected
    ]
    problems += [
        f"{name}={str(value)[:40]}: is not supported"
        for name, value in values.items()
        if value and name not in _KINDS and name not in _WITHOUT_EFFECT
    ]
    names = values.get("target_modules")
    if isinstance(names, list) and not all(isinstance(name, str) for name in names):
        problems.append("target_modules: a member is not a name")
    if problems:
        raise CheckpointError(f"{file} cannot be used", problems=problems[:20], hint="use adapters of plain LoRA")
    return {name: values[name] for name in _KINDS if name in values}
