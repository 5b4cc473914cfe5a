"""Measure the memory that cuDNN's convolutions take beside their operands and results.

    python -m benchmarks.gpu.convolutions [--json OUT]

Forward and backward of common convolutions, with the deterministic kernels of training. The extra bytes are the peak of
the allocator minus its tensors before or after the pass, whichever are more. For comparison each row has the bytes of
the operands of the pass, which the transposed copies of `planning/estimate/workspaces.py` have at most. The exit status
is 2 without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from benchmarks.gpu import harness
from torch import nn

from shoestring.training.engine.determinism import deterministic


class Shape(NamedTuple):
    """A convolution of square images."""

    name: str
    samples: int
    channels: int
    outputs: int
    kernel: int
    stride: int
    side: int
    groups: int = 1


SHAPES = (
    Shape("first layer of a ResNet", 32, 3, 64, 7, 2, 224),
    Shape("3x3, 64 channels", 32, 64, 64, 3, 1, 56),
    Shape("3x3, 128 channels", 32, 128, 128, 3, 1, 28),
    Shape("3x3, 256 channels", 32, 256, 256, 3, 1, 14),
    Shape("3x3, 512 channels", 32, 512, 512, 3, 1, 7),
    Shape("3x3 with stride 2", 32, 64, 128, 3, 2, 56),
    Shape("1x1, 64 to 256", 32, 64, 256, 1, 1, 56),
    Shape("1x1, 1024 to 256", 32, 1024, 256, 1, 1, 14),
    Shape("5x5, 32 channels", 32, 32, 64, 5, 1, 56),
    Shape("patches of 16", 32, 3, 768, 16, 16, 224),
    Shape("3x3 of large images", 2, 32, 32, 3, 1, 256),
    Shape("3x3, 13 to 64, of large images", 2, 13, 64, 3, 1, 256),
    Shape("depthwise 3x3", 32, 96, 96, 3, 1, 56, 96),
    Shape("depthwise 7x7", 32, 96, 96, 7, 1, 56, 96),
)


def measure(shape: Shape, dtype: torch.dtype, memory_format: torch.memory_format) -> dict[str, Any]:
    """Return the row of a convolution in one type and memory format."""
    padding = shape.kernel // 2 if shape.stride < shape.kernel else 0
    layer = nn.Conv2d(
        shape.channels, shape.outputs, shape.kernel, shape.stride, padding, groups=shape.groups, bias=False
    )
    layer = layer.to("cuda", dtype, memory_format=memory_format)
    images = torch.randn(shape.samples, shape.channels, shape.side, shape.side, dtype=dtype, device="cuda")
    images = images.to(memory_format=memory_format).requires_grad_()
    output, forward_bytes = _extra_bytes(lambda: layer(images))
    gradient = torch.randn_like(output)
    _, backward_bytes = _extra_bytes(lambda: output.backward(gradient))
    operands = {"input": images.nbytes, "weight": layer.weight.nbytes, "output": output.nbytes}
    return {
        "name": shape.name,
        "type": str(dtype).removeprefix("torch."),
        "format": str(memory_format).removeprefix("torch.").removesuffix("_format"),
        **{f"{name}_bytes": size for name, size in operands.items()},
        "forward_bytes": forward_bytes,
        "backward_bytes": backward_bytes,
    }


def _extra_bytes(run: Callable[[], Any]) -> tuple[Any, int]:
    """Return the result of `run`, and the bytes of the peak beside the tensors before or after it."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = run()
    torch.cuda.synchronize()
    return result, torch.cuda.max_memory_allocated() - max(before, torch.cuda.memory_allocated())


def main() -> int:
    arguments = harness.build_parser(__doc__, file="gpu_convolutions.json", seconds=60).parse_args()
    selection = harness.select_cases(dry_run=False)
    if selection is None:
        return 2
    dtypes = [torch.float32, torch.float16]
    if torch.cuda.is_bf16_supported(including_emulation=False):
        dtypes.append(torch.bfloat16)
    rows = []
    with deterministic():
        for shape in SHAPES:
            for dtype in dtypes:
                for memory_format in (torch.contiguous_format, torch.channels_last):
                    rows.append(measure(shape, dtype, memory_format))
            harness.write_results(arguments.json, selection[1], {"rows": rows})
    print(f"{'extra MiB in forward, backward (operands)':44}" + "".join(f"{str(dtype)[6:]:>30}" for dtype in dtypes))
    for shape in SHAPES:
        for memory_format in ("contiguous", "channels_last"):
            cells = [
                f"{row['forward_bytes'] / 2**20:8.1f}, {row['backward_bytes'] / 2**20:7.1f} "
                f"({(row['input_bytes'] + row['weight_bytes'] + row['output_bytes']) / 2**20:6.1f})"
                for row in rows
                if (row["name"], row["format"]) == (shape.name, memory_format)
            ]
            print(f"{shape.name:30} {memory_format:13}" + "".join(f"{cell:>30}" for cell in cells))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
