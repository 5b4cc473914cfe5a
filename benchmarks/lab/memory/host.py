"""Host memory of streamed blocks: what the operating system has given to them."""

from pathlib import Path

import torch

from shoestring.techniques.streaming.stream import stream_of

LARGEST_BYTES = 8 * 2**30
"""Of streamed weights that are measured, since a machine has to have the memory."""

_PAGE_BYTES = 4096


def shared_bytes() -> int:
    """Return the resident shared memory of this process, where streamed weights are (`RssShmem` of proc(5))."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["RssShmem"].split()[0]) * 1024


def streamed_bytes(model: torch.nn.Module, shared_before: int) -> int | None:
    """Return the resident bytes of the model's streamed blocks, of which every page is written to.

    A GPU that copies packed weights into them would write to all pages; a simulated one does not compute the values of
    large tensors, so their pages are not resident before. `shared_before` is `shared_bytes` before the model was built.
    Returns None if the buffers are too large to be resident here, or nothing is streamed.
    """
    streaming = stream_of(model)
    if streaming is None or sum(own.buffer.nbytes for own in streaming.weights) > LARGEST_BYTES:
        return None
    for own in streaming.weights:
        own.buffer[::_PAGE_BYTES] = 0
    return shared_bytes() - shared_before
