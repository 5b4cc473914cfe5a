"""Light checkpoints: weights alone, in the format the ecosystem loads.

`model.safetensors`; for a model that peft adapts and that trains nothing else, peft's own two files, which
`PeftModel.from_pretrained` loads: `adapter_config.json` and `adapter_model.safetensors`.
"""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from shoestring.checkpoint import codec
from shoestring.checkpoint.files import parse_json, regular_bytes, remove, replace, write_file, write_json
from shoestring.checkpoint.fitting import misfits
from shoestring.checkpoint.tensors import pieces
from shoestring.errors import CheckpointError

WEIGHTS = "model.safetensors"
ADAPTER = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
_UPDATE = re.compile(r"update-([0-9]{8,18})")


ROUNDED: Mapping[str, torch.dtype] = {"fp16": torch.float16, "bf16": torch.bfloat16}


def save_light(folder: Path, model: nn.Module, facts: dict[str, Any], *, rounded: str = "own") -> Path:
    """Replace the weights in `folder` by the model's, at once; `facts` (JSON) stand in the file's metadata.

    Parameters are `rounded` to fp16 or bf16 where they are wider, but for those whose values fp16 cannot hold; buffers
    (the statistics of a BatchNorm) stay as they are.

    Raises CheckpointError when the file cannot be written; the old one is untouched then.
    """
    adapted = _adapted(model)
    path = folder / (ADAPTER if adapted else WEIGHTS)
    metadata = {"format": "pt", "shoestring": json.dumps(codec.pack(facts)[0], allow_nan=False)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if adapted:
            # The same for every save of a run: whichever of the two files a kill leaves, they belong together.
            write_json(folder / ADAPTER_CONFIG, _adapter_config(adapted))
        weights = _weights(model)
        dtypes = _narrower(weights, model, ROUNDED[rounded]) if rounded in ROUNDED else {}
        replace(path, lambda beside: write_file(beside, pieces(weights, metadata, dtypes)))
    except OSError as error:
        raise CheckpointError(f"weights could not be written to {folder}: {error}", hint="free space there") from error
    return path


def load_light(folder: Path, model: nn.Module) -> dict[str, Any]:
    """Load the weights in `folder` into `model`; returns the facts they were saved with.

    Raises CheckpointError when there are none, or they are damaged or another model's; the model is as it was then.
    """
    adapted = _adapted(model)
    path = folder / (ADAPTER if adapted else WEIGHTS)
    try:
        regular_bytes(path)
        with safetensors.safe_open(path, framework="pt") as file:
            facts = codec.unpack(parse_json((file.metadata() or {}).get("shoestring", "{}")), {})
        if not isinstance(facts, dict):
            raise ValueError("its metadata is not an object")
        saved = safetensors.torch.load_file(path)  # mapped: only what is copied is ever read
    except (OSError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be loaded: {error}") from error
    problems = misfits(saved, _weights(model), dtypes=False)
    if problems:
        raise CheckpointError(f"{path} cannot be loaded: it is of another model", problems=problems[:20])
    if adapted:
        from peft import set_peft_model_state_dict

        set_peft_model_state_dict(adapted, saved)
    else:
        model.load_state_dict(_with_tied(saved, model), strict=True)
    return facts


def of_update(folder: Path, update: int) -> Path:
    """Where, below `folder`, the weights after an update have a directory of their own."""
    return folder / f"update-{update:08d}"


def of_updates(folder: Path) -> list[Path]:
    """All such directories that have their weights, the oldest first; not the one that is just being written."""
    return [path for path in _directories(folder) if (path / WEIGHTS).exists() or (path / ADAPTER).exists()]


def keep_newest(folder: Path, keep: int) -> None:
    """Remove all of them but the `keep` newest, as far as the system lets us."""
    kept = of_updates(folder)[-keep:]
    for path in _directories(folder):
        if path not in kept:
            remove(path)


def _directories(folder: Path) -> list[Path]:
    found = [path for path in folder.glob("update-*") if _UPDATE.fullmatch(path.name) and not path.is_symlink()]
    return sorted(found, key=lambda path: int(path.name.partition("-")[2]))


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
