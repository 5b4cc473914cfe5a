"""Writing a model of transformers as a GGUF file, tensor by tensor."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from shoestring.base.errors import RunError
from shoestring.base.packages import requirements
from shoestring_recipes.finetune.gguf.families import (
    find_family,
    head_size,
    in_layout,
    rope,
    rope_factors,
    tensor_names,
)
from shoestring_recipes.finetune.gguf.header import write_facts
from shoestring_recipes.finetune.gguf.vocabulary import read_vocabulary

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType

EXTRA = "finetune"
ALIGNMENT = 32
"""The bytes to whose multiples a tensor is filled up in the file."""

_FILE_TYPES = {
    "F32": "ALL_F32",
    "F16": "MOSTLY_F16",
    "BF16": "MOSTLY_BF16",
    "Q8_0": "MOSTLY_Q8_0",
    "Q5_1": "MOSTLY_Q5_1",
    "Q5_0": "MOSTLY_Q5_0",
    "Q4_1": "MOSTLY_Q4_1",
    "Q4_0": "MOSTLY_Q4_0",
}
"""The name of a file (`gguf.LlamaFileType`) by the type of its weights: those that the package can write in Python.
The ternary types are left out, which only models that are trained for them have."""


def file_bytes(config: Any, shapes: Mapping[str, tuple[int, ...]], type_name: str) -> int:
    """Return the bytes of all tensors in the file, from their shapes by their names in transformers."""
    requirements.require(EXTRA, "gguf")
    family = find_family(config)
    names = tensor_names(family, config, list(shapes))
    sizes = [_stored_bytes(shape, _choose_type(names[name], shape, type_name)) for name, shape in shapes.items()]
    if rope(config)["rope_type"] != "default":
        sizes.append(head_size(config) // 2 * 4)
    return sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)


def write_file(path: Path, model: Any, tokenizer: Any, *, type_name: str, name: str) -> tuple[str, ...]:
    """Write a model of transformers with plain weights, and its tokenizer, as a GGUF file. Return notes about it.

    `type_name` is a `GgufType`; vectors and norms are always F32. `name` is what programs show of the model. The
    model's weights are rounded in place to those in the file, so that it computes what a reader of the file should.

    Raises UsageError for models and tokenizers that llama.cpp would compute otherwise, and RunError if a weight is
    beyond the range of the type.
    """
    requirements.require(EXTRA, "gguf")
    import gguf

    config = model.config
    family = find_family(config)
    weights = _weights(model)
    names = tensor_names(family, config, list(weights))
    rows = model.get_input_embeddings().weight.shape[0]
    vocabulary = read_vocabulary(tokenizer, rows=rows, stops=_stops(model))
    types = {key: _choose_type(names[key], tuple(weight.shape), type_name) for key, weight in weights.items()}
    factors = rope_factors(config)

    writer = gguf.GGUFWriter(path, family.architecture)
    file_type = gguf.LlamaFileType[_FILE_TYPES[type_name]]
    write_facts(writer, config, rows=rows, file_type=file_type, name=name)
    vocabulary.write(writer)
    try:
        if factors is not None:
            _announce(writer, "rope_freqs.weight", tuple(factors.shape), gguf.GGMLQuantizationType.F32)
        for key, weight in weights.items():
            _announce(writer, names[key], tuple(weight.shape), types[key])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        if factors is not None:
            writer.write_tensor_data(factors.numpy())
        for key, weight in weights.items():
            stored = _encode(weight, types[key], key)
            weight.data.copy_(torch.from_numpy(gguf.quants.dequantize(stored, types[key])))
            # A block of values that share a scale lies within a row, so that whole rows can change their order after.
            writer.write_tensor_data(in_layout(family, config, key, torch.from_numpy(stored)).numpy())
    finally:
        writer.close()
    unaligned = [key for key, kind in types.items() if kind.name == "F16" != type_name]
    if unaligned:
        note = f"{len(unaligned)} weights are in F16: their rows are no multiples of the blocks of {type_name}."
        return (*vocabulary.notes, note)
    return vocabulary.notes


def _weights(model: Any) -> dict[str, Tensor]:
    """Return the parameters by name; of tied ones only the first, which is the embedding."""
    return dict(model.named_parameters())


def _stops(model: Any) -> list[int]:
    """Return the tokens at which the model ends a generation."""
    stops = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    return list(stops) if isinstance(stops, list) else [] if stops is None else [int(stops)]


def _choose_type(name: str, shape: tuple[int, ...], type_name: str) -> GGMLQuantizationType:
    """Return the type of a tensor, by its name in GGUF, in a file of weights of the type `type_name`."""
    import gguf

    kinds = gguf.GGMLQuantizationType
    if len(shape) == 1 or name.endswith("_norm.weight"):
        return kinds.F32
    block, _ = gguf.GGML_QUANT_SIZES[kinds[type_name]]
    return kinds[type_name] if shape[-1] % block == 0 else kinds.F16


def _stored_bytes(shape: tuple[int, ...], kind: GGMLQuantizationType) -> int:
    import gguf

    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    return torch.Size(shape).numel() // block * block_bytes


def _announce(writer: Any, name: str, shape: tuple[int, ...], kind: GGMLQuantizationType) -> None:
    """Add a tensor to the list in the header, before its values are computed."""
    import gguf
    import numpy

    plain = {gguf.GGMLQuantizationType.F32: numpy.float32, gguf.GGMLQuantizationType.F16: numpy.float16}
    dtype = numpy.dtype(plain.get(kind, numpy.uint8))
    bytes_shape = shape if kind in plain else gguf.quant_shape_to_byte_shape(shape, kind)
    writer.add_tensor_info(name, bytes_shape, dtype, _stored_bytes(shape, kind), raw_dtype=kind)


def _encode(weight: Tensor, kind: GGMLQuantizationType, name: str) -> Any:
    """Return the weight as an array of its type: of numbers, or of bytes in rows."""
    import gguf

    if kind.name == "F16" and weight.dtype != torch.float16:
        largest = float(weight.detach().abs().max())
        if largest > torch.finfo(torch.float16).max:
            raise RunError(
                f"{name} has a weight of {largest:.3g}, which is beyond the range of F16", hint="--set gguf_type=BF16"
            )
    return gguf.quants.quantize(weight.detach().float().cpu().contiguous().numpy(), kind)
