"""Workspaces of cuDNN's convolutions: the memory that a kernel takes from the allocator while it runs.

cuDNN chooses one of several kernels for each convolution, by heuristics that are not published, and their workspaces
differ (`cudnnConvolutionFwdAlgo_t` in NVIDIA's documentation of its legacy API):

- implicit GEMM, fused Winograd and the direct kernels of grouped convolutions have none, or a few megabytes;
- the kernels for tensor cores compute channels-last. For channels-first tensors the workspace contains the transposed
  operands, and results before they are transposed back (`nchwToNhwcKernel`, `nhwcToNchwKernel`);
- GEMM has a matrix of the input's patches, and FFT and non-fused Winograd have transformed operands, which are several
  times as large. They are not modeled: the reports below have FFT only for kernels of 5x5 and the others not at all.

How often the second kind is chosen is published for two networks in TF32. In a step of AlexNet on an A100 (Kempner
Institute's computing handbook, report of Nsight Systems) all nine passes of its three 3x3 convolutions transpose: 18
operands to channels-last and 8 results back, since one kernel in three of the forward pass (`nhwckrsc_nchw`) writes
channels-first itself. In ResNet-18's forward pass on an RTX 5070 Ti 17 of 20 convolutions do.

Both outcomes are possible for each convolution, so there are two replays: without workspaces for the expected value,
and for the upper bound with the transposed operands of every convolution that tensor cores can compute. In the latter
no workspace of the forward pass contains the result: larger ones would leave larger blocks, which backward reuses.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoestring.base.settings import Precision
from shoestring.planning.trace.convolution import ConvolutionShape
from shoestring.planning.trace.record import Event, Op, Phase

_FORWARD = "aten::convolution"
_BACKWARD = "aten::convolution_backward"
CONVOLUTIONS = frozenset((_FORWARD, _BACKWARD))

_TENSOR_CORES = {"fp16": (7, 0), "bf16": (8, 0), "fp32": (8, 0)}
"""The first compute capability whose tensor cores compute the type: fp32 as TF32, which torch allows for convolutions
by default (`torch.backends.cudnn.allow_tf32`)."""

_ELEMENT_BYTES: dict[Precision, int] = {"fp16": 2, "bf16": 2, "fp32": 4}


def transposed_bytes(op: Op, capability: tuple[int, int]) -> int:
    """Return the largest workspace, in bytes, of a convolution that tensor cores compute from channels-first tensors.

    The forward pass needs its input and its weight, and each pass of backward the output's gradient, the input or its
    gradient, and the weight or its gradient. 0 for grouped convolutions, for channels-last tensors, and if the tensor
    cores do not compute the type. Where the trace does not tell the operands apart (transposed convolutions, and
    backward passes for one of two gradients), the bytes of all operands, which are at least as many.
    """
    if capability < _TENSOR_CORES[op.precision]:
        return 0
    if not op.shape:
        return op.bytes
    groups, rows, outputs, _ = op.shape[:4]
    is_channels_last = len(op.shape) == len(ConvolutionShape._fields) and ConvolutionShape(*op.shape).channels_last
    if groups > 1 or is_channels_last:
        return 0
    output = rows * outputs * _ELEMENT_BYTES[op.precision]
    if op.name == _FORWARD:
        return op.bytes - output
    # Both gradients: the operator moves the output's gradient once, the others twice.
    return (op.bytes + output) // 2 if op.launches == 2 else op.bytes


def distinct_bytes(events: Sequence[Event], capability: tuple[int, int]) -> int:
    """Return the sum of the different sizes of `transposed_bytes`: equal workspaces follow each other in one block.

    0 if no operator before the first backward pass is a convolution.
    """
    if not _begins_with_convolutions(events):
        return 0
    convolutions = (event for event in events if isinstance(event, Op) and event.name in CONVOLUTIONS)
    return sum({transposed_bytes(op, capability) for op in convolutions})


def _begins_with_convolutions(events: Sequence[Event]) -> bool:
    for event in events:
        if isinstance(event, Op) and event.name in CONVOLUTIONS:
            return True
        if isinstance(event, Phase) and event.name == "backward":
            return False
    return False
