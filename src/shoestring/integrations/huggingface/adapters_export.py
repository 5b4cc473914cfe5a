"""A trained adapter as a folder of peft."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shoestring.base.errors import RunError
from shoestring.integrations.huggingface.packed import is_packed, unpacked_weight, without_adapters
from shoestring.integrations.huggingface.saving import quiet

BASE = "base"
"""The folder of a base with random weights, inside that of its adapter."""


def save_adapter(model: Any, folder: Path, *, source: Path | str | None) -> str:
    """Write the active adapter of peft's `model` to `folder`, and a base with random weights, which nobody has, to
    `base` inside it.

    `source` is where the base's weights are from: a folder or file, a name on the hub, or None for random weights.
    Return the name of the base that `adapter_config.json` has, or `base`.
    """
    config = model.peft_config[model.active_adapter]
    # A folder is named without its path; a name on the hub is complete.
    config.base_model_name_or_path = source.name if isinstance(source, Path) else source
    with quiet():
        model.save_pretrained(folder, save_embedding_layers=False)
        (folder / "README.md").unlink(missing_ok=True)  # a template with the path of the base
        if source is None:
            base = model.get_base_model()
            base.save_pretrained(folder / BASE, state_dict=_base_weights(base))
    return config.base_model_name_or_path or BASE


def compute_with_saved(model: Any, folder: Path, compute: Callable[[], list[Tensor]]) -> list[Tensor]:
    """Return what `compute` returns with the adapter that is read from `folder` in place of the model's own."""
    trained = model.active_adapter
    config = model.peft_config[trained]
    if getattr(config, "target_parameters", None) or getattr(config, "trainable_token_indices", None):
        return _compute_with_tensors(model, folder, compute)
    with quiet():
        model.load_adapter(folder, "exported")
    model.set_adapter("exported")
    try:
        return compute()
    finally:
        model.set_adapter(trained)
        model.delete_adapter("exported")


def _compute_with_tensors(model: Any, folder: Path, compute: Callable[[], list[Tensor]]) -> list[Tensor]:
    """Do so with the tensors of `folder` in the model's own adapter: a second one of parameters or tokens is
    none of all versions of peft, and some cannot read one of stacked experts."""
    from peft import get_peft_model_state_dict, load_peft_weights

    with quiet():
        own = get_peft_model_state_dict(model, save_embedding_layers=False)
        saved = load_peft_weights(str(folder), device="cpu")
    if saved.keys() != own.keys():
        raise RunError(f"{folder} has not the tensors of the adapter", hint="this is a defect, please report it")
    trained = {name: weight.clone() for name, weight in own.items()}
    _copy(saved, own)
    try:
        return compute()
    finally:
        _copy(trained, own)


@torch.no_grad()
def _copy(tensors: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> None:
    for name, target in targets.items():
        target.copy_(tensors[name])


def _base_weights(base: Any) -> dict[str, Tensor]:
    """Return the weights of a model without its adapters, unpacked, by the names that they have without adapters."""
    packed = {name: layer for name, layer in base.named_modules() if is_packed(layer)}
    weights = {
        without_adapters(name): weight
        for name, weight in base.state_dict().items()
        if ".lora_" not in name and ".trainable_tokens_" not in name and name.partition(".weight")[0] not in packed
    }
    unpacked = {f"{name}.weight": unpacked_weight(layer) for name, layer in packed.items()}
    return weights | {without_adapters(name): weight for name, weight in unpacked.items()}
