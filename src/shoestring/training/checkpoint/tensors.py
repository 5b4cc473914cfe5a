"""Writing of safetensors files tensor by tensor, without a second copy of all of them in memory.

The format is simple to write without a library: the length of a header (8 bytes, little-endian), the header as JSON,
the bytes of each tensor (https://github.com/huggingface/safetensors#format). Reading uses the library, because a file
may be malformed.
"""

import json
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from shoestring.base.errors import CheckpointError
from shoestring.training.checkpoint.files import Buffer

# The names of dtypes in the format, as in safetensors.torch.
_DTYPE_NAMES = {
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


def serialize(
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    dtypes: Mapping[str, torch.dtype] | None = None,
    read: Callable[[Tensor], Tensor] = lambda tensor: tensor,
) -> Iterator[Buffer]:
    """Yield the bytes of a safetensors file, deterministically; tensors on a GPU are copied to the host one at a time.

    Tensors named in `dtypes` are converted to that dtype. The values of each tensor are those that `read` returns when
    it is written, of the same shape and dtype.

    Raises CheckpointError for a dtype that the format does not support.
    """
    file_dtypes = {name: (dtypes or {}).get(name, tensor.dtype) for name, tensor in tensors.items()}
    # The widest dtype first, so that each tensor starts at a multiple of its element size.
    names = sorted(tensors, key=lambda name: (-file_dtypes[name].itemsize, name))
    header: dict[str, object] = {"__metadata__": dict(sorted(metadata.items()))}
    end = 0
    for name in names:
        tensor, dtype = tensors[name], file_dtypes[name]
        if dtype not in _DTYPE_NAMES:
            raise CheckpointError(f"{name} is of {dtype}, which the safetensors format does not support")
        start, end = end, end + tensor.numel() * dtype.itemsize
        header[name] = {"dtype": _DTYPE_NAMES[dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        if tensors[name].numel():
            yield tensor_bytes(read(tensors[name]).to(file_dtypes[name]))


def tensor_bytes(tensor: Tensor) -> memoryview:
    """Return a tensor's bytes, without a copy if it is contiguous and in host memory."""
    host_tensor = tensor.detach().to("cpu").resolve_conj().resolve_neg().contiguous()
    return host_tensor.reshape(-1).view(torch.uint8).numpy().data
