"""The families of models that are written as GGUF, with the names and layouts of their tensors there.

The facts are those of llama.cpp's converter (`conversion/base.py`, `llama.py` and `qwen.py` of
github.com/ggml-org/llama.cpp, in 2025 all in `convert_hf_to_gguf.py`); the names are in the `gguf` package.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shoestring.base.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Family:
    """How a family of models is written."""

    title: str
    architecture: str
    """Its name in GGUF."""
    pairs_neighbours: bool
    """Whether llama.cpp rotates neighbouring values of a head as pairs. transformers pairs value i with i + half."""
    has_rope_factors: bool
    """Whether llama.cpp reads factors of the rotary frequencies, as scaled contexts of Llama 3.1 and later need."""


FAMILIES = {
    "llama": Family(
        title="Llama (with SmolLM and SmolLM2)", architecture="llama", pairs_neighbours=True, has_rope_factors=True
    ),
    "qwen2": Family(title="Qwen2 and Qwen2.5", architecture="qwen2", pairs_neighbours=False, has_rope_factors=False),
    "qwen3": Family(title="Qwen3", architecture="qwen3", pairs_neighbours=False, has_rope_factors=False),
}
"""The families by the `model_type` of their configuration."""


def find_family(config: Any) -> Family:
    """Return the family of a model's configuration.

    Raises UsageError for another family, and for variants that llama.cpp would compute otherwise.
    """
    family = FAMILIES.get(config.model_type)
    if family is None:
        raise UsageError(
            f"a model of the type {config.model_type} cannot be exported to gguf",
            problems=[f"{known.title} can" for known in FAMILIES.values()],
            hint="export merged weights, --to merged, and convert them with llama.cpp's convert_hf_to_gguf.py",
        )
    kind = rope(config)["rope_type"]
    sliding = [kind for kind in getattr(config, "layer_types", None) or () if kind != "full_attention"]
    problems = []
    if config.hidden_act != "silu":
        problems.append(f"hidden_act={config.hidden_act}: llama.cpp computes silu")
    if kind != "default" and not (kind == "llama3" and family.has_rope_factors):
        problems.append(f"rope_type={kind}: only {'default and llama3' if family.has_rope_factors else 'default'}")
    if sliding:
        problems.append(f"{len(sliding)} layers with {sliding[0]}: llama.cpp computes full attention")
    if problems:
        raise UsageError("this model cannot be exported to gguf", problems=problems, hint="export --to merged")
    return family


def rope(config: Any) -> dict[str, Any]:
    """Return the parameters of the rotary embedding, with `rope_type` and `rope_theta`.

    transformers 5 has them in `rope_parameters`, earlier versions in `rope_scaling` and `rope_theta`.
    """
    parameters = dict(getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {})
    parameters.setdefault("rope_type", parameters.get("type", "default"))
    parameters.setdefault("rope_theta", getattr(config, "rope_theta", 10000.0))
    return parameters


def head_size(config: Any) -> int:
    """Return the number of values in an attention head."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def tensor_names(family: Family, config: Any, names: list[str]) -> dict[str, str]:
    """Return the name in GGUF of each tensor of the model. Raises UsageError for tensors without a name there."""
    import gguf

    [architecture] = [key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == family.architecture]
    known = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    matches = {name: known.get_name(name, try_suffixes=(".weight", ".bias")) for name in names}
    problems = [name for name, gguf_name in matches.items() if gguf_name is None]
    if problems:
        raise UsageError(f"gguf has no name for tensors of this {family.title} model", problems=problems[:20])
    return {name: str(gguf_name) for name, gguf_name in matches.items()}


def in_layout(family: Family, config: Any, name: str, tensor: Tensor) -> Tensor:
    """Return a tensor, with its name in transformers, in the order of rows that llama.cpp reads."""
    if not family.pairs_neighbours:
        return tensor
    for layer, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
        if name.endswith((f".{layer}.weight", f".{layer}.bias")):
            halves: Tensor = tensor.reshape(heads, 2, -1, *tensor.shape[1:])
            return halves.transpose(1, 2).reshape(tensor.shape)
    return tensor


def rope_factors(config: Any) -> Tensor | None:
    """Return the number by which llama.cpp divides each rotary frequency, in fp32; None if the context is not scaled.

    They are computed from the frequencies of transformers itself.
    """
    parameters = rope(config)
    if parameters["rope_type"] != "llama3":
        return None
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    initialize: Any = ROPE_INIT_FUNCTIONS["llama3"]
    scaled: Tensor = initialize(config, torch.device("cpu"))[0].double()
    size = head_size(config)
    plain: Tensor = 1.0 / parameters["rope_theta"] ** (torch.arange(0, size, 2, dtype=torch.float64) / size)
    return (plain / scaled).float()
