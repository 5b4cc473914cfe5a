"""Light checkpoints: only weights, in the format that other libraries load.

They are stored as `model.safetensors`. For a model whose only trainable weights are adapters of peft, the files are
those of peft, `adapter_config.json` and `adapter_model.safetensors`, which `PeftModel.from_pretrained` loads.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from shoestring.base.errors import CheckpointError
from shoestring.base.reading import parse_json
from shoestring.base.system_errors import reason, remedy
from shoestring.training.checkpoint import codec, fileset
from shoestring.training.checkpoint.compatibility import state_mismatches
from shoestring.training.checkpoint.divided import divide_as
from shoestring.training.checkpoint.files import Buffer, remove_own, remove_own_renamed
from shoestring.training.checkpoint.identity import RunIdentity
from shoestring.training.checkpoint.manifest import DamagedFileError
from shoestring.training.checkpoint.mapped import READ_ERRORS, MappedFile
from shoestring.training.checkpoint.names import SAVED, removed_path, update_name, update_of
from shoestring.training.checkpoint.tensors import serialize

WEIGHTS = "model.safetensors"
ADAPTER = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"

_REMOVED = re.compile(r"\.removed-[0-9]{8,18}")

UNVERIFIED = "the weights in {folder} are not verified: there is no manifest.json with their digests"

ROUNDED: Mapping[str, torch.dtype] = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class LoadedWeights:
    """Facts about the weights that were loaded into a model."""

    facts: dict[str, Any]
    """The facts that were saved with the weights."""
    verified: bool
    """Whether the weights were verified bit for bit against a manifest; without a manifest they cannot be."""


def save_light(
    folder: Path,
    model: nn.Module,
    facts: dict[str, Any],
    *,
    rounded: str = "own",
    weights: Mapping[str, Tensor] | None = None,
    run: RunIdentity | None = None,
) -> Path:
    """Replace the weights in `folder` atomically by those of `model`; `facts` (JSON) are stored in the file's metadata.

    `weights` are those of `weights_to_save`, if they were collected from several processes. The manifest names the
    `run`; the other files do not, so equal runs have equal weights byte for byte.

    Wider parameters are `rounded` to fp16 or bf16, except those with values beyond the range of that dtype; buffers
    (the statistics of a BatchNorm) keep their dtype.

    Raises CheckpointError if a file cannot be written; the old weights are untouched then.
    """
    peft_model = _find_peft_model(model)
    path = folder / (ADAPTER if peft_model else WEIGHTS)
    metadata = {"format": "pt", "shoestring": json.dumps(codec.pack(facts)[0], allow_nan=False)}
    weights = weights_to_save(model) if weights is None else weights
    dtypes = _rounded_dtypes(weights, model, ROUNDED[rounded]) if rounded in ROUNDED else {}
    contents: dict[str, Iterable[Buffer]] = {}
    if peft_model:
        config = json.dumps(_adapter_config(peft_model), indent=1, allow_nan=False)
        contents[ADAPTER_CONFIG] = [f"{config}\n".encode()]
    contents[path.name] = serialize(weights, metadata, dtypes)
    update = facts.get("update")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fileset.replace_weights(folder, contents, update if type(update) is int and update >= 0 else None, run)
    except OSError as error:
        raise CheckpointError(
            f"weights could not be written to {folder}: {reason(error)}", hint=remedy(error)
        ) from error
    return path


def load_light(folder: Path, model: nn.Module) -> dict[str, Any]:
    """Load the weights in `folder` with `read_light` and return only their facts."""
    return read_light(folder, model).facts


def read_light(folder: Path, model: nn.Module) -> LoadedWeights:
    """Load the weights in `folder` into `model`, after verifying every byte against the manifest if there is one.

    Raises CheckpointError if the weights are missing, damaged or of another model; the model is unchanged then.
    """
    peft_model = _find_peft_model(model)
    path = folder / (ADAPTER if peft_model else WEIGHTS)
    try:
        verified = fileset.has_manifest(folder)
        file = fileset.open_verified(folder, path.name) if verified else MappedFile(path)
        facts = codec.unpack(parse_json(file.metadata.get("shoestring", "{}")), {})
        if not isinstance(facts, dict):
            raise ValueError("its metadata is not an object")
        saved = dict(file)  # memory-mapped: only the tensors that are copied are read
    except DamagedFileError as damage:
        raise CheckpointError(
            f"{folder / damage.file} cannot be loaded: {damage.reason}",
            hint="copy the folder again from its source; to load weights of your own, put them into a folder without "
            "manifest.json",
        ) from damage
    except READ_ERRORS as error:
        raise CheckpointError(f"{path} cannot be loaded: {error}") from error
    own_weights = weights_to_save(model)
    problems = state_mismatches(saved, own_weights, dtypes=False)
    if problems:
        raise CheckpointError(f"{path} cannot be loaded: its weights are of another model", problems=problems[:20])
    saved = {name: divide_as(tensor, own_weights[name]) for name, tensor in saved.items()}
    if peft_model:
        from peft import set_peft_model_state_dict

        with _without_tensor_parallelism():
            set_peft_model_state_dict(peft_model, saved)
    else:
        model.load_state_dict(_restore_tied_names(saved, model), strict=True)
    return LoadedWeights(facts=facts, verified=verified)


def has_weights(folder: Path) -> bool:
    """Return whether `folder` has weights, including committed ones that a kill left under their staged names."""
    names = (WEIGHTS, ADAPTER)
    if any((folder / name).exists() for name in names):
        return True
    return fileset.has_manifest(folder) and any(fileset.staged_path(folder, name).exists() for name in names)


def weights_folder(folder: Path, update: int) -> Path:
    """Return the directory below `folder` for the weights after `update`."""
    return folder / update_name(update)


def list_weights_folders(folder: Path) -> list[Path]:
    """Return the update directories below `folder` that have complete weights, the oldest first."""
    return list(filter(has_weights, _update_folders(folder)))


def keep_newest(folder: Path, keep: int) -> None:
    """Remove the update directories below `folder` except the `keep` newest; errors are ignored."""
    with suppress(OSError):
        newest = list_weights_folders(folder)[-keep:]
        for path in _update_folders(folder):
            if path not in newest:
                remove_weights(path)


def remove_weights(folder: Path) -> None:
    """Remove an update directory. A kill leaves all of it, or a part under another name; errors are ignored."""
    remove_own_renamed(folder, removed_path(folder), SAVED)


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process has left in update directories below `folder`; errors are ignored."""
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        if _REMOVED.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            remove_own(path, SAVED)
    for path in _update_folders(folder):
        with suppress(OSError, CheckpointError):
            fileset.complete_replacement(path)
        with suppress(OSError):  # a directory whose first weights were not complete is empty now
            path.rmdir()


def _update_folders(folder: Path) -> list[Path]:
    candidates = ((update_of(path.name), path) for path in folder.glob("update-*") if not path.is_symlink())
    return [path for update, path in sorted(pair for pair in candidates if pair[0] is not None)]


def weights_to_save(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors to save by name: those of the model, not copies; tied weights only once."""
    peft_model = _find_peft_model(model)
    if peft_model is None:
        return codec.pack(model.state_dict())[1]
    from peft import get_peft_model_state_dict

    with _without_requests(peft_model):
        # Of an embedding to which rows were added, these are the adapter's; its other rows are not trained.
        added_rows = getattr(peft_model.peft_config[peft_model.active_adapter], "trainable_token_indices", None)
        saves_embedding: Any = "auto" if added_rows is None else False
        return dict(get_peft_model_state_dict(peft_model, save_embedding_layers=saves_embedding))


@contextmanager
def _without_requests(peft_model: Any) -> Iterator[None]:
    """Let peft not look for the base model's config on the hub, nor warn that it is not there, while weights are saved.

    It compares the sizes of the vocabularies; before peft 0.21 it looks even if the base model has no name.
    """
    config = peft_model.peft_config[peft_model.active_adapter]
    name = config.base_model_name_or_path
    if not (name and Path(name).is_dir()):
        config.base_model_name_or_path = None
    try:
        yield
    finally:
        config.base_model_name_or_path = name


@contextmanager
def _without_tensor_parallelism() -> Iterator[None]:
    """Let peft not look for adapters of a tensor-parallel model, of which there are none here.

    As soon as torch.distributed is initialized, peft 0.19 imports names for it that transformers has since 5.1 only:
    with transformers 5.0, as on Kaggle's image of August 2026, processes that train together could not load adapters.
    """
    from peft.utils import save_and_load

    name = "_maybe_shard_state_dict_for_tp"
    original = getattr(save_and_load, name, None)
    if original is None:
        yield
        return
    setattr(save_and_load, name, lambda *_: None)
    try:
        yield
    finally:
        setattr(save_and_load, name, original)


def _rounded_dtypes(weights: Mapping[str, Tensor], model: nn.Module, dtype: torch.dtype) -> dict[str, torch.dtype]:
    """Return `dtype` for each parameter among the weights that is wider and whose values are within its range."""
    largest = torch.finfo(dtype).max
    buffers = {name for name, _ in model.named_buffers(remove_duplicate=False)}
    return {
        name: dtype
        for name, weight in weights.items()
        if weight.is_floating_point()
        and weight.element_size() > dtype.itemsize
        and name not in buffers
        and not (weight.numel() and bool(weight.detach().abs().max() > largest))
    }


def _restore_tied_names(saved: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Return the full `state_dict` of `model` from tensors of which tied ones were saved only once."""
    skeleton, _ = codec.pack(model.state_dict())
    return dict(codec.unpack(skeleton, saved))


def _find_peft_model(model: nn.Module) -> Any:
    """Return the `PeftModel` in `model` if nothing outside of it is trainable, else None."""
    peft = sys.modules.get("peft")  # imported already if the model was made with it
    peft_models = [module for module in model.modules() if peft and isinstance(module, peft.PeftModel)]
    if len(peft_models) != 1:
        return None
    inside = {id(parameter) for parameter in peft_models[0].parameters()}
    trains_only_adapters = all(id(parameter) in inside for parameter in model.parameters() if parameter.requires_grad)
    return peft_models[0] if trains_only_adapters else None


def _adapter_config(peft_model: Any) -> dict[str, Any]:
    """Return the adapter's configuration as peft saves it: for inference, not for further training."""
    config = {**peft_model.peft_config[peft_model.active_adapter].to_dict(), "inference_mode": True}
    if config.get("task_type") is None:
        base = type(peft_model.get_base_model())
        config["auto_mapping"] = {"base_model_class": base.__name__, "parent_library": base.__module__}
    return {key: sorted(value) if isinstance(value, set) else value for key, value in config.items()}
