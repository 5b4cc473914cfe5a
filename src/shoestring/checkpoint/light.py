"""Light checkpoints: weights alone, in the format the ecosystem loads.

`model.safetensors`; for a model that peft adapts and that trains nothing else, peft's own two files, which
`PeftModel.from_pretrained` loads: `adapter_config.json` and `adapter_model.safetensors`.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from shoestring.checkpoint import codec, fileset
from shoestring.checkpoint.files import Buffer, parse_json, remove
from shoestring.checkpoint.fitting import misfits
from shoestring.checkpoint.manifest import Damaged
from shoestring.checkpoint.mapped import UNREADABLE, MappedFile
from shoestring.checkpoint.names import update_name, update_of
from shoestring.checkpoint.tensors import pieces
from shoestring.errors import CheckpointError

WEIGHTS = "model.safetensors"
ADAPTER = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"

UNVERIFIED = "the weights in {folder} are not verified: no manifest.json there has their digests"

ROUNDED: Mapping[str, torch.dtype] = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class LoadedWeights:
    """What is known of weights that are in a model now."""

    facts: dict[str, Any]
    """That they were saved with."""
    verified: bool
    """Whether they are, to the last bit, what was saved: there was a manifest to hold them against."""


def save_light(folder: Path, model: nn.Module, facts: dict[str, Any], *, rounded: str = "own") -> Path:
    """Replace the weights in `folder` by the model's, at once; `facts` (JSON) stand in the file's metadata.

    Parameters are `rounded` to fp16 or bf16 where they are wider, but for those whose values fp16 cannot hold; buffers
    (the statistics of a BatchNorm) stay as they are.

    Raises CheckpointError when the file cannot be written; the old one is untouched then.
    """
    adapted = _adapted(model)
    path = folder / (ADAPTER if adapted else WEIGHTS)
    metadata = {"format": "pt", "shoestring": json.dumps(codec.pack(facts)[0], allow_nan=False)}
    weights = _weights(model)
    dtypes = _narrower(weights, model, ROUNDED[rounded]) if rounded in ROUNDED else {}
    contents: dict[str, Iterable[Buffer]] = {}
    if adapted:
        contents[ADAPTER_CONFIG] = [(json.dumps(_adapter_config(adapted), indent=1, allow_nan=False) + "\n").encode()]
    contents[path.name] = pieces(weights, metadata, dtypes)
    update = facts.get("update")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fileset.replace_weights(folder, contents, update if type(update) is int and update >= 0 else None)
    except OSError as error:
        raise CheckpointError(f"weights could not be written to {folder}: {error}", hint="free space there") from error
    return path


def load_light(folder: Path, model: nn.Module) -> dict[str, Any]:
    """As `read_light`; returns the facts alone."""
    return read_light(folder, model).facts


def read_light(folder: Path, model: nn.Module) -> LoadedWeights:
    """Load the weights in `folder` into `model`, after every byte was held against the manifest, where there is one.

    Raises CheckpointError when there are none, or they are damaged or another model's; the model is as it was then.
    """
    adapted = _adapted(model)
    path = folder / (ADAPTER if adapted else WEIGHTS)
    try:
        verified = fileset.has_manifest(folder)
        opened = fileset.open_verified(folder, path.name) if verified else MappedFile(path)
        facts = codec.unpack(parse_json(opened.metadata.get("shoestring", "{}")), {})
        if not isinstance(facts, dict):
            raise ValueError("its metadata is not an object")
        saved = dict(opened)  # mapped: only what is copied is ever read
    except Damaged as damage:
        raise CheckpointError(
            f"{folder / damage.file} cannot be loaded: {damage.why}",
            hint="copy the folder again from where it came; files of your own are loaded where no manifest.json "
            "speaks of others",
        ) from damage
    except UNREADABLE as error:
        raise CheckpointError(f"{path} cannot be loaded: {error}") from error
    problems = misfits(saved, _weights(model), dtypes=False)
    if problems:
        raise CheckpointError(f"{path} cannot be loaded: it is of another model", problems=problems[:20])
    if adapted:
        from peft import set_peft_model_state_dict

        set_peft_model_state_dict(adapted, saved)
    else:
        model.load_state_dict(_with_tied(saved, model), strict=True)
    return LoadedWeights(facts=facts, verified=verified)


def has_weights(folder: Path) -> bool:
    """Whether there are weights in `folder`, be it under the name that a kill has kept them from taking."""
    names = (WEIGHTS, ADAPTER)
    if any((folder / name).exists() for name in names):
        return True
    return fileset.has_manifest(folder) and any(fileset.staged(folder, name).exists() for name in names)


def of_update(folder: Path, update: int) -> Path:
    """Where, below `folder`, the weights after an update have a directory of their own."""
    return folder / update_name(update)


def of_updates(folder: Path) -> list[Path]:
    """All such directories that have their weights, the oldest first; not the one that is just being written."""
    return list(filter(has_weights, _directories(folder)))


def keep_newest(folder: Path, keep: int) -> None:
    """Remove all of them but the `keep` newest, as far as the system lets us."""
    kept = of_updates(folder)[-keep:]
    for path in _directories(folder):
        if path not in kept:
            remove(path)


def _directories(folder: Path) -> list[Path]:
    found = ((update_of(path.name), path) for path in folder.glob("update-*") if not path.is_symlink())
    return [path for update, path in sorted(pair for pair in found if pair[0] is not None)]


def _weights(model: nn.Module) -> dict[str, Tensor]:
    """The tensors to save by name: the model's own, not copies, each once."""
    adapted = _adapted(model)
    if adapted is None:
        return codec.pack(model.state_dict())[1]
    from peft import get_peft_model_state_dict

    return dict(get_peft_model_state_dict(adapted))


def _narrower(weights: Mapping[str, Tensor], model: nn.Module, dtype: torch.dtype) -> dict[str, torch.dtype]:
    """The parameters among the weights that can be `dtype` and are wider now."""
    most = torch.finfo(dtype).max
    buffers = {name for name, _ in model.named_buffers(remove_duplicate=False)}
    return {
        name: dtype
        for name, weight in weights.items()
        if weight.is_floating_point()
        and weight.element_size() > dtype.itemsize
        and name not in buffers
        and not (weight.numel() and bool(weight.detach().abs().max() > most))
    }


def _with_tied(saved: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """A full state of `model` of the tensors that stand in the file once."""
    skeleton, _ = codec.pack(model.state_dict())
    return dict(codec.unpack(skeleton, saved))


def _adapted(model: nn.Module) -> Any:
    """The part of `model` that peft adapts, where nothing else of it is trained; None otherwise."""
    peft = sys.modules.get("peft")  # whoever made such a model has imported it
    found = [module for module in model.modules() if peft and isinstance(module, peft.PeftModel)]
    if len(found) != 1:
        return None
    inside = {id(parameter) for parameter in found[0].parameters()}
    alone = all(id(parameter) in inside for parameter in model.parameters() if parameter.requires_grad)
    return found[0] if alone else None


def _adapter_config(adapted: Any) -> dict[str, Any]:
    """As peft writes it: for use, not for training on."""
    config = {**adapted.peft_config[adapted.active_adapter].to_dict(), "inference_mode": True}
    if config.get("task_type") is None:
        base = type(adapted.get_base_model())
        config["auto_mapping"] = {"base_model_class": base.__name__, "parent_library": base.__module__}
    return {key: sorted(value) if isinstance(value, set) else value for key, value in config.items()}
