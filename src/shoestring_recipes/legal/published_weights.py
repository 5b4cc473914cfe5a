"""Whole classifiers of other programs: transformers' BertForSequenceClassification, and the guide's checkpoints.

Both name the encoder `bert` and the head `classifier`. The guide (github.com/gradientgeeks/nyaya) stores
`{"model_state_dict": ..., ...}`. Its classes are in the alphabetical order of scikit-learn's LabelEncoder, not in that
of its list of roles (`server/src/models/training/data_loader.py`).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import BertConfig

from shoestring.base.errors import UsageError
from shoestring.integrations.huggingface import pretrained
from shoestring.training.checkpoint.foreign import load_foreign, load_state, read_state_dict
from shoestring_recipes.legal.classifier import SIZES, RoleClassifier, load_configuration
from shoestring_recipes.legal.roles import SETS

_PREFIXES = {"bert.": "encoder.", "classifier.": "head."}
_DERIVED = ".position_ids"
"""Tensors of older versions that are derived from the shape."""


def load_classifier(
    path: Path, *, size: str, roles: Sequence[str], encoder: str | None, download: bool
) -> RoleClassifier:
    """Return a classifier with the weights at `path`, a file or a folder, with its names or those of other programs.

    The option `encoder` has the configuration and the tokenizer.

    Raises CheckpointError if the weights cannot be read, UsageError if their classes are not `roles`.
    """
    if encoder is None:
        configuration = BertConfig(**SIZES[size])
    else:
        with pretrained.reading(f"encoder={encoder}"):
            configuration = load_configuration(pretrained.find(encoder, download=download))
    model = RoleClassifier(configuration, roles=len(roles))
    state = read_state_dict(path)
    if not any(name.startswith("bert.") for name in state):
        load_foreign(path, model)
        return model
    if encoder is None:
        raise UsageError(
            f"the weights in {path} need their tokenizer",
            hint=f"set encoder={path}"
            if path.is_dir()
            else "set encoder to the base model that the weights were fine-tuned from",
        )
    labels = _read_labels(path)
    if sorted(labels) != sorted(roles):
        raise UsageError(
            f"the weights in {path} have the classes {', '.join(labels)}, but the roles are {', '.join(roles)}",
            hint=f"--set 'roles={','.join(labels)}'; name the classes in id2label of config.json if they have no names",
        )
    load_state(path, _translate(state, [labels.index(role) for role in roles]), model)
    return model


def _read_labels(path: Path) -> list[str]:
    """Return the names of the classes in their order in the weights."""
    if not path.is_dir():
        return sorted(SETS["legalseg"])
    with pretrained.reading(str(path)):
        names: dict[Any, Any] = dict(load_configuration(path).id2label or {})
        return [str(names[number]) for number in sorted(names)]


def _translate(state: dict[str, Tensor], order: list[int]) -> dict[str, Tensor]:
    """Return the tensors under the names of `RoleClassifier`, with the classes in `order`."""
    translated = {}
    for name, tensor in state.items():
        if name.endswith(_DERIVED):
            continue
        prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), "")
        is_head = prefix == "classifier." and len(tensor) == len(order)
        translated[_PREFIXES.get(prefix, "") + name.removeprefix(prefix)] = tensor[order] if is_head else tensor
    return translated
