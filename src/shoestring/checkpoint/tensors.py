"""Tensors to safetensors files, one after another: no second copy of them is ever in memory.

The format is one of the few that need no library to write: the length of a header (8 bytes, little-endian), the header
as JSON, the bytes of each tensor (https://github.com/huggingface/safetensors#format). Reading, where a file may lie,
is left to the library.
"""

import json
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from shoestring.checkpoint.files import Buffer
from shoestring.errors import CheckpointError

# Names of the format, as safetensors.torch has them.
_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def pieces(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str], dtypes: Mapping[str, torch.dtype] | None = None
) -> Iterator[Buffer]:
    """The bytes of a safetensors file, the same ones for the same tensors; those on a GPU come one at a time.

    Those named in `dtypes` are rounded to them.

    Raises CheckpointError for a dtype that the format has no name for.
    """
    written = {name: (dtypes or {}).get(name, tensor.dtype) for name, tensor in tensors.items()}
    # The widest first, so that each begins at a multiple of its own width.
    names = sorted(tensors, key=lambda name: (-written[name].itemsize, name))
    header: dict[str, object] = {"__metadata__": dict(sorted(metadata.items()))}
    end = 0
    for name in names:
        tensor, dtype = tensors[name], written[name]
        if dtype not in _NAMES:
            raise CheckpointError(f"{name} is of {dtype}, which a safetensors file cannot hold")
        start, end = end, end + tensor.numel() * dtype.itemsize
        header[name] = {"dtype": _NAMES[dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        if tensors[name].numel():
            yield raw(tensors[name].to(written[name]))


def raw(tensor: Tensor) -> memoryview:
    """A tensor's bytes, without a copy where it is contiguous and in host memory."""
    here = tensor.detach().to("cpu").resolve_conj().resolve_neg().contiguous()
    return here.reshape(-1).view(torch.uint8).numpy().data
