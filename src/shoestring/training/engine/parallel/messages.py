"""Values that ranks send each other, without pickle: tensors in the format of safetensors, all else as JSON."""

import json
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

from shoestring.training.checkpoint import codec


def pack(value: Any) -> bytes:
    """Return the bytes of a tree of dicts, lists, tuples, numbers, texts and tensors, which are copied to the host.

    Raises CheckpointError for a value of another type.
    """
    skeleton, tensors = codec.pack(value)
    copies = dict[str, Tensor]()
    memory = set[int]()
    for name, tensor in tensors.items():
        copy = tensor.detach().cpu().contiguous()
        address = copy.untyped_storage().data_ptr()
        copies[name] = copy.clone() if address in memory else copy  # safetensors refuses tensors that share memory
        memory.add(address)
    return save(copies, metadata={"skeleton": json.dumps(skeleton)})


def unpack(content: bytes) -> Any:
    """Return the value that `pack` has converted."""
    length = int.from_bytes(content[:8], "little")
    skeleton = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["skeleton"])
    return codec.unpack(skeleton, load(content))
