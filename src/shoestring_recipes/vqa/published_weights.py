"""The guide's checkpoints: the same tensors as those of `Student` under other names.

The guide (github.com/NghiaZun/ViVQA, `model.py`) stores `torch.save(model.state_dict())`. Its tags are ordinary text,
of which ViT5's tokenizer has no `<`; here they are tokens of their own. So its weights are a start for training, but
its texts are not parsed.
"""

from pathlib import Path

from torch import nn

from shoestring.base.errors import UsageError
from shoestring.training.checkpoint.foreign import load_foreign, load_state, read_state_dict

_PREFIXES = {"vision_encoder.": "vision.", "text_encoder.": "text.", "decoder.": "writer.", "fusion.": "fusion."}
_DERIVED = ("text_encoder.embeddings.position_ids", "text_encoder.embeddings.token_type_ids")
"""Tensors of older versions that are derived from the shape."""


def load_student(path: Path, model: nn.Module, *, has_tokenizers: bool) -> None:
    """Load all weights of a student, with its names or the guide's, from a file or a folder.

    Raises CheckpointError if they cannot be read or belong to another model, UsageError for the guide's without
    the tokenizers of their text models.
    """
    state = read_state_dict(path)
    if not any(name.startswith("vision_encoder.") for name in state):
        load_foreign(path, model)
        return
    if not has_tokenizers:
        raise UsageError(
            f"the weights in {path} need their tokenizers", hint="set text_from and writer_from: PhoBERT and ViT5"
        )
    translated = {}
    for name, tensor in state.items():
        prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), "")
        if name not in _DERIVED:
            translated[_PREFIXES.get(prefix, "") + name.removeprefix(prefix)] = tensor
    load_state(path, translated, model)
